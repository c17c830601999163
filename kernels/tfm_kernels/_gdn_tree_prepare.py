"""Triton kernel: mixing matrices of blocks of 16 nodes whose root path has at most 16 nodes.

A block and its path are one problem of 32 rows: the path from the root in rows 0 to 15, the block behind it. Gates and
sums from the root are computed with one lane per row, and are read from memory wherever else they are needed. With
X_ij = beta_i D_ij (k_i . k_j) below the diagonal and Y_ij = D_ij (q_i . k_j), the matrices are W = (I + X)^-1 and
Z = Y W. Both are unknowns of one substitution in float32, from the last column to the first: Z (I + X) = Y, and
W (I + X) = I, of which the rows of the block are wanted.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

from tfm_kernels._gdn_tree import EXISTS, _column_of, _eliminated, _fold_request, _gates, _product

LOG2E = tl.constexpr(1.4426950408889634)
COARSE = tl.constexpr(2048.0)
"""Coarse parts of exponents are multiples of its reciprocal: sums of 32 of them, each at most 128 / ln 2, are exact."""


@triton.jit
def _sums_from_root(exponents, seen):
    """Per row the sum of the exponents of its ancestors and of itself, in two float32 terms, by doubling of pointers.

    ``exponents`` are [32], from -185 to 0; ``seen`` are the bits of the strict ancestors, which all lie before the row.
    """
    # The highest bit is the parent; without the bit below it the conversion cannot round up. No bit gives -127.
    parent = ((seen & ~(seen >> 1)).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    coarse = tl.floor(exponents * COARSE + 0.5) * (1.0 / COARSE)
    fine = exponents - coarse
    for _ in tl.static_range(5):  # pyright: ignore[reportGeneralTypeIssues]
        place = tl.maximum(parent, 0)
        coarse += tl.where(parent >= 0, tl.gather(coarse, place, 0), 0.0)
        fine += tl.where(parent >= 0, tl.gather(fine, place, 0), 0.0)
        parent = tl.where(parent >= 0, tl.gather(parent, place, 0), -1)
    return coarse, fine


@triton.jit
def _first_columns(scratch, diagonal, first: tl.constexpr):
    """Four columns of the right side, [4, 64]: 16 rows of the unit matrix, those of the block, and then those of Y."""
    column = first + tl.arange(0, 4)[:, None]
    row = tl.arange(0, 64)[None, :] % 32
    y = tl.load(scratch + 1024 + (row - 16) * 32 + column, mask=(column >= 0) & (row >= 16), other=0.0)
    return tl.where(column == 16 + row, 1.0 + diagonal, y)


@triton.jit
def _substitute(scratch, mixing):
    """W and Z of Z (I + X) = Y, from the last column to the first; W is Z for the rows of the unit matrix.

    A lane is a row, its 32 columns in registers, four at a time; both warps do the same, so that neither waits for the
    other. ``scratch`` holds X [32, 32] and Y [16, 32].
    """
    column = tl.arange(0, 4)[:, None]
    lane = tl.arange(0, 64)[None, :]
    # One number of every row that is read below, 0 on X's diagonal: the rows then come from the nearest cache.
    diagonal = tl.load(scratch + lane % 32 * 33)
    p0, p1 = _first_columns(scratch, diagonal, 0), _first_columns(scratch, diagonal, 4)
    p2, p3 = _first_columns(scratch, diagonal, 8), _first_columns(scratch, diagonal, 12)
    p4, p5 = _first_columns(scratch, diagonal, 16), _first_columns(scratch, diagonal, 20)
    p6, p7 = _first_columns(scratch, diagonal, 24), _first_columns(scratch, diagonal, 28)
    for s in tl.static_range(31, 0, -1):
        if s < 16:
            solved = _column_of(p0 if s < 4 else p1 if s < 8 else p2 if s < 12 else p3, s % 4)
        else:
            solved = _column_of(p4 if s < 20 else p5 if s < 24 else p6 if s < 28 else p7, s % 4)
        x = scratch + lane * 0 + s * 32
        p0 = _eliminated(p0, solved, x, 0, s)
        p1 = _eliminated(p1, solved, x, 4, s)
        p2 = _eliminated(p2, solved, x, 8, s)
        p3 = _eliminated(p3, solved, x, 12, s)
        p4 = _eliminated(p4, solved, x, 16, s)
        p5 = _eliminated(p5, solved, x, 20, s)
        p6 = _eliminated(p6, solved, x, 24, s)
        p7 = _eliminated(p7, solved, x, 28, s)
    place = mixing + lane * 32 + column
    once = (column >= 0) & (lane < 32)
    tl.store(place, p0, mask=once)
    tl.store(place + 4, p1, mask=once)
    tl.store(place + 8, p2, mask=once)
    tl.store(place + 12, p3, mask=once)
    tl.store(place + 16, p4, mask=once)
    tl.store(place + 20, p5, mask=once)
    tl.store(place + 24, p6, mask=once)
    tl.store(place + 28, p7, mask=once)


@triton.jit
def prepare_kernel(
    query, key, a, b, A_log, dt_bias, path, words,
    state, slots, pending_key, pending_update, pending_weight, pending_decay, pending_length,
    mixing,  # [batch x HV, blocks, 2, 16, 32]: rows of W of the block, and Z
    factors,  # [batch x HV, blocks, 112]: beta [32], the factor of K S0 [32], that of Q S0 [16], nodes [32] or -1
    log_decays,  # [batch x HV, nodes]
    key_norms,  # [batch x HV, nodes]
    scratch,  # [batch x HV, blocks, 1696]
    scale, nodes, blocks,
    row_batch, row_node, gate_batch, gate_node,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    KEY_STEP: tl.constexpr, PENDING: tl.constexpr, FOLD_TILE: tl.constexpr, WIDE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks + DV / FOLD_TILE, batch x HV); the programs behind the blocks fold."""
    if CHAINED:
        # Everything that it reads or overwrites may belong to the kernel before it.
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    if block >= blocks:
        v = (block - blocks) * FOLD_TILE + tl.arange(0, FOLD_TILE)
        _fold_request(
            state, slots, pending_key, pending_update, pending_weight, pending_decay, pending_length,
            head, v, HK, HV, DK, DV, PENDING,
        )  # fmt: skip
    else:
        request, value_head = head // HV, head % HV
        unit = head * blocks + block
        scratch += unit * 1696
        factors += unit * 112
        row = tl.arange(0, 32)
        c = tl.arange(0, KEY_STEP)
        in_tree = (request * blocks + block) * 16 + row % 16
        in_path = tl.load(path + in_tree)
        word = tl.load(words + in_tree)
        own = block * 16 + row - 16
        is_own = row >= 16
        node = tl.where(is_own, tl.where(((word & EXISTS) != 0) & (own < nodes), own, -1), in_path)
        tl.store(factors + 80 + row, node.to(tl.float32, bitcast=True))
        there = node >= 0
        node = tl.maximum(node, 0)
        gates = request * gate_batch + value_head
        A = tl.load(A_log + value_head).to(tl.float32)
        dt = tl.load(dt_bias + value_head).to(tl.float32)
        log_decay, beta = _gates(a + gates, b + gates, A, dt, node * gate_node, there)  # pyright: ignore[reportGeneralTypeIssues]
        # An unsound block (not in depth-first order, or deeper than promised) must not look like a result.
        beta = tl.where(is_own & (word < 0), float("nan"), beta)
        prefix = tl.minimum((word >> 16) & 0x3FFF, 16)
        seen = tl.where(is_own, ((1 << prefix) - 1) | (word << 16), (1 << row) - 1)
        seen = tl.where(there, seen, 0)
        coarse, fine = _sums_from_root(log_decay * LOG2E, seen)
        from_root = tl.exp2(coarse + fine)

        rows = request * row_batch + (value_head // (HV // HK)) * DK + node * row_node
        key_row = key + rows
        query_row = query + rows
        query_there = there & is_own
        key_rows = tl.load(key_row[:, None] + c[None, :], mask=there[:, None], other=0.0)
        key_columns = tl.load(key_row[None, :] + c[:, None], mask=there[None, :], other=0.0)
        query_rows = tl.load(query_row[:, None] + c[None, :], mask=query_there[:, None], other=0.0)

        tl.store(factors + row, beta)
        own_there = is_own & (own < nodes)
        tl.store(log_decays + head * nodes + own, log_decay, mask=own_there)
        vectors = scratch + 1536
        tl.store(vectors + row, coarse)
        tl.store(vectors + 32 + row, fine)
        tl.store(vectors + 64 + row, beta)
        tl.store(vectors + 96 + row, from_root)
        tl.store(vectors + 128 + row, seen.to(tl.float32, bitcast=True))
        tl.debug_barrier()

        # Chosen before the exponential, since it may overflow elsewhere.
        exponent = tl.load(vectors + row)[:, None] - tl.load(vectors + row)[None, :]
        exponent += tl.load(vectors + 32 + row)[:, None] - tl.load(vectors + 32 + row)[None, :]
        ancestors = tl.load(vectors + 128 + row).to(tl.int32, bitcast=True)
        decay = tl.exp2(tl.where(((ancestors[:, None] >> row[None, :]) & 1) != 0, exponent, float("-inf")))
        gram = _product(key_rows, key_columns, WIDE)
        query_gram = _product(query_rows, key_columns, WIDE)
        wide_query = query_rows.to(tl.float32)
        squares = tl.sum(wide_query * wide_query, 1)
        for start in range(KEY_STEP, DK, KEY_STEP):
            key_rows = tl.load(key_row[:, None] + start + c[None, :], mask=there[:, None], other=0.0)
            key_columns = tl.load(key_row[None, :] + start + c[:, None], mask=there[None, :], other=0.0)
            query_rows = tl.load(query_row[:, None] + start + c[None, :], mask=query_there[:, None], other=0.0)
            gram += _product(key_rows, key_columns, WIDE)
            query_gram += _product(query_rows, key_columns, WIDE)
            wide_query = query_rows.to(tl.float32)
            squares += tl.sum(wide_query * wide_query, 1)
        eye = row[:, None] == row[None, :]
        norm = tl.rsqrt(tl.sum(tl.where(eye, gram, 0.0), 1) + 1e-6)
        query_norm = tl.rsqrt(squares + 1e-6) * scale
        gram *= norm[None, :]
        query_gram *= norm[None, :]
        x = (tl.load(vectors + 64 + row) * norm)[:, None] * decay * gram
        y = query_norm[:, None] * tl.where(eye, 1.0, decay) * query_gram
        tl.store(scratch + row[:, None] * 32 + row[None, :], x)
        tl.store(scratch + 512 + row[:, None] * 32 + row[None, :], y, mask=is_own[:, None])
        decay_to_root = tl.load(vectors + 96 + row)
        tl.store(factors + 32 + row, decay_to_root * norm)
        tl.store(factors + 48 + row, decay_to_root * query_norm, mask=is_own)
        tl.store(key_norms + head * nodes + own, norm, mask=own_there)
        tl.debug_barrier()
        _substitute(scratch, mixing + unit * 1024)
