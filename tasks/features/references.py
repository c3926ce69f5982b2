"""What `extract-features` makes, as references that whoever goes on from there takes."""

from dataclasses import dataclass

from penumbra.artifacts.manifest import Artifact


@dataclass(frozen=True)
class ExtractedFeatures:
    """All that is made on the way, for whoever goes on from here; `outcome` says in a line how it ended."""

    annotations: Artifact
    text_features: Artifact
    video_features: tuple[Artifact, ...]
    patch_features: Artifact | None
    outcome: str | None = None

    @property
    def path(self) -> str:
        """Where the features of the videos lie."""
        return self.video_features[0].path
