"""How the negatives are chosen from the candidates of all providers."""
