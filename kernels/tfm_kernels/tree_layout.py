"""Launcher of the layout kernel: block words, root paths and convolution taps of draft trees, once per step."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_kernels.launching import check_place, check_tensors, load_kernels

BLOCK = 16
"""Nodes of a block."""

MAX_NODES = 512

PADDING = -2
"""Parent of a row behind the last node of a tree that is smaller than the batch's largest."""


class TreeLayout(NamedTuple):
    """A batch of draft trees as the kernels read them; the same for all layers.

    Attributes:
        parents: [batch, nodes] int32: -1 at the root, -2 at padding, else the index of the parent.
        path: [batch, blocks, path rows] int32: ancestors of the first node of each block of 16, root first, then -1.
        words: [batch, blocks x 16] int32: see ``layout_kernel``; -1 throughout a block that the kernels cannot take.
        taps: [batch, nodes, width] int32: for each node the rows of [window; inputs] that its convolution reads.
    """

    parents: Tensor
    path: Tensor
    words: Tensor
    taps: Tensor

    @property
    def blocks(self) -> int:
        """Blocks of 16 nodes."""
        return self.path.shape[1]


def path_rows(nodes: int, max_depth: int | None) -> int:
    """Rows for the root path of a block: a multiple of 16 that holds every ancestor of a node of ``max_depth``."""
    depth = nodes - 1 if max_depth is None else min(max_depth, nodes - 1)
    return BLOCK * max(1, math.ceil(depth / BLOCK))


def tree_layout(parents: Tensor, max_depth: int | None = None, width: int = 4) -> TreeLayout:
    """The layout of a batch of trees, computed on their device without waiting for it.

    Args:
        parents: [batch, nodes] int32. Nodes are in depth-first order (every node right behind its subtree-mates, its
            parent before it): ``DraftTree.preorder``. -1 at the root, -2 at padding, which comes last.
        max_depth: number of proposed tokens on the longest path, if known: up to 16 blocks need nothing of each other.
            ``None`` takes any depth. Trees that are deeper than promised, or in another order, cannot be refused here
            without waiting for the device; their outputs are NaN from the first block that is at fault.
        width: taps of the short convolution.

    Raises:
        ValueError: if the argument is no int32 matrix, or there are more than 512 nodes, or it is on the CPU and Triton
            was not told to interpret.
    """
    if parents.ndim != 2 or parents.dtype != torch.int32:
        raise ValueError(f"parents must be an int32 matrix [batch, nodes], got {parents.dtype} {list(parents.shape)}")
    batch, nodes = parents.shape
    if not 1 <= nodes <= MAX_NODES:
        raise ValueError(f"the tree kernels take 1 to {MAX_NODES} nodes, got {nodes}")
    if width < 1 or (max_depth is not None and max_depth < 0):
        raise ValueError(f"width must be at least 1 and max_depth at least 0, got {width} and {max_depth}")
    check_tensors({"parents": (parents, [batch, nodes], None)}, parents.device, because="these sizes")
    kernels, interpreted = load_kernels("_tree_layout")
    check_place(interpreted, parents)
    parents = parents.contiguous()
    blocks, rows = math.ceil(nodes / BLOCK), path_rows(nodes, max_depth)
    path, words, taps = (
        torch.empty(shape, dtype=torch.int32, device=parents.device)
        for shape in ((batch, blocks, rows), (batch, blocks * BLOCK), (batch, nodes, width))
    )
    if batch:
        kernels.layout_kernel[(blocks, batch)](
            parents, path, words, taps, nodes, blocks, rows, nodes, WIDTH=width, num_warps=1
        )
    return TreeLayout(parents, path, words, taps)
