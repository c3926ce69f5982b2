"""Evaluation as the field does it: moment retrieval, highlights, paired comparison, submission files."""
