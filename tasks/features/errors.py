"""Exceptions of features."""

from penumbra.artifacts.errors import PenumbraError


class FeatureError(PenumbraError):
    """Features can't be made: an encoder, a source or a file is unusable; the message says which, and the remedy."""


class VideoError(Exception):
    """A video or its feature array can't be used; its row is rejected, and `reason` counted."""

    def __init__(self, reason: str, value: object = "") -> None:
        super().__init__(reason, value)
        self.reason, self.value = reason, str(value)
