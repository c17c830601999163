"""Sampled trees whose shape is known beforehand: the best shape, kept draws, one drafter call per depth."""

import itertools
from collections import Counter

import pytest
import torch
from models.oracle import random_tokens
from models.small import drafter_for, tiny_target, weaver_for

from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import DraftSource, TreeConfig, TreeKind, ranked_slots
from tfm_lab.drafting.ranked_slots import ACCEPTED, children_of_places
from tfm_lab.draws import SeededDraws
from tfm_lab.exact import ROOT, Table, TableSession, one_hot_table, random_table
from tfm_lab.methods import make_speculator

Shape = tuple[int, ...]


def worth(parents: Shape, accepted: tuple[float, ...]) -> float:
    """Expected accepted drafts of a tree whose place i + 1 is one more child of ``parents[i]``."""
    reached, ranks, depth = [1.0], Counter[int](), [0]
    tried = [1.0]
    total = 0.0
    for parent in parents:
        chance = accepted[min(ranks[parent], len(accepted) - 1)]
        reached.append(tried[parent] * chance)
        tried[parent] *= 1.0 - chance
        tried.append(reached[-1])
        ranks[parent] += 1
        depth.append(depth[parent] + 1)
        total += reached[-1]
    return total


def shapes(places: int, deepest: int, most: int) -> list[Shape]:
    found = []
    for parents in itertools.product(*(range(count) for count in range(1, places + 1))):
        depth = [0]
        for parent in parents:
            depth.append(depth[parent] + 1)
        if max(depth) <= deepest and max(Counter(parents).values()) <= most:
            found.append(parents)
    return found


def parents_of(children: tuple[tuple[int, ...], ...]) -> Shape:
    above = {child: place for place, below in enumerate(children) for child in below}
    return tuple(above[place] for place in range(1, len(children)))


@pytest.mark.parametrize("accepted", [ACCEPTED, (0.3, 0.29, 0.28), (0.9, 0.9), (0.5, 0.01)])
@pytest.mark.parametrize(("deepest", "most"), [(1, 9), (2, 9), (6, 9), (3, 2)])
def test_no_tree_of_as_many_places_is_worth_more(accepted: tuple[float, ...], deepest: int, most: int) -> None:
    for places in range(1, 7):
        children = children_of_places(accepted, places, deepest, most)
        parents = parents_of(children)
        assert len(parents) == places
        best = max(worth(shape, accepted) for shape in shapes(places, deepest, most))
        assert worth(parents, accepted) == pytest.approx(best, rel=1e-12)


def test_a_depth_takes_one_call_and_the_shape_is_always_the_same() -> None:
    table = random_table(5, 4, seed=1)
    config, tables = TreeConfig(budget=9, max_depth=4), set[tuple[int, ...]]()
    children = children_of_places(ACCEPTED, 9, 4, 5)
    for seed in range(5):
        session = TableSession(table, 4)
        draft = ranked_slots(ROOT, DraftSource(None, lambda session=session: session), config, SeededDraws(seed))
        parents = draft.tree.parents.tolist()
        assert draft.kind is TreeKind.SAMPLED
        assert draft.tree.budget == 9
        assert Counter(Counter(parents).values()) == Counter(Counter(parents_of(children)).values()) + Counter([1])
        assert draft.drafter_calls == len(session.calls) == len(draft.rounds) == draft.tree.max_depth
        assert session.calls == [entry.expanded for entry in draft.rounds]
        assert [node for entry in draft.rounds for node in entry.added] == list(range(1, 10))
        assert sorted(draft.proposals) == sorted({parent for parent in parents if parent >= 0})
        tables.add(tuple(draft.tree.tokens.tolist()))
    assert len(tables) > 1


def test_siblings_are_draws_without_replacement_in_the_order_of_their_ranks() -> None:
    """First draws at the root follow q, second draws q without the first."""
    q = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    pairs = Counter[tuple[int, int]]()
    table = Table.fill(3, 1, lambda _: q)
    source, config, draws = table.source(1), TreeConfig(budget=2, max_depth=1), SeededDraws(7)
    count = 4000
    for _ in range(count):
        first, second = ranked_slots(ROOT, source, config, draws).tree.tokens.tolist()[1:]
        pairs[first, second] += 1
    for (first, second), times in pairs.items():
        chance = float(q[first] * q[second] / (1.0 - q[first]))
        assert times / count == pytest.approx(chance, abs=4.5 * (chance * (1 - chance) / count) ** 0.5)
    assert len(pairs) == 6


def test_places_without_a_possible_token_stay_empty() -> None:
    draft = ranked_slots(
        ROOT, one_hot_table(4, 3, seed=3).source(3), TreeConfig(budget=12, max_depth=3), SeededDraws(0)
    )
    assert draft.tree.budget == 3
    assert draft.tree.max_depth == 3


def test_a_node_with_fewer_possible_tokens_than_places_has_no_others() -> None:
    table = Table.fill(3, 2, lambda prefix: torch.tensor([0.0, 1.0, 0.0] if prefix else [0.4, 0.3, 0.3]))
    draft = ranked_slots(ROOT, table.source(2), TreeConfig(budget=12, max_depth=2), SeededDraws(0))
    below = list(zip(draft.tree.parents.tolist(), draft.tree.tokens.tolist(), strict=True))
    assert sorted(token for parent, token in below if parent == 0) == [0, 1, 2]
    assert [pair for pair in below if pair[0] > 0] == [(1, 1), (2, 1), (3, 1)]


def test_nothing_is_asked_for_an_empty_tree_and_a_source_without_conditionals_is_refused() -> None:
    table = random_table(3, 2, seed=4)
    for config in (TreeConfig(budget=0), TreeConfig(budget=5)):
        session = TableSession(table, 0)
        draft = ranked_slots(ROOT, DraftSource(None, lambda session=session: session), config, SeededDraws(0))
        assert draft.tree.budget == 0
        assert not session.calls
    with pytest.raises(ValueError, match="ranked_slots needs an autoregressive drafter"):
        ranked_slots(ROOT, DraftSource(table.marginals(2)), TreeConfig(budget=5), SeededDraws(0))


@pytest.mark.parametrize("rule", [None, "traversal"])
def test_a_decode_takes_it_by_name(rule: str | None) -> None:
    target = tiny_target()
    sampling = SamplingConfig(1.0)
    speculator = make_speculator("ranked", drafter_for(target), weaver_for(target), sampling, rule)
    assert speculator.rule.name == (rule or "rejection_swor")
    config = DecodeConfig(20, sampling, TreeConfig(budget=12, pool_size=20), seed=3)
    trace = speculative_decode(target, speculator, random_tokens(9), config)
    assert len(trace.tokens) == 20
    assert all(step.tree.budget == 12 for step in trace.steps[:1])
    with pytest.raises(ValueError, match="rejection_swor"):
        make_speculator("ranked", drafter_for(target), weaver_for(target), SamplingConfig(0.0), "nosuch")
    greedy = make_speculator("ranked", drafter_for(target), weaver_for(target), SamplingConfig(0.0))
    plain = autoregressive_decode(target, random_tokens(9), DecodeConfig(20)).tokens
    assert speculative_decode(target, greedy, random_tokens(9), DecodeConfig(20, tree=config.tree)).tokens == plain
