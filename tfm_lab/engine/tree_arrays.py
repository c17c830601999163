"""Draft trees of fixed size as tensors on the device: ancestors, depth-first order, accepted paths. Nothing waits."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

PADDING = -2
"""Parent of a row that holds no node."""


class TreeArrays(NamedTuple):
    """One draft tree per request, parents before children, every tree in the same number of rows.

    Attributes:
        tokens: row 0 holds the roots.
        parents: -1 for roots, ``PADDING`` for rows without a node.
        depths: 0 for roots; of no meaning for padding.
        ancestors: ``[i, j]`` is true when j is i or an ancestor of i; padding is its own ancestor alone.
    """

    tokens: Int[Tensor, "batch nodes"]
    parents: Int[Tensor, "batch nodes"]
    depths: Int[Tensor, "batch nodes"]
    ancestors: Bool[Tensor, "batch nodes nodes"]

    @property
    def is_node(self) -> Bool[Tensor, "batch nodes"]:
        """False for padding."""
        return self.parents > PADDING


def closure(parents: Int[Tensor, "batch nodes"], max_depth: int) -> Bool[Tensor, "batch nodes nodes"]:
    """Inclusive ancestor masks, by squaring the step to the parent: 4 products for paths of 15 nodes."""
    nodes = parents.shape[1]
    index = torch.arange(nodes, device=parents.device)
    reach = (parents[:, :, None] == index) | (index[:, None] == index)
    for _ in range(max(0, max_depth - 1).bit_length()):
        steps = reach.float()
        reach = steps @ steps > 0
    return reach


def rooted(roots: Int[Tensor, " batch"], drafted: Int[Tensor, "batch depth"]) -> TreeArrays:
    """One path per request: the root, then ``drafted``."""
    tokens = torch.cat([roots[:, None], drafted], dim=1)
    index = torch.arange(tokens.shape[1], device=tokens.device)
    below = (index[:, None] >= index).expand(len(tokens), -1, -1)
    return TreeArrays(tokens, (index - 1).expand_as(tokens), index.expand_as(tokens), below)


def depth_first(tree: TreeArrays) -> TreeArrays:
    """The same trees in depth-first order, siblings as they stood, padding last: the order that the kernels take.

    A node's place is that of its parent, plus one, plus the subtrees of its earlier siblings. Summed along the path:
    every ancestor but the root contributes one plus the sizes of its earlier siblings' subtrees.
    """
    tokens, parents, depths, ancestors = tree
    is_node, nodes = tree.is_node, tokens.shape[1]
    index = torch.arange(nodes, device=tokens.device)
    sizes = (ancestors & is_node[:, :, None]).sum(1)
    earlier = (parents[:, :, None] == parents[:, None, :]) & (index[:, None] > index) & is_node[:, None, :]
    before = torch.where(index > 0, 1 + (earlier * sizes[:, None, :]).sum(2), 0)
    place = (ancestors * before[:, None, :]).sum(2)
    padding = is_node.sum(1, keepdim=True) + (~is_node).cumsum(1) - 1
    place = torch.where(is_node, place, padding)
    order = torch.zeros_like(place).scatter(1, place, index.expand_as(place))
    old_parents = parents.gather(1, order)
    moved = torch.where(old_parents >= 0, place.gather(1, old_parents.clamp_min(0)), old_parents)
    rows = ancestors.gather(1, order[:, :, None].expand_as(ancestors))
    return TreeArrays(
        tokens.gather(1, order),
        moved,
        depths.gather(1, order),
        rows.gather(2, order[:, None, :].expand_as(ancestors)),
    )


def convolution_taps(tree: TreeArrays, width: int) -> Int[Tensor, "batch nodes width"]:
    """For every node the rows of ``[window; inputs]`` that its convolution reads, oldest first."""
    rows = width - 1
    batch, nodes = tree.parents.shape
    index = torch.arange(nodes, device=tree.parents.device).expand(batch, nodes)
    window = torch.arange(-1, rows - 1, device=tree.parents.device).clamp_min(0).expand(batch, rows)
    previous = torch.cat([window, tree.parents.clamp_min(-1) + rows], dim=1)
    taps = [index + rows]
    for _ in range(rows):
        taps.append(previous.gather(1, taps[-1]))
    return torch.stack(taps[::-1], dim=-1)


class Walk(NamedTuple):
    """The accepted path of every tree.

    Attributes:
        path: nodes from the root on; behind the first ``emitted`` of them some other node of the tree.
        emitted: nodes of the path, the root included, which is how many tokens the text grows by.
        last: the deepest node of the path.
        bonus: the target's token behind it.
    """

    path: Int[Tensor, "batch rows"]
    emitted: Int[Tensor, " batch"]
    last: Int[Tensor, " batch"]
    bonus: Int[Tensor, " batch"]

    @property
    def accepted(self) -> Int[Tensor, "batch rows"]:
        """The path with -1 behind its end."""
        index = torch.arange(self.path.shape[1], device=self.path.device)
        return torch.where(index < self.emitted[:, None], self.path, -1)


def walk(
    tree: TreeArrays, wanted: Int[Tensor, "batch nodes"], rows: int, forced: Int[Tensor, " batch"] | None = None
) -> Walk:
    """Membership: go down while a child carries the token that the target wants behind its parent.

    Siblings carry distinct tokens, so the nodes all of whose ancestors are wanted form one path.

    Args:
        wanted: the target's token behind every node.
        rows: of the path: one more than the deepest tree has edges.
        forced: drafts to accept whatever the target wants, as far as the tree is deep; -1 for what it wants.
    """
    behind_parent = wanted.gather(1, tree.parents.clamp_min(0))
    misses = (tree.tokens != behind_parent) & (tree.parents >= 0)
    missed = (tree.ancestors & misses[:, None, :]).any(2) | ~tree.is_node
    depth = torch.where(missed, -1, tree.depths)
    if forced is not None:
        real = torch.where(tree.is_node, tree.depths, -1)
        deepest = torch.minimum(forced, real.amax(1))[:, None]
        depth = torch.where(forced[:, None] < 0, depth, torch.where(real <= deepest, real, -1))
    count = depth.amax(1) + 1
    index = torch.arange(tree.tokens.shape[1], device=depth.device)
    last = torch.where(depth == count[:, None] - 1, index, index[-1] + 1).amin(1)
    on_path = tree.ancestors.gather(1, last[:, None, None].expand(-1, 1, len(index)))
    levels = torch.arange(rows, device=depth.device)
    path = (on_path & (tree.depths[:, None, :] == levels[:, None])).int().argmax(2)
    return Walk(path, count, last, wanted.gather(1, last[:, None])[:, 0])
