"""Small stacks of linear layers: heads, and the projection of features into the model."""

from itertools import pairwise

from torch import Tensor, nn

from penumbra.models.dropout import Dropout


class MLP(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, width: int, hidden: int, out: int, layers: int) -> None:
        super().__init__()
        sizes = [width, *[hidden] * (layers - 1), out]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))

    def forward(self, values: Tensor) -> Tensor:
        """[..., width] to [..., out]."""
        *hidden, last = self.layers
        for layer in hidden:
            values = layer(values).relu()
        out: Tensor = last(values)
        return out


class ProjectionStage(nn.Module):
    """LayerNorm, dropout, linear, and ReLU in all stages but the last."""

    def __init__(self, width: int, out: int, dropout: float, relu: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(width, out)
        self.relu = relu

    def forward(self, values: Tensor) -> Tensor:
        """[..., width] to [..., out]."""
        out: Tensor = self.linear(self.dropout(self.norm(values)))
        return out.relu() if self.relu else out


class InputProjection(nn.Module):
    """Features of a video's clips or a text's tokens, projected to the model's width."""

    def __init__(self, width: int, hidden: int, stages: int, dropout: float) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            ProjectionStage(width if stage == 0 else hidden, hidden, dropout, relu=stage < stages - 1)
            for stage in range(stages)
        )

    def forward(self, features: Tensor) -> Tensor:
        """[B, L, width] to [B, L, hidden]."""
        for stage in self.stages:
            features = stage(features)
        return features
