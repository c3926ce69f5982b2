"""Hides the package with the small language model from tests, which would load it for seconds by default."""
