"""What `build-negatives` takes and gives, for its own flow and for those that have negatives built on the way."""

from dataclasses import dataclass

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.negatives.fills import Filling
from penumbra.tasks.negatives.in_video_negatives import Pairing
from penumbra.tasks.negatives.quality.judging import Judging
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.stage import Parameters
from penumbra.tasks.text.embeddings import Encoding
from penumbra.tasks.text.masks import Masking
from penumbra.tasks.text.tags import Tagging


class NegativesParameters(Parameters):
    """How the negatives are built: the groups of `build-negatives`."""

    tagging: Tagging = Tagging()
    masking: Masking = Masking()
    filling: Filling = Filling()
    encoding: Encoding = Encoding()
    choosing: Choosing = Choosing()
    pairing: Pairing = Pairing()
    judging: Judging = Judging()


@dataclass(frozen=True)
class Negatives:
    """All that is made on the way, for whoever goes on from here; `outcome` says in a line how it ended."""

    annotations: Artifact
    tags: Artifact
    dictionary: Artifact
    masks: Artifact
    fills: tuple[Artifact, ...]
    embeddings: Artifact
    negatives: Artifact
    in_video_negatives: Artifact
    rejected: Artifact
    quality: Artifact | None
    outcome: str | None = None

    @property
    def path(self) -> str:
        """Where the negatives lie."""
        return self.negatives.path
