"""Square convolutions, by way of spectra if that is quicker: on a CPU, with large kernels over many channels.

A 5 × 5 kernel multiplies each number 25 times, spectra about twice (Mathieu, Henaff and LeCun, "Fast Training of
Convolutional Networks through FFTs", ICLR 2014). The kernels' spectra are many times larger than the kernels, so they
are computed for a few frequencies at a time, by a matrix product that costs less than reading them.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SPECTRA_AT_ONCE = 2**24  # numbers of the kernels' spectra that are held at a time
SPECTRAL_COST = 3.5  # time of a multiplication by spectra over that of one in a direct convolution, in float32
BF16_SPEEDUP = 5.0  # of direct convolution, which autocast takes to bf16


def convolve(cells: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Convolve cells [B, C, n, n] with weight [O, C, k, k]: [B, O, m, m] with m = n + 2·padding - k + 1.

    By spectra the result is float32, under autocast, too, and its error that of float32's own rounding.
    """
    eager_on_cpu = cells.device.type == "cpu" and not torch.compiler.is_compiling()
    if not eager_on_cpu or not _is_faster(cells, weight, padding):
        return functional.conv2d(cells, weight, padding=padding)
    with torch.autocast("cpu", enabled=False):
        out: Tensor = _FFTConvolution.apply(cells.float(), weight.float(), padding)  # type: ignore[no-untyped-call]
        return out


