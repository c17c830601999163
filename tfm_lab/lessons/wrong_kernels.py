"""WRONG ON PURPOSE. Plausible wrong answers to the puzzles of notebook 09, which their checks must reject.

They are run by Triton's interpreter alone. A kernel that calls a plain function runs it as a part of itself there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triton import language as tl
else:
    try:
        from triton import language as tl
    except ModuleNotFoundError:
        tl = None

IEEE = "ieee"


# load_tile


def wrong_no_mask(rows, tile, nodes, DIM: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    place = i[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tl.store(tile + place, tl.load(rows + place))


def wrong_no_other(rows, tile, nodes, DIM: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    place = i[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tl.store(tile + place, tl.load(rows + place, mask=i[:, None] < nodes))


def wrong_first_tile(rows, tile, nodes, DIM: tl.constexpr):
    i = tl.arange(0, 16)
    place = i[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tl.store(tile + place, tl.load(rows + place, mask=i[:, None] < nodes, other=0.0))


def wrong_mask_in_tile(rows, tile, nodes, DIM: tl.constexpr):
    row = tl.arange(0, 16)
    i = tl.program_id(0) * 16 + row
    place = i[:, None] * DIM + tl.arange(0, DIM)[None, :]
    tl.store(tile + place, tl.load(rows + place, mask=row[:, None] < nodes, other=0.0))


# gram


def _loaded(matrix, i, nodes, DIM):
    return tl.load(matrix + i[:, None] * DIM + tl.arange(0, DIM)[None, :], mask=i[:, None] < nodes, other=0.0)


def wrong_not_transposed(key, product, nodes, DIM: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1) * 16 + tl.arange(0, 16)
    tile = tl.dot(_loaded(key, i, nodes, DIM), _loaded(key, j, nodes, DIM), input_precision=IEEE)
    tl.store(product + i[:, None] * nodes + j[None, :], tile, mask=(i[:, None] < nodes) & (j[None, :] < nodes))


def wrong_diagonal_only(key, product, nodes, DIM: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1) * 16 + tl.arange(0, 16)
    rows = _loaded(key, i, nodes, DIM)
    tile = tl.dot(rows, tl.trans(rows), input_precision=IEEE)
    tl.store(product + i[:, None] * nodes + j[None, :], tile, mask=(i[:, None] < nodes) & (j[None, :] < nodes))


def wrong_stride(key, product, nodes, DIM: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1) * 16 + tl.arange(0, 16)
    tile = tl.dot(_loaded(key, i, nodes, DIM), tl.trans(_loaded(key, j, nodes, DIM)), input_precision=IEEE)
    tl.store(product + i[:, None] * 16 + j[None, :], tile, mask=(i[:, None] < nodes) & (j[None, :] < nodes))


def wrong_rows_masked(key, product, nodes, DIM: tl.constexpr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1) * 16 + tl.arange(0, 16)
    tile = tl.dot(_loaded(key, i, nodes, DIM), tl.trans(_loaded(key, j, nodes, DIM)), input_precision=IEEE)
    tl.store(product + i[:, None] * nodes + j[None, :], tile, mask=i[:, None] < nodes)


# decay_mask


def _decays(path_sum, ancestors, decay, nodes, FLAW):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    j = tl.program_id(1) * 16 + tl.arange(0, 16)
    place = i[:, None] * nodes + j[None, :]
    exists = (i[:, None] < nodes) & (j[None, :] < nodes)
    seen = tl.load(ancestors + place, mask=exists, other=0) != 0
    sum_i = tl.load(path_sum + i, mask=i < nodes, other=0.0)[:, None]
    sum_j = tl.load(path_sum + j, mask=j < nodes, other=0.0)[None, :]
    if FLAW == "causal":
        seen = i[:, None] >= j[None, :]
    if FLAW == "strict":
        seen = seen & (i[:, None] != j[None, :])
    if FLAW == "multiplied":
        d = tl.exp(sum_i - sum_j) * seen.to(tl.float32)
    elif FLAW == "quotient":
        d = tl.where(seen, tl.exp(sum_i) * tl.exp(-sum_j), 0.0)
    elif FLAW == "upwards":
        d = tl.exp(tl.where(seen, sum_j - sum_i, float("-inf")))
    else:
        d = tl.exp(tl.where(seen, sum_i - sum_j, float("-inf")))
    tl.store(decay + place, d, mask=exists)


def wrong_multiplied_mask(path_sum, ancestors, decay, nodes):
    _decays(path_sum, ancestors, decay, nodes, "multiplied")


def wrong_quotient(path_sum, ancestors, decay, nodes):
    _decays(path_sum, ancestors, decay, nodes, "quotient")


def wrong_causal_decay(path_sum, ancestors, decay, nodes):
    _decays(path_sum, ancestors, decay, nodes, "causal")


def wrong_strict_decay(path_sum, ancestors, decay, nodes):
    _decays(path_sum, ancestors, decay, nodes, "strict")


def wrong_upwards(path_sum, ancestors, decay, nodes):
    _decays(path_sum, ancestors, decay, nodes, "upwards")


# substitute


def _tile(x):
    row = tl.arange(0, 16)
    return tl.load(x + row[:, None] * 16 + row[None, :])


def _strict(x):
    row = tl.arange(0, 16)
    return tl.where(row[:, None] > row[None, :], _tile(x), 0.0)


def _right(right, DIM):
    return tl.load(right + tl.arange(0, 16)[:, None] * DIM + tl.arange(0, DIM)[None, :])


def _store(update, u, DIM):
    tl.store(update + tl.arange(0, 16)[:, None] * DIM + tl.arange(0, DIM)[None, :], u)


def _row_by_row(system, u, first=1):
    row = tl.arange(0, 16)
    for s in range(first, 16):
        x_s = tl.sum(tl.where(row[:, None] == s, system, 0.0), axis=0)
        u = tl.where(row[:, None] == s, u - tl.sum(x_s[:, None] * u, axis=0)[None, :], u)
    return u


def wrong_one_step(x, right, update, DIM: tl.constexpr):
    u = _right(right, DIM)
    _store(update, u - tl.dot(_strict(x), u, input_precision=IEEE), DIM)


def wrong_whole_tile(x, right, update, DIM: tl.constexpr):
    _store(update, _row_by_row(_tile(x), _right(right, DIM)), DIM)


def wrong_squaring(x, right, update, DIM: tl.constexpr):
    power = -_strict(x)
    u = _right(right, DIM)
    for _ in range(4):  # (I - X) (I + X^2) (I + X^4) (I + X^8): no further terms, X^16 is 0
        u = u + tl.dot(power, u, input_precision=IEEE)
        power = tl.dot(power, power, input_precision=IEEE)
    _store(update, u, DIM)


def wrong_column(x, right, update, DIM: tl.constexpr):
    row = tl.arange(0, 16)
    u, system = _right(right, DIM), _strict(x)
    for s in range(1, 16):
        x_s = tl.sum(tl.where(row[None, :] == s, system, 0.0), axis=1)
        u = tl.where(row[:, None] == s, u - tl.sum(x_s[:, None] * u, axis=0)[None, :], u)
    _store(update, u, DIM)


# output_tile


def _outputs(query, key, decay, from_root, state, update, output, nodes, DIM, FLAW):
    row, c = tl.arange(0, 16), tl.arange(0, DIM)
    q, k, u = (_loaded(matrix, row, nodes, DIM) for matrix in (query, key, update))
    exists = (row[:, None] < nodes) & (row[None, :] < nodes)
    d = tl.load(decay + row[:, None] * nodes + row[None, :], mask=exists, other=0.0)
    a = tl.load(from_root + row, mask=row < nodes, other=0.0)[:, None]
    s0 = tl.load(state + c[:, None] * DIM + c[None, :])
    if FLAW == "strict":
        d = tl.where(row[:, None] == row[None, :], 0.0, d)
    if FLAW == "no decay":
        d = (d != 0.0).to(tl.float32)
    if FLAW == "fresh state":
        a = (a == a).to(tl.float32)
    asks = k if FLAW == "by key" else q
    y = d * tl.dot(q, tl.trans(k), input_precision=IEEE)
    o = a * tl.dot(asks, s0, input_precision=IEEE) + tl.dot(y, u, input_precision=IEEE)
    tl.store(output + row[:, None] * DIM + c[None, :], o, mask=row[:, None] < nodes)


def wrong_fresh_state(query, key, decay, from_root, state, update, output, nodes, DIM: tl.constexpr):
    _outputs(query, key, decay, from_root, state, update, output, nodes, DIM, "fresh state")


def wrong_strict_output(query, key, decay, from_root, state, update, output, nodes, DIM: tl.constexpr):
    _outputs(query, key, decay, from_root, state, update, output, nodes, DIM, "strict")


def wrong_no_decay(query, key, decay, from_root, state, update, output, nodes, DIM: tl.constexpr):
    _outputs(query, key, decay, from_root, state, update, output, nodes, DIM, "no decay")


def wrong_by_key(query, key, decay, from_root, state, update, output, nodes, DIM: tl.constexpr):
    _outputs(query, key, decay, from_root, state, update, output, nodes, DIM, "by key")


# verify_tree


def _verify(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM, FLAW):
    row, c = tl.arange(0, 16), tl.arange(0, DIM)
    whole = c[:, None] * DIM + c[None, :]
    s0 = tl.load(state + whole)
    for first in range(0, nodes, 16):
        i = first + row
        in_i = i[:, None] < nodes
        q, k, v = (_loaded(matrix, i, nodes, DIM) for matrix in (query, key, value))
        sum_i = tl.load(path_sum + i, mask=i < nodes, other=0.0)
        strength = tl.load(beta + i, mask=i < nodes, other=0.0)[:, None]
        if FLAW == "state in every tile" and first > 0:
            s0 = tl.load(state + whole)
        a = tl.exp(sum_i)[:, None]
        u = strength * (v - a * tl.dot(k, s0, input_precision=IEEE))
        o = a * tl.dot(q, s0, input_precision=IEEE)
        if FLAW == "no beta":
            strength = (strength == strength).to(tl.float32)
        for start in range(0, 0 if FLAW == "own tile only" else first, 16):
            j = start + row
            seen = tl.load(ancestors + i[:, None] * nodes + j[None, :], mask=in_i, other=0) != 0
            if FLAW == "causal":
                seen = seen | in_i
            sum_j, k_j, u_j = tl.load(path_sum + j), _loaded(key, j, nodes, DIM), _loaded(update, j, nodes, DIM)
            d = tl.exp(tl.where(seen, sum_i[:, None] - sum_j[None, :], float("-inf")))
            u -= tl.dot(strength * d * tl.dot(k, tl.trans(k_j), input_precision=IEEE), u_j, input_precision=IEEE)
            o += tl.dot(d * tl.dot(q, tl.trans(k_j), input_precision=IEEE), u_j, input_precision=IEEE)
        exists = in_i & (i[None, :] < nodes)
        seen = tl.load(ancestors + i[:, None] * nodes + i[None, :], mask=exists, other=0) != 0
        if FLAW == "causal":
            seen = exists & (row[:, None] >= row[None, :])
        d = tl.exp(tl.where(seen, sum_i[:, None] - sum_i[None, :], float("-inf")))
        x = strength * d * tl.dot(k, tl.trans(k), input_precision=IEEE)
        u = _row_by_row(tl.where(row[:, None] > row[None, :], x, 0.0), u)
        o += tl.dot(d * tl.dot(q, tl.trans(k), input_precision=IEEE), u, input_precision=IEEE)
        place = i[:, None] * DIM + c[None, :]
        tl.store(update + place, u, mask=in_i)
        tl.store(output + place, o, mask=in_i)
        if FLAW == "commits":
            tl.store(state + whole, tl.exp(tl.max(sum_i, axis=0)) * s0 + tl.dot(tl.trans(k), u, input_precision=IEEE))


def wrong_own_tile(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM: tl.constexpr):
    _verify(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM, "own tile only")


def wrong_causal_tree(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM: tl.constexpr):
    _verify(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM, "causal")


def wrong_no_beta(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM: tl.constexpr):
    _verify(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM, "no beta")


def wrong_state_again(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM: tl.constexpr):
    _verify(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM, "state in every tile")


def wrong_commit(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM: tl.constexpr):
    _verify(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, DIM, "commits")
