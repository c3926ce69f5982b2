"""Multi-head attention: the scaled dot product, and the module with packed weights that encoders are made of."""

import math

import torch
from penumbra.models.transformer.dropout import Dropout, cheaply, kept
from torch import Tensor, nn
from torch.nn import functional


def padding_bias(mask: Tensor) -> Tensor:
    """Additive logits [B, 1, 1, L] that hide what the boolean mask [B, L] calls padding."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)[:, None, None]


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention over `heads` slices of the channels.

    query [B, Lq, heads·a], key [B, Lk, heads·a], value [B, Lk, heads·b]; bias is added to the logits and broadcasts
    to [B, heads, Lq, Lk]. Returns [B, Lq, heads·b]. The scale is 1/sqrt(a); dropout falls on the probabilities.
    """
    q, k, v = (x.view(*x.shape[:-1], heads, -1).transpose(1, 2) for x in (query, key, value))
    bias = None if bias is None else bias.to(q.dtype)
    if dropout and cheaply(q):
        out = _attend_with_dropout(q, k, v, bias, dropout)
    else:
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    return out.transpose(1, 2).flatten(2)


def _attend_with_dropout(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
    """The same with dropout's cheap masks: torch's fused kernel knows no dropout on a CPU."""
    batch, heads, rows, keys = *q.shape[:3], k.shape[2]
    flat = [x.reshape(batch * heads, *x.shape[2:]) for x in (q, k, v)]
    scale = q.shape[-1] ** -0.5
    if bias is None:
        logits = torch.bmm(flat[0] * scale, flat[1].transpose(1, 2))
    else:
        added = bias.expand(batch, heads, *bias.shape[2:]).reshape(batch * heads, *bias.shape[2:])
        logits = torch.baddbmm(added, flat[0], flat[1].transpose(1, 2), alpha=scale)
    weights = logits.softmax(-1)
    left = weights * kept((batch * heads, rows, keys), dropout, weights.dtype)
    out = torch.bmm(left, flat[2] * (1 / (1 - dropout)))  # the scale of what is left
    return out.view(batch, heads, rows, -1)


class Attention(nn.Module):
    """Multi-head attention with the projections of query, key and value in one matrix, in this order (rows)."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.in_weight = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.in_bias = nn.Parameter(torch.zeros(3 * hidden))
        self.out = nn.Linear(hidden, hidden)
        self.dropout = Dropout(dropout)
        nn.init.xavier_uniform_(self.in_weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Query [B, Lq, hidden]; key and value [B, Lk, hidden]; bias as in `attend`. Returns [B, Lq, hidden]."""
        d = query.shape[-1]
        if query is key:
            q, k = functional.linear(query, self.in_weight[: 2 * d], self.in_bias[: 2 * d]).chunk(2, dim=-1)
        else:
            q = functional.linear(query, self.in_weight[:d], self.in_bias[:d])
            if len(q) < len(key):  # several keys for each query
                q = q.repeat(len(key) // len(q), 1, 1)
            k = functional.linear(key, self.in_weight[d : 2 * d], self.in_bias[d : 2 * d])
        v = functional.linear(value, self.in_weight[2 * d :], self.in_bias[2 * d :])
        p = self.dropout.p if self.training else 0.0
        out: Tensor = self.out(attend(q, k, v, self.heads, bias, p))
        return out
