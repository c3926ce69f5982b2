"""Exceptions of features."""

from penumbra.artifacts.errors import PenumbraError


class FeatureError(PenumbraError):
    """Error for an encoder, a source or a file from which features can't be made; the message names the remedy."""


class VideoError(Exception):
    """Error for a video or feature array that can't be used; its row is rejected, and its `reason` is counted."""

    def __init__(self, reason: str, value: object = "") -> None:
        super().__init__(reason, value)
        self.reason, self.value = reason, str(value)
