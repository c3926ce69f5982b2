"""One HTML file for looking at a data set's queries, their negatives, and what runs predict of them."""
