"""The budget by hand: the score is the expectation that enumeration gives, and its rivals are what they claim to be."""

import itertools
from dataclasses import replace

import pytest
from explorer.small import exploration, toy_facts
from hypothesis import given, settings
from hypothesis import strategies as st

from tfm_lab.explorer.reducers import ExplorerState, Mode, place_best_first
from tfm_lab.explorer.scenes import hides_target
from tfm_lab.explorer.what_if import best_first, choices, score
from tfm_lab.theory import MarkovWorld

WORLD = MarkovWorld.dirichlet(3, 0.5, seed=3)
FACTS = toy_facts(WORLD, 3)


def enumerated(placed: tuple[tuple[int, ...], ...]) -> float:
    """Tokens of a step, averaged over every continuation that the target may write."""
    total = 0.0
    for text in itertools.product(range(WORLD.vocab), repeat=4):
        probability = 1.0
        for length in range(4):
            probability *= float(WORLD.conditional(text[:length])[text[length]])
        accepted = 0
        while text[: accepted + 1] in placed:
            accepted += 1
        total += probability * (accepted + 1)
    return total


def trees(nodes: int) -> set[frozenset[tuple[int, ...]]]:
    """All trees of so many nodes."""
    found: set[frozenset[tuple[int, ...]]] = {frozenset()}
    for _ in range(nodes):
        found = {tree | {path} for tree in found for path in choices(FACTS, sorted(tree), nodes)}
    return found


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=6))
def test_the_score_is_what_enumeration_gives(picks: list[int]) -> None:
    placed: tuple[tuple[int, ...], ...] = ()
    for pick in picks:
        offered = choices(FACTS, placed, 6)
        placed = (*placed, offered[pick % len(offered)])
    assert score(FACTS, placed).yours == pytest.approx(enumerated(placed), abs=1e-12)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_no_tree_of_the_candidates_beats_the_best_possible(nodes: int) -> None:
    everything = [tuple(sorted(tree)) for tree in trees(nodes)]
    found = score(FACTS, everything[0])
    assert found.possible == pytest.approx(max(enumerated(tree) for tree in everything), abs=1e-12)
    by_weaver = max(everything, key=lambda tree: sum(FACTS[path].weaver_path for path in tree))
    assert found.best_first == pytest.approx(enumerated(by_weaver), abs=1e-12)


def test_candidates_need_their_parent_and_budget() -> None:
    assert choices(FACTS, (), 0) == []
    assert {len(path) for path in choices(FACTS, (), 5)} == {1}
    offered = choices(FACTS, ((1,),), 5)
    assert (1,) not in offered
    assert {path[:-1] for path in offered} == {(), (1,)}
    shares = [FACTS[path].weaver_path for path in offered]
    assert shares == sorted(shares, reverse=True)
    assert len(best_first(FACTS, 100, lambda node: node.weaver_path)) == len(FACTS) - 1


def test_the_target_is_seen_once_no_node_can_be_placed_even_if_candidates_are_few() -> None:
    shown = exploration()
    few = {path: facts for path, facts in shown.rounds[0].facts.items() if len(path) < 2}
    few = dict(list(few.items())[: shown.settings.budget])
    shown = replace(shown, rounds=(replace(shown.rounds[0], facts=few),))
    state = ExplorerState(shown.settings, mode=Mode.WHAT_IF)
    assert hides_target(state, shown)
    spent = place_best_first(state, shown)
    assert len(spent.placed) < shown.settings.budget
    assert not hides_target(spent, shown)
