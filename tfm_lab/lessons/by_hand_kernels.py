"""Solutions of the puzzles of notebook 09: Triton kernels without their ``@triton.jit``.

So the module can be imported without Triton. ``interpreting.launch`` runs the kernels in the interpreter; on a GPU
``triton.jit`` compiles them as they are. One head, all matrices row by row without gaps, float32, DIM key columns and
as many value columns, tiles of 16 x 16. Tests hold them against ``tfm_lab.gdn.tree_verify``.
"""

from __future__ import annotations  # tl.constexpr stays a text, which Triton reads as well

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triton import language as tl
else:
    try:
        from triton import language as tl
    except ModuleNotFoundError:
        tl = None


def load_tile(rows, tile, nodes, DIM: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    c = tl.arange(0, DIM)
    place = i[:, None] * DIM + c[None, :]
    loaded = tl.load(rows + place, mask=i[:, None] < nodes, other=0.0)
    tl.store(tile + place, loaded)


def gram(key, product, nodes, DIM: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1) * 16 + tl.arange(0, 16)
    c = tl.arange(0, DIM)
    key_i = tl.load(key + i[:, None] * DIM + c[None, :], mask=i[:, None] < nodes, other=0.0)
    key_j = tl.load(key + j[:, None] * DIM + c[None, :], mask=j[:, None] < nodes, other=0.0)
    tile = tl.dot(key_i, tl.trans(key_j), input_precision="ieee")
    tl.store(product + i[:, None] * nodes + j[None, :], tile, mask=(i[:, None] < nodes) & (j[None, :] < nodes))


def decay_mask(path_sum, ancestors, decay, nodes):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1) * 16 + tl.arange(0, 16)
    place = i[:, None] * nodes + j[None, :]
    exists = (i[:, None] < nodes) & (j[None, :] < nodes)
    seen = tl.load(ancestors + place, mask=exists, other=0) != 0
    sum_i = tl.load(path_sum + i, mask=i < nodes, other=0.0)
    sum_j = tl.load(path_sum + j, mask=j < nodes, other=0.0)
    exponent = tl.where(seen, sum_i[:, None] - sum_j[None, :], float("-inf"))
    tl.store(decay + place, tl.exp(exponent), mask=exists)


def substitute(x, right, update, DIM: tl.constexpr):
    row = tl.arange(0, 16)
    c = tl.arange(0, DIM)
    system = tl.load(x + row[:, None] * 16 + row[None, :])
    system = tl.where(row[:, None] > row[None, :], system, 0.0)
    u = tl.load(right + row[:, None] * DIM + c[None, :])
    for s in range(1, 16):
        x_s = tl.sum(tl.where(row[:, None] == s, system, 0.0), axis=0)
        known = tl.sum(x_s[:, None] * u, axis=0)
        u = tl.where(row[:, None] == s, u - known[None, :], u)
    tl.store(update + row[:, None] * DIM + c[None, :], u)


def output_tile(query, key, decay, from_root, state, update, output, nodes, DIM: tl.constexpr):
    row = tl.arange(0, 16)
    c = tl.arange(0, DIM)
    exists = row[:, None] < nodes
    place = row[:, None] * DIM + c[None, :]
    q = tl.load(query + place, mask=exists, other=0.0)
    k = tl.load(key + place, mask=exists, other=0.0)
    u = tl.load(update + place, mask=exists, other=0.0)
    d = tl.load(decay + row[:, None] * nodes + row[None, :], mask=exists & (row[None, :] < nodes), other=0.0)
    a = tl.load(from_root + row, mask=row < nodes, other=0.0)
    s0 = tl.load(state + c[:, None] * DIM + c[None, :])
    remembered = a[:, None] * tl.dot(q, s0, input_precision="ieee")
    y = d * tl.dot(q, tl.trans(k), input_precision="ieee")
    tl.store(output + place, remembered + tl.dot(y, u, input_precision="ieee"), mask=exists)


