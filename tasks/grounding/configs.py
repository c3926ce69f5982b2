"""Parameters of training, inputs and evaluation that all models share, and the base class of a model's own parameters.

`penumbra.tasks.grounding.training.presets` joins them to the settings of a run.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.stage import Parameters


class ModelConfig(Parameters):
    """The parameters of a model: sizes, switches, and its losses in a group of their own.

    Users type the names of these fields: `model.losses.shine`.
    """

    name: str
    losses: Parameters = Parameters()

    @property
    def label(self) -> str:
        """The model part of a run's name: the model's name and what distinguishes it, such as `+shine`."""
        return self.name

    @property
    def reads_negatives(self) -> bool:
        """Whether training reads generated hard negatives."""
        return False

    def on_hard_negatives(self, wanted: bool) -> dict[str, Any]:
        """Return the parameters that switch training on generated hard negatives on or off.

        Raise `PenumbraError` if the model can't be trained on them.
        """
        if wanted:
            raise PenumbraError(f"{self.name} is not trained on generated hard negatives")
        return {}

    @property
    def reads_in_video(self) -> bool:
        """Whether training reads other queries of the same video as negatives."""
        return False

    @property
    def reads_parts(self) -> bool:
        """Whether training reads the static and dynamic parts of queries (`visual_dynamic_queries`)."""
        return False

    @property
    def patches_of(self) -> str | None:
        """The encoder whose patch features training reads, or None."""
        return None


class Training(Parameters):
    """How a model is trained, with AdamW."""

    seed: int = Field(2018, ge=0, description="Seed of weights, data order and dropout.")
    epochs: int = Field(200, ge=0, description="Passes over the training queries; 0 keeps the weights of start_from.")
    batch_size: int = Field(32, ge=1, description="Queries a step, over all devices; of MMN and VDI videos.")
    group_by_length: bool = Field(
        False, description="Batches of videos of like length, so that little is padded (Moment-DETR and QD-DETR)."
    )
    learning_rate: float = Field(1e-4, gt=0, description="Learning rate at the start.")
    milestones: Annotated[int, Field(ge=1)] | tuple[int, ...] = Field(
        400,
        description="Epochs after which the learning rate falls to a tenth: a list, or a number n for every n epochs.",
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's decay rates of both moments.")
    weight_decay: float = Field(1e-4, ge=0, description="Weight decay of all weights.")
    clip_norm: float = Field(0.1, gt=0, description="Gradients are scaled down to this norm.")
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: autocast.")
    evaluate_every: int = Field(5, ge=1, description="Epochs between two evaluations.")
    patience: int = Field(10, ge=1, description="Evaluations without improvement after which training stops.")
    chosen_by: Literal["sum", "mIoU", "mAP", "R1@0.7"] = Field(
        "sum", description="The best epoch is chosen by R1@0.5 + R1@0.7 + mIoU, or by one metric."
    )
    validation: Annotated[float, Field(ge=0, lt=1)] | tuple[str, ...] = Field(
        0.05,
        description="Splits to choose the best epoch by, as a list; a number: the share of training videos to hold out "
        "for that, if the data has no split `val`.",
    )
    log: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        (), description="Also log losses and metrics there; each needs an extra of the package."
    )
    start_from: str | None = Field(
        None, description="Weights to start from: an official checkpoint file, a run's folder, or `scenes-grounder`."
    )

    @model_validator(mode="after")
    def _trains(self) -> "Training":
        if not self.epochs and not self.start_from:
            raise ValueError("epochs=0 keeps the weights of start_from: set start_from, or train at least one epoch")
        return self

    @property
    def validation_splits(self) -> tuple[str, ...]:
        """The splits to choose the best epoch by; empty if a share of the training videos is held out."""
        return self.validation if isinstance(self.validation, tuple) else ()

    def learning_rate_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        if isinstance(self.milestones, int):
            drops = epoch // self.milestones
        else:
            drops = sum(epoch >= milestone for milestone in self.milestones)
        return float(self.learning_rate * 0.1**drops)


class Inputs(Parameters):
    """Which artifacts a training reads; without a name the newest of the data set."""

    negatives: str | None = Field(None, description="Key of the negatives, or its first digits.")
    in_video_negatives: str | None = Field(None, description="Key of BM-DETR's negatives, or its first digits.")
    text_features: str | None = Field(None, description="Key of the texts' features, or the name of their encoder.")
    video_features: tuple[str, ...] = Field(
        (), description="Keys of the videos' features, or names of their encoders; several are joined."
    )
    patch_features: str | None = Field(None, description="Key of VDI's patches; default: the newest of its encoder.")
    longest_video: int | None = Field(None, ge=1, description="Clips that a video is cut to.")
    longest_text: int = Field(77, ge=1, description="Tokens that a text is cut to.")


# Fields of `Inputs` that do not enter a run's key: the artifacts that they name are parents, and do
NAMED_ARTIFACTS = {"negatives", "in_video_negatives", "text_features", "video_features", "patch_features"}


class Ranking(Parameters):
    """How windows are made of a model's outputs, and where true windows are cut."""

    snap: bool = Field(True, description="Round windows to whole clips.")
    longest: float | None = Field(None, gt=0, description="Predicted windows end here at the latest, in seconds.")
    truth_ends: float | None = Field(
        None,
        gt=0,
        description="True windows end here at the latest, in seconds; those that begin later are left out. BM-DETR's "
        "evaluation cuts after inputs.longest_video clips, except on Charades-STA and QVHighlights.",
    )
    batch_size: int = Field(100, ge=1, description="Queries predicted at once.")


class Choice(Parameters):
    """Which run is evaluated, and on which splits."""

    run: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="Key of the run's `metrics` artifact, or its first digits; default: newest.",
    )
    beside: str | None = Field(
        None, coerce_numbers_to_str=True, description="A second run that the report compares it with: before SHINE."
    )
    splits: tuple[str, ...] = Field((), description="Splits to evaluate on; default: all but train.")


class BaseSettings(Parameters):
    """All parameters of a run, of any model; `training.presets.Settings` knows which models exist."""

    model: ModelConfig
    training: Training = Training()
    inputs: Inputs = Inputs()
    ranking: Ranking = Ranking()
