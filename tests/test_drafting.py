"""Tree builders against brute force, hand-worked cases and plain re-implementations."""

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

import pytest
import torch
from support import CountingDraws, random_marginals

from tfm_lab.drafting import (
    Candidate,
    Draft,
    DraftSource,
    Marginals,
    MarginalSession,
    OpenNode,
    Proposal,
    TreeBuilder,
    TreeConfig,
    TreeKind,
    best_first,
    chain,
    dyspec_slots,
    ranked_slots,
    woven,
)
from tfm_lab.draws import SeededDraws
from tfm_lab.exact import ROOT, Table, TableSession, enumerate_drafts, random_table, sparse_table, uniform_table

BUILDERS: dict[str, TreeBuilder] = {
    "chain": chain,
    "best_first": best_first,
    "woven": woven,
    "dyspec_slots": dyspec_slots,
    "ranked_slots": ranked_slots,
}
DRAWS = SeededDraws(0, "drafter")


def marginals(weights: Sequence[Sequence[float]]) -> Marginals:
    return Marginals(torch.tensor(weights, dtype=torch.float64).log(), torch.zeros(len(weights), 1))


def woven_on_marginals(draft: Marginals, config: TreeConfig) -> Draft:
    return woven(ROOT, DraftSource(draft, lambda: MarginalSession(draft)), config, DRAWS)


def nodes_of(draft: Draft) -> list[tuple[int, int]]:
    """(parent, token) of every proposed node, in order."""
    return list(zip(draft.tree.parents.tolist(), draft.tree.tokens.tolist(), strict=True))[1:]


# What all builders share.


@pytest.mark.parametrize("name", BUILDERS)
def test_the_root_and_the_kind_are_as_asked(name: str) -> None:
    draft = BUILDERS[name](7, random_table(4, 3, seed=1).source(3), TreeConfig(budget=6, max_depth=3), DRAWS)
    assert int(draft.tree.tokens[0]) == 7
    assert draft.kind is (TreeKind.SAMPLED if name.endswith("slots") else TreeKind.FIXED)
    assert draft.tree.budget == (3 if name == "chain" else 6)


@pytest.mark.parametrize("name", BUILDERS)
def test_budget_zero_asks_the_drafter_nothing(name: str) -> None:
    def refuse() -> TableSession:
        raise AssertionError("no session is opened for an empty tree")

    draft = BUILDERS[name](7, DraftSource(random_marginals(3, 4, seed=1), refuse), TreeConfig(budget=0), DRAWS)
    assert draft.tree.tokens.tolist() == [7]
    assert (draft.rounds, draft.drafter_calls, draft.proposals) == ((), 0, {})


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("name", BUILDERS)
def test_the_lower_of_both_depth_limits_holds(name: str, depth: int) -> None:
    table = random_table(3, 3, seed=2)
    by_config = BUILDERS[name](ROOT, table.source(3), TreeConfig(budget=20, max_depth=depth, children=3), DRAWS)
    by_drafter = BUILDERS[name](ROOT, table.source(depth), TreeConfig(budget=20, max_depth=9, children=3), DRAWS)
    for draft in (by_config, by_drafter):
        assert draft.tree.max_depth == depth
        full = depth if name == "chain" else min(20, sum(3**level for level in range(1, depth + 1)))
        assert draft.tree.budget == full


@pytest.mark.parametrize("name", BUILDERS)
def test_a_drafter_without_depth_gives_the_bare_root(name: str) -> None:
    draft = BUILDERS[name](
        ROOT, DraftSource(Marginals(torch.zeros(0, 3), torch.zeros(0, 1)), _no_depth), TreeConfig(), DRAWS
    )
    assert len(draft.tree) == 1
    assert draft.drafter_calls == 0


def _no_depth() -> TableSession:
    return TableSession(uniform_table(3, 0), 0)


@pytest.mark.parametrize("name", BUILDERS)
def test_tokens_of_probability_zero_are_never_proposed(name: str) -> None:
    table = Table.fill(4, 3, lambda _: torch.tensor([0.0, 0.5, 0.0, 0.5]))
    draft = BUILDERS[name](ROOT, table.source(3), TreeConfig(budget=40, max_depth=3), DRAWS)
    assert set(draft.tree.tokens[1:].tolist()) <= {1, 3}
    assert draft.tree.budget == (3 if name == "chain" else 2 + 4 + 8)


