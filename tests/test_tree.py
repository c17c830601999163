"""DraftTree: invariants with their sentences, ancestry, orders and exports, on the shared table of tree shapes."""

import doctest
import math
from itertools import pairwise

import networkx as nx
import pytest
import torch
from trees import TREES

from tfm_lab import tree as tree_module
from tfm_lab.tree import DraftTree

SMALL = DraftTree.from_parents(
    tokens=[7, 3, 5, 3, 8, 9], parents=[-1, 0, 0, 2, 1, 2], log_probs=[0.0, -0.1, -0.2, -0.4, -0.8, -1.6]
)


every_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())


# Invariants.


def test_depths_follow_from_the_parents() -> None:
    assert SMALL.depths.tolist() == [0, 1, 1, 2, 2, 2]
    assert (len(SMALL), SMALL.budget, SMALL.max_depth) == (6, 5, 2)
    assert SMALL.tokens.dtype == SMALL.parents.dtype == SMALL.depths.dtype == torch.int64
    assert SMALL.log_probs.dtype == torch.float64


def test_missing_log_probabilities_are_zero() -> None:
    assert DraftTree.from_parents([1, 2], [-1, 0]).log_probs.tolist() == [0.0, 0.0]


def test_a_bare_root_is_a_tree() -> None:
    root = DraftTree.root_only(4)
    assert (root.tokens.tolist(), root.budget, root.max_depth, root.leaves()) == ([4], 0, 0, (0,))
    assert root.ancestors().tolist() == [[True]]
    assert root.preorder() == root.path(0) == (0,)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("tokens", "parents", "log_probs", "message"),
    [
        ([], [], None, "a draft tree needs at least its root, the last committed token"),
        ([1, 2], [-1], None, "must have one entry per node, got 2, 1, 1 and 2"),
        ([1, 2], [-1, 0], [0.0], "must have one entry per node, got 2, 2, 2 and 1"),
        ([1], [0], None, "node 0 is the root: its parent must be -1, its depth 0 and its log-probability 0"),
        ([1], [-1], [-0.5], "node 0 is the root"),
        ([-1], [-1], None, "node 0 has token -1; token ids start at 0"),
        ([1, -2], [-1, 0], None, "node 1 has token -2; token ids start at 0"),
        ([1, 2, 3], [-1, 2, 0], None, "node 1 has parent 2; a parent must come before its children"),
        ([1, 2, 3], [-1, 0, 2], None, "node 2 has parent 2; a parent must come before its children"),
        ([1, 2, 3], [-1, 0, -1], None, "node 2 has parent -1; a parent must come before its children"),
        ([1, 2], [-1, 0], [0.0, 0.1], "node 1 has log-probability 0.1; it must be a number that is at most 0"),
        ([1, 2], [-1, 0], [0.0, math.nan], "node 1 has log-probability nan; it must be a number"),
        ([1, 2, 2, 2], [-1, 0, 1, 0], None, "node 3 repeats token 2 below node 0; siblings must differ"),
    ],
)
def test_a_broken_invariant_is_named(
    tokens: list[int], parents: list[int], log_probs: list[float] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree.from_parents(tokens, parents, log_probs)


@pytest.mark.parametrize(
    ("depths", "message"),
    [
        ([0, 1, 3], "node 2 has depth 3; one more than its parent's is 2"),
        ([0, 0, 1], "node 1 has depth 0; one more than its parent's is 1"),
        ([1, 2, 3], "node 0 is the root"),
    ],
)
def test_depths_must_agree_with_the_parents(depths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(torch.arange(3), torch.tensor([-1, 0, 1]), torch.tensor(depths), torch.zeros(3))


def test_log_probabilities_may_round_to_just_above_zero_or_be_minus_infinity() -> None:
    tree = DraftTree.from_parents([1, 2, 3], [-1, 0, 0], [0.0, 1e-7, -math.inf])
    assert tree.log_probs[2] == -math.inf


# Ancestry.


@every_tree
def test_ancestors_are_the_nodes_on_the_path(tree: DraftTree) -> None:
    mask = tree.ancestors()
    assert mask.dtype == torch.bool
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[0] == 0
        assert path[-1] == node
        assert all(int(tree.parents[child]) == parent for parent, child in pairwise(path))
        assert mask[node].nonzero().flatten().tolist() == list(path)
    assert torch.equal(mask.sum(-1) - 1, tree.depths)


@every_tree
def test_children_are_the_nodes_that_name_the_parent(tree: DraftTree) -> None:
    children = tree.children()
    assert sorted(child for group in children for child in group) == list(range(1, len(tree)))
    assert all(int(tree.parents[child]) == node for node, group in enumerate(children) for child in group)
    assert all(list(group) == sorted(group) for group in children)
    assert tree.leaves() == tuple(node for node, group in enumerate(children) if not group)


def test_paths_of_a_small_tree() -> None:
    assert SMALL.path(5) == (0, 2, 5)
    assert SMALL.path_tokens(5) == (7, 5, 9)
    assert SMALL.path_tokens(0) == (7,)
    assert SMALL.children() == ((1, 2), (4,), (3, 5), (), (), ())
    assert SMALL.leaves() == (3, 4, 5)
    torch.testing.assert_close(
        SMALL.path_log_probs(), torch.tensor([0.0, -0.1, -0.2, -0.6, -0.9, -1.8], dtype=torch.float64)
    )


@pytest.mark.parametrize("node", [-1, 6, 99])
def test_a_path_to_no_node_is_refused(node: int) -> None:
    with pytest.raises(ValueError, match=f"node {node} is not in a tree of 6 nodes; use an index from 0 to 5"):
        SMALL.path(node)


# Orders.


@every_tree
def test_preorder_keeps_every_subtree_together(tree: DraftTree) -> None:
    order = tree.preorder()
    assert sorted(order) == list(range(len(tree)))
    place = {node: index for index, node in enumerate(order)}
    mask = tree.ancestors()
    for node in range(len(tree)):
        subtree = sorted(place[other] for other in mask[:, node].nonzero().flatten().tolist())
        assert subtree == list(range(place[node], place[node] + len(subtree)))
    for group in tree.children():
        assert [place[child] for child in group] == sorted(place[child] for child in group)


def test_preorder_of_a_small_tree() -> None:
    assert SMALL.preorder() == (0, 1, 4, 2, 3, 5)


@every_tree
def test_reordering_permutes_rows_and_keeps_the_tree(tree: DraftTree) -> None:
    order = list(tree.preorder())
    moved = tree.reordered(order)
    index = torch.tensor(order)
    assert torch.equal(moved.tokens, tree.tokens[index])
    assert torch.equal(moved.depths, tree.depths[index])
    assert torch.equal(moved.log_probs, tree.log_probs[index])
    assert torch.equal(moved.ancestors(), tree.ancestors()[index][:, index])
    back = moved.reordered(torch.argsort(index).tolist())
    assert torch.equal(back.parents, tree.parents)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 2], "the order must name each of the 6 nodes once"),
        ([0, 1, 2, 3, 4, 4], "the order must name each of the 6 nodes once"),
        ([0, 4, 1, 2, 3, 5], "node 1 has parent 2; a parent must come before its children"),
        ([1, 0, 2, 3, 4, 5], "node 0 is the root"),
    ],
)
def test_an_order_that_is_none_is_refused(order: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SMALL.reordered(order)


@pytest.mark.parametrize(("count", "nodes"), [(-3, 1), (0, 1), (2, 3), (5, 6), (99, 6)])
def test_the_first_nodes_are_a_tree(count: int, nodes: int) -> None:
    part = SMALL.first_nodes(count)
    assert part.tokens.tolist() == SMALL.tokens.tolist()[:nodes]
    assert part.parents.tolist() == SMALL.parents.tolist()[:nodes]
    assert part.budget == nodes - 1


# Export.


@every_tree
def test_the_graph_is_the_tree(tree: DraftTree) -> None:
    graph = tree.to_networkx()
    assert list(graph.nodes) == list(range(len(tree)))
    assert nx.is_directed(graph)
    assert nx.is_arborescence(graph)
    assert nx.shortest_path_length(graph, 0) == dict(enumerate(tree.depths.tolist()))
    for node, group in enumerate(tree.children()):
        assert tuple(graph.successors(node)) == group


def test_nodes_of_the_graph_carry_what_is_drawn() -> None:
    graph = SMALL.to_networkx(decode=lambda token: f"<{token}>")
    assert graph.nodes[5] == {
        "token": 9,
        "label": "<9>",
        "depth": 2,
        "log_prob": -1.6,
        "path_log_prob": pytest.approx(-1.8),
    }
    assert SMALL.to_networkx().nodes[0]["label"] == "7"


def test_the_docstring_tells_the_truth() -> None:
    results = doctest.testmod(tree_module)
    assert results.attempted > 0
    assert results.failed == 0
