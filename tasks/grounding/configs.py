"""Parameters of training, inputs and evaluation that all models share, and the base class of a model's parameters.

`penumbra.tasks.grounding.training.presets` combines them into the settings of a run.
"""

from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from penumbra.artifacts.errors import PenumbraError, what_there_is
from penumbra.tasks.parameter_group import Parameters

# the data decides these settings, not `ablation`
OF_THE_DATA = {"video_dim", "text_dim", "longest_text", "projected", "grid", "patch_dim"}


class ModelConfig(Parameters):
    """Parameters of a model: its name, its most used settings, and the group of its losses.

    `ablation` holds the settings that only the papers' ablations and presets change. The dataclasses `options` (network
    and data) and `loss_options` declare these settings with types and defaults.
    """

    options: ClassVar[type]
    loss_options: ClassVar[type]

    name: str
    losses: Parameters = Parameters()
    ablation: dict[str, Any] = Field(
        {}, description="Settings that only the papers' ablations and presets change, by name (docs/guides)."
    )

    @classmethod
    def loss_fields(cls) -> type[Parameters]:
        """Return the class of `losses`."""
        return type(cls.model_fields["losses"].default)

    @classmethod
    def ablations(cls) -> dict[str, type]:
        """Return the dataclass that declares each setting that `ablation` may hold."""
        others = {*cls.model_fields, *cls.loss_fields().model_fields, *OF_THE_DATA}
        known = declaring(cls.loss_options) | declaring(cls.options)
        return {name: declared for name, declared in known.items() if name not in others}

    @field_validator("ablation")
    @classmethod
    def _check_ablation(cls, ablation: dict[str, Any]) -> dict[str, Any]:
        known, checked = cls.ablations(), dict[str, Any]()
        for name, value in ablation.items():
            if name not in known:
                raise ValueError(f"ablation has no setting {name!r}; {what_there_is(name, sorted(known))}")
            try:
                checked[name] = TypeAdapter(get_type_hints(known[name])[name]).validate_python(value)
            except ValidationError as error:
                raise ValueError(f"ablation.{name}: {error.errors()[0]['msg']}") from None
        return checked

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        _ = self.loss_settings
        _ = self.network_options
        return self

    @property
    def published_changes(self) -> dict[str, Any]:
        """Settings of `ablation` that `as_published` changes."""
        return {}

    @property
    def network_options(self) -> Any:
        """The settings of the network and its data, an instance of `options`, without the widths of the features."""
        return self._declared(self.options, self)

    @property
    def loss_settings(self) -> Any:
        """Weights and options of the losses, an instance of `loss_options`."""
        return self._declared(self.loss_options, self.losses)

    def _declared(self, declared: type, fields: Parameters) -> Any:
        values = {**self.published_changes, **self.ablation, **dict(fields)}
        return declared(**{name: value for name, value in values.items() if name in declaring(declared)})

    def key_parameters(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, in the format that the first version used for keys."""
        fields = self.model_dump(mode="json", exclude={"ablation", "as_published", "losses"}, exclude_defaults=True)
        losses = self.losses.model_dump(mode="json", exclude_defaults=True) | _changed(self.loss_settings)
        return {"name": self.name, **fields, **_changed(self.network_options), **({"losses": losses} if losses else {})}

    @property
    def label(self) -> str:
        """The model part of a run's name, such as `qd_detr+shine`."""
        losses = dict(self.losses)
        return self.name + "+shine" * bool(losses.get("shine")) + "+existence" * bool(losses.get("existence"))

    @property
    def reads(self) -> set[str]:
        """The stages that training reads besides the queries and the features of texts and videos."""
        return set()

    def on_hard_negatives(self, wanted: bool) -> dict[str, Any]:
        """Return parameters that switch SHINE's negatives on or off; raise `PenumbraError` if that is impossible."""
        if wanted:
            raise PenumbraError(f"{self.name} is not trained on generated hard negatives")
        return {}

    @property
    def reads_batch_negatives(self) -> bool:
        """Whether a query's negative is the next query of its batch."""
        return False

    @property
    def frames_of(self) -> str | None:
        """The encoder of the video and patch features that training reads; None allows any encoder."""
        return None


def declaring(kind: type) -> dict[str, type]:
    """Return, for each annotated name of a class, the base class that first declares it."""
    return {name: base for base in kind.__mro__ for name in vars(base).get("__annotations__", {})}


def _changed(options: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance that differ from their defaults, as JSON values."""
    kind, defaults = type(options), type(options)()
    values: dict[str, Any] = TypeAdapter(kind).dump_python(options, mode="json")
    return {name: value for name, value in values.items() if getattr(options, name) != getattr(defaults, name)}


class Training(Parameters):
    """Parameters of the training, with AdamW."""

    seed: int = Field(2018, ge=0, description="Seed of weights, data order and dropout.")
    epochs: int = Field(200, ge=0, description="Passes over the training queries; 0 keeps the weights of start_from.")
    batch_size: int = Field(32, ge=1, description="Queries in a step, over all devices; for MMN and VDI, videos.")
    group_by_length: bool = Field(
        False, description="Batches of videos of similar length, which are padded little (Moment-DETR and QD-DETR)."
    )
    learning_rate: float = Field(1e-4, gt=0, description="Learning rate at the start.")
    milestones: Annotated[int, Field(ge=1)] | tuple[int, ...] = Field(
        400,
        description="Epochs after which the learning rate falls to a tenth: a list, or a number n for every n epochs.",
    )
    betas: tuple[float, float] = Field((0.9, 0.999), description="Decay rates of AdamW's two moments.")
    weight_decay: float = Field(1e-4, ge=0, description="Weight decay of all weights.")
    clip_norm: float = Field(0.1, gt=0, description="Largest norm of the gradients; larger gradients are scaled down.")
    precision: Literal["float32", "bf16"] = Field("float32", description="`bf16` trains with autocast to bfloat16.")
    evaluate_every: int = Field(5, ge=1, description="Epochs between two evaluations.")
    patience: int = Field(10, ge=1, description="Evaluations without improvement after which training stops.")
    chosen_by: Literal["sum", "mIoU", "mAP", "R1@0.7"] = Field(
        "sum", description="The best epoch is chosen by R1@0.5 + R1@0.7 + mIoU, or by one metric."
    )
    validation: Annotated[float, Field(ge=0, lt=1)] | tuple[str, ...] = Field(
        0.05,
        description="List of splits that select the best epoch, or the share of training videos to hold out for that; "
        "the share applies if the data set has no split `val`.",
    )
    log: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        (), description="Services that also log losses and metrics; each needs an extra, such as penumbra[wandb]."
    )
    start_from: str | None = Field(
        None, description="Weights to start from: an official checkpoint file, a run's folder, or `scenes-grounder`."
    )

    @model_validator(mode="after")
    def _trains(self) -> "Training":
        if not self.epochs and not self.start_from:
            raise ValueError("epochs=0 keeps the weights of start_from: set start_from, or train at least one epoch")
        return self

    def learning_rate_at(self, epoch: int) -> float:
        if isinstance(self.milestones, int):
            drops = epoch // self.milestones
        else:
            drops = sum(epoch >= milestone for milestone in self.milestones)
        return float(self.learning_rate * 0.1**drops)


class InputConfig(Parameters):
    """The artifacts that a training reads, by default the newest of the data set."""

    negatives: str | None = Field(None, description="Key of the negatives, or its first digits.")
    in_video_negatives: str | None = Field(None, description="Key of BM-DETR's negatives, or its first digits.")
    text_features: str | None = Field(None, description="Key of the texts' features, or the name of their encoder.")
    video_features: tuple[str, ...] = Field(
        (), description="Keys of the videos' features, or names of their encoders; several are joined."
    )
    longest_video: int | None = Field(None, ge=1, description="Clips that a video is cut to.")
    longest_text: int = Field(77, ge=1, description="Tokens that a text is cut to.")


# Fields of `InputConfig` that do not enter a run's key: the artifacts that they name enter it as parents
NAMED_ARTIFACTS = {"negatives", "in_video_negatives", "text_features", "video_features"}


class Ranking(Parameters):
    """How windows are computed from a model's outputs, and where true windows are cut."""

    snap: bool = Field(True, description="Round windows to whole clips.")
    longest: float | None = Field(None, gt=0, description="Predicted windows end here at the latest, in seconds.")
    truth_ends: float | None = Field(
        None,
        gt=0,
        description="True windows end here at the latest, in seconds; those that begin later are left out. BM-DETR's "
        "evaluation cuts after inputs.longest_video clips, except on Charades-STA and QVHighlights.",
    )


class RunChoice(Parameters):
    """The run to evaluate, and the splits to evaluate it on."""

    run: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="Name of the run, its key, or the key's first digits; default: every run without predictions.",
    )
    splits: tuple[str, ...] = Field((), description="Splits to evaluate on; default: all but train.")


class BaseSettings(Parameters):
    """All parameters of a run, of any model; `training.presets.Settings` knows which models exist."""

    model: ModelConfig
    training: Training = Training()
    inputs: InputConfig = InputConfig()
    ranking: Ranking = Ranking()
