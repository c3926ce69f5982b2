"""Convolutions over the map of candidate moments, normalised by how many candidates each saw (2D-TAN, MMN)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.cpu.dispatch import on_cpu
from penumbra.models.cpu.fft_convolution import convolve_by_spectra


@on_cpu(convolve_by_spectra)
def convolve(cells: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Cells [B, C, n, n] with weight [O, C, k, k]: [B, O, m, m] with m = n + 2·padding - k + 1.

    On a CPU `penumbra.models.cpu.fft_convolution` computes the same faster where k is large.
    """
    return functional.conv2d(cells, weight, padding=padding)


class BorderedNorm(nn.Module):
    """Batch normalisation of cells beside a border of zeros that is not there: `outside` cells a channel and sample."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int, outside: int, momentum: float = 0.1, smallest: float = 1e-5) -> None:
        super().__init__()
        self.outside, self.momentum, self.smallest = outside, momentum, smallest
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, cells: Tensor, shift: Tensor) -> Tensor:
        """Normalise cells [B, channels, n, n], to which `shift` [channels] is still to be added (the border as well).

        The batch's own mean takes the shift away again, so that it moves the running mean only and has no gradient.
        """
        if self.training:
            centred, variance = self._of_batch(cells, shift)
        else:
            centred, variance = cells - _each(self.running_mean - shift), self.running_var
        return centred * _each(self.weight * (variance + self.smallest).rsqrt()) + _each(self.bias)

    def _of_batch(self, cells: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """Cells less their mean, and their variance [channels]."""
        border = cells.shape[0] * self.outside
        count = cells.numel() // cells.shape[1] + border
        mean = cells.sum((0, 2, 3)) / count
        centred = cells - _each(mean)
        variance = (centred.square().sum((0, 2, 3)) + border * mean.square()) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean + shift, self.momentum)
            self.running_var.lerp_(variance * (count / max(count - 1, 1)), self.momentum)
            self.num_batches_tracked += 1
        return centred, variance


class ProposalLayer(nn.Module):
    """Convolution, batch normalisation, ReLU, and each cell times its weight.

    The published code pads the whole map once, before the first layer, by all that the layers will take away, and
    convolves and normalises that border as well. Where no candidate is in reach the convolution gives its bias alone:
    such cells are only counted here, and each layer pads as little as it can.
    """

    weights: Tensor

    def __init__(self, width: int, out: int, kernel: int, padding: int, outside: int, weights: Tensor) -> None:
        super().__init__()
        self.convolution, self.padding = nn.Conv2d(width, out, kernel), padding
        self.norm = BorderedNorm(out, outside)
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, cells: Tensor) -> Tensor:
        """[B, width, n, n] to [B, out, m, m], in float32 after the convolution."""
        found = convolve(cells, self.convolution.weight, self.padding)
        with torch.autocast(found.device.type, enabled=False):
            shift = self.convolution.bias
            normed: Tensor = self.norm(found.float(), 0 if shift is None else shift.detach())
            return normed.relu() * self.weights


class ProposalConvolution(nn.Module):
    """Layers of convolutions [B, width, N, N] to [B, out, N, N]; `mask` [N, N] says what is a candidate."""

    def __init__(self, width: int, out: int, kernel: int, layers: int, mask: Tensor) -> None:
        super().__init__()
        if (kernel - 1) * layers % 2:
            raise ValueError(f"{layers} layers of kernel {kernel} change the size of the map")
        border, found = (kernel - 1) * layers // 2, mask.float()
        stack = []
        for number in range(layers):
            padding = min(kernel - 1, border)
            border -= padding
            found, weights = _normaliser(found, kernel, padding)
            whole = len(found) + 2 * border
            outside = whole**2 - found.numel()
            stack.append(ProposalLayer(out if number else width, out, kernel, padding, outside, weights))
        self.layers = nn.ModuleList(stack)

    def forward(self, cells: Tensor) -> Tensor:
        """See the class. Channels last: such direct convolutions are the faster ones on CPUs and GPUs alike."""
        cells = cells.contiguous(memory_format=torch.channels_last)
        for layer in self.layers:
            cells = layer(cells)
        return cells


def _normaliser(mask: Tensor, kernel: int, padding: int) -> tuple[Tensor, Tensor]:
    """Which cells see a candidate [m, m], and one over the number of those that they see, or 0."""
    ones = torch.ones(1, 1, kernel, kernel)
    count = functional.conv2d(mask[None, None], ones, padding=padding)[0, 0].round()
    seen = count > 0
    return seen.float(), torch.where(seen, 1 / count.clamp(min=1), 0.0)


def _each(values: Tensor) -> Tensor:
    """A number of each channel, beside cells [B, channels, n, n]."""
    return values[:, None, None]
