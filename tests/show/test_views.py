"""What the pictures show: places, roles, and sentences that say the same."""

from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from show.samples import ROUNDS, TREE, decode, step
from trees import random_tree

from tfm_lab.show.geometry import geometry
from tfm_lab.show.plots import tree_spec
from tfm_lab.show.svg import tree_svg
from tfm_lab.show.views import Role, chosen_view, frontier, growth_view, stacked, step_view, tidy_layout, visible


def test_leaves_take_rows_in_order_and_parents_sit_between_their_children() -> None:
    positions = tidy_layout(TREE.to_networkx())
    assert {node: positions[node][1] for node in (3, 4, 5)} == {3: 0.0, 4: 1.0, 5: 2.0}
    assert positions[1] == (1.0, 0.5)
    assert positions[0] == (0.0, 1.25)


@given(st.integers(1, 80), st.integers(0, 5))
def test_no_two_nodes_of_a_depth_share_a_row_and_no_edges_cross(nodes: int, seed: int) -> None:
    graph = random_tree(nodes, seed).to_networkx()
    positions = tidy_layout(graph)
    assert len(set(positions.values())) == nodes
    for depth in {x for x, _ in positions.values()}:
        layer = sorted((node for node in graph if positions[node][0] == depth), key=lambda n: positions[n][1])
        parents = [positions[next(iter(graph.predecessors(n)))][1] for n in layer if depth > 0]
        assert parents == sorted(parents)
    assert all(positions[node][0] == nx.shortest_path_length(graph, 0, node) for node in graph)


def test_a_step_shows_accepted_path_bonus_and_what_was_drafted_in_vain() -> None:
    view = step_view(step(), decode, "a step")
    roles = [node.role for node in view.nodes]
    assert roles == [Role.ROOT, Role.ACCEPTED, Role.UNUSED, Role.ACCEPTED, Role.UNUSED, Role.UNUSED, Role.BONUS]
    assert (view.nodes[-1].label, view.nodes[-1].parent) == ("·and", 3)
    assert "2 on one path are accepted, 3 are not used" in view.description
    assert "bonus token '·and'" in view.description


def test_what_lies_behind_the_end_of_the_text_is_not_shown_as_accepted() -> None:
    view = step_view(step(committed=(1,)), decode)
    roles = [node.role for node in view.nodes]
    assert roles == [Role.ROOT, Role.ACCEPTED, Role.UNUSED, Role.UNUSED, Role.UNUSED, Role.UNUSED]
    assert "no bonus token is needed" in view.description


def test_a_chosen_path_is_marked_from_the_root_down() -> None:
    view = chosen_view(TREE, 3, decode, "a choice")
    path = TREE.path(3)
    assert [node.role for node in view.nodes] == [
        Role.ROOT if index == 0 else Role.CHOSEN if index in path else Role.PLACED for index in range(len(TREE))
    ]
    assert [node.parent for node in view.nodes] == TREE.parents.tolist()
    assert "5 drafted tokens" in view.description
    assert all(visible(decode(token)) in view.description for token in TREE.path_tokens(3))


def test_growth_shows_new_and_older_nodes_and_nothing_moves() -> None:
    views = [growth_view(TREE, ROUNDS, last, decode) for last in range(3)]
    assert [len(view.nodes) for view in views] == [3, 5, 6]
    assert [node.role for node in views[1].nodes] == [Role.ROOT, Role.PLACED, Role.PLACED, Role.NEW, Role.NEW]
    for view in views:
        assert (view.rows, view.label_lengths) == (views[-1].rows, views[-1].label_lengths)
        assert [(node.x, node.y) for node in view.nodes] == [(n.x, n.y) for n in views[-1].nodes[: len(view.nodes)]]
    assert "4 of 5 nodes are in the tree, 2 of them new; 1 candidate waits" in views[1].description
    with pytest.raises(ValueError, match="there is no round 3"):
        growth_view(TREE, ROUNDS, 3, decode)


def test_the_frontier_holds_what_was_offered_and_not_taken_best_first() -> None:
    assert [(c.parent, c.token) for c in frontier(TREE, ROUNDS, 0)] == []
    assert [(c.parent, c.token) for c in frontier(TREE, ROUNDS, 1)] == [(2, 5)]
    assert [(c.parent, c.token) for c in frontier(TREE, ROUNDS, 2)] == [(2, 6)]


@pytest.mark.parametrize(("text", "shown"), [(" a\n\tb", "·a⏎⇥b"), ("x" * 20, "x" * 13 + "…"), ("", "")])
def test_white_space_is_visible_and_labels_are_short(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_labels_never_reach_the_next_depth() -> None:
    drawing = geometry(step_view(step(), decode))
    for (x, _, label_end), node in zip(drawing.places, step_view(step(), decode).nodes, strict=True):
        later = [place.x for place in drawing.places if place.x > x]
        assert all(label_end < other for other in later), node
        assert label_end <= drawing.width


def test_stacked_trees_keep_their_nodes_and_share_the_columns_of_their_depths() -> None:
    first, second = step_view(step(), decode, "one"), growth_view(TREE, ROUNDS, 0, decode, "two")
    both = stacked([first, second], "both", "two trees")
    assert [heading.text for heading in both.headings] == ["one", "two"]
    assert [node.label for node in both.nodes] == [node.label for node in (*first.nodes, *second.nodes)]
    count = len(first.nodes)
    assert [node.parent for node in both.nodes[count:]] == [-1, count, count]
    rows = [node.y for node in both.nodes]
    assert max(rows[:count]) < both.headings[1].row < min(rows[count:])
    assert both.rows == first.rows + second.rows + 2
    assert both.label_lengths[:3] == tuple(map(max, first.label_lengths[:3], second.label_lengths))
    assert both.label_lengths[3:] == first.label_lengths[3:]


def test_a_picked_node_is_marked_by_more_than_colour() -> None:
    view = step_view(step(), decode)
    picked = replace(view, nodes=(*view.nodes[:3], replace(view.nodes[3], picked=True), *view.nodes[4:]))
    assert tree_svg(picked).count('r="9"') == 1
    assert 'r="9"' not in tree_svg(view)
    plain, ringed = tree_spec(view)["data"][-1], tree_spec(picked)["data"][-1]
    assert ringed["marker"]["size"][3] > plain["marker"]["size"][3]
    assert ringed["text"][3] != plain["text"][3]
