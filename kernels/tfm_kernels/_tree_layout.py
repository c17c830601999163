"""Triton kernel: what the tree kernels have to know of a draft tree, from the parents alone, once per step."""

import triton
import triton.language as tl


@triton.jit
def layout_kernel(
    parents,  # [batch, nodes]: -1 at the root, -2 at the padding behind the last node
    path,  # [batch, blocks, path_rows]: ancestors of a block's first node, root first, then -1
    words,  # [batch, blocks x 16]
    taps,  # [batch, nodes, WIDTH]: rows of [window; inputs] under the taps of the convolution
    nodes, blocks, path_rows, parent_batch,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks, batch).

    A word holds, from bit 0: 16 bits, one per strict ancestor within the block; 14 bits, the number of ancestors before
    the block, which are the first ones of ``path``; 1 bit, whether there is such a node. All words of a block are -1
    if its nodes are not in depth-first order or ``path`` is too short for it.
    """
    block, request = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parents += request * parent_batch
    first = block * 16
    r = tl.arange(0, 16)
    i = first + r
    parent = tl.load(parents + i, mask=i < nodes, other=-2)
    before = tl.load(parents + tl.maximum(i - 1, 0), mask=i < nodes, other=-2)
    exists = parent >= -1
    below_root = exists & (i > 0)
    fits = (parent >= 0) & (parent < i) & (before >= -1)
    sound = tl.where(i == 0, parent == -1, fits | ((parent == -2) | (i >= nodes)))
    parent = tl.where(below_root & fits, parent, -1)

    # In depth-first order a node hangs from the node before it or from one of that node's ancestors.
    climber = tl.where(below_root, i - 1, -1)
    while tl.max((climber > parent).to(tl.int32), 0) > 0:
        climbs = climber > parent
        up = tl.load(parents + tl.maximum(climber, 0), mask=climbs, other=-1)
        climber = tl.where(climbs, tl.where(up < climber, tl.maximum(up, -1), -1), climber)
    sound = sound & (climber == parent)

    bits = tl.zeros([16], tl.int32)
    prefix = tl.zeros([16], tl.int32)
    ancestor = parent
    while tl.max(ancestor, 0) >= 0:
        within = ancestor >= first
        bits |= tl.where(within, 1 << tl.maximum(ancestor - first, 0), 0)
        prefix += ((ancestor >= 0) & (ancestor < first)).to(tl.int32)
        up = tl.load(parents + tl.maximum(ancestor, 0), mask=ancestor >= 0, other=-1)
        ancestor = tl.where(up < ancestor, tl.maximum(up, -1), -1)
    depth = tl.sum(tl.where(r == 0, prefix, 0), 0)
    word = tl.where(exists, (1 << 30) | (prefix << 16) | bits, 0)
    good = (tl.min(sound.to(tl.int32), 0) > 0) & (depth <= path_rows)
    tl.store(words + (request * blocks + block) * 16 + r, tl.where(good, word, -1))

    path += (request * blocks + block) * path_rows
    for start in range(0, path_rows, 16):
        tl.store(path + start + r, tl.full([16], -1, tl.int32), mask=start + r >= depth)
    node = tl.sum(tl.where(r == 0, parent, 0), 0)
    position = depth - 1
    while node >= 0:
        tl.store(path + position, node, mask=position < path_rows)
        up = tl.load(parents + node)
        node = tl.where(up < node, up, -1)
        position -= 1

    row = i + WIDTH - 1
    for back in tl.static_range(0, WIDTH):
        tl.store(taps + (request * nodes + i) * WIDTH + WIDTH - 1 - back, row, mask=i < nodes)
        is_node = row >= WIDTH - 1
        node = tl.maximum(row - (WIDTH - 1), 0)
        up = tl.load(parents + node, mask=is_node & (i < nodes), other=-1)
        # Padding counts as a child of the root; a parent that is none, as none.
        up = tl.where(up >= tl.maximum(node, 1), -1, tl.where(up == -1, -1, tl.maximum(up, 0)))
        row = tl.where(is_node, up + WIDTH - 1, row - 1)
