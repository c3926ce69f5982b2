"""The CPU's own feed-forward and attention against torch's separate operations, dropout included."""

import math

import pytest
import torch
from penumbra.models.transformer.attention import Attention, attend, padding_bias
from penumbra.models.transformer.dropout import Dropout, kept
from penumbra.models.transformer.feed_forward import Activation, FeedForward
from torch import Tensor, nn
from torch.nn import functional


def gradients(out: Tensor, net: nn.Module, values: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
    return list(torch.autograd.grad((out.float() * weight).sum(), [values, *net.parameters()]))


def plainly(net: FeedForward, values: Tensor) -> Tensor:
    """The same from separate operations, with the mask that the next draw gives."""
    inner = net.linear1(values)
    inner = inner.relu() if net.slope is None else functional.prelu(inner, net.slope)
    p = net.dropout.p
    if net.training and p:
        inner = inner * kept(inner.flatten(0, -2).shape, p, inner.dtype).view(inner.shape) / (1 - p)
    out: Tensor = net.linear2(inner)
    return out


@pytest.mark.parametrize("activation", ["relu", "prelu"])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("slope", [0.25, 1.7, 0.0, -0.5])
def test_feed_forward_has_the_output_and_gradients_of_its_parts(activation: Activation, p: float, slope: float) -> None:
    torch.manual_seed(0)
    net, values = FeedForward(8, 24, p, activation), torch.randn(5, 300, 8, requires_grad=True)
    if net.slope is not None:
        nn.init.constant_(net.slope, slope)
    torch.manual_seed(1)
    found = net(values)
    torch.manual_seed(1)
    wanted = plainly(net, values)
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(gradients(found, net, values), gradients(wanted, net, values), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_feed_forward_under_autocast_is_near() -> None:
    torch.manual_seed(0)
    net, values = FeedForward(16, 64, 0.0, "prelu"), torch.randn(4, 50, 16, requires_grad=True)
    exact = net(values)
    with torch.autocast("cpu", torch.bfloat16):
        found = net(values)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)
    for ours, theirs in zip(gradients(found, net, values), gradients(exact, net, values), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 0.05
        assert ours.dtype == torch.float32


def attention_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    mask = torch.arange(7) < torch.tensor([7, 3])[:, None]
    return torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 12), padding_bias(mask)


@pytest.mark.parametrize("with_bias", [True, False])
def test_attention_with_dropout_is_attention_with_some_weights_left_out(with_bias: bool) -> None:
    query, key, value, bias = attention_inputs()
    torch.manual_seed(1)
    found = attend(query, key, value, 4, bias if with_bias else None, 0.3)
    torch.manual_seed(1)
    mask = kept((8, 5, 7), 0.3, torch.float32).view(2, 4, 5, 7) / 0.7
    q, k, v = (x.view(2, -1, 4, x.shape[-1] // 4).transpose(1, 2) for x in (query, key, value))
    weights = (q @ k.transpose(2, 3) / math.sqrt(2) + (bias if with_bias else 0)).softmax(-1)
    torch.testing.assert_close(found, ((weights * mask) @ v).transpose(1, 2).reshape(2, 5, 12))


def test_attention_has_no_dropout_in_evaluation_and_matches_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = Attention(8, 2, 0.4).eval(), nn.MultiheadAttention(8, 2, 0.4, batch_first=True).eval()
    theirs.load_state_dict(
        {"in_proj_weight": ours.in_weight, "in_proj_bias": ours.in_bias, "out_proj.weight": ours.out.weight,
         "out_proj.bias": ours.out.bias}
    )  # fmt: skip
    tokens, mask = torch.randn(2, 7, 8), torch.arange(7) < torch.tensor([7, 3])[:, None]
    wanted = theirs(tokens, tokens, tokens, key_padding_mask=~mask)[0]
    torch.testing.assert_close(ours(tokens, tokens, tokens, padding_bias(mask)), wanted)
    torch.testing.assert_close(ours(tokens, tokens.clone(), tokens, padding_bias(mask)), wanted)


def test_dropout_onto_a_residual_is_dropout_and_a_sum() -> None:
    residual, branch, drop = torch.randn(40, 50), torch.randn(40, 50), Dropout(0.25)
    torch.manual_seed(0)
    found = drop.onto(residual, branch)
    torch.manual_seed(0)
    torch.testing.assert_close(found, residual + drop(branch))
    assert torch.equal(drop.eval().onto(residual, branch), residual + branch)
