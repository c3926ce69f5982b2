"""Convolutions by spectra: torch's own numbers and gradients, and only where they are quicker."""

import pytest
import torch
from torch.nn import functional

from penumbra.models import fft_convolution
from penumbra.models.fft_convolution import convolve

# batch, channels in and out, size of the map, kernel, padding
SHAPES = [(3, 5, 7, 11, 5, 4), (2, 4, 6, 12, 5, 0), (2, 3, 4, 9, 3, 1), (2, 3, 4, 10, 4, 2), (1, 2, 3, 30, 3, 2)]


@pytest.mark.parametrize(("batch", "inner", "out", "size", "width", "padding"), SHAPES)
def test_numbers_and_gradients_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, batch: int, inner: int, out: int, size: int, width: int, padding: int
) -> None:
    monkeypatch.setattr(fft_convolution, "_is_faster", lambda *_: True)
    monkeypatch.setattr(fft_convolution, "SPECTRA_AT_ONCE", 500)  # several groups of frequencies
    generator = torch.Generator().manual_seed(0)
    cells = torch.randn(batch, inner, size, size, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(out, inner, width, width, generator=generator, dtype=torch.float64, requires_grad=True)
    wanted = functional.conv2d(cells, weight, padding=padding)
    slope = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
    wanted.backward(slope)  # type: ignore[no-untyped-call]
    ours = [value.detach().float().requires_grad_() for value in (cells, weight)]
    with torch.autocast("cpu", torch.bfloat16):
        found = convolve(*ours, padding)
    found.backward(slope.float())  # type: ignore[no-untyped-call]
    for mine, theirs in ((found, wanted), (ours[0].grad, cells.grad), (ours[1].grad, weight.grad)):
        assert mine is not None
        assert theirs is not None
        error = (mine - theirs).abs().max() / theirs.abs().max()
        assert error < 2e-6, error


@pytest.mark.parametrize(
    ("batch", "channels", "size", "width", "padding", "faster"),
    [
        (48, 512, 24, 5, 4, True),  # Charades-STA
        (48, 512, 64, 9, 8, True),  # ActivityNet Captions
        (4, 512, 24, 5, 4, False),  # so few maps that the kernels' spectra cost more than they save
        (16, 64, 16, 3, 2, False),
        (48, 512, 24, 1, 0, False),
    ],
)
def test_spectra_are_taken_where_they_are_quicker(
    batch: int, channels: int, size: int, width: int, padding: int, faster: bool
) -> None:
    cells = torch.empty(batch, channels, size, size, device="meta")
    weight = torch.empty(channels, channels, width, width, device="meta")
    assert fft_convolution._is_faster(cells, weight, padding) == faster
    with torch.autocast("cpu", torch.bfloat16):
        assert not fft_convolution._is_faster(cells, weight, padding)
