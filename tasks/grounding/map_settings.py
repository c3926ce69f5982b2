"""Parameter groups of models on a map of candidate moments (MMN, VDI): sizes, and losses."""

from typing import Literal

from penumbra.models.losses.mmn import MMNLossSettings
from penumbra.models.mmn import MMNSettings
from penumbra.tasks.stage import Parameters
from pydantic import Field, model_validator


class Map(Parameters):
    """MMN: the map, its convolutions, and how windows are made of it; the defaults are those of Charades-STA."""

    clips: int = Field(16, ge=2, description="Width of the map: clips that a video is seen as.")
    segments: int = Field(32, ge=2, description="Equal parts of a video that its features are averaged to.")
    pool: int = Field(2, ge=1, description="Segments that are averaged to a clip.")
    counts: tuple[int, ...] = Field(
        (15,), min_length=1, description="Steps to longer moments, each 1 clip longer, then 2, then 4, …"
    )
    kind: Literal["pool", "conv"] = Field("pool", description="How a moment's feature is made of its clips'.")
    hidden: int = Field(512, ge=1, description="Width of clips and of the map.")
    proposal: int = Field(512, ge=1, description="Width of the convolutions over the map.")
    kernel: int = Field(5, ge=1, description="Their kernel.")
    layers: int = Field(8, ge=1, description="How many.")
    joint: int = Field(256, ge=1, description="Width of the two spaces that sentences and moments share.")
    power: float = Field(0.5, ge=0, description="Share of the contrastive score in a moment's: its exponent.")
    suppression: float = Field(0.5, ge=0, le=1, description="A moment that overlaps a better one by more is dropped.")
    keep: int = Field(10, ge=1, description="Windows of a query.")

    @model_validator(mode="after")
    def _is_a_map(self) -> "Map":
        self.settings(1, 1)
        if self.clips <= sum(count * 2**group for group, count in enumerate(self.counts)):
            raise ValueError(f"a map of {self.clips} clips is too narrow for steps {self.counts}")
        if (self.kernel - 1) * self.layers % 2:
            raise ValueError(f"{self.layers} layers of kernel {self.kernel} change the size of the map")
        return self

    def settings(self, video_dim: int, text_dim: int) -> MMNSettings:
        """The model's settings for features of these widths."""
        sizes = self.model_dump(exclude={"power", "suppression", "keep"})
        return MMNSettings(video_dim=video_dim, text_dim=text_dim, **sizes)


class Injection(Parameters):
    """VDI: the text encoder that is trained, and the two injections; the defaults are the paper's but for `dynamic`."""

    encoder: str = Field(
        "openai/clip-vit-base-patch32",
        description="CLIP whose text encoder is trained, the same as that of the video features.",
    )
    text_rate: float = Field(0.1, ge=0, description="Its share of the learning rate; 0: it is frozen.")
    context: float = Field(0.5, ge=0, description="Weight of the visual context injection.")
    dynamic: float = Field(
        0.0, ge=0, description="Weight of the spatial dynamic injection, the paper's 0.01; it needs patch_features."
    )
    sequence: Literal["transformer", "lstm"] = Field("transformer", description="What reads the frames in their order.")
    heads: int = Field(8, ge=1, description="Attention heads of the injections.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Their dropout.")
    fixed_target: bool = Field(False, description="Whether what is seen is a target without gradient.")


class Mutual(Parameters):
    """MMN: overlap and mutual matching losses; the defaults are those of Charades-STA."""

    lowest: float = Field(
        0.5, ge=0, lt=1, description="Overlap with the truth from which a moment is worth more than 0."
    )
    highest: float = Field(1.0, gt=0, le=1, description="Overlap from which it is worth 1.")
    positives: int = Field(1, ge=1, description="Moments that count as a sentence's own: those of the most overlap.")
    negative_overlap: float = Field(0.5, ge=0, le=1, description="Moments of less overlap are negatives of a sentence.")
    removal_overlap: float = Field(
        0.5, ge=0, le=1, description="Sentences of a video whose windows overlap by so much are no negatives."
    )
    temperature_video: float = Field(0.1, gt=0, description="Of a moment among sentences.")
    temperature_sentence: float = Field(0.1, gt=0, description="Of a sentence among moments.")
    margin: float = Field(0.4, ge=0, description="By which a positive's cosine is lowered.")
    contrastive: float = Field(0.05, ge=0, description="Weight of both mutual losses.")
    late: float = Field(0.01, ge=0, description="What that weight is multiplied by after its first epochs.")
    full_epochs: int = Field(7, ge=0, description="Epochs of the full weight.")
    in_video: bool = Field(
        False, description="Sentences of the same video are negatives only where `in_video_negatives` lists them."
    )
    hard_order: float = Field(0.0, ge=0, description="Weight of SHINE's order of hard negatives (with shine).")
    hard_margin: float = Field(0.1, ge=0, description="Its margin.")
    most_sentences: int | None = Field(None, ge=1, description="Sentences of a video in a step, drawn each epoch.")

    @model_validator(mode="after")
    def _is_a_loss(self) -> "Mutual":
        self.settings(hard=False)
        return self

    def settings(self, hard: bool) -> MMNLossSettings:
        """The losses; `hard` puts hard negatives among the sentences that a moment is told from."""
        chosen = self.model_dump(exclude={"full_epochs", "most_sentences", "in_video"})
        return MMNLossSettings(hard=hard, **chosen if hard else chosen | {"hard_order": 0.0})
