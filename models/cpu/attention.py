"""Attention with the cheap masks of `dropout`: torch's fused kernel knows no dropout on a CPU."""

import torch
from torch import Tensor

from penumbra.models.cpu.dropout import keep_mask


def attention_by_products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, p: float) -> Tensor | None:
    """`models.transformer.attention.scaled_dot_product` from two batched matrix products; None without dropout."""
    if not p:
        return None
    batch, heads, rows, keys = *q.shape[:3], k.shape[2]
    flat = [x.reshape(batch * heads, *x.shape[2:]) for x in (q, k, v)]
    scale = q.shape[-1] ** -0.5
    if bias is None:
        logits = torch.bmm(flat[0] * scale, flat[1].transpose(1, 2))
    else:
        added = bias.expand(batch, heads, *bias.shape[2:]).reshape(batch * heads, *bias.shape[2:])
        logits = torch.baddbmm(added, flat[0], flat[1].transpose(1, 2), alpha=scale)
    weights = logits.softmax(-1)
    weights = weights * keep_mask((batch * heads, rows, keys), p, weights.dtype)
    out = torch.bmm(weights, flat[2] * (1 / (1 - p)))  # the values are fewer than the weights to scale
    return out.view(batch, heads, rows, -1)