def verify_tree(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM: tl.constexpr):
    row = tl.arange(0, 16)
    c = tl.arange(0, DIM)
    s0 = tl.load(state + c[:, None] * DIM + c[None, :])  # the only time
    for first in range(0, nodes, 16):
        i = first + row
        in_i = i[:, None] < nodes
        place = i[:, None] * DIM + c[None, :]
        q = tl.load(query + place, mask=in_i, other=0.0)
        k = tl.load(key + place, mask=in_i, other=0.0)
        v = tl.load(value + place, mask=in_i, other=0.0)
        sum_i = tl.load(path_sum + i, mask=i < nodes, other=0.0)
        strength = tl.load(beta + i, mask=i < nodes, other=0.0)[:, None]
        a = tl.exp(sum_i)[:, None]
        u = strength * (v - a * tl.dot(k, s0, input_precision="ieee"))
        o = a * tl.dot(q, s0, input_precision="ieee")

        for start in range(0, first, 16):  # earlier tiles: their updates are known
            j = start + row
            seen = tl.load(ancestors + i[:, None] * nodes + j[None, :], mask=in_i, other=0) != 0
            if tl.max(tl.max(seen.to(tl.int32), axis=1), axis=0) > 0:  # no ancestor in there, nothing to do
                k_j = tl.load(key + j[:, None] * DIM + c[None, :])
                u_j = tl.load(update + j[:, None] * DIM + c[None, :])
                sum_j = tl.load(path_sum + j)
                d = tl.exp(tl.where(seen, sum_i[:, None] - sum_j[None, :], float("-inf")))
                u -= tl.dot(
                    strength * d * tl.dot(k, tl.trans(k_j), input_precision="ieee"), u_j, input_precision="ieee"
                )
                o += tl.dot(d * tl.dot(q, tl.trans(k_j), input_precision="ieee"), u_j, input_precision="ieee")

        exists = in_i & (i[None, :] < nodes)
        seen = tl.load(ancestors + i[:, None] * nodes + i[None, :], mask=exists, other=0) != 0
        d = tl.exp(tl.where(seen, sum_i[:, None] - sum_i[None, :], float("-inf")))
        x = strength * d * tl.dot(k, tl.trans(k), input_precision="ieee")
        x = tl.where(row[:, None] > row[None, :], x, 0.0)
        for s in range(1, 16):  # inside the tile: node after node
            x_s = tl.sum(tl.where(row[:, None] == s, x, 0.0), axis=0)
            u = tl.where(row[:, None] == s, u - tl.sum(x_s[:, None] * u, axis=0)[None, :], u)
        o += tl.dot(d * tl.dot(q, tl.trans(k), input_precision="ieee"), u, input_precision="ieee")
        tl.store(update + place, u, mask=in_i)
        tl.store(output + place, o, mask=in_i)
        tl.debug_barrier()  # on a GPU: what later tiles read must have been written by all threads


def verify_branches(query, key, value, log_decay, beta, state, paths, scratch, output, longest, DIM: tl.constexpr):
    """What the fused kernel replaces, as a yardstick: one program per branch, which replays its whole path by the
    recurrence; the state stays in memory and is read and written at every node. ``paths`` is -1 behind a branch's leaf.
    """
    branch = tl.program_id(0)
    c = tl.arange(0, DIM)
    place = c[:, None] * DIM + c[None, :]
    own = scratch + branch * DIM * DIM + place
    for step in range(longest):
        node = tl.load(paths + branch * longest + step)
        if node >= 0:
            source = state + place
            if step > 0:
                source = own
            s = tl.exp(tl.load(log_decay + node)) * tl.load(source)
            k, v = tl.load(key + node * DIM + c), tl.load(value + node * DIM + c)
            u = tl.load(beta + node) * (v - tl.sum(k[:, None] * s, axis=0))
            s += k[:, None] * u[None, :]
            tl.store(own, s)
            q = tl.load(query + node * DIM + c)
            tl.store(output + node * DIM + c, tl.sum(q[:, None] * s, axis=0))
