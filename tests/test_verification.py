"""Losslessness by exact enumeration: the emitted tokens have the target's law, for every rule on every tree it takes.

The laws come from the real builders and rules, run over all their random decisions in float64. Planted wrong pairs of
rule and tree must fail the same check.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from support import CountingDraws, fixed, random_fixed_tree, sampled_tree

from tfm_lab.distributions import SamplingConfig, TargetRows, total_variation
from tfm_lab.drafting import (
    Draft,
    DraftSource,
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
from tfm_lab.draws import Draws
from tfm_lab.exact import (
    ROOT,
    Table,
    bias,
    emission_distribution,
    enumerate_drafts,
    enumerate_verdicts,
    exact_emission_distribution,
    expected_length,
    one_hot_table,
    random_table,
    sparse_table,
    target_rows,
    uniform_table,
)
from tfm_lab.tree import DraftTree
from tfm_lab.verification import RULES, Acceptance, AcceptanceRule, greedy, rejection_swor, target_sample, traversal

EXACT = 1e-12
BIASED = 1e-2
PLAIN = SamplingConfig()
GREEDY = SamplingConfig(temperature=0.0)


# One table: rule x tree x sampling, each over all pairs of target and drafter.

CONFIG = TreeConfig(budget=4, max_depth=2, children=3, width=2)
LARGE = TreeConfig(budget=7, max_depth=3, children=3, width=2)

BUILDERS: dict[str, TreeBuilder] = {
    "chain": chain,
    "best_first": best_first,
    "woven": woven,
    "arbitrary": fixed(random_fixed_tree(vocab=3, nodes=7, max_depth=2, seed=3)),
    "dyspec_slots": dyspec_slots,
    "ranked_slots": ranked_slots,
    "static": sampled_tree(1, 2),
}
SAMPLED = ("dyspec_slots", "ranked_slots", "static")

SAMPLINGS = {
    "T=1": PLAIN,
    "T=0.7": SamplingConfig(temperature=0.7),
    "top-k": SamplingConfig(top_k=2),
    "top-p": SamplingConfig(top_p=0.8),
    "T=0": GREEDY,
}

PAIRS: dict[str, tuple[Table, Table]] = {
    "random": (random_table(3, 2, seed=1), random_table(3, 2, seed=2)),
    "sparse": (sparse_table(3, 2, seed=3), sparse_table(3, 2, seed=4)),
    "one-hot target": (one_hot_table(3, 2, seed=5), random_table(3, 2, seed=6)),
    "one-hot drafter": (random_table(3, 2, seed=7), one_hot_table(3, 2, seed=8)),
    "ties": (uniform_table(3, 2), uniform_table(3, 2)),
    "p = q": (random_table(3, 2, seed=9), random_table(3, 2, seed=9)),
    "always wrong": (
        Table.fill(3, 2, lambda _: torch.tensor([0.0, 0.3, 0.7])),
        Table.fill(3, 2, lambda _: torch.tensor([1.0, 0.0, 0.0])),
    ),
}


@cache
def drafts_of(builder: str, pair: str) -> list[tuple[float, Draft]]:
    config = replace(CONFIG, budget=3) if builder == "dyspec_slots" else CONFIG
    return enumerate_drafts(BUILDERS[builder], PAIRS[pair][1], config)


def lossless(rule: str, builder: str, sampling: SamplingConfig) -> bool:
    """What the theory promises."""
    return {
        "greedy": sampling.is_greedy,
        "target_sample": True,
        "rejection_swor": builder in SAMPLED,
        "traversal": True,
    }[rule]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("rule", RULES)
def test_the_emitted_law_is_the_targets_or_the_pair_is_refused(
    rule: str, builder: str, sampling: SamplingConfig
) -> None:
    for pair, (p, _) in PAIRS.items():
        if lossless(rule, builder, sampling):
            verdicts = enumerate_verdicts(drafts_of(builder, pair), RULES[rule], p, sampling)
            assert bias(emission_distribution(verdicts, p, 3, sampling), p, sampling) <= EXACT, pair
        else:
            with pytest.raises(ValueError, match="use target_sample"):
                enumerate_verdicts(drafts_of(builder, pair), RULES[rule], p, sampling)


@pytest.mark.parametrize("rule", [target_sample, traversal])
@pytest.mark.parametrize("vocab", [3, 4])
@pytest.mark.parametrize("builder", [chain, best_first, woven])
def test_larger_fixed_trees_are_exact(builder: TreeBuilder, vocab: int, rule: AcceptanceRule) -> None:
    p, q = random_table(vocab, 3, seed=11), random_table(vocab, 3, seed=12)
    assert bias(exact_emission_distribution(builder, rule, p, q, 4, LARGE), p) <= EXACT


@pytest.mark.parametrize("rule", [target_sample, rejection_swor, traversal])
@pytest.mark.parametrize(
    ("builder", "vocab", "config"),
    [
        (dyspec_slots, 4, TreeConfig(budget=4, max_depth=2)),
        (dyspec_slots, 2, TreeConfig(budget=6, max_depth=3)),
        (ranked_slots, 4, TreeConfig(budget=4, max_depth=2)),
        (ranked_slots, 2, TreeConfig(budget=6, max_depth=3)),
        (sampled_tree(1, 1, 1), 3, LARGE),
        (sampled_tree(3, 1), 3, LARGE),
    ],
    ids=["slots-4", "slots-2", "ranks-4", "ranks-2", "chain", "whole support"],
)
def test_larger_sampled_trees_are_exact(
    builder: TreeBuilder, vocab: int, config: TreeConfig, rule: AcceptanceRule
) -> None:
    p, q = random_table(vocab, 3, seed=13), random_table(vocab, 3, seed=14)
    assert bias(exact_emission_distribution(builder, rule, p, q, 4, config), p) <= EXACT


ROWS = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any), min_size=13, max_size=13)
"""Small whole weights after the 13 prefixes of up to two of three tokens: zeros, ties and equal rows all the time."""


def table_of(rows: list[list[int]]) -> Table:
    row = iter(rows)
    return Table.fill(3, 2, lambda _: torch.tensor(next(row)))


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(p_rows=ROWS, q_rows=ROWS, seed=st.integers(0, 1000))
def test_any_target_and_any_drafter_are_exact(p_rows: list[list[int]], q_rows: list[list[int]], seed: int) -> None:
    p, q = table_of(p_rows), table_of(q_rows)
    arbitrary = fixed(random_fixed_tree(vocab=3, nodes=6, max_depth=2, seed=seed))
    for builder in (best_first, woven, arbitrary):
        for rule in (target_sample, traversal):
            assert bias(exact_emission_distribution(builder, rule, p, q, 3, CONFIG), p) <= EXACT
    drafts = enumerate_drafts(dyspec_slots, q, TreeConfig(budget=3, max_depth=2))
    for rule in (target_sample, rejection_swor, traversal):
        assert bias(emission_distribution(enumerate_verdicts(drafts, rule, p, PLAIN), p, 3, PLAIN), p) <= EXACT


# Negative control: pairs known to be wrong must fail the check that the right ones pass.


def called_sampled(
    builder: TreeBuilder, proposals: Callable[[DraftTree, DraftSource], dict[int, Proposal]]
) -> TreeBuilder:
    """A fixed tree passed off as a sampled one, with these proposals."""

    def build(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
        tree = builder(root, source, config, draws).tree
        return Draft(tree, TreeKind.SAMPLED, proposals(tree, source))

    return build


def sibling_shares(tree: DraftTree, source: DraftSource) -> dict[int, Proposal]:
    return {
        node: Proposal(tree.tokens[list(children)], tree.log_probs[list(children)].log_softmax(0))
        for node, children in enumerate(tree.children())
        if children
    }


def full_marginals(tree: DraftTree, source: DraftSource) -> dict[int, Proposal]:
    session = MarginalSession(source.marginals)
    return {
        node: session.expand([OpenNode(node, 0, 0, int(tree.depths[node]))])[0]
        for node, children in enumerate(tree.children())
        if children
    }


def draw_then_prune(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """Draw two children everywhere, then keep the nodes whose drawn tokens score best."""
    draft = sampled_tree(2, 2)(root, source, config, draws)
    tree = draft.tree
    scores = tree.path_log_probs().tolist()
    kept = sorted(sorted(range(len(tree)), key=lambda node: (-scores[node], node))[: config.budget + 1])
    parents = [kept.index(parent) if parent >= 0 else -1 for parent in tree.parents[kept].tolist()]
    pruned = DraftTree.from_parents(tree.tokens[kept].tolist(), parents, tree.log_probs[kept].tolist())
    return Draft(
        pruned, TreeKind.SAMPLED, {kept.index(node): draft.proposals[node] for node in kept if node in draft.proposals}
    )


@dataclass(frozen=True)
class ResidualSkipped:
    """Rejection with the bonus drawn from p itself."""

    name: str = "residual_skipped"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        return

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        accepted = rejection_swor(draft, target, draws)
        return Acceptance(accepted.path, draws.categorical(target.probabilities(accepted.path[-1])))


@pytest.mark.parametrize(
    ("builder", "rule"),
    [
        (called_sampled(woven, sibling_shares), traversal),
        (called_sampled(best_first, full_marginals), rejection_swor),
        (called_sampled(best_first, full_marginals), traversal),
        (draw_then_prune, rejection_swor),
        (draw_then_prune, traversal),
        (dyspec_slots, ResidualSkipped()),
    ],
    ids=[
        "traversal in a fixed sibling order",
        "p/q ratio on top-k siblings",
        "traversal with the full q on top-k siblings",
        "rejection after draw-then-prune",
        "traversal after draw-then-prune",
        "residual skipped",
    ],
)
def test_planted_wrong_pairs_are_caught(builder: TreeBuilder, rule: AcceptanceRule) -> None:
    p, q = random_table(3, 2, seed=21), random_table(3, 2, seed=22)
    assert bias(exact_emission_distribution(builder, rule, p, q, 3, TreeConfig(budget=3, max_depth=2)), p) > BIASED


def test_draw_then_prune_is_exact_under_membership() -> None:
    """The target's own sample does not care where the tree comes from."""
    p, q = random_table(3, 2, seed=21), random_table(3, 2, seed=22)
    law = exact_emission_distribution(draw_then_prune, target_sample, p, q, 3, TreeConfig(budget=3, max_depth=2))
    assert bias(law, p) <= EXACT


