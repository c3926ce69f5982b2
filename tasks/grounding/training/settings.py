"""What a training is asked to do: the parameter groups of `train-grounding`, and the papers' settings as presets."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.models.losses.settings import LossSettings, losses_of
from penumbra.models.settings import ModelSettings
from penumbra.tasks.grounding.map_settings import Injection, Map, Mutual
from penumbra.tasks.stage import Parameters
from pydantic import Field, model_validator

PRESETS = Path(__file__).with_name("presets.yaml")


class SettingsError(PenumbraError):
    """There is no such preset, or a value that can't be trained with."""


class Model(Parameters):
    """Which model, and its sizes; the defaults are the papers'."""

    name: Literal["moment_detr", "qd_detr", "bm_detr", "mmn", "vdi"] = Field(
        "qd_detr", description="Base model; the sizes below are the DETR models', MMN's are in map."
    )
    hidden: int = Field(256, ge=4, description="Width of the model.")
    heads: int = Field(8, ge=1, description="Attention heads.")
    feed_forward: int = Field(1024, ge=1, description="Width of the feed-forward layers.")
    encoder_layers: int = Field(2, ge=1, description="Encoder layers; QD-DETR has as many from text to video.")
    decoder_layers: int = Field(2, ge=1, description="Decoder layers.")
    queries: int = Field(10, ge=1, description="Moment queries.")
    projections: int = Field(2, ge=1, le=3, description="Layers of the input projections.")
    dropout: float = Field(0.1, ge=0, lt=1, description="Dropout inside the transformer.")
    input_dropout: float = Field(0.5, ge=0, lt=1, description="Dropout of the input projections.")
    text_positions: bool = Field(False, description="Learned positions of words.")
    text_attention: Literal["fixed", "official"] = Field(
        "fixed", description="QD-DETR: 'official' repeats the published code's mix-up of masks within a batch."
    )
    frame_matcher: bool = Field(True, description="BM-DETR: clips weighted by how probably they fit the query.")
    learnable_spans: bool = Field(True, description="BM-DETR: moment queries are anchors; otherwise plain vectors.")
    alignment: int = Field(256, ge=0, description="BM-DETR: width of the semantic alignment; 0: without it.")
    frame_weights: Literal["fixed", "official"] = Field(
        "fixed", description="BM-DETR: 'official' gives padding a share of the clips' weights, as published."
    )

    def settings(self, video_dim: int, text_dim: int, longest_text: int) -> ModelSettings:
        """The model's settings for features of these widths."""
        sizes = self.model_dump(exclude={"name", "alignment"})
        align_dim = self.alignment if self.name == "bm_detr" else 0
        return ModelSettings(
            video_dim=video_dim, text_dim=text_dim, longest_text=longest_text, align_dim=align_dim, **sizes
        )


class Losses(Parameters):
    """Which losses; what is left out follows the model and `shine`."""

    shine: bool = Field(False, description="SHINE's coarse and fine ranking over hard negatives.")
    variant: Literal["paper", "released"] = Field(
        "paper", description="'released' trains what SHINE's released criterion does: saliency alone, no localisation."
    )
    coarse: float = Field(1.0, ge=0, description="Weight of the coarse ranking (with shine).")
    coarse_terms: tuple[Literal["intra", "inter"], ...] = Field(("intra", "inter"), description="Its terms.")
    coarse_margins: tuple[float, float] = Field((1.0, 2.0), description="Margins h1 and h2.")
    quotient: int = Field(8, ge=1, description="q: a moment of T clips is judged by its T/q best.")
    fine: float = Field(1.0, ge=0, description="Weight of the fine ranking (with shine).")
    fine_margins: tuple[float, float, float, float] = Field((0.25, 0.25, 0.25, 0.25), description="Its margins.")
    fine_terms: tuple[bool, bool, bool, bool] = Field((True, True, True, True), description="Which of its hinges.")
    ranking: Literal["relative", "absolute"] = Field("relative", description="Compared with the level before, or 1.")
    pair_hinge: bool | None = Field(
        None, description="Hinge of clip pairs, BM-DETR's frame margin loss; default: without shine."
    )
    pair_margin: float = Field(0.2, ge=0, description="Its margin.")
    saliency: float | None = Field(
        None, ge=0, description="Weight of all saliency losses together; default: 1, of BM-DETR 4."
    )
    negatives: Literal["in_video", "generated", "both", "none"] = Field(
        "in_video",
        description="BM-DETR: queries of other moments of the video, generated hard negatives, or either.",
    )
    without_negative: Literal["none", "other_video"] = Field(
        "none", description="BM-DETR: a query that has no negative goes without, or takes another video's query."
    )
    probability: float = Field(2.0, ge=0, description="BM-DETR: weight of the frame probability loss.")
    semantic: float = Field(1.0, ge=0, description="BM-DETR: weight of the semantic alignment.")
    class_error: float = Field(0.0, ge=0, description="BM-DETR: 1 adds the class error to the total, as published.")

    def settings(self, model: str) -> LossSettings:
        """The losses of a base model."""
        own = {"probability", "semantic", "class_error"}
        left_out = {"shine", "coarse", "fine", "negatives", "without_negative"} | (set() if model == "bm_detr" else own)
        changes: dict[str, Any] = self.model_dump(exclude=left_out)
        changes = {name: value for name, value in changes.items() if value is not None}
        if self.shine:
            changes |= {"coarse": self.coarse, "fine": self.fine}
        return losses_of(model, self.shine, **changes)


