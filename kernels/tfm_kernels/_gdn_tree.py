"""Triton kernels: the gated delta rule on a draft tree in depth-first order, as independent blocks of 16 nodes.

Mathematics, layouts and the meaning of every array: ``kernels/README.md``. Two launches per layer:

* ``prepare_kernel``: per value head and block the gates, Grams, inverses and mixing matrices; other programs of the
  same launch fold the path that the previous step accepted into the state.
* ``blocks_kernel`` (depth at most 16: every block by itself, with its root path) or ``walk_kernel`` (any depth: one
  program walks from block to block and reads the updates of the path): per value tile all products with the state.
"""

import triton
import triton.language as tl
from triton.language.extra import cuda

EXISTS = tl.constexpr(1 << 30)
"""Bit of a node's word that says that the node is no padding."""


@triton.jit
def _product(x, y, WIDE: tl.constexpr):
    """x @ y in float32. bfloat16 numbers have exact products; float32 ones are split in three TF32 terms."""
    if WIDE:
        return tl.dot(x, y, input_precision="tf32x3")
    else:
        return tl.dot(x, y, out_dtype=tl.float32)


@triton.jit
def _split_state(state, WIDE: tl.constexpr):
    """Next to bfloat16 rows a float32 state is the sum of two bfloat16 terms (16 bits of mantissa), else itself twice.

    The first term is rounded as an integer: conversions of single numbers are four times as slow.
    """
    if WIDE:
        return state, state
    else:
        high = ((state.to(tl.int32, bitcast=True) + 0x8000) & -65536).to(tl.float32, bitcast=True)
        return high.to(tl.bfloat16), (state - high).to(tl.bfloat16)


@triton.jit
def _state_product(x, state, WIDE: tl.constexpr):
    """x @ state for a float32 state."""
    if WIDE:
        return tl.dot(x, state, input_precision="tf32x3")
    else:
        high, low = _split_state(state, WIDE)  # pyright: ignore[reportGeneralTypeIssues]
        return tl.dot(x, high, out_dtype=tl.float32) + tl.dot(x, low, out_dtype=tl.float32)


@triton.jit
def _gates(a, b, A_log, dt_bias, nodes, there):
    """Log decay and beta of these nodes; 0 and 0 where there is none. exp(-128) is 0 in float32: no need for less."""
    x = tl.load(a + nodes, mask=there, other=0.0).to(tl.float32) + dt_bias
    exponential = tl.exp(tl.minimum(x, 20.0))
    one_more = 1.0 + exponential
    # log1p: the quotient takes back what rounding the sum took away.
    small = tl.where(one_more == 1.0, exponential, tl.log(one_more) * (exponential / tl.maximum(one_more - 1.0, 1e-30)))
    log_decay = tl.maximum(-tl.exp(A_log) * tl.where(x > 20.0, x, small), -128.0)
    y = tl.load(b + nodes, mask=there, other=0.0).to(tl.float32)
    falling = tl.exp(-tl.abs(y))
    beta = tl.where(y >= 0.0, 1.0, falling) / (1.0 + falling)
    return tl.where(there, log_decay, 0.0), tl.where(there, beta, 0.0)


@triton.jit
def _chosen_sums(chosen, numbers, WIDE: tl.constexpr):
    """chosen @ numbers for a mask of zeros and ones; three bfloat16 terms hold a float32 number."""
    if WIDE:
        return tl.dot(tl.where(chosen, 1.0, 0.0), numbers, input_precision="tf32x3")
    else:
        ones = tl.where(chosen, 1.0, 0.0).to(tl.bfloat16)
        first = numbers.to(tl.bfloat16)
        numbers -= first.to(tl.float32)
        second = numbers.to(tl.bfloat16)
        third = (numbers - second.to(tl.float32)).to(tl.bfloat16)
        sums = tl.dot(ones, third, out_dtype=tl.float32)
        return tl.dot(ones, first, tl.dot(ones, second, sums))


@triton.jit
def _row_sums(chosen, numbers):
    """Per row the sum of the numbers that it chooses."""
    return tl.sum(tl.where(chosen, numbers[None, :], 0.0), 1)


@triton.jit
def _decays(seen, between):
    """exp of what lies between, where it is seen, else 0; chosen first, since it may overflow elsewhere."""
    return tl.exp(tl.where(seen, between, float("-inf")))


