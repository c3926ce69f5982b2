"""All parameter groups of `build-negatives`, for the flows that do its work on the way."""

from typing import Literal

from pydantic import Field, field_validator

from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.in_video_negatives import Pairing
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.stage import Parameters
from penumbra.tasks.text.embeddings import Encoding
from penumbra.tasks.text.masks import Masking
from penumbra.tasks.text.tags import Tagging


class NegativeSource(Parameters):
    """Where the negatives come from."""

    source: Literal["fills", "nearest", "imported"] = Field(
        "fills",
        description="fills: chosen of what the providers filled; nearest: other training queries, a control; imported: "
        "what others have made.",
    )
    file: str = Field(
        "", description="The file of `imported`: JSON lines, CSV or TSV; without one it is what was imported last."
    )
    ranks: tuple[int, int, int] = Field(
        (1, 30, 300),
        description="Of `nearest`: how many other queries are nearer than each level's, this one included. On "
        "Charades-CG the mean cosines are then 0.87, 0.76 and 0.52.",
    )

    @field_validator("ranks")
    @classmethod
    def _rising(cls, ranks: tuple[int, int, int]) -> tuple[int, int, int]:
        if not 1 <= ranks[0] < ranks[1] < ranks[2]:
            raise ValueError(f"ranks {ranks} must rise from 1 on, as (1, 30, 300)")
        return ranks


class QualityConfig(Parameters):
    """How the negatives are evaluated; docs/results/negatives.md says what is measured."""

    judge: bool = Field(True, description="Whether a run ends with a quality report.")
    sample: int = Field(
        600,
        ge=0,
        description="Queries for the figures that need a parser or a sentence encoder; 0: all. Blind AUC by words and "
        "plausibility use at least 10,000 if there are so many, and counts use every row.",
    )
    resamples: int = Field(200, ge=0, description="Bootstrap resamples (of videos) for the 95 % intervals; 0: none.")


class NegativesParameters(Parameters):
    """How the negatives are built: the groups of `build-negatives`."""

    sourcing: NegativeSource = NegativeSource()
    tagging: Tagging = Tagging()
    masking: Masking = Masking()
    filling: Filling = Filling()
    encoding: Encoding = Encoding()
    choosing: Choosing = Choosing()
    pairing: Pairing = Pairing()
    judging: QualityConfig = QualityConfig()