def _is_faster(cells: Tensor, weight: Tensor, padding: int) -> bool:
    (batch, _, size, _), (out, inner, width, _) = cells.shape, weight.shape
    side, result = size + padding, size + 2 * padding - width + 1
    frequencies, transforms = side * (side // 2 + 1), 3 * side**3 * (1 / out + 1 / inner)
    cost = batch * (4 * frequencies + transforms) + 2 * frequencies * width**2
    relative = SPECTRAL_COST * (BF16_SPEEDUP if torch.is_autocast_enabled("cpu") else 1.0)
    return padding < width and relative * cost < batch * result**2 * width**2


class _FFTConvolution(torch.autograd.Function):
    """Convolution of tiles [B, C, n, n], circular over a side of n + padding numbers, which wraps nothing wanted.

    Spectra are matrix products too: at these sizes they are as quick as the fast transform and lie as they are needed,
    places first, [n, n, B, C]. So do the results.
    """

    @staticmethod
    def forward(ctx: Any, cells: Tensor, weight: Tensor, padding: int) -> Tensor:
        side = cells.shape[2] + padding
        spectra = _dft(cells, side)
        out = _spectral_products(spectra, weight, _kernel_phases(side, weight.shape[2], padding), transposed=True)
        ctx.save_for_backward(spectra, weight)
        ctx.size, ctx.padding, ctx.side = cells.shape[2], padding, side
        return _inverse_dft(out, side, side + padding - weight.shape[2] + 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        spectra, weight = ctx.saved_tensors
        gradient = _dft(gradients[0], ctx.side)
        cosine, sine = _kernel_phases(ctx.side, weight.shape[2], ctx.padding)
        by_cells = _spectral_products(gradient, weight, torch.stack((cosine, -sine)), transposed=False)
        counts = _column_counts(ctx.side).repeat(ctx.side)[:, None]
        by_weight = _spectral_correlation(spectra, gradient, torch.stack((cosine, -sine)) * counts)
        return _inverse_dft(by_cells, ctx.side, ctx.size), by_weight.view_as(weight), None


def _dft(cells: Tensor, side: int) -> Tensor:
    """Spectra [F, 2·B, C] of cells [B, C, n, n], followed by zeros up to the side: all real parts, all imaginary."""
    batch, channels, size, _ = cells.shape
    along, down = _dft_matrices(side, size)
    rows = along @ cells.permute(2, 3, 0, 1).flatten(2)
    out = (down @ rows.view(2 * size, -1)).view(2, -1, batch, channels)
    return out.transpose(0, 1).reshape(-1, 2 * batch, channels)


def _inverse_dft(spectra: Tensor, side: int, size: int) -> Tensor:
    """The first `size` rows and columns [B, C, size, size] of what has the spectra [2, F, B, C]."""
    along, down = _dft_matrices(side, size)
    rows = (down.t() @ spectra.view(2 * side, -1)).view(size, len(along), -1)
    out: Tensor = (along * _column_counts(side).repeat(2)[:, None]).t() @ rows
    return out.view(size, size, *spectra.shape[2:]).permute(2, 3, 0, 1)


def _spectral_products(spectra: Tensor, weight: Tensor, phases: Tensor, transposed: bool) -> Tensor:
    """Spectra [F, 2·B, in] times those of the weight [O, C, k, k] by its phases [2, F, k·k]: [2, F, B, out].

    From C to O channels where the weight's matrices are transposed, else from O to C.
    """
    pairs, (total, twice, _) = weight.shape[:2], spectra.shape
    batch, flat = twice // 2, weight.flatten(2).flatten(0, 1).t().contiguous()
    out = spectra.new_empty(2, total, batch, pairs[0 if transposed else 1])
    for part in _frequency_groups(total, flat.shape[1]):
        kernels = (phases[:, part].flatten(0, 1) @ flat).view(2, -1, *pairs)
        kernels = kernels.transpose(2, 3) if transposed else kernels
        by_real, by_imaginary = torch.bmm(spectra[part], kernels[0]), torch.bmm(spectra[part], kernels[1])
        torch.sub(by_real[:, :batch], by_imaginary[:, batch:], out=out[0, part])
        torch.add(by_real[:, batch:], by_imaginary[:, :batch], out=out[1, part])
    return out


def _spectral_correlation(spectra: Tensor, gradient: Tensor, phases: Tensor) -> Tensor:
    """The weight's gradient [O·C, k·k]: spectra [F, 2·B, C] times the conjugates of the gradient's [F, 2·B, O]."""
    real, imaginary = gradient.chunk(2, dim=1)
    rotated = torch.cat((-imaginary, real), dim=1)
    out = spectra.new_zeros(phases.shape[2], gradient.shape[2] * spectra.shape[2])
    for part in _frequency_groups(len(spectra), out.shape[1]):
        for each, phase in zip((gradient, rotated), phases, strict=True):
            products = torch.bmm(each[part].transpose(1, 2), spectra[part])
            out.addmm_(phase[part].t(), products.view(-1, out.shape[1]))
    return out.t()


def _frequency_groups(frequencies: int, pairs: int) -> list[slice]:
    step = max(1, SPECTRA_AT_ONCE // (2 * pairs))
    return [slice(start, start + step) for start in range(0, frequencies, step)]


@cache
def _dft_matrices(side: int, size: int) -> tuple[Tensor, Tensor]:
    """Matrices that take `size` numbers to their spectrum over a side; transposed they take it back, less its scale.

    Along a row, real numbers to half a spectrum [2·(side//2 + 1), size]; down a column, where numbers are complex,
    [2·side, 2·size]. Real parts come before imaginary ones in spectra, and beside them in numbers.
    """
    angles = torch.outer(torch.arange(side), torch.arange(size)).double() * (2 * math.pi / side)
    cosine, sine = angles.cos().float(), angles.sin().float()
    half = side // 2 + 1
    down = torch.stack((torch.stack((cosine, sine), dim=-1), torch.stack((-sine, cosine), dim=-1)))
    return torch.cat((cosine[:half], -sine[:half])), down.view(2 * side, 2 * size)


@cache
def _kernel_phases(side: int, width: int, padding: int) -> Tensor:
    """Cosine and sine [2, F, k·k] of every frequency at every place of a kernel, shifted by the padding."""
    places = torch.arange(width).double() - padding
    rows, columns = (torch.arange(count).double()[:, None] * places / side for count in (side, side // 2 + 1))
    angles = 2 * math.pi * (rows[:, None, :, None] + columns[None, :, None, :]).flatten(2).flatten(0, 1)
    return torch.stack((angles.cos(), angles.sin())).float()


@cache
def _column_counts(side: int) -> Tensor:
    """What the columns of half a spectrum [side//2 + 1] count in the way back.

    The spectrum of real numbers is symmetric: all columns but the first and, of an even side, the last are there twice.
    """
    counts = torch.full((side // 2 + 1,), 2.0)
    counts[0] = 1.0
    if side % 2 == 0:
        counts[-1] = 1.0
    return counts / side**2
