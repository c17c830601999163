"""Launcher of the attention of a draft tree's rows to a long cache."""

import math

import torch
from torch import Tensor

from tfm_kernels.launching import check_place, check_tensors, load_kernels

SIZES = (16, 32, 64, 128, 256)
MOST_ROWS = 64
MOST_PARTS = 64
KEY_TILE = 32
PROGRAMS = 128
"""About as many programs as there are places for them: of a launch for few rows the cache is cut into more parts."""


def parts_for(grouped: int, shared: int, batch: int, capacity: int) -> int:
    """Parts that a cache is cut into; the same for every length, so that a launch can be recorded."""
    tiles = math.ceil(grouped / _row_tile(grouped)) * shared * batch
    return max(1, min(MOST_PARTS, PROGRAMS // tiles, math.ceil(capacity / KEY_TILE)))


def tree_attention(
    query: Tensor, key: Tensor, value: Tensor, length: Tensor, own: Tensor, *, parts: int | None = None
) -> Tensor:
    """Softmax attention with scale 1/sqrt(size): every row sees the committed rows, and of the tree what ``own`` says.

    Args:
        query: [batch, shared, groups * rows, size], float32 or bfloat16: all rows of the first query head of a group,
            then those of the next. The last axis is contiguous.
        key: [batch, capacity, shared, size], as query: committed rows, then the tree's; the rest is not read.
        value: as key.
        length: [batch] int64, committed rows; with the tree's they fit the capacity.
        own: [batch, rows, rows] bool: ``[i, j]`` where row i sees row j. Every row sees itself.
        parts: that the cache is cut into; by default :func:`parts_for`.

    Returns:
        As query, contiguous.

    Raises:
        ValueError: if shapes, dtypes or devices are not as above.
    """
    if query.ndim != 4 or query.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"query must be [batch, shared, rows, size] in float32 or bfloat16, got {query.dtype} {list(query.shape)}"
        )
    batch, shared, grouped, size = query.shape
    rows, capacity = own.shape[-1], key.shape[1] if key.ndim == 4 else 0
    if size not in SIZES:
        raise ValueError(f"heads of {size} channels are not supported; use one of {', '.join(map(str, SIZES))}")
    if rows < 1 or grouped % rows:
        raise ValueError(f"{grouped} grouped queries are no multiple of a tree of {rows} rows")
    named = {
        "key": (key, [batch, capacity, shared, size], query.dtype),
        "value": (value, [batch, capacity, shared, size], query.dtype),
        "length": (length, [batch], torch.int64),
        "own": (own, [batch, rows, rows], torch.bool),
    }
    check_tensors(named, query.device, because="these queries")
    for name, tensor, inner in (("query", query, 3), ("key", key, 2), ("value", value, 2)):
        if not tensor[(0,) * inner].is_contiguous() or (inner == 2 and tensor.stride(2) != size):
            raise ValueError(f"the channels of {name} must lie side by side: call contiguous()")
    kernels, interpreted = load_kernels("_tree_attention")
    check_place(interpreted, query)
    parts = parts or parts_for(grouped, shared, batch, capacity)
    tile = _row_tile(grouped)
    sums = torch.empty(parts, batch, shared, grouped, size, dtype=torch.float32, device=query.device)
    highest, totals = (torch.empty_like(sums[..., 0]) for _ in range(2))
    grid = (math.ceil(grouped / tile) * parts, shared, batch)
    kernels.parts_kernel[grid](
        query, key, value, length, own.contiguous().view(torch.uint8), sums, highest, totals,
        grouped, rows, batch, shared, parts, size**-0.5 * math.log2(math.e),
        query.stride(0), query.stride(1), query.stride(2), key.stride(0), key.stride(1), value.stride(0),
        value.stride(1), SIZE=size, ROW_TILE=tile, KEY_TILE=KEY_TILE,
        num_warps=8 if tile == MOST_ROWS else 4, num_stages=2,
    )  # fmt: skip
    output = torch.empty(batch, shared, grouped, size, dtype=query.dtype, device=query.device)
    all_rows = batch * shared * grouped
    kernels.merge_kernel[(math.ceil(all_rows / 8),)](
        sums, highest, totals, output, all_rows, parts, SIZE=size, ROW_TILE=8, num_warps=4
    )
    return output


def _row_tile(grouped: int) -> int:
    return min(MOST_ROWS, max(16, 1 << (grouped - 1).bit_length()))
