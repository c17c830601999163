"""Launchers of the short convolution along the branches of a draft tree and of its commit."""

import math

import torch
from torch import Tensor

from tfm_kernels.launching import check_place, check_tensors, load_kernels, row_strides

TILES = {"NODE_TILE": 16, "CHANNEL_TILE": 128}


def tree_convolution(x: Tensor, weight: Tensor, windows: Tensor, slots: Tensor, taps: Tensor, *, silu: bool) -> Tensor:
    """Every node convolved along its own root path, summed in float32.

    Args:
        x: [batch, nodes, channels], float32 or bfloat16; a view of a wider projection will do.
        weight: [channels, width], float32 or as x; the last column multiplies the node itself.
        windows: [slots, width - 1, channels], as x: the last committed inputs, oldest first. Only read.
        slots: [batch] int32, which window belongs to which request.
        taps: [batch, nodes, width] int32, of ``TreeLayout``.
        silu: whether to apply x sigmoid(x) to the sums.

    Returns:
        [batch, nodes, channels], contiguous, in the dtype of x. Rows of padding hold no meaning.

    Raises:
        ValueError: if shapes, dtypes or devices are not as above.
    """
    batch, nodes, channels = x.shape if x.ndim == 3 else (0, 0, 0)
    width = weight.shape[-1]
    if x.ndim != 3 or x.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"x must be [batch, nodes, channels] in float32 or bfloat16, got {x.dtype} {list(x.shape)}")
    if windows.ndim != 3:
        raise ValueError(f"windows must be [slots, width - 1, channels], got shape {list(windows.shape)}")
    named = {
        "x": (x, [batch, nodes, channels], None),
        "weight": (weight, [channels, width], None),
        "windows": (windows, [windows.shape[0], width - 1, channels], x.dtype),
        "slots": (slots, [batch], torch.int32),
        "taps": (taps, [batch, nodes, width], torch.int32),
    }
    check_tensors(named, x.device, because="these inputs and this filter")
    kernels, interpreted = load_kernels("_tree_convolution")
    check_place(interpreted, x, multiplies=False)
    y = torch.empty(batch, nodes, channels, dtype=x.dtype, device=x.device)
    grid = (math.ceil(channels / TILES["CHANNEL_TILE"]), math.ceil(nodes / TILES["NODE_TILE"]), batch)
    if 0 not in grid:
        kernels.convolution_kernel[grid](
            x, weight.contiguous(), _whole(windows), slots, taps.contiguous(), y, nodes, channels, *row_strides("x", x),
            WIDTH=width, SILU=silu, **TILES, num_warps=4,
        )  # fmt: skip
    return y


def commit_windows(x: Tensor, windows: Tensor, slots: Tensor, accepted: Tensor) -> None:
    """Move the windows of all layers past an accepted path, in place: the last rows of the old one and the path's.

    Args:
        x: [layers, batch, nodes, channels]: inputs of the convolutions of the verified trees.
        windows: [layers, slots, width - 1, channels], contiguous, as x.
        slots: [batch] int32, all different.
        accepted: [batch, length] int32: nodes from the root to the last accepted one, then -1.

    Raises:
        ValueError: if shapes, dtypes or devices are not as above.
    """
    if x.ndim != 4 or windows.ndim != 4:
        raise ValueError("x must be [layers, batch, nodes, channels] and windows [layers, slots, width - 1, channels]")
    layers, batch, _, channels = x.shape
    rows = windows.shape[2]
    named = {
        "x": (x, list(x.shape), None),
        "windows": (windows, [layers, windows.shape[1], rows, channels], x.dtype),
        "slots": (slots, [batch], torch.int32),
        "accepted": (accepted, [batch, accepted.shape[-1]], torch.int32),
    }
    check_tensors(named, x.device, because="these inputs")
    kernels, interpreted = load_kernels("_tree_convolution")
    check_place(interpreted, x, multiplies=False)
    if rows == 0 or 0 in x.shape:
        return
    grid = (math.ceil(channels / TILES["CHANNEL_TILE"]), layers, batch)
    kernels.window_kernel[grid](
        x, _whole(windows), slots, accepted.contiguous(), channels, accepted.shape[-1], windows.stride(0), x.stride(0),
        *row_strides("x", x[0]), WIDTH=rows + 1, ROWS=1 << (rows - 1).bit_length(),
        CHANNEL_TILE=TILES["CHANNEL_TILE"], num_warps=4,
    )  # fmt: skip


def _whole(windows: Tensor) -> Tensor:
    if not windows.is_contiguous():
        raise ValueError("windows must be contiguous, since they are read and written in place")
    return windows