@triton.jit
def _column_of(part, k: tl.constexpr):
    """Column k of four columns [4, lanes], as [1, lanes]. A lane holds its columns: one or two warps move nothing."""
    # Minus zero (0x80000000 as an integer) changes no sum, so that the compiler leaves nothing of such terms.
    nothing = tl.full([1, 1], -2147483648, tl.int32).to(tl.float32, bitcast=True)
    return tl.sum(tl.where(tl.arange(0, 4)[:, None] == k, part, nothing), 0)[None, :]


@triton.jit
def _eliminated(part, solved, x, first: tl.constexpr, s: tl.constexpr):
    """Columns ``first`` to ``first + 3`` of Z (I + X) = Y without what column s of Z, ``solved``, adds to them.

    ``x`` is where row s of X begins, [1, lanes], the same for every lane.
    """
    if first < s:
        column = first + tl.arange(0, 4)[:, None]
        part = tl.where(column < s, part - tl.load(x + column) * solved, part)
    return part


@triton.jit
def _store_unit_inverse(x, scratch, place):
    """W = (I + x)^-1 of a strictly lower 16 x 16 tile to ``place``: W (I + x) = I by substitution in float32.

    A lane is a row of W with its columns in registers; ``scratch`` are 256 numbers of this program's own.
    """
    r = tl.arange(0, 16)
    tl.store(scratch + r[:, None] * 16 + r[None, :], x)
    tl.debug_barrier()
    column = tl.arange(0, 4)[:, None]
    lane = tl.arange(0, 64)[None, :]
    rows = scratch + lane * 0
    p0, p1 = tl.where(column == lane, 1.0, 0.0), tl.where(column + 4 == lane, 1.0, 0.0)
    p2, p3 = tl.where(column + 8 == lane, 1.0, 0.0), tl.where(column + 12 == lane, 1.0, 0.0)
    for s in tl.static_range(15, 0, -1):  # pyright: ignore[reportGeneralTypeIssues]
        solved = _column_of(p0 if s < 4 else p1 if s < 8 else p2 if s < 12 else p3, s % 4)
        p0 = _eliminated(p0, solved, rows + s * 16, 0, s)
        p1 = _eliminated(p1, solved, rows + s * 16, 4, s)
        p2 = _eliminated(p2, solved, rows + s * 16, 8, s)
        p3 = _eliminated(p3, solved, rows + s * 16, 12, s)
    at = place + lane * 16 + column
    mine = (column >= 0) & (lane < 16)
    tl.store(at, p0, mask=mine)
    tl.store(at + 4, p1, mask=mine)
    tl.store(at + 8, p2, mask=mine)
    tl.store(at + 12, p3, mask=mine)


@triton.jit
def _fold(
    state,  # [DV, DK] of one request and value head
    pending_key,  # [PENDING, HK, DK], at this key head
    pending_update,  # [PENDING, DV]
    pending_weight,  # [PENDING]
    from_root,
    v,
    HK: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    PENDING: tl.constexpr,
):
    """Rows v of the state: S <- e^g S + sum over the pending path of w_j k_j u_j^T."""
    r = tl.arange(0, 16)
    c = tl.arange(0, DK)
    place = state + v[:, None] * DK + c[None, :]
    folded = from_root * tl.load(place)
    for start in range(0, PENDING, 16):
        j = start + r
        weighted = tl.load(pending_key + j[:, None] * (HK * DK) + c[None, :]).to(tl.float32)
        weighted *= tl.load(pending_weight + j)[:, None]
        update = tl.load(pending_update + j[None, :] * DV + v[:, None])
        folded += tl.dot(update, weighted, input_precision="tf32x3")
    tl.store(place, folded)


