"""What the training loop, prediction and evaluation need to know about a family of models."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.batches.features import Features
from penumbra.tasks.grounding.families.prediction import Prediction
from penumbra.tasks.grounding.training.settings import Settings
from torch import Tensor, nn


class TrainingData(Protocol):
    """Queries with all that a family trains on, on one device."""

    def __len__(self) -> int:
        """How many queries."""

    def batches(self, seed: int, epoch: int) -> list[Tensor]:
        """Rows of each batch of an epoch, on the CPU: a function of both numbers, so that a resumed run has them."""

    def batch(self, rows: Tensor) -> Any:
        """What the family's objective takes."""


class System(ABC):
    """A family of models under given settings. Widths are those of the features, without endpoint channels."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @property
    def bf16(self) -> bool:
        """Whether autocast is on."""
        return self.settings.training.precision == "bf16"

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
