"""Triton kernels: attention of the rows of a draft tree to a long cache, in parts of the cache side by side."""

import triton
import triton.language as tl


@triton.jit
def _add_keys(top, total, result, score, v):
    """Running maximum, denominator and sum of a softmax after some more keys; a score of -inf is not seen."""
    new_top = tl.maximum(top, tl.max(score, axis=1))
    finite = tl.where(new_top > float("-inf"), new_top, 0.0)
    weight, fade = tl.exp2(score - finite[:, None]), tl.exp2(top - finite)
    total = total * fade + tl.sum(weight, axis=1)
    result = result * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return new_top, total, result


@triton.jit
def parts_kernel(
    query,  # [batch, shared, grouped, SIZE]
    key,  # [batch, capacity, shared, SIZE]
    value,  # [batch, capacity, shared, SIZE]
    length,  # [batch] int64
    own,  # [batch, rows, rows] uint8
    sums,  # [parts, batch, shared, grouped, SIZE] float32
    highest,  # [parts, batch, shared, grouped] float32, in powers of two
    totals,  # [parts, batch, shared, grouped] float32
    grouped, rows, batch, shared, parts, scale,
    query_batch, query_shared, query_row, key_batch, key_row, value_batch, value_row,
    SIZE: tl.constexpr, ROW_TILE: tl.constexpr, KEY_TILE: tl.constexpr,
):  # fmt: skip
    """Sums, maxima and denominators of one part. Grid: (row tiles * parts, shared, batch), tiles of a part together.

    The parts divide what is there, committed rows and the tree's own, not the capacity. Whole tiles of committed rows,
    which every row sees, are read without a mask.
    """
    head, request = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    tiles = tl.cdiv(grouped, ROW_TILE)
    part, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    committed = tl.load(length + request).to(tl.int32)
    there = committed + rows
    each = tl.cdiv(tl.cdiv(there, KEY_TILE), parts) * KEY_TILE
    first, last = part * each, tl.minimum((part + 1) * each, there)

    i, c = tile * ROW_TILE + tl.arange(0, ROW_TILE), tl.arange(0, SIZE)
    node, in_i = i % rows, i < grouped
    place = query + request * query_batch + head * query_shared + i[:, None].to(tl.int64) * query_row + c[None, :]
    q = tl.load(place, mask=in_i[:, None], other=0.0)
    key += request * key_batch + head * SIZE
    value += request * value_batch + head * SIZE
    own += request * rows * rows
    top = tl.full([ROW_TILE], float("-inf"), tl.float32)
    total = tl.zeros([ROW_TILE], tl.float32)
    result = tl.zeros([ROW_TILE, SIZE], tl.float32)
    seen_by_all = tl.minimum(last, committed // KEY_TILE * KEY_TILE)
    for start in range(first, seen_by_all, KEY_TILE):
        j = start + tl.arange(0, KEY_TILE)
        k = tl.load(key + j[:, None].to(tl.int64) * key_row + c[None, :])
        v = tl.load(value + j[:, None].to(tl.int64) * value_row + c[None, :])
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        top, total, result = _add_keys(top, total, result, score, v)
    for start in range(tl.maximum(first, seen_by_all), last, KEY_TILE):
        j = start + tl.arange(0, KEY_TILE)
        in_j = j < last
        k = tl.load(key + j[:, None].to(tl.int64) * key_row + c[None, :], mask=in_j[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        behind = j - committed
        is_own = in_j & (behind >= 0)
        seen = tl.load(own + node[:, None] * rows + behind[None, :], mask=in_i[:, None] & is_own[None, :], other=0)
        visible = in_j[None, :] & ((behind < 0)[None, :] | (seen != 0))
        v = tl.load(value + j[:, None].to(tl.int64) * value_row + c[None, :], mask=in_j[:, None], other=0.0)
        top, total, result = _add_keys(top, total, result, tl.where(visible, score, float("-inf")), v)
    row = ((part.to(tl.int64) * batch + request) * shared + head) * grouped + i
    tl.store(highest + row, top, mask=in_i)
    tl.store(totals + row, total, mask=in_i)
    tl.store(sums + row[:, None] * SIZE + c[None, :], result, mask=in_i[:, None])


@triton.jit
def merge_kernel(
    sums,  # [parts, all rows, SIZE] float32
    highest,  # [parts, all rows] float32
    totals,  # [parts, all rows] float32
    output,  # [all rows, SIZE]
    all_rows, parts,
    SIZE: tl.constexpr, ROW_TILE: tl.constexpr,
):  # fmt: skip
    """One softmax of all parts. Grid: (row tiles,)."""
    i, c = tl.program_id(0).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE), tl.arange(0, SIZE)
    in_i = i < all_rows
    top = tl.full([ROW_TILE], float("-inf"), tl.float32)
    total = tl.zeros([ROW_TILE], tl.float32)
    result = tl.zeros([ROW_TILE, SIZE], tl.float32)
    for part in range(parts):
        row = part * all_rows.to(tl.int64) + i
        of_part = tl.load(highest + row, mask=in_i, other=float("-inf"))
        new_top = tl.maximum(top, of_part)
        finite = tl.where(new_top > float("-inf"), new_top, 0.0)
        fade, weight = tl.exp2(top - finite), tl.exp2(of_part - finite)
        total = total * fade + tl.load(totals + row, mask=in_i, other=0.0) * weight
        part_sums = tl.load(sums + row[:, None] * SIZE + c[None, :], mask=in_i[:, None], other=0.0)
        result = result * fade[:, None] + part_sums * weight[:, None]
        top = new_top
    result = result / tl.where(in_i, total, 1.0)[:, None]
    tl.store(output + i[:, None] * SIZE + c[None, :], result.to(output.dtype.element_ty), mask=in_i[:, None])
