"""Launchers of a Weaver's round on the device: scores of candidates, and growth by the best of them."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_kernels.launching import check_place, check_tensors, load_kernels

CANDIDATES, CHANNEL_TILE = 8, 512
MOST_FRONTIER = 16384


class GrowingTrees(NamedTuple):
    """Woven trees in the making, changed in place; row 0 of each holds its root.

    Attributes:
        tokens, parents, depths: [batch, nodes] int64; parents -1 for roots and -2 where there is no node.
        totals: [batch, nodes] float64, log-probability of each node's path.
        ancestors: [batch, nodes, nodes] bool, a node included.
        frontier: [batch, nodes * children] float64, what waits, minus infinity elsewhere.
        offered: [batch, nodes * children] int64, its tokens.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    totals: Tensor
    ancestors: Tensor
    frontier: Tensor
    offered: Tensor


def candidate_scores(
    read: Tensor, table: Tensor, pool: Tensor, pool_logits: Tensor, depths: Tensor, start: int
) -> Tensor:
    """Unnormalised log-probabilities of the candidates of ``width`` nodes from ``start``, each in its own depth's pool.

    Args:
        read: [batch, width, channels], the read-outs of those nodes; float32 or bfloat16.
        table: [vocabulary, channels], as read: what the read-outs are multiplied with.
        pool: [batch, depths, K] int64, rows of the table.
        pool_logits: [batch, depths, K], floating.
        depths: [batch, nodes] int64, of all nodes; those deeper than the pool take its last depth.

    Returns:
        [batch, width, K] float32.

    Raises:
        ValueError: if shapes, dtypes or devices are not as above.
    """
    batch, width, channels = read.shape if read.ndim == 3 else (0, 0, 0)
    if read.ndim != 3 or read.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"read must be [batch, width, channels] in float32 or bfloat16, got {read.dtype} {list(read.shape)}"
        )
    size = list(pool.shape)
    if len(size) != 3 or not 0 <= start <= depths.shape[-1] - width:
        raise ValueError(f"a pool [batch, depths, K] and nodes of the tree are needed, got {size}, {start} + {width}")
    named = {
        "table": (table, [len(table), channels], read.dtype),
        "pool": (pool, [batch, *size[1:]], torch.int64),
        "pool_logits": (pool_logits, [batch, *size[1:]], None),
        "depths": (depths, [batch, depths.shape[-1]], torch.int64),
    }
    check_tensors(named, read.device, because="these read-outs")
    kernels, interpreted = load_kernels("_weave_round")
    check_place(interpreted, read)
    scores = torch.empty(batch, width, size[2], dtype=torch.float32, device=read.device)
    grid = (math.ceil(size[2] / CANDIDATES), width, batch)
    kernels.scores_kernel[grid](
        read.contiguous(), _whole("table", table), _whole("pool", pool), _whole("pool_logits", pool_logits),
        _whole("depths", depths), scores, start, width, channels, depths.shape[1], size[1],
        POOL=size[2], CANDIDATES=CANDIDATES, CHANNEL_TILE=min(CHANNEL_TILE, _power(channels)), num_warps=4,
    )  # fmt: skip
    return scores


def grow(
    scores: Tensor, pool: Tensor, trees: GrowingTrees, start: int, after: tuple[int, int], children: int, deepest: int
) -> None:
    """One round: nodes ``start`` and following offer their best children, and the best on offer become the next nodes.

    Args:
        scores: of :func:`candidate_scores`.
        pool: [batch, depths, K] int64.
        after: first of the next nodes and how many of them there are.
        children: most children of a node.
        deepest: longest path.

    Raises:
        ValueError: if shapes, dtypes or devices are not as above, or the frontier is too long for one program.
    """
    batch, width, size = scores.shape
    nodes = trees.tokens.shape[1]
    waiting = nodes * children
    if waiting > MOST_FRONTIER:
        raise ValueError(f"{nodes} nodes with {children} children each are too many: at most {MOST_FRONTIER} may wait")
    if children > size:
        raise ValueError(f"a node has {size} candidates, and {children} children are asked for: take fewer")
    one, two = [batch, nodes], [batch, waiting]
    named = {
        "scores": (scores, [batch, width, size], torch.float32),
        "pool": (pool, [batch, pool.shape[1], size], torch.int64),
        "tokens": (trees.tokens, one, torch.int64),
        "parents": (trees.parents, one, torch.int64),
        "depths": (trees.depths, one, torch.int64),
        "totals": (trees.totals, one, torch.float64),
        "ancestors": (trees.ancestors, [batch, nodes, nodes], torch.bool),
        "frontier": (trees.frontier, two, torch.float64),
        "offered": (trees.offered, two, torch.int64),
    }
    check_tensors(named, scores.device, because="these scores and trees")
    kernels, interpreted = load_kernels("_weave_round")
    check_place(interpreted, scores, multiplies=False)
    whole = [_whole(name, tensor) for name, (tensor, _, _) in named.items()]
    whole[6] = whole[6].view(torch.uint8)
    kernels.grow_kernel[(batch,)](
        *whole, start, width, *after, nodes, children, pool.shape[1], deepest,
        POOL=size, POOL_TILE=_power(size), WIDTH_TILE=max(1, 1 << (width - 1).bit_length()), NODE_TILE=_power(nodes),
        FRONTIER_TILE=_power(waiting), num_warps=8,
    )  # fmt: skip


def _power(number: int) -> int:
    """The next power of two, at least 16."""
    return max(16, 1 << (number - 1).bit_length()) if number > 1 else 16


def _whole(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous for the Triton kernel: call contiguous()")
    return tensor
