"""Reducers: pure, safe under any input, and linked by paths."""

from dataclasses import replace

import pytest
from explorer.small import SETTINGS, exploration
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm_lab.explorer import reducers
from tfm_lab.explorer.reducers import ExplorerState, Mode, growth_of, is_verified, leading, seen_paths, selectable
from tfm_lab.explorer.scenes import describe, hides_target, node_options, scene, where_selected
from tfm_lab.explorer.settings import METHODS
from tfm_lab.show.views import Role

PRESSES = st.one_of(
    st.tuples(st.just("show_round"), st.integers(-2, 9)),
    st.tuples(st.just("show_growth"), st.integers(-2, 9)),
    st.tuples(st.just("choose_mode"), st.sampled_from(Mode)),
    st.tuples(st.just("move"), st.sampled_from(["parent", "child", "next", "previous"])),
    st.tuples(st.just("pick"), st.integers(0, 40)),
    st.tuples(st.just("place"), st.integers(0, 40)),
    st.tuples(st.sampled_from(["take_back", "clear", "place_best_first"])),
)


def started() -> ExplorerState:
    return reducers.arrive(ExplorerState(SETTINGS), exploration())


@settings(max_examples=60, deadline=None)
@given(st.lists(PRESSES, max_size=14))
def test_whatever_is_pressed_the_screen_makes_sense(presses: list[tuple]) -> None:
    shown, state = exploration(), started()
    for name, *arguments in presses:
        if name in ("pick", "place"):
            paths = selectable(state, shown)
            path = paths[arguments[0] % len(paths)]
            state = (reducers.select if name == "pick" else reducers.place)(state, shown, path)
        else:
            state = getattr(reducers, name)(state, shown, *arguments)
        tree, picture = leading(state, shown), scene(state, shown)
        assert tree is not None
        assert picture is not None
        assert 0 <= state.round < len(shown.rounds)
        assert 0 <= state.growth <= len(tree.rounds)
        assert state.path in selectable(state, shown)
        assert len(state.placed) <= SETTINGS.budget
        assert all(path[:-1] in ((), *state.placed) for path in state.placed)
        assert len(picture.paths) == len(picture.view.nodes)
        assert set(picture.paths) == set(selectable(state, shown))
        ringed = {path for path, node in zip(picture.paths, picture.view.nodes, strict=True) if node.picked}
        assert ringed == {state.path}
        assert [path for _, path in node_options(state, shown)] == list(selectable(state, shown))
        assert describe(state, shown).startswith(f"Target call {state.round + 1} of {len(shown.rounds)}")


def test_before_the_first_decode_nothing_can_go_wrong() -> None:
    state = ExplorerState(SETTINGS)
    for name, *arguments in (("show_round", 1), ("show_growth", 1), ("place_best_first",), ("move", "child")):
        assert getattr(reducers, name)(state, None, *arguments) == state
    assert reducers.place(state, None, (1,)) == state
    assert scene(state, None) is None
    assert describe(state, None) == "Nothing is decoded yet."
    with pytest.raises(ValueError, match="parent, child, next or previous, not 'up'"):
        reducers.move(state, None, "up")


def test_growth_goes_from_the_first_round_to_the_verified_tree() -> None:
    shown, state = exploration(), started()
    tree = leading(state, shown)
    assert tree is not None
    assert is_verified(state, shown)
    roles = {node.role for node in scene(state, shown).view.nodes}
    assert {Role.ROOT, Role.UNUSED} <= roles <= {Role.ROOT, Role.UNUSED, Role.ACCEPTED, Role.BONUS}
    for growth in range(len(tree.rounds)):
        state = reducers.show_growth(state, shown, growth)
        assert len(seen_paths(state, shown, "tfm")) == 1 + tree.nodes_after(growth)
        assert seen_paths(state, shown, "tfm") == tree.paths[: 1 + tree.nodes_after(growth)]
    assert not is_verified(state, shown)
    state = reducers.select(state, shown, tree.paths[1])
    assert state.path != ()
    later = reducers.show_round(state, shown, 1)
    assert (later.growth, later.path) == (0, ())


def test_the_keys_walk_the_tree_and_turn_round_at_its_ends() -> None:
    shown, state = exploration(), started()
    assert reducers.move(state, shown, "parent") == state
    child = reducers.move(state, shown, "child")
    assert len(child.path) == 1
    level = [path for path in selectable(state, shown) if len(path) == 1]
    walked = child
    for path in (*level[1:], level[0]):
        walked = reducers.move(walked, shown, "next")
        assert walked.path == path
    assert reducers.move(child, shown, "previous").path == level[-1]
    assert reducers.move(child, shown, "parent").path == ()


def test_a_path_is_selected_in_every_tree_that_has_it_and_missed_elsewhere() -> None:
    shown = exploration()
    state = reducers.choose_mode(started(), shown, Mode.SIDE)
    here = shown.rounds[0]
    everywhere = next(p for p in here.trees["tfm"].paths[1:] if all(here.trees[m].node(p) for m in METHODS))
    state = reducers.select(state, shown, everywhere)
    ringed = [node for node in scene(state, shown).view.nodes if node.picked]
    assert len(ringed) == len(METHODS)
    assert "not in the tree" not in describe(state, shown)
    some = next(p for p in here.trees["tfm"].paths[1:] if here.trees["chain"].node(p) is None)
    state = reducers.select(state, shown, some)
    assert where_selected(state, shown)["chain"] == "not in this tree"
    assert "The selected path is not in the tree of DFlash chain" in describe(state, shown)
    alone = reducers.choose_mode(state, shown, Mode.SINGLE)
    assert alone.path == some


def test_side_by_side_trees_have_spent_equally_many_nodes_or_fewer() -> None:
    shown = exploration()
    state = reducers.choose_mode(started(), shown, Mode.SIDE)
    for growth in range(3):
        state = reducers.show_growth(state, shown, growth)
        spent = shown.rounds[0].trees["tfm"].nodes_after(growth)
        other = shown.rounds[0].trees["ddtree"]
        assert other.nodes_after(growth_of(state, shown, "ddtree")) == spent


def test_the_target_stays_hidden_until_the_budget_is_spent() -> None:
    shown = exploration()
    state = reducers.choose_mode(started(), shown, Mode.WHAT_IF)
    assert hides_target(state, shown)
    assert "by the target" not in describe(state, shown)
    state = reducers.place_best_first(state, shown)
    assert len(state.placed) == SETTINGS.budget
    assert not hides_target(state, shown)
    state = reducers.select(state, shown, state.placed[0])
    assert "by the target" in describe(state, shown)
    assert reducers.place(state, shown, state.placed[0]) == state
    assert reducers.take_back(state, shown).placed == state.placed[:-1]
    assert reducers.clear(state, shown).placed == ()
    assert reducers.place(replace(state, mode=Mode.SINGLE), shown, state.placed[0]).placed == state.placed
