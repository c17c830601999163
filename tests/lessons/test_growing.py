"""Notebook 06: growth by hand against the package's builder, and worlds in which a wide round hurts."""

from itertools import pairwise

import pytest
import torch

from tfm_lab.lessons.by_hand import expected_tokens
from tfm_lab.lessons.exercises_06_grow import GROWTHS, Drafter
from tfm_lab.lessons.growing_by_hand import (
    ImpossibleRowsError,
    first_orphan,
    grow,
    grown,
    grown_paths,
    length_by_width,
    places_world,
)
from tfm_lab.theory import HiddenWorld


@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("budget", [1, 5, 12])
def test_growth_by_hand_adds_the_nodes_of_the_package_in_the_same_calls(budget: int, width: int) -> None:
    for seed in range(3):
        world = HiddenWorld.dirichlet(3, 6, 0.3, seed)
        for depth in (1, 3, 6):
            drafter, draft = Drafter(world), grown(world, budget, width, depth)
            paths = grow(drafter, budget, width, depth)
            assert paths == grown_paths(draft)
            assert drafter.calls == draft.drafter_calls
            assert first_orphan(paths) == -1


def test_no_answer_can_fail_for_the_order_of_two_equally_likely_paths() -> None:
    for case in GROWTHS:
        paths = grow(Drafter(case.world), 2 * case.budget, 1, case.depth)
        chances = sorted(expected_tokens([path], case.world.conditional) - 1.0 for path in paths)
        assert all(b - a > 1e-6 for a, b in pairwise(chances))


def test_growth_stops_where_nothing_is_left() -> None:
    calls: list[int] = []

    def certain(paths: list[tuple[int, ...]]) -> list[list[float]]:
        calls.append(len(paths))
        return [[0.0, 1.0]] * len(paths)

    assert grow(certain, 9, 4, 3) == [(1,), (1, 1), (1, 1, 1)]
    assert calls == [1, 1, 1]


def test_a_wider_round_takes_no_more_calls_than_the_rule_says() -> None:
    for case in GROWTHS[:3]:
        drafter = Drafter(case.world)
        grow(drafter, case.budget, case.width, case.depth)
        assert drafter.calls == -(-case.budget // case.width)


def test_where_every_place_is_settled_a_wide_round_hurts_and_where_all_is_open_it_does_not() -> None:
    settled, open_world = [[0.9, 0.1]] * 15, [[0.125] * 8] * 15
    assert length_by_width(settled, 16, 8) < 0.6 * length_by_width(settled, 16, 1)
    assert length_by_width(open_world, 16, 8) == pytest.approx(length_by_width(open_world, 16, 1))


def test_rows_of_different_length_are_filled_up() -> None:
    world = places_world([[1.0], [0.5, 0.25, 0.25]])
    assert world.rows.tolist() == [[1.0, 0.0, 0.0], [0.5, 0.25, 0.25]]
    assert torch.equal(world.marginals(1), world.rows[:1])
    weights, laws = world.conditionals(2)
    assert (weights.tolist(), laws.tolist()) == ([1.0], [[0.5, 0.25, 0.25]])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], "give 1 to 16 rows of at most 16 probabilities"),
        ([[1.0]] * 17, "give 1 to 16 rows"),
        ([[1 / 17] * 17], "of at most 16 probabilities"),
        ([[1.0], [0.5, 0.4]], "row 1 is no distribution: it sums to 0.9"),
        ([[1.5, -0.5]], "row 0 is no distribution"),
        ([[1.0], []], "row 1 is no distribution: it sums to 0"),
    ],
)
def test_what_is_no_world_is_refused(rows: list[list[float]], sentence: str) -> None:
    with pytest.raises(ImpossibleRowsError, match=sentence):
        places_world(rows)
