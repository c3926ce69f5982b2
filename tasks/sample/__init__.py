"""What makes the things that ship: the sample data set, the tagger and the small CLIP."""
