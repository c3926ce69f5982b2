"""Evaluation: predictions, their figures, false sentences, and paired comparison of two runs."""