@triton.jit
def _fold_request(
    state, slots, pending_key, pending_update, pending_weight, pending_decay, pending_length, head, v,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    request, value_head = head // HV, head % HV
    if tl.load(pending_length + request) > 0:
        slot = tl.load(slots + request).to(tl.int64)
        _fold(
            state + (slot * HV + value_head) * (DV * DK),
            pending_key + request * (PENDING * HK * DK) + (value_head // (HV // HK)) * DK,
            pending_update + head * (PENDING * DV),
            pending_weight + head * PENDING,
            tl.load(pending_decay + head),
            v, HK, DK, DV, PENDING,
        )  # fmt: skip


@triton.jit
def flush_kernel(
    state, slots, pending_key, pending_update, pending_weight, pending_decay, pending_length,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PENDING: tl.constexpr,
    FOLD_TILE: tl.constexpr,
):  # fmt: skip
    """The fold alone, for the end of a decode. Grid: (DV / FOLD_TILE, batch x HV)."""
    v = tl.program_id(0) * FOLD_TILE + tl.arange(0, FOLD_TILE)
    _fold_request(
        state, slots, pending_key, pending_update, pending_weight, pending_decay, pending_length,
        tl.program_id(1).to(tl.int64), v, HK, HV, DK, DV, PENDING,
    )  # fmt: skip


@triton.jit
def prepare_walk_kernel(
    query, key, a, b, A_log, dt_bias, path, words,
    state, slots, pending_key, pending_update, pending_weight, pending_decay, pending_length,
    mixing,  # [batch x HV, blocks, 2, 16, 16]
    factors,  # [batch x HV, blocks, 64]
    log_decays,  # [batch x HV, nodes]
    key_norms,  # [batch x HV, nodes]
    scratch,  # [batch x HV, blocks, 256]
    scale, nodes, blocks, path_rows,
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
        r = tl.arange(0, 16)
        c = tl.arange(0, KEY_STEP)
        eye = r[:, None] == r[None, :]
        i = block * 16 + r
        word = tl.load(words + (request * blocks + block) * 16 + r)
        here = ((word & EXISTS) != 0) & (i < nodes)
        inside = ((word[:, None] >> r[None, :]) & 1) != 0
        A = tl.load(A_log + value_head).to(tl.float32)
        dt = tl.load(dt_bias + value_head).to(tl.float32)
        a += request * gate_batch + value_head
        b += request * gate_batch + value_head
        log_b, beta_b = _gates(a, b, A, dt, i * gate_node, here)  # pyright: ignore[reportGeneralTypeIssues]
        # An unsound block (not in depth-first order, or deeper than promised) must not look like a result.
        beta_b = tl.where(word < 0, float("nan"), beta_b)

        rows = request * row_batch + (value_head // (HV // HK)) * DK
        key += rows
        query += rows
        nothing = tl.zeros([16, 16], tl.float32)
        prefix = (word >> 16) & 0x3FFF
        # Exponents are summed over the path in between: differences of sums from the root would lose their last digits
        # below a node that forgets all.
        between_bb = _chosen_sums(inside | eye, tl.where(inside, log_b[:, None], 0.0), WIDE)
        sum_b = _row_sums(inside | eye, log_b)
        gram_bb, gram_qb, squares = nothing, nothing, tl.zeros([16], tl.float32)
        for start in range(0, DK, KEY_STEP):
            at_b = i[:, None] * row_node + start + c[None, :]
            key_b = tl.load(key + at_b, mask=here[:, None], other=0.0)
            query_b = tl.load(query + at_b, mask=here[:, None], other=0.0)
            gram_bb += _product(key_b, tl.trans(key_b), WIDE)
            gram_qb += _product(query_b, tl.trans(key_b), WIDE)
            squares += tl.sum(query_b.to(tl.float32) * query_b.to(tl.float32), 1)
        norm_b = tl.rsqrt(tl.sum(tl.where(eye, gram_bb, 0.0), 1) + 1e-6)
        norm_q = tl.rsqrt(squares + 1e-6) * scale
        for start in range(0, path_rows, 16):
            p = tl.load(path + (request * blocks + block) * path_rows + start + r)
            log_p, _ = _gates(a, b, A, dt, tl.maximum(p, 0) * gate_node, p >= 0)
            sum_b += _row_sums((start + r)[None, :] < prefix[:, None], log_p)
        decay_bb = _decays(inside, between_bb)
        x_bb = (beta_b * norm_b)[:, None] * decay_bb * gram_bb * norm_b[None, :]
        y_bb = norm_q[:, None] * tl.where(eye, 1.0, decay_bb) * gram_qb * norm_b[None, :]

        unit = head * blocks + block
        _store_unit_inverse(x_bb, scratch + unit * 256, mixing + unit * 512)
        tl.store(mixing + unit * 512 + 256 + r[:, None] * 16 + r[None, :], y_bb)
        from_root = tl.exp(sum_b)
        factor = factors + unit * 64 + r
        tl.store(factor, beta_b)
        tl.store(factor + 16, from_root * norm_b)
        tl.store(factor + 32, tl.where(word < 0, float("nan"), from_root * norm_q))
        tl.store(factor + 48, norm_q)
        place = head * nodes + i
        tl.store(log_decays + place, log_b, mask=i < nodes)
        tl.store(key_norms + place, norm_b, mask=i < nodes)


@triton.jit
def _three_terms(x):
    """float32 numbers as sums of three bfloat16 ones, exactly: 8 bits of the mantissa each, cut off."""
    first = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    x -= first
    second = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return first.to(tl.bfloat16), second.to(tl.bfloat16), (x - second).to(tl.bfloat16)


@triton.jit
def _mixed(right, mix, sums, WIDE: tl.constexpr):
    """sums + right @ mix in float32. Next to bfloat16 rows by six products of bfloat16 terms.

    Registers that hold the result of a product hold, as bfloat16, the left side of the next one; for TF32 lanes would
    have to exchange them.
    """
    if WIDE:
        return tl.dot(right, mix, sums, input_precision="tf32x3")
    else:
        x, y, z = _three_terms(right)  # pyright: ignore[reportGeneralTypeIssues]
        a, b, c = _three_terms(mix)
        sums = tl.dot(x, c, tl.dot(y, b, tl.dot(z, a, sums)))
        return tl.dot(x, a, tl.dot(x, b, tl.dot(y, a, sums)))


@triton.jit
def _of_state(high, low, columns, WIDE: tl.constexpr):
    """state @ columns, [values, nodes], for a state that ``_split_state`` has split."""
    if WIDE:
        return tl.dot(high, columns, input_precision="tf32x3")
    else:
        return tl.dot(high, columns, tl.dot(low, columns, out_dtype=tl.float32))


@triton.jit
def _nodes_of(factors):
    """Nodes of a block's path and of the block, [1, 32], and those of the block, [1, 16]; -1 where there is none."""
    node = tl.load(factors + 80 + tl.arange(0, 32)).to(tl.int32, bitcast=True)
    own = tl.load(factors + 96 + tl.arange(0, 16)).to(tl.int32, bitcast=True)
    return node[None, :], own[None, :]


@triton.jit
def _columns(rows, node, row_stride, c):
    """[c, nodes]: what lies in these columns of the nodes' rows, 0 where there is no node."""
    return tl.load(rows + node * row_stride + c[:, None], mask=node >= 0, other=0.0)


@triton.jit
def _store_block(
    query, key, value, node, own, high, low, mixing, factors, update, output, first, nodes, v, row_node, value_node,
    HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Updates and outputs of a block. All matrices are transposed, [values, nodes]: the state stays in registers, and
    the right side of the equation goes from the product that makes it to the one that mixes it without leaving them.
    """
    r = tl.arange(0, 16)
    row = tl.arange(0, 32)
    c = tl.arange(0, DK)
    k = _columns(key, node, row_node, c)
    q = _columns(query, own, row_node, c)
    wanted = _columns(value, node, value_node, v)
    mix = tl.load(mixing + row[None, :] * 32 + row[:, None])
    known = tl.load(factors + 32 + row)[None, :] * _of_state(high, low, k, WIDE)
    right = tl.load(factors + row)[None, :] * (wanted.to(tl.float32) - known)
    o = tl.load(factors + 64 + r)[None, :] * _of_state(high, low, q, WIDE)
    # U and O side by side, in one product with the right side: columns 0 to 15 and 16 to 31.
    sums = tl.join(tl.zeros_like(o), o).permute(0, 2, 1).reshape(v.shape[0], 32)
    sums = _mixed(right, mix, sums, WIDE)
    u, o = sums.reshape(v.shape[0], 2, 16).permute(0, 2, 1).split()
    i = first + r
    inside = (i < nodes)[None, :]
    tl.store(update + i[None, :] * DV + v[:, None], u, mask=inside)
    tl.store(output + i[None, :] * (HV * DV) + v[:, None], o.to(output.dtype.element_ty), mask=inside)


@triton.jit
def blocks_kernel(
    query, key, value, mixing, factors, state, slots,
    update,  # [batch x HV, nodes, DV]
    output,  # [batch, nodes, HV, DV]
    nodes, blocks,
    row_batch, row_node, value_batch, value_node,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, VALUE_TILE: tl.constexpr,
    GROUPS: tl.constexpr, WIDE: tl.constexpr, CHAINED: tl.constexpr, LOOPS: tl.constexpr,
):  # fmt: skip
    """Grid: (DV / VALUE_TILE, GROUPS, batch x HV). Group g takes every GROUPS-th block; no block waits for another."""
    group = tl.program_id(1)
    head = tl.program_id(2).to(tl.int64)
    request, value_head = head // HV, head % HV
    c = tl.arange(0, DK)
    v = tl.program_id(0) * VALUE_TILE + tl.arange(0, VALUE_TILE)
    rows = request * row_batch + (value_head // (HV // HK)) * DK
    key += rows
    query += rows
    value += request * value_batch + value_head * DV
    mixing += head * blocks * 1024
    factors += head * blocks * 112
    update += head * nodes * DV
    output += (request * nodes * HV + value_head) * DV
    slot = tl.load(slots + request).to(tl.int64)
    if CHAINED:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    place = state + (slot * HV + value_head) * (DV * DK) + v[:, None] * DK + c[None, :]
    if LOOPS:
        high, low = _split_state(tl.load(place), WIDE)  # pyright: ignore[reportGeneralTypeIssues]
        for block in range(group, blocks, GROUPS):
            node, own = _nodes_of(factors + block * 112)
            _store_block(
                query, key, value, node, own, high, low, mixing + block * 1024, factors + block * 112, update, output,
                block * 16, nodes, v, row_node, value_node, HV, DK, DV, WIDE,
            )  # fmt: skip
    else:
        # Its nodes are asked for before the state: what they lead to need not wait for it.
        node, own = _nodes_of(factors + group * 112)  # pyright: ignore[reportGeneralTypeIssues]
        high, low = _split_state(tl.load(place), WIDE)
        _store_block(
            query, key, value, node, own, high, low, mixing + group * 1024, factors + group * 112, update, output,
            group * 16, nodes, v, row_node, value_node, HV, DK, DV, WIDE,
        )  # fmt: skip


@triton.jit
def walk_kernel(
    query, key, value, path, words, mixing, factors, log_decays, key_norms, state, slots,
    update,  # [batch x HV, nodes, DV]
    output,  # [batch, nodes, HV, DV]
    nodes, blocks, path_rows,
    row_batch, row_node, value_batch, value_node,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    KEY_STEP: tl.constexpr, VALUE_TILE: tl.constexpr, WIDE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (DV / VALUE_TILE, batch x HV). A block reads the updates of its path, which this program has stored."""
    head = tl.program_id(1).to(tl.int64)
    request, value_head = head // HV, head % HV
    c = tl.arange(0, DK)
    r = tl.arange(0, 16)
    v = tl.program_id(0) * VALUE_TILE + tl.arange(0, VALUE_TILE)
    rows = request * row_batch + (value_head // (HV // HK)) * DK
    key += rows
    query += rows
    values = value + request * value_batch + value_head * DV
    slot = tl.load(slots + request).to(tl.int64)
    if CHAINED:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    s = tl.load(state + (slot * HV + value_head) * (DV * DK) + v[None, :] * DK + c[:, None])
    update += head * nodes * DV
    log_decays += head * nodes
    key_norms += head * nodes
    strict = r[:, None] > r[None, :]
    eye = r[:, None] == r[None, :]
    for block in range(blocks):
        unit = head * blocks + block
        word = tl.load(words + (request * blocks + block) * 16 + r)
        i = block * 16 + r
        here = ((word & EXISTS) != 0) & (i < nodes)
        prefix = (word >> 16) & 0x3FFF
        k = tl.load(key + i[:, None] * row_node + c[None, :], mask=here[:, None], other=0.0)
        q = tl.load(query + i[:, None] * row_node + c[None, :], mask=here[:, None], other=0.0)
        wanted = tl.load(values + i[:, None] * value_node + v[None, :], mask=here[:, None], other=0.0).to(tl.float32)
        factor = factors + unit * 64 + r
        beta = tl.load(factor)
        norm_q = tl.load(factor + 48)
        norm_k = tl.load(key_norms + i, mask=i < nodes, other=0.0)
        log_b = tl.load(log_decays + i, mask=i < nodes, other=0.0)
        right = beta[:, None] * (wanted - tl.load(factor + 16)[:, None] * _state_product(k, s, WIDE))
        o = tl.load(factor + 32)[:, None] * _state_product(q, s, WIDE)
        # From the last tile of the path to the root; ``below`` grows by the decays of the tiles that lie behind.
        below = _row_sums((((word[:, None] >> r[None, :]) & 1) != 0) | eye, log_b)
        tiles = tl.minimum((tl.max(prefix) + 15) // 16, path_rows // 16)
        for tile in range(tiles):
            position = (tiles - 1 - tile) * 16 + r
            p = tl.load(path + (request * blocks + block) * path_rows + position)
            here_p = p >= 0
            p = tl.maximum(p, 0)
            above = (position[None, :] < prefix[:, None]) & here_p[None, :]
            log_p = tl.load(log_decays + p, mask=here_p, other=0.0)
            later = tl.where(strict, log_p[:, None], 0.0)
            decay = _decays(above, _chosen_sums(above, later, WIDE) + below[:, None])
            decay *= tl.load(key_norms + p, mask=here_p, other=0.0)[None, :]
            below += _row_sums(above, log_p)
            u_p = tl.load(update + p[:, None] * DV + v[None, :], mask=here_p[:, None], other=0.0)
            x, y = tl.zeros([16, 16], tl.float32), tl.zeros([16, 16], tl.float32)
            if WIDE:
                # In steps: three TF32 terms of whole rows would not fit the registers.
                for start in range(0, DK, KEY_STEP):
                    step = start + tl.arange(0, KEY_STEP)
                    k_i = tl.load(key + i[:, None] * row_node + step[None, :], mask=here[:, None], other=0.0)
                    q_i = tl.load(query + i[:, None] * row_node + step[None, :], mask=here[:, None], other=0.0)
                    k_p = tl.load(key + p[:, None] * row_node + step[None, :], mask=here_p[:, None], other=0.0)
                    x += _product(k_i, tl.trans(k_p), WIDE)
                    y += _product(q_i, tl.trans(k_p), WIDE)
            else:
                k_p = tl.load(key + p[:, None] * row_node + c[None, :], mask=here_p[:, None], other=0.0)
                x = _product(k, tl.trans(k_p), WIDE)
                y = _product(q, tl.trans(k_p), WIDE)
            right -= tl.dot((beta * norm_k)[:, None] * decay * x, u_p, input_precision="tf32x3")
            o += tl.dot(norm_q[:, None] * decay * y, u_p, input_precision="tf32x3")
        mix = mixing + unit * 512 + r[:, None] * 16 + r[None, :]
        u = tl.dot(tl.load(mix), right, input_precision="tf32x3")
        o += tl.dot(tl.load(mix + 256), u, input_precision="tf32x3")
        inside = (i < nodes)[:, None]
        tl.store(update + i[:, None] * DV + v[None, :], u, mask=inside)
        place = output + ((request * nodes + i[:, None]) * HV + value_head) * DV + v[None, :]
        tl.store(place, o.to(output.dtype.element_ty), mask=inside)
        # All threads of this program must see the stored rows before the next block reads them.
        tl.debug_barrier()


@triton.jit
def gather_kernel(
    key, update, log_decays, key_norms,
    accepted,  # [batch, PENDING]: node indices from the root, -1 behind the last one
    pending_key, pending_update, pending_weight, pending_decay, pending_length,
    nodes, key_layer, key_batch, key_node,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PENDING: tl.constexpr,
):  # fmt: skip
    """What the next step folds, for all layers at once. Grid: (layers, batch, HV)."""
    request, value_head = tl.program_id(1).to(tl.int64), tl.program_id(2)
    layer_request = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + request
    head = layer_request * HV + value_head
    key_head = value_head // (HV // HK)
    r, c, v = tl.arange(0, 16), tl.arange(0, DK), tl.arange(0, DV)
    accepted += request * PENDING
    key += tl.program_id(0).to(tl.int64) * key_layer + request * key_batch + key_head * DK
    pending_key += (layer_request * PENDING * HK + key_head) * DK
    below = 0.0
    count = 0
    # From the end of the path to the root: a row's weight holds the decays of the rows behind it.
    for start in range(0, PENDING, 16):
        j = PENDING - 16 - start + r
        node = tl.load(accepted + j)
        there = node >= 0
        count += tl.sum(there.to(tl.int32), 0)
        node = tl.maximum(node, 0)
        place = head * nodes + node
        log_decay = tl.load(log_decays + place, mask=there, other=0.0)
        behind = _row_sums(r[None, :] > r[:, None], log_decay) + below
        norm = tl.load(key_norms + place, mask=there, other=0.0)
        tl.store(pending_weight + head * PENDING + j, tl.exp(behind) * norm)
        below += tl.sum(log_decay, 0)
        u = tl.load(update + place[:, None] * DV + v[None, :], mask=there[:, None], other=0.0)
        tl.store(pending_update + (head * PENDING + j[:, None]) * DV + v[None, :], u)
        if value_head % (HV // HK) == 0:
            k = tl.load(key + node[:, None] * key_node + c[None, :], mask=there[:, None], other=0.0)
            tl.store(pending_key + j[:, None] * (HK * DK) + c[None, :], k)
    tl.store(pending_decay + head, tl.exp(below))
    if value_head == 0:
        tl.store(pending_length + layer_request, count)