@pytest.mark.parametrize("name", BUILDERS)
def test_log_probabilities_are_the_drafters(name: str) -> None:
    table = random_table(4, 3, seed=3)
    draft = BUILDERS[name](ROOT, table.source(3), TreeConfig(budget=8, max_depth=3), DRAWS)
    for node in range(1, len(draft.tree)):
        prefix = draft.tree.path_tokens(int(draft.tree.parents[node]))[1:]
        row = table.rows[(0,) * len(prefix) if name in ("chain", "best_first") else prefix]
        expected = row.log_softmax(0)[draft.tree.tokens[node]]
        torch.testing.assert_close(draft.tree.log_probs[node], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["woven", "dyspec_slots"])
def test_a_source_without_an_autoregressive_drafter_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs an autoregressive drafter.*MarginalSession.*best_first"):
        BUILDERS[name](ROOT, DraftSource(random_marginals(3, 4, seed=1)), TreeConfig(), DRAWS)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", BUILDERS)
def test_a_broken_drafter_is_reported(name: str, bad: float) -> None:
    broken = random_marginals(2, 4, seed=1)
    broken.logits[0, 2] = bad
    with pytest.raises(ValueError, match="logits without a distribution: check the checkpoint and the dtype"):
        BUILDERS[name](ROOT, DraftSource(broken, lambda: MarginalSession(broken)), TreeConfig(), DRAWS)


@pytest.mark.parametrize("name", ["woven", "dyspec_slots"])
def test_a_broken_session_is_reported(name: str) -> None:
    class Broken(TableSession):
        def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
            return [Proposal(torch.arange(3), torch.tensor([-1.0, math.nan, -1.0])) for _ in nodes]

    source = DraftSource(random_marginals(2, 3, seed=1), lambda: Broken(uniform_table(3, 0), 2))
    with pytest.raises(ValueError, match="NaN log-probabilities: check the checkpoint and the dtype"):
        BUILDERS[name](ROOT, source, TreeConfig(), DRAWS)


