"""Attention and dropout of the transformer against their formulas and torch's own modules."""

import math

import pytest
import torch

from penumbra.models.transformer import Dropout, attend, keep_mask, padding_bias


@pytest.mark.parametrize("with_bias", [True, False])
def test_attention_with_dropout_is_attention_with_some_weights_left_out(with_bias: bool) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 12)
    bias = padding_bias(torch.arange(7) < torch.tensor([7, 3])[:, None])
    torch.manual_seed(1)
    found = attend(query, key, value, 4, bias if with_bias else None, 0.3)
    torch.manual_seed(1)
    mask = keep_mask((8, 5, 7), 0.3, torch.float32).view(2, 4, 5, 7) / 0.7
    q, k, v = (x.view(2, -1, 4, x.shape[-1] // 4).transpose(1, 2) for x in (query, key, value))
    weights = (q @ k.transpose(2, 3) / math.sqrt(2) + (bias if with_bias else 0)).softmax(-1)
    torch.testing.assert_close(found, ((weights * mask) @ v).transpose(1, 2).reshape(2, 5, 12))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999])
def test_dropout_drops_its_share_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    shares = torch.stack([1 - keep_mask((50, 400), p, torch.float32) for _ in range(100)])
    assert abs(float(shares.mean()) - p) < 4 * (p * (1 - p) / shares.numel()) ** 0.5 + 4 * 0.5 / 256 / 100**0.5
    dropped = Dropout(p)(torch.ones(200, 1000))
    assert set(dropped.unique().tolist()) <= {0.0, float(torch.tensor(1 / (1 - p)))}
