"""What a training is asked to do, whatever its model: how it is trained, on which features, how windows are made.

A family of models adds its own (`ModelConfig`); all of them together are `penumbra.tasks.grounding.training.presets`.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.stage import Parameters


class ModelConfig(Parameters):
    """A model as a training asks for it: sizes and switches, and its losses in a group within. Each model has its own.

    What a field is called, and where it is, is what users type: `model.losses.shine`.
    """

    name: str
    losses: Parameters = Parameters()

    @property
    def label(self) -> str:
        """What runs are called after: the model, and what sets it apart from others of its name."""
        return self.name

    @property
    def reads_negatives(self) -> bool:
        """Whether training takes generated hard negatives."""
        return False

    def on_hard_negatives(self, wanted: bool) -> dict[str, Any]:
        """What of it changes where its training is to take generated hard negatives, or is to take none.

        Raises `PenumbraError` where it can't take any.
        """
        if wanted:
            raise PenumbraError(f"{self.name} is not trained on generated hard negatives")
        return {}

    @property
    def reads_in_video(self) -> bool:
        """Whether training takes other queries of the same video as negatives."""
        return False

    @property
    def reads_parts(self) -> bool:
        """Whether training takes queries' static and dynamic parts (`visual_dynamic_queries`)."""
        return False

    @property
    def patches_of(self) -> str | None:
        """The encoder whose patch features training takes, or None."""
        return None


class Training(Parameters):
    """How to train."""

    seed: int = Field(2018, ge=0, description="Seed of weights, data order and dropout.")
    epochs: int = Field(200, ge=0, description="Passes over the training queries; 0 with start_from takes it as it is.")
    batch_size: int = Field(32, ge=1, description="Queries a step, over all devices; of MMN and VDI videos.")
    group_by_length: bool = Field(
        False, description="Batches of videos of like length, so that little is padded (Moment-DETR and QD-DETR)."
    )
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
    launch: Literal["spawn", "torchrun"] = Field(
        "spawn", description="Who starts them: this command alone, or torchrun's agent, for several hosts."
    )
    nodes: int = Field(1, ge=1, description="Hosts, each with so many processes; torchrun's --nnodes.")
    node_rank: int = Field(0, ge=0, description="Which of them this is, from 0; the first makes the artifact.")
    rendezvous: str = Field("", description="host:port of the first host, where all meet.")
    evaluate_every: int = Field(5, ge=1, description="Epochs between two evaluations.")
    patience: int = Field(10, ge=1, description="Evaluations without improvement after which training stops.")
    chosen_by: Literal["sum", "mIoU", "mAP", "R1@0.7"] = Field(
        "sum", description="Best by R1@0.5 + R1@0.7 + mIoU, or one of them."
    )
    validation: tuple[str, ...] = Field((), description="Splits to choose by; default: val, or held-out videos.")
    held_out: float = Field(0.05, ge=0, lt=1, description="Share of training videos held out where there is no split.")
    log: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        (), description="Where losses and figures go besides, each by a package of its own (an extra)."
    )
    start_from: str | None = Field(None, description="What to fine-tune: an official file, a run, `scenes-grounder`.")

    @model_validator(mode="after")
    def _trains(self) -> "Training":
        if not self.epochs and not self.start_from:
            raise ValueError("epochs=0 takes the weights of start_from as they are: name it, or train an epoch")
        if self.nodes > 1 and (self.launch != "torchrun" or not self.rendezvous.rpartition(":")[2].isdigit()):
            raise ValueError("several nodes need launch=torchrun and rendezvous=HOST:PORT of the first")
        if self.node_rank >= self.nodes:
            raise ValueError(f"node_rank is {self.node_rank}, of {self.nodes} nodes: count from 0")
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


class BaseSettings(Parameters):
    """All groups of a training together, of any model; `training.settings.Settings` knows which models there are."""

    model: ModelConfig
    training: Training = Training()
    inputs: Inputs = Inputs()
    ranking: Ranking = Ranking()


class Choice(Parameters):
    """Which run, and which of its predictions."""

    run: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="Key of the run's `metrics` artifact, or its first digits; default: newest.",
    )
    beside: str | None = Field(
        None,
        coerce_numbers_to_str=True,
        description="Another run, as `run`, that the report shows beside it: before SHINE.",
    )
    splits: tuple[str, ...] = Field((), description="Splits to judge; default: all but train.")
    ranking: Ranking | None = Field(None, description="How windows are made; default: as the run says.")
