"""Triton kernel: the gated delta rule on a draft tree, dense masked form (arXiv 2607.06763, eq. 11 and 13).

One program owns one value head and 16 of its value columns. It walks down the tree in tiles of 16 nodes; a tile needs
the updates U of the tiles before it, which the same program has written to global memory.
"""

import triton
import triton.language as tl


@triton.jit
def _rows(base, i, in_i, c, WIDTH: tl.constexpr):
    """Rows i and columns c of a matrix [nodes, WIDTH] as float32; 0 where a row or column does not exist."""
    mask = in_i[:, None] & (c < WIDTH)[None, :]
    return tl.load(base + i[:, None] * WIDTH + c[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _state_product(rows, state, i, in_i, v, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, TILE: tl.constexpr):
    """Rows i of K S0 or Q S0, value columns v."""
    product = tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, KEY_DIM, TILE):
        k = start + tl.arange(0, TILE)
        s0 = _rows(state, k, k < KEY_DIM, v, VALUE_DIM)
        product += tl.dot(_rows(rows, i, in_i, k, KEY_DIM), s0, input_precision="ieee")
    return product


@triton.jit
def _gram(rows, key, i, in_i, j, in_j, KEY_DIM: tl.constexpr, TILE: tl.constexpr):
    """Rows i and columns j of K K^T or Q K^T."""
    product = tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, KEY_DIM, TILE):
        k = start + tl.arange(0, TILE)
        key_j = tl.trans(_rows(key, j, in_j, k, KEY_DIM))
        product += tl.dot(_rows(rows, i, in_i, k, KEY_DIM), key_j, input_precision="ieee")
    return product


@triton.jit
def _decays(path_sum, path_rest, ancestors, i, in_i, j, in_j, nodes):
    """exp(g_i - g_j) where node i sees node j, else 0; chosen before the exponential, which may overflow elsewhere."""
    mask = in_i[:, None] & in_j[None, :]
    seen = tl.load(ancestors + i[:, None] * nodes + j[None, :], mask=mask, other=0) != 0
    sum_i, sum_j = tl.load(path_sum + i, mask=in_i, other=0.0), tl.load(path_sum + j, mask=in_j, other=0.0)
    rest_i, rest_j = tl.load(path_rest + i, mask=in_i, other=0.0), tl.load(path_rest + j, mask=in_j, other=0.0)
    difference = (sum_i[:, None] - sum_j[None, :]) + (rest_i[:, None] - rest_j[None, :])
    return tl.exp(tl.where(seen, difference, float("-inf")))


@triton.jit
def gdn_tree_dense_kernel(
    query,  # [batch, KEY_HEADS, nodes, KEY_DIM]
    key,  # [batch, KEY_HEADS, nodes, KEY_DIM]
    value,  # [batch, VALUE_HEADS, nodes, VALUE_DIM]
    path_sum,  # [batch, VALUE_HEADS, nodes]: log decay from the root, rounded to float32
    path_rest,  # [batch, VALUE_HEADS, nodes]: what the rounding took away
    beta,  # [batch, VALUE_HEADS, nodes]
    state,  # [batch, VALUE_HEADS, KEY_DIM, VALUE_DIM]
    ancestors,  # [nodes, nodes], 0 or 1
    output,  # [batch, VALUE_HEADS, nodes, VALUE_DIM]
    update,  # [batch, VALUE_HEADS, nodes, VALUE_DIM]
    nodes,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    head = tl.program_id(1).to(tl.int64)
    key_head = (head // VALUE_HEADS) * KEY_HEADS + (head % VALUE_HEADS) // (VALUE_HEADS // KEY_HEADS)
    query += key_head * nodes * KEY_DIM
    key += key_head * nodes * KEY_DIM
    value += head * nodes * VALUE_DIM
    output += head * nodes * VALUE_DIM
    update += head * nodes * VALUE_DIM
    path_sum += head * nodes
    path_rest += head * nodes
    beta += head * nodes
    state += head * KEY_DIM * VALUE_DIM

    row = tl.arange(0, TILE)
    v = tl.program_id(0) * TILE + row

    for tile_i in range(TILES):
        i = tile_i * TILE + row
        in_i = i < nodes
        beta_i = tl.load(beta + i, mask=in_i, other=0.0)[:, None]
        from_root = tl.exp(tl.load(path_sum + i, mask=in_i, other=0.0))[:, None]

        # u starts as the right-hand side beta (V - a K S0), o as what the query reads from S0.
        remembered = from_root * _state_product(key, state, i, in_i, v, KEY_DIM, VALUE_DIM, TILE)
        u = beta_i * (_rows(value, i, in_i, v, VALUE_DIM) - remembered)
        o = from_root * _state_product(query, state, i, in_i, v, KEY_DIM, VALUE_DIM, TILE)

        # Ancestors in earlier tiles are strict ones, and their updates are known.
        for tile_j in range(tile_i):
            j = tile_j * TILE + row
            in_j = j < nodes
            decay = _decays(path_sum, path_rest, ancestors, i, in_i, j, in_j, nodes)
            x = beta_i * decay * _gram(key, key, i, in_i, j, in_j, KEY_DIM, TILE)
            y = decay * _gram(query, key, i, in_i, j, in_j, KEY_DIM, TILE)
            u_j = _rows(update, j, in_j, v, VALUE_DIM)
            u -= tl.dot(x, u_j, input_precision="ieee")
            o += tl.dot(y, u_j, input_precision="ieee")

        # Inside the tile: forward substitution, node s after node s - 1. Column s of x_t is row s of X.
        decay = _decays(path_sum, path_rest, ancestors, i, in_i, i, in_i, nodes)
        x = beta_i * decay * _gram(key, key, i, in_i, i, in_i, KEY_DIM, TILE)
        x_t = tl.trans(tl.where(row[:, None] > row[None, :], x, 0.0))
        for s in range(1, TILE):
            x_s = tl.sum(tl.where(row[None, :] == s, x_t, 0.0), axis=1)
            u = tl.where(row[:, None] == s, u - tl.sum(x_s[:, None] * u, axis=0)[None, :], u)
        y = decay * _gram(query, key, i, in_i, i, in_i, KEY_DIM, TILE)
        o += tl.dot(y, u, input_precision="ieee")

        value_mask = in_i[:, None] & (v < VALUE_DIM)[None, :]
        tl.store(update + i[:, None] * VALUE_DIM + v[None, :], u, mask=value_mask)
        tl.store(output + i[:, None] * VALUE_DIM + v[None, :], o, mask=value_mask)
        # All threads of this program must see the stored rows before the next tile reads them.
        tl.debug_barrier()
