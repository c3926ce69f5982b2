"""Exceptions of features."""

from penumbra.artifacts.errors import PenumbraError


class FeatureError(PenumbraError):
    """Features can't be made: an encoder, a source or a file is unusable; the message says which, and the remedy."""


class VideoError(Exception):
    """A single video or its feature array can't be used, and its row is rejected.

    Args:
        reason: the reason, which is counted
        value: details of this video

    """

    def __init__(self, reason: str, value: object = "") -> None:
        super().__init__(reason, value)
        self.reason, self.value = reason, str(value)
