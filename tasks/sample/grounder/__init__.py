"""The shipped grounding model: what it is pre-trained on, and how its weights are kept."""
