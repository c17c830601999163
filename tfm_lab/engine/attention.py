"""Attention of a few rows to a cache of fixed length: who sees what, and several ways to compute it.

The cache holds ``capacity`` rows per request, of which the first ``length`` are committed; a tree's own rows follow.
What lies behind them is masked. Masked scores are -1e30 rather than minus infinity, so that a block of the cache in
which a row sees nothing has a finite (and negligible) weight.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from tfm_kernels.tree_attention import tree_attention
from torch import Tensor

HIDDEN = -1e30
"""What is added to the score of a key that must not be seen."""

PART = 256
"""Rows of a cache come in multiples of this, so that masks are aligned and caches split evenly."""

TREE = "tree"
"""The attention that is told who sees whom and takes no mask."""


class Visible(NamedTuple):
    """Who sees whom in a step: every row the committed rows, and of the step's own what ``own`` says.

    Attributes:
        length: committed rows.
        own: ``[i, j]`` is true where row i of the step sees row j.
        mask: the same as numbers to add to the scores of grouped queries; ``None`` where nothing reads it.
    """

    length: Int[Tensor, " batch"]
    own: Bool[Tensor, "batch rows rows"]
    mask: Float[Tensor, "batch 1 grouped capacity"] | None


Attend = Callable[[Tensor, Tensor, Tensor, Visible], Tensor]
"""Grouped queries [batch, shared, rows, size], keys and values [batch, capacity, shared, size] -> as queries."""


def padded(rows: int) -> int:
    """The next multiple of ``PART``."""
    return -(-rows // PART) * PART


def tree_mask(
    length: Int[Tensor, " batch"],
    ancestors: Bool[Tensor, "batch rows rows"],
    capacity: int,
    groups: int,
    dtype: torch.dtype,
) -> Float[Tensor, "batch 1 grouped capacity"]:
    """What to add to scores: nodes see the committed rows, their ancestors and themselves."""
    batch, rows = ancestors.shape[:2]
    behind = torch.arange(capacity, device=length.device) - length[:, None]
    own = ancestors.gather(2, behind.clamp(0, rows - 1)[:, None].expand(batch, rows, capacity))
    visible = (behind < 0)[:, None] | (own & ((behind >= 0) & (behind < rows))[:, None])
    mask = torch.zeros(visible.shape, dtype=dtype, device=length.device).masked_fill(~visible, HIDDEN)
    return mask.repeat(1, groups, 1)[:, None]


def block_mask(
    length: Int[Tensor, " batch"], rows: int, capacity: int, groups: int, dtype: torch.dtype
) -> Float[Tensor, "batch 1 grouped capacity"]:
    """The same for a drafter's block, whose rows see each other in both directions."""
    visible = torch.arange(capacity, device=length.device) < (length + rows)[:, None]
    mask = torch.zeros(visible.shape, dtype=dtype, device=length.device).masked_fill(~visible, HIDDEN)
    return mask[:, None, None].repeat(1, 1, groups * rows, 1)


def fused_attention(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
    """PyTorch's own choice of kernel."""
    return F.scaled_dot_product_attention(query, key.transpose(1, 2), value.transpose(1, 2), attn_mask=visible.mask)


def products_attention(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
    """Two batched products and a softmax: few rows over a long cache keep the whole device busy."""
    scores = query @ key.permute(0, 2, 3, 1) * query.shape[-1] ** -0.5 + _mask(visible)
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(
        query.dtype
    ) @ value.transpose(1, 2)


def split_attention(parts: int) -> Attend:
    """Parts of the cache side by side, merged by the sums of their exponentials: more programs for few rows."""

    def attend(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
        mask = _mask(visible)
        batch, shared, rows, _ = query.shape
        queries = query[:, None].expand(batch, parts, *query.shape[1:]).flatten(0, 1)
        keys, values = (x.unflatten(1, (parts, -1)).flatten(0, 1).transpose(1, 2) for x in (key, value))
        masks = mask.unflatten(3, (parts, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1)
        output, log_sum = _with_log_sum(queries, keys, values, masks.expand(-1, shared, -1, -1))
        output, log_sum = (x.unflatten(0, (batch, parts)) for x in (output, log_sum[..., :rows]))
        weight = torch.softmax(log_sum.float() if log_sum.dtype != torch.float64 else log_sum, dim=1)
        return (output * weight[..., None]).sum(1).to(query.dtype)

    return attend


def _with_log_sum(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of its denominators [batch, heads, rows or more]."""
    if query.is_cuda:
        return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, mask, True)[:2]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask)


def kernel_attention(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
    """The Triton kernel: the cache in parts side by side, as far as it is filled, and no mask."""
    return tree_attention(query, key, value, visible.length, visible.own)


def _mask(visible: Visible) -> Tensor:
    assert visible.mask is not None
    return visible.mask


def attention_kinds(capacity: int) -> dict[str, Attend]:
    """Name -> implementation, for a cache of this many rows per request."""
    kinds: dict[str, Attend] = {"fused": fused_attention, "products": products_attention, TREE: kernel_attention}
    for parts in (4, 8, 16, 32):
        if (capacity // PART) % parts == 0:
            kinds[f"split {parts}"] = split_attention(parts)
    return kinds
