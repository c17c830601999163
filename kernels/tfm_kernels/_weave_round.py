"""Triton kernels of a Weaver's round: scores of the candidates of a few nodes, and the tree that grows by the best."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["start", "width"])
def scores_kernel(
    read,  # [batch, width, channels]
    table,  # [vocabulary, channels]
    pool,  # [batch, depths, POOL] int64
    pool_logits,  # [batch, depths, POOL]
    depths,  # [batch, nodes] int64, of the whole trees
    scores,  # [batch, width, POOL] float32
    start, width, channels, nodes, pool_depths,
    POOL: tl.constexpr, CANDIDATES: tl.constexpr, CHANNEL_TILE: tl.constexpr,
):  # fmt: skip
    """<table row, read-out> + drafter logit, for the candidates of each node's own depth. Grid: (tiles, width, batch).

    Rows of the table are read where they lie; each program takes CANDIDATES of them.
    """
    node, request = tl.program_id(1), tl.program_id(2).to(tl.int64)
    candidate = tl.program_id(0) * CANDIDATES + tl.arange(0, CANDIDATES)
    inside = candidate < POOL
    depth = tl.minimum(tl.load(depths + request * nodes + start + node), pool_depths - 1)
    place = (request * pool_depths + depth) * POOL + candidate
    row = tl.load(pool + place, mask=inside, other=0)
    read += (request * width + node) * channels
    total = tl.zeros([CANDIDATES, CHANNEL_TILE], tl.float32)
    for first in range(0, channels, CHANNEL_TILE):
        c = first + tl.arange(0, CHANNEL_TILE)
        z = tl.load(read + c, mask=c < channels, other=0.0).to(tl.float32)
        mask = inside[:, None] & (c < channels)[None, :]
        w = tl.load(table + row[:, None] * channels + c[None, :], mask=mask, other=0.0).to(tl.float32)
        total += w * z[None, :]
    score = tl.sum(total, axis=1) + tl.load(pool_logits + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(scores + (request * width + node) * POOL + candidate, score, mask=inside)


@triton.jit(do_not_specialize=["start", "width", "next_start", "next_width"])
def grow_kernel(
    scores,  # [batch, width, POOL] float32
    pool,  # [batch, depths, POOL] int64
    tokens,  # [batch, nodes] int64
    parents,  # [batch, nodes] int64, -1 root, -2 padding
    depths,  # [batch, nodes] int64
    totals,  # [batch, nodes] float64: log-probability of each path
    ancestors,  # [batch, nodes, nodes] uint8
    frontier,  # [batch, nodes * children] float64
    offered,  # [batch, nodes * children] int64
    start, width, next_start, next_width, nodes, children, pool_depths, deepest,
    POOL: tl.constexpr, POOL_TILE: tl.constexpr, WIDTH_TILE: tl.constexpr, NODE_TILE: tl.constexpr,
    FRONTIER_TILE: tl.constexpr,
):  # fmt: skip
    """The best children of ``width`` nodes join the frontier, and its best become the next nodes. Grid: (batch,).

    Ties go to the candidate that the drafter prefers and to the node that came first.
    """
    request = tl.program_id(0).to(tl.int64)
    scores += request * width * POOL
    pool += request * pool_depths * POOL
    tokens += request * nodes
    parents += request * nodes
    depths += request * nodes
    totals += request * nodes
    ancestors += request * nodes * nodes
    frontier += request * nodes * children
    offered += request * nodes * children

    slot, candidate = tl.arange(0, WIDTH_TILE), tl.arange(0, POOL_TILE)
    node, taken = start + slot, slot < width
    mask = taken[:, None] & (candidate < POOL)[None, :]
    score = tl.load(scores + slot[:, None] * POOL + candidate[None, :], mask=mask, other=0.0)
    score = tl.where((candidate < POOL)[None, :], score, float("-inf"))
    highest = tl.max(score, axis=1)
    log_sum = tl.log(tl.sum(tl.exp(score - highest[:, None]), axis=1))
    depth = tl.load(depths + node, mask=taken, other=0)
    is_open = taken & (tl.load(parents + node, mask=taken, other=-2) > -2) & (depth < deepest)
    total = tl.load(totals + node, mask=taken, other=0.0)
    candidates = pool + tl.minimum(depth, pool_depths - 1) * POOL
    for rank in range(children):
        best = tl.max(score, axis=1)
        at = tl.argmax(score, axis=1)
        offer = total + (best - highest - log_sum).to(tl.float64)
        tl.store(frontier + node * children + rank, tl.where(is_open, offer, float("-inf")), mask=taken)
        tl.store(offered + node * children + rank, tl.load(candidates + at, mask=taken, other=0), mask=taken)
        score = tl.where(candidate[None, :] == at[:, None], float("-inf"), score)

    tl.debug_barrier()
    place, column = tl.arange(0, FRONTIER_TILE), tl.arange(0, NODE_TILE)
    waiting = tl.load(frontier + place, mask=place < nodes * children, other=float("-inf"))
    for index in range(next_width):
        best = tl.max(waiting, axis=0)
        at = tl.argmax(waiting, axis=0)
        waiting = tl.where(place == at, float("-inf"), waiting)
        is_node, parent, new = best > float("-inf"), at // children, next_start + index
        tl.store(frontier + at, float("-inf"))
        tl.store(tokens + new, tl.load(offered + at))
        tl.store(parents + new, tl.where(is_node, parent, -2).to(tl.int64))
        tl.store(depths + new, tl.load(depths + parent) + 1)
        tl.store(totals + new, best)
        lineage = tl.load(ancestors + parent.to(tl.int64) * nodes + column, mask=column < nodes, other=0)
        row = tl.where(is_node, lineage, 0) | (column == new).to(tl.uint8)
        tl.store(ancestors + new.to(tl.int64) * nodes + column, row, mask=column < nodes)
