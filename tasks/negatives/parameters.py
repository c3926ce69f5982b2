"""The parameters of `build-negatives`, and references to the artifacts that it makes."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from penumbra.artifacts.manifest import Artifact
from penumbra.tasks.data.annotations import TRAINING, splits_parameter
from penumbra.tasks.negatives.in_video_negatives import Pairing
from penumbra.tasks.negatives.language_model_weights import SMALL_MODEL
from penumbra.tasks.negatives.providers.settings import Filling
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.text.embeddings import Encoding
from penumbra.tasks.text.masks import Masking
from penumbra.tasks.text.tags import Tagging


class NegativeSource(Parameters):
    """The source of the negatives."""

    source: Literal["fills", "nearest", "imported"] = Field(
        "fills",
        description="fills: chosen from the providers' fills; nearest: other training queries, a control; imported: "
        "negatives made elsewhere.",
    )
    file: str = Field(
        "", description="For `imported`: a file of JSON lines, CSV, TSV or Parquet. Default: the newest import."
    )
    ranks: tuple[int, int, int] = Field(
        (1, 30, 300),
        description="For `nearest`: the rank of each level's query among the other queries, by cosine. On "
        "Charades-CG the mean cosines are then 0.87, 0.76 and 0.52.",
    )

    splits: tuple[str, ...] = Field(
        TRAINING,
        min_length=1,
        description="Splits whose queries get negatives. Negatives of other splits than `train` are used only to judge "
        "whether runs reject them; no training reads them.",
    )
    kind: str = Field(
        "",
        max_length=40,
        pattern=r"^[\w ,.'()-]*$",
        description="For `imported`: the kind of false sentences in the file, such as `another domain`. They are then "
        "used only to judge runs.",
    )

    @property
    def is_for_judging(self) -> bool:
        return self.splits != TRAINING or bool(self.kind)

    def key_parameters(self) -> dict[str, Any]:
        """Return the parameters that enter a key; `inputs` adds the digest of a file."""
        ranks = {"ranks": list(self.ranks)} if self.source == "nearest" else {}
        kind = {"kind": self.kind} if self.kind else {}
        return {"source": self.source, **ranks, **kind, **splits_parameter(self.splits)}

    @model_validator(mode="after")
    def _apart(self) -> "NegativeSource":
        if self.splits != TRAINING and set(TRAINING) & set(self.splits):
            raise ValueError(
                "negatives of train are for training, negatives of other splits for judging: build them in two runs"
            )
        if self.splits != TRAINING and self.source != "fills":
            raise ValueError(f"splits are for the source fills, not for {self.source}")
        if self.kind and self.source != "imported":
            raise ValueError("kind is for negatives of a file: penumbra run import-negatives DATASET")
        return self

    @field_validator("ranks")
    @classmethod
    def _rising(cls, ranks: tuple[int, int, int]) -> tuple[int, int, int]:
        if not 1 <= ranks[0] < ranks[1] < ranks[2]:
            raise ValueError(f"ranks {ranks} must rise from 1 on, as (1, 30, 300)")
        return ranks


class QualityConfig(Parameters):
    """The quality report on the negatives; docs/results/negatives.md describes the measures."""

    judge: bool = Field(True, description="Whether a run ends with a quality report.")
    sample: int = Field(
        600,
        ge=0,
        description="Queries for the figures that need a parser or a sentence encoder; 0: all. Blind AUC by words and "
        "plausibility use at least 10,000 if there are so many, and counts use every row.",
    )
    language_model: str = Field(
        SMALL_MODEL,
        min_length=1,
        description="The language model that judges: a name on the hub, a folder or a GGUF file. Choose a model that "
        "does not fill the masks.",
    )
    resamples: int = Field(200, ge=0, description="Bootstrap resamples (of videos) for the 95 % intervals; 0: none.")


class NegativesParameters(Parameters):
    sourcing: NegativeSource = NegativeSource()
    tagging: Tagging = Tagging()
    masking: Masking = Masking()
    filling: Filling = Filling()
    encoding: Encoding = Encoding()
    choosing: Choosing = Choosing()
    pairing: Pairing = Pairing()
    judging: QualityConfig = QualityConfig()


class Queries(NamedTuple):
    annotations: Artifact
    tags: Artifact
    embeddings: Artifact
    in_video_negatives: Artifact


@dataclass(frozen=True)
class Negatives:
    """All artifacts of a run, and its `outcome` in one line. Whole sentences have no masks and no fills."""

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
