"""Dropout (Srivastava et al., 2014)."""

from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.cpu.dispatch import on_cpu
from penumbra.models.cpu.dropout import add_dropped_by_bytes, dropout_by_bytes


@on_cpu(dropout_by_bytes)
def dropout(values: Tensor, p: float) -> Tensor:
    """Zeros with probability p, the rest over 1 - p; on a CPU `penumbra.models.cpu.dropout` does the same faster."""
    return functional.dropout(values, p)


@on_cpu(add_dropped_by_bytes)
def add_dropped(residual: Tensor, branch: Tensor, p: float) -> Tensor:
    """The residual and `dropout` of a branch."""
    return residual + functional.dropout(branch, p)


class Dropout(nn.Module):
    """Dropout of values with probability p, in training."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"a dropout probability is at least 0 and below 1, not {p}")
        self.p = p

    @property
    def rate(self) -> float:
        """The probability as things are: p in training, else 0."""
        return self.p if self.training else 0.0

    def forward(self, values: Tensor) -> Tensor:
        """The values, or in training some of them."""
        return dropout(values, self.rate)

    def onto(self, residual: Tensor, branch: Tensor) -> Tensor:
        """The residual and what is left of the branch."""
        return add_dropped(residual, branch, self.rate)

    def extra_repr(self) -> str:
        """What `print(model)` shows."""
        return f"p={self.p}"