@pytest.mark.parametrize("name", ["chain", "best_first", "woven"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_drafters_are_read(name: str, dtype: torch.dtype) -> None:
    low = Marginals(random_marginals(3, 50, seed=4).logits.to(dtype), torch.zeros(3, 1, dtype=dtype))
    draft = BUILDERS[name](
        ROOT, DraftSource(low, lambda: MarginalSession(low)), TreeConfig(budget=12, max_depth=3), DRAWS
    )
    assert draft.tree.log_probs.dtype == torch.float64
    assert int(draft.tree.tokens[1]) == int(low.logits[0].argmax())


# chain.


@pytest.mark.parametrize(("budget", "max_depth", "nodes"), [(9, 9, 4), (2, 9, 2), (9, 3, 3), (1, 1, 1)])
def test_a_chain_holds_the_argmax_of_each_marginal(budget: int, max_depth: int, nodes: int) -> None:
    rows = random_marginals(4, 6, seed=5)
    draft = chain(ROOT, DraftSource(rows), TreeConfig(budget=budget, max_depth=max_depth), DRAWS)
    assert draft.tree.tokens[1:].tolist() == rows.logits.argmax(-1).tolist()[:nodes]
    assert draft.tree.parents.tolist() == list(range(-1, nodes))


def test_a_tree_without_branches_is_the_chain() -> None:
    rows = random_marginals(5, 6, seed=6)
    config = TreeConfig(budget=5, max_depth=5, children=1, width=1)
    assert nodes_of(woven_on_marginals(rows, config)) == nodes_of(chain(ROOT, DraftSource(rows), config, DRAWS))


# best_first.


def prefix_closed_sets(vocab: int, depth: int, size: int) -> Iterator[frozenset[tuple[int, ...]]]:
    """Every set of ``size`` non-empty prefixes that holds each member's parent."""
    level: set[frozenset[tuple[int, ...]]] = {frozenset()}
    for _ in range(size):
        level = {
            chosen | {(*parent, token)}
            for chosen in level
            for parent in ((), *chosen)
            if len(parent) < depth
            for token in range(vocab)
            if (*parent, token) not in chosen
        }
    yield from level


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("table", [random_table(3, 3, seed=7), random_table(3, 3, seed=8), sparse_table(3, 3, seed=9)])
def test_no_tree_of_the_same_size_has_more_probability(table: Table, budget: int) -> None:
    rows = table.marginals(3)
    probabilities = rows.logits.softmax(-1).tolist()

    def mass(prefix: tuple[int, ...]) -> float:
        return math.prod(row[token] for row, token in zip(probabilities, prefix, strict=False))

    draft = best_first(ROOT, DraftSource(rows), TreeConfig(budget=budget, max_depth=3), DRAWS)
    grown = float(draft.tree.path_log_probs()[1:].exp().sum())
    best = max(math.fsum(map(mass, chosen)) for chosen in prefix_closed_sets(3, 3, budget))
    assert grown == pytest.approx(best, abs=1e-12)


def test_nodes_come_in_order_of_probability_and_smaller_trees_are_its_beginnings() -> None:
    rows = random_marginals(6, 30, seed=10)
    full = best_first(ROOT, DraftSource(rows), TreeConfig(budget=40, max_depth=6), DRAWS)
    scores = full.tree.path_log_probs().tolist()
    assert scores == sorted(scores, reverse=True)
    for budget in (1, 7, 23):
        part = best_first(ROOT, DraftSource(rows), TreeConfig(budget=budget, max_depth=6), DRAWS)
        assert nodes_of(part) == nodes_of(full)[:budget]


def test_ties_go_to_the_older_parent_and_the_lower_token() -> None:
    draft = best_first(ROOT, DraftSource(uniform_table(2, 2).marginals(2)), TreeConfig(budget=6, max_depth=2), DRAWS)
    assert nodes_of(draft) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_best_first_keeps_what_each_pop_offered() -> None:
    draft = best_first(ROOT, DraftSource(marginals([[0.6, 0.4], [0.9, 0.1]])), TreeConfig(budget=3, max_depth=2), DRAWS)
    assert draft.drafter_calls == 0
    assert [record.added for record in draft.rounds] == [(1,), (2,), (3,)]
    assert all(record.expanded == () for record in draft.rounds)
    offered = [[(parent, token, round(math.exp(score), 9)) for parent, token, score in r.offered] for r in draft.rounds]
    assert offered == [[(0, 0, 0.6)], [(0, 1, 0.4), (1, 0, 0.54)], [(1, 1, 0.06)]]
    assert nodes_of(draft) == [(0, 0), (1, 0), (0, 1)]


# woven.


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("table", ["random", "ties"])
def test_one_at_a_time_on_marginals_is_best_first(table: str, seed: int) -> None:
    rows = random_marginals(5, 9, seed=seed)
    if table == "ties":
        rows = Marginals(rows.logits.round(), rows.hidden)
    config = TreeConfig(budget=60, max_depth=5, children=9, width=1)
    expected, grown = best_first(ROOT, DraftSource(rows), config, DRAWS), woven_on_marginals(rows, config)
    assert nodes_of(grown) == nodes_of(expected)
    assert torch.equal(grown.tree.log_probs, expected.tree.log_probs)


def plain_woven(table: Table, config: TreeConfig, depth: int) -> list[tuple[int, int]]:
    """The rounds written out over a list of all candidates, sorted anew each time."""
    nodes: list[tuple[int, int]] = []
    prefixes: list[tuple[int, ...]] = [()]
    scores = [0.0]
    frontier: list[tuple[float, int, int, int]] = []

    def expand(node: int) -> None:
        row = table.rows[prefixes[node]].log_softmax(0)
        ranks = sorted(range(table.vocab), key=lambda token: -float(row[token]))[: config.children]
        frontier.extend((-(scores[node] + float(row[token])), node, rank, token) for rank, token in enumerate(ranks))

    expand(0)
    while len(nodes) < config.budget and frontier:
        frontier.sort()
        take = min(config.expand_width, config.budget - len(nodes))
        chosen, frontier[:] = frontier[:take], frontier[take:]
        fresh = []
        for negative_score, parent, _, token in chosen:
            nodes.append((parent, token))
            prefixes.append((*prefixes[parent], token))
            scores.append(-negative_score)
            fresh.append(len(nodes))
        for node in fresh:
            if len(prefixes[node]) < depth:
                expand(node)
    return nodes


@pytest.mark.parametrize("width", [1, 2, 3, 5, 40])
@pytest.mark.parametrize("children", [2, 3])
def test_woven_follows_its_definition(width: int, children: int) -> None:
    table = random_table(3, 4, seed=11)
    config = TreeConfig(budget=14, max_depth=4, children=children, width=width)
    draft = woven(ROOT, table.source(4), config, DRAWS)
    assert nodes_of(draft) == plain_woven(table, config, 4)


@pytest.mark.parametrize(
    ("budget", "width", "calls"),
    [(1, 1, 1), (16, None, 16), (17, None, 9), (64, None, 16), (64, 64, 1), (10, 3, 4), (12, 3, 4), (13, 3, 5)],
)
def test_a_tree_takes_ceil_budget_over_width_drafter_calls(budget: int, width: int | None, calls: int) -> None:
    """The root's call included, for the last round only materialises."""
    rows = random_marginals(15, 70, seed=12)
    sessions: list[MarginalSession] = []

    def open_session() -> MarginalSession:
        sessions.append(CountingSession(rows))
        return sessions[-1]

    draft = woven(ROOT, DraftSource(rows, open_session), TreeConfig(budget=budget, width=width, children=70), DRAWS)
    (session,) = sessions
    assert isinstance(session, CountingSession)
    assert draft.tree.budget == budget
    assert draft.drafter_calls == len(session.sizes) == calls
    assert session.sizes[0] == 1


class CountingSession(MarginalSession):
    def __init__(self, rows: Marginals) -> None:
        super().__init__(rows)
        self.sizes: list[int] = []

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        self.sizes.append(len(nodes))
        return super().expand(nodes)


def test_calls_stop_when_the_depth_or_the_frontier_runs_out() -> None:
    flat = woven(ROOT, random_table(3, 1, seed=13).source(1), TreeConfig(budget=3, width=1), DRAWS)
    assert (flat.drafter_calls, flat.tree.budget, len(flat.rounds)) == (1, 3, 3)
    small = woven(ROOT, random_table(3, 2, seed=13).source(2), TreeConfig(budget=64, width=4), DRAWS)
    assert (small.drafter_calls, small.tree.budget) == (2, 3 + 9)


def test_a_round_wider_than_the_children_takes_further_calls_to_fill_the_budget() -> None:
    rows = random_marginals(15, 70, seed=12)
    draft = woven_on_marginals(rows, TreeConfig(budget=64, width=32, children=8))
    assert [len(record.added) for record in draft.rounds] == [8, 32, 24]
    assert (draft.drafter_calls, draft.tree.budget) == (3, 64)


def test_rounds_tell_how_the_tree_grew() -> None:
    table = Table.fill(2, 2, lambda prefix: torch.tensor([[7, 3], [9, 1], [1, 1]][len(prefix)]))
    draft = woven(ROOT, table.source(2), TreeConfig(budget=5, max_depth=2, width=2), DRAWS)
    first, second, third = draft.rounds
    assert (first.expanded, first.added) == ((0,), (1, 2))
    assert (second.expanded, second.added) == ((1, 2), (3, 4))
    assert (third.expanded, third.added) == ((), (5,))
    offered = [[(parent, token) for parent, token, _ in growth.offered] for growth in draft.rounds]
    assert offered == [[(0, 0), (0, 1)], [(1, 0), (2, 0), (1, 1), (2, 1)], []]
    assert second.offered[1] == Candidate(2, 0, pytest.approx(math.log(0.3 * 0.9)))
    assert nodes_of(draft) == [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1)]


def test_only_the_best_children_are_offered() -> None:
    draft = woven(ROOT, random_table(6, 1, seed=14).source(1), TreeConfig(budget=6, children=2), DRAWS)
    best = random_table(6, 1, seed=14).rows[()].topk(2).indices.tolist()
    assert draft.tree.tokens[1:].tolist() == best


# dyspec_slots.


def test_siblings_are_draws_without_replacement() -> None:
    """Every ordered triple of a root's children has the probability of drawing it from what is left."""
    table = random_table(4, 0, seed=15)
    q = table.rows[()].softmax(0).tolist()
    drafts = enumerate_drafts(dyspec_slots, table, TreeConfig(budget=3, max_depth=1))
    law = {tuple(draft.tree.tokens[1:].tolist()): chance for chance, draft in drafts}
    assert set(law) == set(permutations(range(4), 3))
    for (first, second, third), chance in law.items():
        assert chance == pytest.approx(
            q[first] * q[second] / (1 - q[first]) * q[third] / (1 - q[first] - q[second]), abs=1e-14
        )


def test_a_slot_is_chosen_by_a_value_known_before_its_token() -> None:
    """q = (.6, .4): a likely first child is expanded next (.6 > .4), an unlikely one gets its sibling (.6 > .4)."""
    table = Table.fill(2, 2, lambda _: torch.tensor([6, 4]))
    trees = {}
    for chance, draft in enumerate_drafts(dyspec_slots, table, TreeConfig(budget=2, max_depth=2)):
        trees[tuple(nodes_of(draft))] = chance
    assert trees == {
        ((0, 0), (1, 0)): pytest.approx(0.36),
        ((0, 0), (1, 1)): pytest.approx(0.24),
        ((0, 1), (0, 0)): pytest.approx(0.4),
    }


def test_the_slot_of_a_residual_is_worth_what_its_siblings_left() -> None:
    """q = (.5, .3, .2) at the root: after a child of .2 its siblings' slots are worth .8 and then .5 or .3."""
    table = Table.fill(3, 2, lambda prefix: torch.tensor([5, 3, 2] if prefix == () else [1, 0, 0]))
    grown = {
        tuple(nodes_of(draft)) for _, draft in enumerate_drafts(dyspec_slots, table, TreeConfig(budget=3, max_depth=2))
    }
    assert grown == {
        ((0, 0), (0, 1), (1, 0)), ((0, 0), (0, 2), (1, 0)),  # .5 = .5: the older node; then .5 beats .2 and .3
        ((0, 1), (0, 0), (2, 0)), ((0, 1), (0, 2), (0, 0)),  # .7 > .3; then .5 beats .3, and .5 the other .3 and .2
        ((0, 2), (0, 0), (2, 0)), ((0, 2), (0, 1), (0, 0)),  # .8 > .2; then .5 beats .3, and .5 the others
    }  # fmt: skip


def test_the_drafter_is_called_on_a_node_only_when_its_first_slot_is_filled() -> None:
    table = random_table(3, 3, seed=16)
    for seed in range(20):
        sessions: list[TableSession] = []

        def open_session(sessions: list[TableSession] = sessions) -> TableSession:
            sessions.append(TableSession(table, 3))
            return sessions[-1]

        source = DraftSource(table.marginals(3), open_session)
        draft = dyspec_slots(ROOT, source, TreeConfig(budget=6, max_depth=3), SeededDraws(seed))
        inner = [node for node, children in enumerate(draft.tree.children()) if children]
        assert sorted(node for call in sessions[0].calls for node in call) == inner
        assert all(len(call) == 1 for call in sessions[0].calls)
        assert draft.drafter_calls == len(inner)
        assert sorted(draft.proposals) == inner
        assert [node for record in draft.rounds for node in record.added] == list(range(1, 7))
        assert [record.expanded for record in draft.rounds if record.expanded] == sessions[0].calls


def test_an_empty_residual_opens_no_slot() -> None:
    draft = dyspec_slots(ROOT, sparse_one_child().source(4), TreeConfig(budget=9, max_depth=4), SeededDraws(0))
    assert nodes_of(draft) == [(0, 1), (1, 1), (2, 1), (3, 1)]


def sparse_one_child() -> Table:
    return Table.fill(2, 4, lambda _: torch.tensor([0, 1]))


def test_one_draw_per_node() -> None:
    draws = CountingDraws()
    dyspec_slots(ROOT, random_table(4, 3, seed=17).source(3), TreeConfig(budget=11, max_depth=3), draws)
    assert (draws.categoricals, draws.bernoullis) == (11, 0)


def test_proposals_of_a_sampled_tree_are_normalised() -> None:
    """A pool cut out of a vocabulary sums to less than one; what is drawn from is the renormalised pool."""
    rows = random_marginals(3, 40, seed=18)
    source = DraftSource(rows, lambda: MarginalSession(rows, pool_size=4))
    draft = dyspec_slots(ROOT, source, TreeConfig(budget=8, max_depth=3), DRAWS)
    for node, proposal in draft.proposals.items():
        pool = rows.logits[draft.tree.depths[node]].topk(4)
        assert proposal.tokens.tolist() == pool.indices.tolist()
        torch.testing.assert_close(proposal.log_probs, pool.values.log_softmax(0))
        for child in draft.tree.children()[node]:
            place = proposal.tokens.tolist().index(int(draft.tree.tokens[child]))
            assert float(draft.tree.log_probs[child]) == float(proposal.log_probs[place])


def test_the_same_seed_grows_the_same_sampled_tree() -> None:
    table = random_table(4, 4, seed=19)
    first, again, other = (
        nodes_of(dyspec_slots(ROOT, table.source(4), TreeConfig(budget=12, max_depth=4), SeededDraws(seed, "drafter")))
        for seed in (1, 1, 2)
    )
    assert first == again != other
