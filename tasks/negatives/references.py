"""References to the artifacts that `build-negatives` makes, for the flows that continue from them."""

from dataclasses import dataclass
from typing import NamedTuple

from penumbra.artifacts.manifest import Artifact


class Queries(NamedTuple):
    annotations: Artifact
    tags: Artifact
    embeddings: Artifact
    in_video_negatives: Artifact


@dataclass(frozen=True)
class Negatives:
    """All artifacts of a run; `outcome` describes the result of the run in one line.

    Negatives that are whole sentences have no masks and no fills.
    """

    annotations: Artifact
    tags: Artifact
    dictionary: Artifact
    masks: Artifact | None
    fills: tuple[Artifact, ...]
    embeddings: Artifact
    negatives: Artifact
    in_video_negatives: Artifact
    rejected: Artifact
    quality: Artifact | None
    outcome: str | None = None

    @property
    def stages(self) -> tuple[Artifact, ...]:
        """The artifacts that a report lists, in the order in which they were made."""
        first = (self.annotations, self.tags, self.dictionary, self.masks)
        last = (self.negatives, self.in_video_negatives, self.rejected, self.quality)
        return tuple(artifact for artifact in (*first, *self.fills, *last) if artifact)

    @property
    def path(self) -> str:
        return self.negatives.path
