"""What is not the code's fault: a missing file, a model that can't be loaded, a damaged artifact."""


class PenumbraError(Exception):
    """Something outside the code is wrong; the message is one line that names it and the remedy."""
