"""The settings of a quality report, and a row's place in its samples."""

from typing import Literal

from pydantic import Field

from penumbra.tasks.negatives.providers.draws import row_seed
from penumbra.tasks.stage import Parameters

Classifier = Literal["words", "characters", "sentences", "gru"]


class Judging(Parameters):
    """How the negatives are judged; docs/results/negatives.md says what is measured."""

    judge: bool = Field(True, description="Whether a run ends with a quality report.")
    sample: int = Field(
        600,
        ge=0,
        description="Queries for the figures that need a parser or a sentence encoder, and for the classifiers beside "
        "`words`; 0: all of them.",
    )
    queries: int = Field(
        10_000,
        ge=0,
        description="Queries for blind AUC by `words` and for plausibility; 0: all of them. Counts see every row.",
    )
    classifiers: list[Classifier] = Field(
        ["words", "characters", "sentences"],
        description="Blind classifiers. words: 1- and 2-grams, the definition; characters: 2- to 4-grams; "
        "sentences: SentenceBERT vectors; gru: a small recurrent network, slow.",
    )
    controls: bool = Field(True, description="Whether to judge random fills and the nearest other queries as well.")
    resamples: int = Field(200, ge=0, description="Bootstrap resamples (of videos) for the 95 % intervals; 0: none.")
    sampling_seed: int = Field(0, description="The same seed gives the same samples, random fills and intervals.")


def draw(seed: int, qid: str) -> int:
    """A query's place in the line for the samples: the same whatever else there is."""
    return row_seed(seed, qid, 4)
