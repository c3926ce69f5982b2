"""Training, evaluation, comparison and use of grounding models."""