# Numbers worked out by hand.

P = Table.fill(4, 1, lambda _: torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64))
Q = Table.fill(4, 1, lambda _: torch.tensor([0.1, 0.6, 0.2, 0.1], dtype=torch.float64))


def test_top_two_siblings_with_the_ratio_rule_emit_one_half_one_half() -> None:
    builder = called_sampled(best_first, full_marginals)
    law = exact_emission_distribution(builder, rejection_swor, P, Q, 1, TreeConfig(budget=2, max_depth=1))
    torch.testing.assert_close(law, torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("builder", "rule", "accepted"),
    [
        (chain, target_sample, 0.30),
        (sampled_tree(1), target_sample, 0.265),
        (sampled_tree(1), rejection_swor, 0.60),
        (sampled_tree(1), traversal, 0.60),
        (chain, traversal, 0.30),
    ],
    ids=["argmax draft, membership", "sampled draft, membership", "rejection", "traversal", "argmax draft, traversal"],
)
def test_acceptance_of_one_draft(builder: TreeBuilder, rule: AcceptanceRule, accepted: float) -> None:
    verdicts = enumerate_verdicts(enumerate_drafts(builder, Q, TreeConfig(budget=1, max_depth=1)), rule, P, PLAIN)
    assert expected_length(verdicts) - 1.0 == pytest.approx(accepted, abs=EXACT)


