"""The cheap random numbers of a CPU's dropout: the right share, seeded, independent."""

import pytest
import torch

from penumbra.models.cpu.dropout import keep_mask
from penumbra.models.dropout import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    shares = torch.stack([1 - keep_mask((50, 400), p, torch.float32) for _ in range(100)])
    assert abs(float(shares.mean()) - p) < 4 * (p * (1 - p) / shares.numel()) ** 0.5 + 4 * 0.5 / 256 / 100**0.5
    dropped = Dropout(p)(torch.ones(200, 1000))
    assert set(dropped.unique().tolist()) <= {0.0, float(torch.tensor(1 / (1 - p)))}


def test_dropout_is_seeded_and_not_the_same_twice() -> None:
    torch.manual_seed(3)
    first, second = keep_mask((9, 7), 0.5, torch.float32), keep_mask((9, 7), 0.5, torch.float32)
    torch.manual_seed(3)
    assert torch.equal(first, keep_mask((9, 7), 0.5, torch.float32))
    assert not torch.equal(first, second)


def test_neighbouring_elements_are_dropped_independently() -> None:
    torch.manual_seed(0)
    centred = keep_mask((4000, 512), 0.5, torch.float32) - 0.5
    for shift in (1, 2, 8, 64):
        assert abs(float((centred[:, :-shift] * centred[:, shift:]).mean())) < 0.002
    assert abs(float((centred[:-1] * centred[1:]).mean())) < 0.002
