"""What the training loop, prediction and evaluation need to know about a family of models."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from penumbra.tasks.grounding.batches.examples import Examples, Features
from penumbra.tasks.grounding.configs import BaseSettings, ModelConfig
from penumbra.tasks.stage import Parameters

Config = TypeVar("Config", bound=ModelConfig)
SALIENCY_SPAN = 0.05  # of an axis, at least: a quarter of the losses' smallest margin, and many steps of a half


@dataclass(frozen=True)
class Prediction:
    """A query's windows [Q, 3] (start s, end s, score), best first, and its saliency [clips]."""

    qid: str
    windows: np.ndarray
    saliency: np.ndarray


class TrainingData(Protocol):
    """Queries with all that a family trains on, on one device."""

    def __len__(self) -> int:
        """How many queries."""

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        """Rows of each batch of an epoch, on the CPU: a function of both numbers, so that a resumed run has them."""

    def batch(self, rows: Tensor) -> Any:
        """What the family's objective takes."""


class System(ABC, Generic[Config]):
    """A family of models under given settings. Widths are those of the features, without endpoint channels.

    `models` are the settings of each of its models: what users may ask for, and all that they may say of it.
    """

    models: ClassVar[tuple[type[ModelConfig], ...]]

    def __init__(self, settings: BaseSettings) -> None:
        self.settings = settings
        self.config = cast(Config, settings.model)

    @property
    def bf16(self) -> bool:
        """Whether autocast is on."""
        return self.settings.training.precision == "bf16"

    @property
    def has_static_shapes(self) -> bool:
        """Whether a training's batches have so few shapes that each may be compiled for (`devices.fast_cpu_matmul`)."""
        return False

    @abstractmethod
    def build(self, video_dim: int, text_dim: int) -> nn.Module:
        """The model with fresh weights."""

    @abstractmethod
    def widths(self, weights: Mapping[str, Tensor]) -> tuple[int, int]:
        """Video and text feature widths of a model that has these weights."""

    @abstractmethod
    def data(self, examples: Examples, videos: Features, texts: Features, device: torch.device) -> TrainingData:
        """Queries ready for `objective` and `predict`."""

    @abstractmethod
    def objective(self, model: nn.Module) -> nn.Module:
        """A module from a batch to its total loss, with gradient, and each term by its name, without."""

    @abstractmethod
    def predict(self, model: nn.Module, data: Any) -> list[Prediction]:
        """Windows, best first, and saliency of every query, in the data's order."""

    def parameters(self, model: nn.Module) -> list[dict[str, Any]]:
        """The optimiser's groups; `scale` is a group's share of the learning rate."""
        return [{"params": list(trained(model)), "scale": 1.0}]

    def figures(self, model: nn.Module, data: Any) -> dict[str, float]:
        """Figures of the family's own over queries held out of training, for the `evaluation` table."""
        return {}


def trained(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights that training changes."""
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


class HardNegativeLosses(Parameters):
    """Losses of a model that can be trained on hard negatives."""

    shine: bool = Field(False, description="SHINE's generated hard negatives, and what ranks them.")


class HardNegativeModel(ModelConfig):
    """A model with or without SHINE's negatives."""

    losses: HardNegativeLosses = HardNegativeLosses()

    @property
    def label(self) -> str:
        """See `ModelConfig.label`."""
        return f"{self.name}+shine" if self.losses.shine else self.name

    @property
    def reads_negatives(self) -> bool:
        """See `ModelConfig.reads_negatives`."""
        return self.losses.shine

    def on_hard_negatives(self, wanted: bool) -> dict[str, Any]:
        """See `ModelConfig.on_hard_negatives`."""
        return {"losses": {"shine": wanted}}


def autocast(device: torch.device, bf16: bool) -> contextlib.AbstractContextManager[Any]:
    """bf16 autocast on the device, or nothing."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()
