"""What `build-negatives` makes, as references that whoever goes on from there takes."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from penumbra.artifacts.manifest import Artifact


class Queries(NamedTuple):
    """What is known of the queries before any is negated."""

    annotations: Artifact
    tags: Artifact
    embeddings: Artifact
    in_video_negatives: Artifact


@dataclass(frozen=True)
class Negatives:
    """All that is made on the way, for whoever goes on from here; `outcome` says in a line how it ended.

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

    def ended(self, outcome: str) -> "Negatives":
        """The same, of a run that ended so."""
        return replace(self, outcome=outcome)

    @property
    def stages(self) -> tuple[Artifact, ...]:
        """What was made, as a report lists it."""
        masks, quality = ((it,) if it else () for it in (self.masks, self.quality))
        return (
            self.annotations,
            self.tags,
            self.dictionary,
            *masks,
            *self.fills,
            self.negatives,
            self.in_video_negatives,
            self.rejected,
            *quality,
        )

    @property
    def path(self) -> str:
        """Where the negatives lie."""
        return self.negatives.path
