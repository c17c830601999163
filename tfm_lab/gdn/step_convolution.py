"""The short convolution of a decoding step, for a batch of draft trees and a pool of windows."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from tfm_kernels.tree_layout import TreeLayout
from torch import Tensor

from tfm_lab.gdn.convolution import commit_window, tree_convolution
from tfm_lab.gdn.step import StepImplementation, is_triton


def convolve_trees(
    x: Float[Tensor, "batch nodes channels"],
    weight: Float[Tensor, "channels width"],
    windows: Float[Tensor, "slots rows channels"],
    slots: Int[Tensor, " batch"],
    tree: TreeLayout,
    *,
    silu: bool = True,
    impl: StepImplementation = "reference",
) -> Float[Tensor, "batch nodes channels"]:
    """Every node convolved along its own root path, then x sigmoid(x); summed in float32.

    Args:
        x: inputs of the nodes; for the kernel float32 or bfloat16, and a view of a wider projection will do.
        weight: one filter per channel; the last column multiplies the node itself.
        windows: the last ``width - 1`` committed inputs of many requests, oldest first. Only read.
        slots: int32, the window of each request.
        tree: of :func:`tfm_lab.gdn.step.tree_layout`, for this width.
        silu: whether the activation follows.

    Raises:
        ValueError: if the chosen implementation cannot take these arguments, or ``impl`` is unknown.
    """
    if is_triton(impl):
        from tfm_kernels.tree_convolution import tree_convolution as launch

        return launch(x, weight, windows, slots, tree.taps, silu=silu)
    rows = [
        tree_convolution(own, weight, window, taps.long())
        for own, window, taps in zip(x, windows[slots.long()], tree.taps, strict=True)
    ]
    mixed = torch.stack(rows) if rows else torch.zeros_like(x)
    return F.silu(mixed) if silu else mixed


def commit_windows(
    x: Float[Tensor, "layers batch nodes channels"],
    windows: Float[Tensor, "layers slots rows channels"],
    slots: Int[Tensor, " batch"],
    accepted: Int[Tensor, "batch length"],
    *,
    impl: StepImplementation = "reference",
) -> None:
    """Move the windows of all layers past the accepted paths, in place.

    Args:
        x: what the convolutions of the verified trees took.
        windows: contiguous.
        slots: int32, all different.
        accepted: int32, nodes from the root to the last accepted one, then -1; -1 alone accepts nothing.

    Raises:
        ValueError: if the chosen implementation cannot take these arguments, or ``impl`` is unknown.
    """
    if is_triton(impl):
        from tfm_kernels.tree_convolution import commit_windows as launch

        launch(x, windows, slots, accepted)
        return
    for request, (slot, path) in enumerate(zip(slots.tolist(), accepted.tolist(), strict=True)):
        nodes = [node for node in path if node >= 0]
        if nodes:
            windows[:, slot] = commit_window(windows[:, slot], x[:, request], nodes)
