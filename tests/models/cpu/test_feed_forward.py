"""The CPU's feed-forward with its own backward against the plain one, under the same dropout masks."""

import pytest
import torch
from torch import nn

from penumbra.models.cpu.feed_forward import fused_feed_forward
from penumbra.models.transformer.feed_forward import Activation, FeedForward
from tests.models.cpu.plain import gradients, plainly


@pytest.mark.parametrize("activation", ["relu", "prelu"])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("slope", [0.25, 1.7, 0.0, -0.5])
def test_output_and_gradients_are_those_of_the_plain_formulation(
    activation: Activation, p: float, slope: float
) -> None:
    torch.manual_seed(0)
    net, values = FeedForward(8, 24, p, activation), torch.randn(5, 300, 8, requires_grad=True)
    if net.slope is not None:
        nn.init.constant_(net.slope, slope)
    fused = fused_feed_forward(values, net.linear1, net.linear2, net.slope, p)
    assert (fused is None) == (activation == "prelu" and slope <= 0)
    torch.manual_seed(1)
    found = net(values)
    torch.manual_seed(1)
    with plainly():
        wanted = net(values)
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(gradients(found, net, values), gradients(wanted, net, values), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_under_autocast_it_is_as_near_to_float32_as_the_plain_formulation(p: float) -> None:
    torch.manual_seed(0)
    net, values = FeedForward(16, 64, p, "prelu"), torch.randn(4, 50, 16, requires_grad=True)
    torch.manual_seed(1)
    exact = net(values)
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        found = net(values)
    torch.manual_seed(1)
    with plainly(), torch.autocast("cpu", torch.bfloat16):
        plain = net(values)
    assert found.dtype == plain.dtype == torch.bfloat16
    by = gradients(found, net, values)
    for other in (exact, plain):
        torch.testing.assert_close(found.float(), other.float(), rtol=0.05, atol=0.05)
        for ours, theirs in zip(by, gradients(other, net, values), strict=True):
            assert float((ours - theirs).norm() / theirs.norm()) < 0.05
            assert ours.dtype == torch.float32
