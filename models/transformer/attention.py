"""Multi-head attention: the scaled dot product, and the module with packed weights that encoders are made of."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from penumbra.models.cpu.attention import attention_by_products
from penumbra.models.cpu.dispatch import on_cpu
from penumbra.models.dropout import Dropout


def padding_bias(mask: Tensor) -> Tensor:
    """Additive logits [B, 1, 1, L] that hide what the boolean mask [B, L] calls padding."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -math.inf)[:, None, None]


@on_cpu(attention_by_products)
def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, p: float) -> Tensor:
    """drop(softmax(q kᵀ / √a + bias)) v (Vaswani et al., 2017, Eq. 1): [B, heads, Lq, b].

    q [B, heads, Lq, a], k [B, heads, Lk, a], v [B, heads, Lk, b]; p is dropout's probability. With dropout on a CPU
    `penumbra.models.cpu.attention` computes the same faster.
    """
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, bias: Tensor | None, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention over `heads` slices of the channels.

    query [B, Lq, heads·a], key [B, Lk, heads·a], value [B, Lk, heads·b]; bias is added to the logits and broadcasts
    to [B, heads, Lq, Lk]. Returns [B, Lq, heads·b]. The scale is 1/sqrt(a); dropout falls on the probabilities.
    """
    q, k, v = (x.view(*x.shape[:-1], heads, -1).transpose(1, 2) for x in (query, key, value))
    bias = None if bias is None else bias.to(q.dtype)
    return scaled_dot_product(q, k, v, bias, dropout).transpose(1, 2).flatten(2)


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
        out: Tensor = self.out(attend(q, k, v, self.heads, bias, self.dropout.rate))
        return out