def test_one_draft_is_accepted_with_one_minus_the_total_variation() -> None:
    p, q = random_table(5, 1, seed=31), random_table(5, 1, seed=32)
    verdicts = enumerate_verdicts(enumerate_drafts(sampled_tree(1), q, CONFIG), rejection_swor, p, PLAIN)
    distance = total_variation(p.rows[()].softmax(0), q.rows[()].softmax(0))
    assert expected_length(verdicts) == pytest.approx(2.0 - float(distance), abs=EXACT)


@pytest.mark.parametrize(("rule", "both"), [(rejection_swor, 0.5), (traversal, 2 / 3)], ids=["rejection", "traversal"])
def test_a_good_child_makes_up_for_a_poor_parent_only_at_sequence_level(rule: AcceptanceRule, both: float) -> None:
    """p/q is 1/2 at the first token and 4/3 at the second (example of papers on Traversal Verification)."""
    p = Table.fill(2, 2, lambda prefix: torch.tensor([1, 3] if prefix == () else [4, 0] if prefix == (0,) else [1, 1]))
    q = Table.fill(2, 2, lambda prefix: torch.tensor([1, 1] if prefix == () else [3, 1] if prefix == (0,) else [1, 1]))
    drafts = [
        (chance, draft)
        for chance, draft in enumerate_drafts(sampled_tree(1, 1), q, CONFIG)
        if draft.tree.tokens.tolist() == [ROOT, 0, 0]
    ]
    verdicts = enumerate_verdicts([(1.0, draft) for _, draft in drafts], rule, p, PLAIN)
    assert sum(verdict.probability for verdict in verdicts if len(verdict.emitted) == 3) == pytest.approx(
        both, abs=EXACT
    )