class Training(Parameters):
    """How to train."""

    seed: int = Field(2018, ge=0, description="Seed of weights, data order and dropout.")
    epochs: int = Field(200, ge=0, description="Passes over the training queries; 0 with start_from takes it as it is.")
    batch_size: int = Field(32, ge=1, description="Queries a step, over all devices (mmn: videos).")
    learning_rate: float = Field(1e-4, gt=0, description="AdamW's.")
    learning_rate_drop: int = Field(400, ge=1, description="The rate falls to a tenth every so many epochs.")
    milestones: tuple[int, ...] = Field((), description="Or after these epochs.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's.")
    weight_decay: float = Field(1e-4, ge=0, description="AdamW's, on everything.")
    clip_norm: float = Field(0.1, gt=0, description="Gradients are scaled down to this norm.")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: autocast.")
    compiled: Literal["no", "default", "reduce-overhead", "max-autotune"] = Field(
        "no", description="torch.compile's mode; reduce-overhead uses CUDA graphs. Batches then have one size."
    )
    device: str = Field("auto", description="cpu, cuda, or auto: a GPU where there is one.")
    processes: int = Field(1, ge=1, description="Processes on this machine that share a step's batch, one a GPU.")
    evaluate_every: int = Field(5, ge=1, description="Epochs between two evaluations.")
    patience: int = Field(10, ge=1, description="Evaluations without improvement after which training stops.")
    chosen_by: Literal["sum", "mIoU", "mAP", "R1@0.7"] = Field(
        "sum", description="Best by R1@0.5 + R1@0.7 + mIoU, or one of them."
    )
    validation: tuple[str, ...] = Field((), description="Splits to choose by; default: val, or held-out videos.")
    held_out: float = Field(0.05, ge=0, lt=1, description="Share of training videos held out where there is no split.")
    shifting: bool = Field(False, description="BM-DETR: a second branch whose moments are moved within their videos.")
    shift_below: float | None = Field(60.0, gt=0, description="Only in videos shorter than so many seconds.")
    shift_endpoints: bool = Field(False, description="Temporal endpoints move with the clips, as published.")
    start_from: str | None = Field(None, description="An official checkpoint file, or a run, to fine-tune.")

    @model_validator(mode="after")
    def _trains(self) -> "Training":
        if not self.epochs and not self.start_from:
            raise ValueError("epochs=0 takes the weights of start_from as they are: name it, or train an epoch")
        return self

    def drops(self, epoch: int) -> int:
        """How often the learning rate has fallen to a tenth before an epoch, counted from 0."""
        if self.milestones:
            return sum(epoch >= milestone for milestone in self.milestones)
        return epoch // self.learning_rate_drop


