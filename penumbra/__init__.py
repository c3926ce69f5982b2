"""Hierarchical hard negatives for temporal grounding, and the training that uses them."""
