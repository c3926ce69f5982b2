"""Negatives of any origin, in one form: what a report needs to know of each."""

from dataclasses import dataclass

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.negatives.providers.draws import row_seed


class NegativesError(PenumbraError):
    """A file of negatives can't be judged; the message names file, row and remedy."""


@dataclass(frozen=True, slots=True)
class Negative:
    """One negative beside its query; `masked` and `slots` where they are known, `similarity` (cosine) likewise."""

    qid: str
    vid: str
    level: int
    positive: str
    negative: str
    provider: str
    masked: str | None = None
    slots: tuple[Slot, ...] | None = None
    similarity: float | None = None


def draw(seed: int, qid: str) -> int:
    """A query's place in the line for the samples: the same whatever else there is."""
    return row_seed(seed, qid, 4)