# Expected lengths.


@pytest.mark.parametrize("seed", range(6))
def test_on_fixed_trees_traversal_accepts_exactly_as_much_as_membership(seed: int) -> None:
    """Both equal 1 + the sum of the target's path probabilities over the proposed nodes."""
    tree = random_fixed_tree(vocab=4, nodes=7, max_depth=3, seed=seed)
    p = random_table(4, 3, seed=100 + seed)
    drafts = [(1.0, Draft(tree, TreeKind.FIXED))]
    membership = expected_length(enumerate_verdicts(drafts, target_sample, p, PLAIN))
    judged = enumerate_verdicts(drafts, traversal, p, PLAIN)
    masses = 1.0
    for node in range(1, len(tree)):
        tokens = tree.path_tokens(node)[1:]
        mass = 1.0
        for place, token in enumerate(tokens):
            mass *= float(p.rows[tokens[:place]].softmax(0)[token])
        masses += mass
    assert membership == pytest.approx(masses, abs=EXACT)
    assert expected_length(judged) == pytest.approx(masses, abs=EXACT)
    assert bias(emission_distribution(judged, p, 4, PLAIN), p) <= EXACT


@pytest.mark.parametrize("seed", range(4))
def test_on_sampled_chains_traversal_accepts_at_least_as_much_as_rejection(seed: int) -> None:
    p, q = random_table(3, 3, seed=40 + seed), random_table(3, 3, seed=50 + seed)
    drafts = enumerate_drafts(sampled_tree(1, 1, 1), q, LARGE)
    at_once, token_by_token = (
        expected_length(enumerate_verdicts(drafts, rule, p, PLAIN)) for rule in (traversal, rejection_swor)
    )
    assert at_once > token_by_token


@pytest.mark.parametrize("seed", range(4))
def test_a_larger_tree_never_lowers_greedy_acceptance(seed: int) -> None:
    tree = random_fixed_tree(vocab=4, nodes=40, max_depth=4, seed=seed)
    p = random_table(4, 4, seed=60 + seed)
    lengths = []
    for count in range(len(tree)):
        draft = Draft(tree.first_nodes(count), TreeKind.FIXED)
        lengths.append(len(greedy(draft, target_rows(draft, p, GREEDY), CountingDraws()).path))
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0]


@pytest.mark.parametrize("rule", RULES)
def test_a_drafter_that_is_always_wrong_costs_nothing_but_its_tokens(rule: str) -> None:
    p, q = PAIRS["always wrong"]
    for builder in SAMPLED:
        for _, draft in enumerate_drafts(BUILDERS[builder], q, CONFIG):
            acceptance = RULES[rule](draft, target_rows(draft, p, GREEDY), CountingDraws())
            assert acceptance == Acceptance((0,), 2)
