"""Trees as tensors: ancestors, depth-first order, convolution taps and walks are those of DraftTree."""

import pytest
import torch
from support import random_fixed_tree

from tfm_lab import gdn
from tfm_lab.engine.growth import WovenGrowth
from tfm_lab.engine.tree_arrays import PADDING, TreeArrays, closure, convolution_taps, depth_first, walk
from tfm_lab.tree import DraftTree


def arrays(*trees: DraftTree, rows: int = 0) -> TreeArrays:
    """The trees, filled up with padding."""
    nodes = max(rows, *(len(tree) for tree in trees))

    def filled(values: list[int], filling: int) -> list[int]:
        return [*values, *[filling] * (nodes - len(values))]

    parents = torch.tensor([filled(tree.parents.tolist(), PADDING) for tree in trees])
    return TreeArrays(
        torch.tensor([filled(tree.tokens.tolist(), 0) for tree in trees]),
        parents,
        torch.tensor([filled(tree.depths.tolist(), 0) for tree in trees]),
        closure(parents, 15),
    )


TREES = [random_fixed_tree(40, nodes, 15, seed) for seed, nodes in enumerate((1, 2, 9, 30, 30))]


def test_ancestors_are_those_of_the_tree():
    for tree in TREES:
        assert torch.equal(closure(tree.parents[None], tree.max_depth)[0], tree.ancestors())


def test_depth_first_order_is_that_of_the_tree_and_padding_comes_last():
    ordered = depth_first(arrays(*TREES, rows=32))
    for row, tree in enumerate(TREES):
        wanted = tree.reordered(tree.preorder())
        own = slice(0, len(tree))
        assert torch.equal(ordered.tokens[row, own], wanted.tokens)
        assert torch.equal(ordered.parents[row, own], wanted.parents)
        assert torch.equal(ordered.depths[row, own], wanted.depths)
        assert torch.equal(ordered.ancestors[row, own, own], wanted.ancestors())
        assert (ordered.parents[row, len(tree) :] == PADDING).all()


def test_padding_between_nodes_moves_behind_them():
    parents = torch.tensor([[-1, 0, PADDING, 1, PADDING, 0]])
    tree = TreeArrays(torch.arange(6)[None], parents, torch.tensor([[0, 1, 0, 2, 0, 1]]), closure(parents, 15))
    ordered = depth_first(tree)
    assert ordered.tokens.tolist() == [[0, 1, 3, 5, 2, 4]]
    assert ordered.parents.tolist() == [[-1, 0, 1, 0, PADDING, PADDING]]


def test_convolution_taps_are_those_of_the_reference():
    for tree in TREES:
        taps = convolution_taps(arrays(tree), 4)[0]
        assert torch.equal(taps, gdn.convolution_ancestors(tree.parents, 4))


def test_a_walk_takes_what_the_target_wants_and_stops_at_the_first_miss():
    tree = DraftTree.from_parents([7, 3, 5, 3, 9, 4], [-1, 0, 0, 2, 2, 3])
    below_a_miss = [3, 8, 3, 4, 0, 0]  # nodes 3 and 5 carry what their parents want, but node 2 is not wanted
    wanted = torch.tensor([[5, 0, 3, 8, 0, 1], [6, 0, 0, 0, 0, 0], [5, 0, 3, 4, 0, 2], below_a_miss])
    walked = walk(arrays(tree, tree, tree, tree), wanted, 4)
    assert walked.emitted.tolist() == [3, 1, 4, 2]
    assert walked.last.tolist() == [3, 0, 5, 1]
    assert walked.bonus.tolist() == [8, 6, 2, 8]
    assert walked.accepted.tolist() == [[0, 2, 3, -1], [0, -1, -1, -1], [0, 2, 3, 5], [0, 1, -1, -1]]


@pytest.mark.parametrize(("drafts", "path"), [(0, [0, -1, -1]), (1, [0, 1, -1]), (2, [0, 2, 3]), (9, [0, 2, 3])])
def test_a_forced_walk_is_as_long_as_asked_or_as_deep_as_the_tree(drafts: int, path: list[int]):
    tree = DraftTree.from_parents([7, 3, 5, 3], [-1, 0, 0, 2])
    nothing = torch.tensor([[1, 1, 1, 1]])
    assert walk(arrays(tree), nothing, 3, torch.tensor([drafts])).accepted.tolist() == [path]


def test_a_frontier_that_runs_out_leaves_padding():
    growth = WovenGrowth(1, 4, 2, 1, torch.device("cpu"))
    growth.begin(torch.tensor([5]))
    growth.offer(torch.tensor([0]), torch.tensor([[[8, 9]]]), torch.tensor([[[-1.0, -0.5]]]))
    growth.add(torch.tensor([1, 2]))
    growth.offer(torch.tensor([1, 2]), torch.zeros(1, 2, 2, dtype=torch.long), torch.zeros(1, 2, 2))
    growth.add(torch.tensor([3, 4]))
    assert growth.tree.tokens[0, :3].tolist() == [5, 9, 8]
    assert growth.tree.parents.tolist() == [[-1, 0, 0, PADDING, PADDING]]
    assert depth_first(growth.tree).parents.tolist() == [[-1, 0, 0, PADDING, PADDING]]
