"""Acceptance rules at the edges: which numbers they draw, where nothing is left to divide by, what they refuse."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from support import CountingDraws, fixed, sampled_tree
from torch import Tensor

from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting import (
    Draft,
    DraftSource,
    Marginals,
    MarginalSession,
    Proposal,
    TreeBuilder,
    TreeConfig,
    TreeKind,
    best_first,
    chain,
    dyspec_slots,
    woven,
)
from tfm_lab.draws import Draws, SeededDraws
from tfm_lab.exact import (
    ROOT,
    Table,
    bias,
    emission_distribution,
    enumerate_drafts,
    enumerate_verdicts,
    exact_emission_distribution,
    random_table,
    target_rows,
    uniform_table,
)
from tfm_lab.tree import DraftTree
from tfm_lab.verification import RULES, Acceptance, AcceptanceRule, greedy, rejection_swor, target_sample, traversal

EXACT = 1e-12
PLAIN = SamplingConfig()
WARM = SamplingConfig(temperature=0.7)
GREEDY = SamplingConfig(temperature=0.0)
CONFIG = TreeConfig(budget=4, max_depth=2)
LARGE = TreeConfig(budget=7, max_depth=3, children=3, width=2)


# Randomness: which numbers are drawn, and when.

MARKOV_TARGET = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
MARKOV_DRAFTER = MARKOV_TARGET + torch.randn(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
MARKOV = [
    tuple(
        Table.fill(5, 3, lambda prefix, weights=weights, last=last: weights[(last, *prefix)[-1]].softmax(0))
        for weights in (MARKOV_TARGET, MARKOV_DRAFTER)
    )
    for last in range(5)
]


def plain_text(length: int, sampling: SamplingConfig, draws: Draws) -> list[int]:
    text = [ROOT]
    while len(text) <= length:
        text.append(draws.categorical(sampling.probabilities(MARKOV_TARGET[text[-1]])))
    return text[1:]


def speculative_text(length: int, sampling: SamplingConfig, draws: Draws, builder: TreeBuilder) -> list[int]:
    config = TreeConfig(budget=6, max_depth=3, children=3)
    text, drafter_draws = [ROOT], SeededDraws(0, "drafter")
    while len(text) <= length:
        p, q = MARKOV[text[-1]]
        draft = builder(text[-1], q.source(3), config, drafter_draws)
        text.extend(target_sample(draft, target_rows(draft, p, sampling), draws).emitted(draft.tree))
    return text[1:]


@pytest.mark.parametrize("sampling", [WARM, SamplingConfig(top_p=0.8), GREEDY], ids=["T=0.7", "top-p", "T=0"])
@pytest.mark.parametrize("builder", [chain, best_first, woven, dyspec_slots])
def test_the_same_seed_gives_the_text_of_plain_sampling(builder: TreeBuilder, sampling: SamplingConfig) -> None:
    draws = CountingDraws(seed=5)
    text = speculative_text(60, sampling, draws, builder)
    assert text == plain_text(len(text), sampling, SeededDraws(5))[: len(text)]
    assert draws.categoricals == len(text)
    assert draws.bernoullis == 0
    assert sampling.is_greedy or len(set(text)) > 1


@pytest.mark.parametrize("rule", [rejection_swor, traversal])
def test_seeded_draws_emit_the_target_frequencies(rule: AcceptanceRule) -> None:
    """Three tokens, 500 texts: chi-squared with 2 degrees of freedom stays below its 0.1 % point."""
    p, q = random_table(3, 1, seed=71), random_table(3, 1, seed=72)
    expected = 500 * p.rows[()].softmax(0)

    def chi_squared(drafter_stream: str) -> float:
        counts = torch.zeros(3, dtype=torch.float64)
        for seed in range(500):
            draft = sampled_tree(2)(ROOT, q.source(1), CONFIG, SeededDraws(seed, drafter_stream))
            emitted = rule(draft, target_rows(draft, p, PLAIN), SeededDraws(seed, "target")).emitted(draft.tree)
            counts[emitted[0]] += 1
        return float(((counts - expected) ** 2 / expected).sum())

    assert chi_squared("drafter") < 13.8
    assert chi_squared("target") > 50.0, "drafting and accepting with the same numbers is biased"


def test_certain_outcomes_draw_nothing() -> None:
    """p = q: every draft is accepted, only the bonus is drawn."""
    p = uniform_table(4, 3)
    draft = sampled_tree(1, 1, 1)(ROOT, p.source(3), LARGE, SeededDraws(0))
    for rule in (rejection_swor, traversal):
        draws = CountingDraws()
        assert len(rule(draft, target_rows(draft, p, PLAIN), draws).path) == 4
        assert (draws.categoricals, draws.bernoullis) == (1, 0)
    draws = CountingDraws()
    greedy(draft, target_rows(draft, p, GREEDY), draws)
    assert (draws.categoricals, draws.bernoullis) == (0, 0)


def test_sibling_order_is_drawn_only_while_it_is_open() -> None:
    """Three siblings that the target rules out, the first with a subtree: two order draws, one bonus, nothing else."""
    tree = DraftTree.from_parents([ROOT, 0, 1, 2, 0, 1, 2], [-1, 0, 0, 0, 1, 1, 1])
    draft = Draft(tree, TreeKind.FIXED)
    p = Table.fill(4, 2, lambda _: torch.tensor([0.0, 0.0, 0.0, 1.0]))
    draws = CountingDraws()
    assert traversal(draft, target_rows(draft, p, PLAIN), draws) == Acceptance((0,), 3)
    assert (draws.categoricals, draws.bernoullis) == (3, 0)


def test_a_single_child_needs_no_order() -> None:
    draft = chain(ROOT, random_table(4, 3, seed=1).source(3), LARGE, SeededDraws(0))
    draws = CountingDraws()
    traversal(draft, target_rows(draft, random_table(4, 3, seed=2), PLAIN), draws)
    assert draws.categoricals == 1


# Where nothing is left to divide by.


class Contrary:
    """Rejects whatever can be rejected, if only by a rounding error, and draws the last possible token."""

    def categorical(self, weights: Tensor) -> int:
        assert bool(torch.isfinite(weights).all())
        assert bool((weights >= 0).all())
        return int(weights.nonzero()[-1])

    def bernoulli(self, probability: float) -> bool:
        assert 0.0 <= probability < float("inf")
        return probability >= 1.0


EDGES: dict[str, tuple[list[float], list[float]]] = {
    "one-hot target": ([0, 1, 0, 0], [1, 1, 1, 1]),
    "one-hot drafter": ([1, 2, 3, 4], [0, 1, 0, 0]),
    "the same one-hot": ([0, 0, 1, 0], [0, 0, 1, 0]),
    "disjoint": ([0, 0, 1, 1], [1, 1, 0, 0]),
    "p = q": ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
    "p = q but for rounding": ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]),
    "tiny tail": ([1, 1e-30, 1e-30, 0], [1e-30, 1, 1e-30, 1e-30]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("edge", EDGES)
def test_no_rejection_ends_in_nan_or_in_a_token_that_the_target_rules_out(edge: str, dtype: torch.dtype) -> None:
    """Children cover the whole support of the drafter, and everything that can go wrong does."""
    target, drafter = (torch.tensor(weights).to(dtype).log() for weights in EDGES[edge])
    source = DraftSource(Marginals(drafter.repeat(2, 1), torch.zeros(2, 1)))
    source = DraftSource(source.marginals, lambda: MarginalSession(source.marginals))
    for builder in (woven, dyspec_slots):
        for seed in range(5):
            draft = builder(ROOT, source, TreeConfig(budget=12, max_depth=2), SeededDraws(seed))
            rows = TargetRows(target.repeat(len(draft.tree), 1), PLAIN)
            for rule in (target_sample, rejection_swor, traversal):
                if rule is not rejection_swor or draft.kind is TreeKind.SAMPLED:
                    for draws in (Contrary(), SeededDraws(seed)):
                        emitted = rule(draft, rows, draws).emitted(draft.tree)
                        assert all(float(rows.probabilities(0)[token]) > 0.0 for token in emitted)


def test_siblings_without_any_probability_are_never_tried() -> None:
    """A tree may carry log-probabilities of minus infinity; they are no reason to divide by zero."""
    dead = float("-inf")
    p = random_table(3, 2, seed=81)
    for log_probs in ([0.0, dead, dead], [0.0, dead, -0.5], [0.0, -2000.0, -0.5]):
        tree = DraftTree.from_parents([ROOT, 1, 2], [-1, 0, 0], log_probs)
        assert bias(exact_emission_distribution(fixed(tree), traversal, p, p, 3, CONFIG), p) <= EXACT


@pytest.mark.parametrize("rule", [rejection_swor, traversal])
def test_proposals_need_not_be_normalised(rule: AcceptanceRule) -> None:
    """What was drawn follows from the weights up to a factor."""
    p, q = random_table(3, 2, seed=82), random_table(3, 2, seed=83)
    drafts = [
        (
            chance,
            replace(
                draft,
                proposals={
                    node: Proposal(proposal.tokens, proposal.log_probs - 1.0)
                    for node, proposal in draft.proposals.items()
                },
            ),
        )
        for chance, draft in enumerate_drafts(dyspec_slots, q, TreeConfig(budget=3, max_depth=2))
    ]
    assert bias(emission_distribution(enumerate_verdicts(drafts, rule, p, PLAIN), p, 3, PLAIN), p) <= EXACT


@pytest.mark.parametrize("rule", [target_sample, rejection_swor, traversal])
def test_a_full_size_tree_leaves_the_targets_rows_as_they_were(rule: AcceptanceRule) -> None:
    generator = torch.Generator().manual_seed(0)
    marginals = Marginals(3 * torch.randn(15, 2000, generator=generator), torch.zeros(15, 1))
    source = DraftSource(marginals, lambda: MarginalSession(marginals))
    draft = dyspec_slots(ROOT, source, TreeConfig(), SeededDraws(0))
    logits = 3 * torch.randn(len(draft.tree), 2000, generator=generator)
    rows = TargetRows(logits, PLAIN)
    for seed in range(5):
        rule(draft, rows, SeededDraws(seed))
    for node in range(len(draft.tree)):
        torch.testing.assert_close(rows.probabilities(node), PLAIN.probabilities(logits[node]), rtol=0.0, atol=0.0)


# The shape of rules and results, and refusals.


def test_the_registry_names_every_rule() -> None:
    assert list(RULES) == ["greedy", "target_sample", "rejection_swor", "traversal"]
    assert all(rule.name == name for name, rule in RULES.items())
    with pytest.raises(FrozenInstanceError):
        greedy.name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def test_emitted_tokens_are_the_path_and_the_bonus() -> None:
    tree = DraftTree.from_parents([7, 3, 5, 9], [-1, 0, 0, 2])
    assert Acceptance((0, 2, 3), 4).emitted(tree) == (5, 9, 4)
    assert Acceptance((0,), 4).emitted(tree) == (4,)


@pytest.mark.parametrize("builder", [chain, best_first, woven, dyspec_slots])
def test_budget_zero_is_a_plain_step(builder: TreeBuilder) -> None:
    p = random_table(3, 0, seed=91)
    draft = builder(ROOT, random_table(3, 2, seed=92).source(2), TreeConfig(budget=0), CountingDraws())
    rules = [target_sample, traversal, *([rejection_swor] if draft.kind is TreeKind.SAMPLED else [])]
    for rule, sampling in [(greedy, GREEDY), *((rule, PLAIN) for rule in rules)]:
        verdicts = enumerate_verdicts([(1.0, draft)], rule, p, sampling)
        assert {verdict.acceptance.path for verdict in verdicts} == {(0,)}
        assert bias(emission_distribution(verdicts, p, 1, sampling), p, sampling) <= EXACT


def test_greedy_refuses_a_temperature_and_names_the_way_out() -> None:
    with pytest.raises(
        ValueError, match=r"lossless only at temperature 0, and the temperature is 0\.7: use target_sample"
    ):
        greedy.supports(TreeKind.FIXED, WARM)
    greedy.supports(TreeKind.SAMPLED, GREEDY)


def test_rejection_refuses_a_fixed_tree_and_names_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"drawn from the drafter.* fixed: use target_sample or traversal"):
        rejection_swor.supports(TreeKind.FIXED, GREEDY)
    rejection_swor.supports(TreeKind.SAMPLED, PLAIN)


@pytest.mark.parametrize("rule", [target_sample, rejection_swor, traversal])
def test_rows_that_do_not_fit_the_tree_are_refused(rule: AcceptanceRule) -> None:
    tree = DraftTree.from_parents([ROOT, 2], [-1, 0])
    proposals = {0: Proposal(torch.arange(3), torch.full((3,), 1 / 3).log())}
    draft = Draft(tree, TreeKind.SAMPLED, proposals)
    with pytest.raises(ValueError, match="3 rows for a tree of 2 nodes: verify the tree that was drafted"):
        rule(draft, TargetRows(torch.zeros(3, 4), PLAIN), SeededDraws(0))
    with pytest.raises(ValueError, match="token 2, but the target's vocabulary has 2 tokens: use a drafter made for"):
        rule(draft, TargetRows(torch.zeros(2, 2), PLAIN), SeededDraws(0))


@pytest.mark.parametrize("rule", [rejection_swor, traversal])
def test_a_sampled_tree_without_a_fitting_proposal_is_refused(rule: AcceptanceRule) -> None:
    tree = DraftTree.from_parents([ROOT, 1], [-1, 0])
    rows = TargetRows(torch.zeros(2, 3), PLAIN)
    with pytest.raises(ValueError, match="node 0 of a sampled tree has children but no proposal"):
        rule(Draft(tree, TreeKind.SAMPLED), rows, SeededDraws(0))
    unlisted = Proposal(torch.tensor([0, 2]), torch.tensor([0.5, 0.5]).log())
    with pytest.raises(
        ValueError, match="child of node 0 carries token 1, which the node's proposal cannot have drawn"
    ):
        rule(Draft(tree, TreeKind.SAMPLED, {0: unlisted}), rows, SeededDraws(0))
    foreign = Proposal(torch.tensor([1, 3]), torch.tensor([0.5, 0.5]).log())
    with pytest.raises(ValueError, match="node 0 lists token 3, but the target's vocabulary has 3 tokens"):
        rule(Draft(tree, TreeKind.SAMPLED, {0: foreign}), rows, SeededDraws(0))