class Inputs(Parameters):
    """Which features."""

    video_encoders: tuple[str, ...] = Field((), description="Encoders of video_features; default: the newest alone.")
    text_encoder: str | None = Field(None, description="Encoder of text_features; default: the newest.")
    negatives: str | None = Field(None, description="Key of the negatives, or its first digits; default: the newest.")
    in_video_negatives: str | None = Field(None, description="Key of BM-DETR's negatives; default: the newest.")
    text_features: str | None = Field(None, description="Key of the texts' features; beats text_encoder.")
    video_features: tuple[str, ...] = Field((), description="Keys of the videos' features; beat video_encoders.")
    patch_features: str | None = Field(None, description="Key of VDI's patches; default: the newest of its encoder.")
    longest_video: int | None = Field(None, ge=1, description="Clips that a video is cut to.")
    longest_text: int = Field(77, ge=1, description="Tokens that a text is cut to.")


# Fields of `Inputs` that are no part of a run's key, as the artifacts that they name are
NAMED_ARTIFACTS = {"negatives", "in_video_negatives", "text_features", "video_features", "patch_features"}


class Ranking(Parameters):
    """How windows are made of a model's heads, and where the true ones end that they are judged by."""

    snap: bool = Field(True, description="Round windows to whole clips.")
    longest: float | None = Field(None, gt=0, description="Windows end here at the latest, in seconds.")
    truth_ends: float | None = Field(
        None,
        gt=0,
        description="True windows end here at the latest, too, and those that begin later are not judged: in BM-DETR's "
        "evaluation (but of Charades-STA and QVHighlights) after inputs.longest_video clips.",
    )
    batch_size: int = Field(100, ge=1, description="Queries at once.")


class Settings(Parameters):
    """All groups together."""

    model: Model = Model()
    losses: Losses = Losses()
    training: Training = Training()
    inputs: Inputs = Inputs()
    ranking: Ranking = Ranking()
    map: Map = Map()
    mutual: Mutual = Mutual()
    injection: Injection = Injection()

    @model_validator(mode="after")
    def _heads_divide(self) -> "Settings":
        if self.model.hidden % self.model.heads or self.model.hidden % 4:
            raise ValueError("model.hidden must be a multiple of 4 and of model.heads")
        if self.model.name == "bm_detr" and self.losses.shine:
            raise ValueError("bm_detr has no losses.shine: say losses.shine=false; it takes losses.negatives=generated")
        return self

    def with_seed(self, seed: int) -> "Settings":
        """The same with another seed."""
        return self.model_copy(update={"training": self.training.model_copy(update={"seed": seed})})

    @property
    def reads_negatives(self) -> bool:
        """Whether training takes generated hard negatives."""
        return self.losses.shine or (self.model.name == "bm_detr" and self.losses.negatives in ("generated", "both"))

    @property
    def reads_in_video(self) -> bool:
        """Whether training takes other queries of the same video as negatives."""
        if self.model.name in ("mmn", "vdi"):
            return self.mutual.in_video
        return self.model.name == "bm_detr" and self.losses.negatives in ("in_video", "both")

    @property
    def reads_parts(self) -> bool:
        """Whether training takes queries' static and dynamic parts."""
        return self.model.name == "vdi"

    @property
    def patches_of(self) -> str | None:
        """The encoder whose patch features training takes, or None."""
        return self.injection.encoder if self.model.name == "vdi" and self.injection.dynamic else None


Preset = Annotated[
    str | None, Field(description="Settings of a paper, by name in tasks/grounding/training/presets.yaml.")
]


@cache
def presets() -> dict[str, dict[str, dict[str, Any]]]:
    """The papers' settings by name: for each group what differs from the defaults."""
    found: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(PRESETS.read_text(encoding="utf-8"))
    return found


def with_preset(name: str | None, groups: dict[str, Parameters]) -> Settings:
    """Settings from a preset, with what was said explicitly on top; a preset is named after its data set and model.

    Raises `SettingsError` naming an unknown preset.
    """
    if name is not None and name not in presets():
        raise SettingsError(f"no preset {name!r}: {what_there_is(name, list(presets()))}")
    base = presets()[name] if name else {}
    merged = {
        group: {**base.get(group, {}), **values.model_dump(exclude_unset=True)} for group, values in groups.items()
    }
    return Settings.model_validate(merged)
