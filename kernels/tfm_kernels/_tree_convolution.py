"""Triton kernels: the short convolution along the branches of a draft tree, and its window after an accepted path."""

import triton
import triton.language as tl


@triton.jit
def convolution_kernel(
    x,  # [batch, nodes, channels], rows with strides
    weight,  # [channels, WIDTH]
    windows,  # [slots, WIDTH - 1, channels]
    slots,  # [batch]
    taps,  # [batch, nodes, WIDTH]
    y,  # [batch, nodes, channels]
    nodes, channels, x_batch, x_node,
    WIDTH: tl.constexpr, NODE_TILE: tl.constexpr, CHANNEL_TILE: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    """Grid: (channel tiles, node tiles, batch). Sums from the oldest tap to the newest in float32, as the reference."""
    request = tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * CHANNEL_TILE + tl.arange(0, CHANNEL_TILE)
    i = tl.program_id(1) * NODE_TILE + tl.arange(0, NODE_TILE)
    in_c, in_i = c < channels, i < nodes
    window = windows + tl.load(slots + request).to(tl.int64) * ((WIDTH - 1) * channels)
    x += request * x_batch
    total = tl.zeros([NODE_TILE, CHANNEL_TILE], tl.float32)
    for tap in tl.static_range(0, WIDTH):
        row = tl.load(taps + (request * nodes + i) * WIDTH + tap, mask=in_i, other=0)
        is_node = (row >= WIDTH - 1) & in_i
        is_old = (row < WIDTH - 1) & in_i
        node = tl.maximum(row - (WIDTH - 1), 0)
        new = tl.load(x + node[:, None] * x_node + c[None, :], mask=is_node[:, None] & in_c[None, :], other=0.0)
        old = tl.load(window + row[:, None] * channels + c[None, :], mask=is_old[:, None] & in_c[None, :], other=0.0)
        taken = tl.where(is_node[:, None], new.to(tl.float32), old.to(tl.float32))
        total += taken * tl.load(weight + c * WIDTH + tap, mask=in_c, other=0.0).to(tl.float32)[None, :]
    if SILU:
        total = total / (1.0 + tl.exp(-total))
    place = y + (request * nodes + i[:, None]) * channels + c[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=in_i[:, None] & in_c[None, :])


@triton.jit
def window_kernel(
    x,  # [layers, batch, nodes, channels], rows with strides
    windows,  # [layers, slots, WIDTH - 1, channels]
    slots,  # [batch]
    accepted,  # [batch, length]: node indices from the root, -1 behind the last one
    channels, length, layer_windows, x_layer, x_batch, x_node,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, CHANNEL_TILE: tl.constexpr,
):  # fmt: skip
    """The last WIDTH - 1 rows of the window followed by the path's inputs. Grid: (channel tiles, layers, batch)."""
    layer, request = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * CHANNEL_TILE + tl.arange(0, CHANNEL_TILE)
    row = tl.arange(0, ROWS)
    window = windows + layer * layer_windows + tl.load(slots + request).to(tl.int64) * ((WIDTH - 1) * channels)
    count = 0
    for start in range(0, length, 16):
        j = start + tl.arange(0, 16)
        count += tl.sum((tl.load(accepted + request * length + j, mask=j < length, other=-1) >= 0).to(tl.int32), 0)
    source = count + row
    is_new = source >= WIDTH - 1
    valid = (row < WIDTH - 1)[:, None] & (c < channels)[None, :]
    node = tl.load(accepted + request * length + source - (WIDTH - 1), mask=is_new & (row < WIDTH - 1), other=0)
    x += layer * x_layer + request * x_batch
    new = tl.load(x + node[:, None] * x_node + c[None, :], mask=valid & is_new[:, None], other=0.0)
    old = tl.load(window + source[:, None] * channels + c[None, :], mask=valid & ~is_new[:, None], other=0.0)
    moved = tl.where(is_new[:, None], new, old)
    # In place: all threads have read before one writes.
    tl.debug_barrier()
    tl.store(window + row[:, None] * channels + c[None, :], moved, mask=valid)
