"""The interface of a family of models for training, prediction and evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.models.losses import Losses
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.configs import BaseSettings, ModelConfig
from penumbra.tasks.grounding.metrics import ordering_metrics
from penumbra.tasks.parameter_group import Parameters

Config = TypeVar("Config", bound=ModelConfig)
SALIENCY_SPAN = 0.05  # smallest extent of a chart's axis: a quarter of the losses' smallest margin


@dataclass(frozen=True)
class Prediction:
    """A query's windows [queries, 3] (start s, end s, score), best first, and its saliency [clips].

    `evidence` [n] are the inputs of the calibration of `existence`, named by `System.evidence`.
    """

    qid: str
    windows: np.ndarray
    saliency: np.ndarray
    evidence: np.ndarray = field(default_factory=lambda: np.zeros(0))


class System(ABC, Generic[Config]):
    """A family of models with the settings of a run. Widths of features exclude the temporal endpoint channels.

    `models` are the configs of the family's models.
    """

    models: ClassVar[tuple[type[ModelConfig], ...]]

    def __init__(self, settings: BaseSettings) -> None:
        self.settings = settings
        self.config = cast(Config, settings.model)

    @property
    def bf16(self) -> bool:
        return self.settings.training.precision == "bf16"

    @property
    def has_static_shapes(self) -> bool:
        """Whether batches have few enough shapes to compile for each (`fast_cpu_matmul`, `GraphedStep`)."""
        return False

    @abstractmethod
    def build(self, video_dim: int, text_dim: int) -> nn.Module:
        """Return the model with fresh weights."""

    @abstractmethod
    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        """Return the video and text feature widths of a model that has these weights."""

    @abstractmethod
    def data(self, examples: Examples, device: torch.device) -> Any:
        """Return the queries on a device, for `objective` and `predict`: an object with `DeviceData`'s methods."""

    @abstractmethod
    def objective(self, model: nn.Module) -> nn.Module:
        """Return a module that maps a batch to the total loss, and to each loss by its name, without gradient."""

    @abstractmethod
    def predict(self, model: nn.Module, data: Any) -> list[Prediction]:
        """Return windows, best first, and saliency of every query, in the data's order."""

    @property
    def evidence(self) -> tuple[str, ...]:
        """The names of the numbers in `Prediction.evidence`; empty if the family has none."""
        return ()

    def parameters(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the parameter groups of the optimiser; `scale` is a group's factor of the learning rate."""
        return [{"params": list(trained(model)), "scale": 1.0}]

    def figures(self, model: nn.Module, data: Any) -> dict[str, float]:
        """Return the family's own figures over queries held out of training, for the `evaluation` table.

        By default they are the shares of queries whose mean saliency inside the moment falls in SHINE's order: the
        query, its hard negatives, the next query of another video.
        """
        examples: Examples = data.examples
        order = apart(torch.arange(len(examples)), examples.video.numpy())
        following = torch.empty_like(order).index_copy(0, order, order.roll(-1))
        texts = torch.cat((examples.text[None], examples.hard, examples.text[following][None]))  # [5, N]
        another = examples.video != examples.video[following]
        known = torch.cat((torch.ones_like(another)[None], examples.hard_present, another[None]))
        inside = torch.split(examples.clips.values[:, 1] > 0, examples.clips.lengths.tolist())
        saliency = np.full((len(examples), len(texts)), np.nan)
        for level, text in enumerate(texts):
            asked = replace(examples, text=text, videos=data.videos, texts=data.texts)
            for row, one in enumerate(self.predict(model, self.data(asked, data.device))):
                if known[level, row] and inside[row].any():
                    saliency[row, level] = one.saliency[inside[row].numpy()].mean()
        return ordering_metrics(saliency)


def apart(rows: Tensor, video: np.ndarray) -> Tensor:
    """Return the rows of a batch, ordered so that, if possible, no two neighbours are of the same video.

    The negative of a query is the next query of the batch, that of the last query the first one. `video` [N] is the
    video of every query.
    """
    videos = video[rows.numpy()]
    if (videos != np.roll(videos, -1)).all():
        return rows
    _, number, counts = np.unique(videos, return_inverse=True, return_counts=True)
    by_video = np.lexsort((number, -counts[number]))  # videos with more queries first
    places = np.concatenate((np.arange(0, len(rows), 2), np.arange(1, len(rows), 2)))
    return rows[torch.from_numpy(by_video[places.argsort()])]


def trained(model: nn.Module) -> Iterator[nn.Parameter]:
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


@contextmanager
def evaluating(model: nn.Module, device: torch.device, bf16: bool) -> Iterator[None]:
    """Put the model into evaluation mode, without gradients, for the duration of the context."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            yield
    finally:
        model.train(was_training)


class Objective(nn.Module):
    """A model and its losses as one module, so that DDP sees which weights a loss reaches.

    `outputs` is called with a batch's inputs, under autocast, and `losses` with the outputs and the batch's targets.
    """

    def __init__(
        self, model: nn.Module, outputs: Callable[[Any], Any], losses: Callable[[Any, Any], Losses], bf16: bool
    ) -> None:
        super().__init__()
        self.model, self.outputs, self.losses, self.bf16 = model, outputs, losses, bf16

    def forward(self, batch: tuple[Any, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        inputs, targets = batch
        with torch.autocast(next(self.model.parameters()).device.type, torch.bfloat16, enabled=self.bf16):
            outputs = self.outputs(inputs)
        losses = self.losses(outputs, targets)
        return losses.total, losses.terms


class ExistenceConfig(Parameters):
    """The loss of the existence head, which any model may have."""

    existence: float = Field(
        0.0,
        ge=0,
        description="Weight of the loss of a head that distinguishes true sentences from those of other videos and, if "
        "a step reads them, generated hard negatives. MMN and VDI use a tenth of the weight. 0: no head.",
    )


class LossConfig(ExistenceConfig):
    """Losses of a model that SHINE's hard negatives can train."""

    shine: bool = Field(False, description="SHINE's generated hard negatives, and the losses that rank them.")


HEAD = "existence head"  # name of the only evidence of a model with an existence head


class HardNegativeModel(ModelConfig):
    """A model with or without SHINE's negatives."""

    losses: LossConfig = LossConfig()

    @property
    def reads(self) -> set[str]:
        return {"negatives"} if self.losses.shine else set()

    def on_hard_negatives(self, wanted: bool) -> dict[str, Any]:
        return {"losses": {"shine": wanted}}
