"""Reports 1 to 5: which drafts are accepted, and what takes the place of a rejected one."""

from dataclasses import dataclass, replace

import pytest
import torch
from models.oracle import random_tokens
from user_reports.worlds import GREEDY, SAMPLED, WORLDS, decode_foreknowing, world

from tfm_lab.decoding import DecodeConfig, DecodeSession, Speculator, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.divergence import Divergence, first_divergence
from tfm_lab.drafting import Draft, DraftSource, TreeConfig, TreeKind, dyspec_slots
from tfm_lab.draws import Draws
from tfm_lab.exact import (
    ROOT,
    Verdict,
    emission_distribution,
    enumerate_outcomes,
    exact_emission_distribution,
    random_table,
    target_rows,
)
from tfm_lab.methods import METHODS
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance, AcceptanceRule, greedy, rejection_swor, target_sample, traversal

pytestmark = pytest.mark.unchecked


@pytest.mark.parametrize("rule", [target_sample, rejection_swor, traversal], ids=lambda rule: rule.name)
def test_one_source_of_draws_or_two_give_the_same_exact_law(rule: AcceptanceRule) -> None:
    """Report 1: however drafting and acceptance share their source, no decision is used twice."""
    p, q, config = random_table(3, 2, seed=1), random_table(3, 2, seed=2), TreeConfig(budget=3, max_depth=2)

    def draft_and_judge(draws: Draws) -> Verdict:
        draft = dyspec_slots(ROOT, q.source(config.max_depth), config, draws)
        return Verdict(1.0, draft, rule(draft, target_rows(draft, p, SAMPLED), draws))

    together = [replace(verdict, probability=chance) for chance, verdict in enumerate_outcomes(draft_and_judge)]
    apart = exact_emission_distribution(dyspec_slots, rule, p, q, 3, config)
    torch.testing.assert_close(emission_distribution(together, p, 3, SAMPLED), apart, rtol=0.0, atol=1e-12)


@dataclass(frozen=True)
class Watched:
    """Draws a few numbers as builder and as rule, and keeps them."""

    drafting: list[int]
    accepting: list[int]
    name: str = "watched"

    def build(self, root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
        self.drafting.extend(draws.categorical(torch.ones(1000)) for _ in range(4))
        return Draft(DraftTree.root_only(root), TreeKind.FIXED)

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        return

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        self.accepting.extend(draws.categorical(torch.ones(1000)) for _ in range(4))
        return Acceptance((0,), draws.categorical(target.probabilities(0)))


@pytest.mark.parametrize("name", WORLDS)
def test_drafting_and_acceptance_draw_from_streams_of_their_own(name: str) -> None:
    """Report 1: in a decode, too, no three numbers in a row that drafting drew are drawn by acceptance."""
    where, watched = world(name), Watched([], [])
    speculator = Speculator("watched", where.drafter, None, watched.build, TreeKind.FIXED, watched)
    speculative_decode(where.target, speculator, where.prompts[0], where.config(6, SAMPLED))
    drawn = [{tuple(row[i : i + 3]) for i in range(len(row) - 2)} for row in (watched.drafting, watched.accepting)]
    assert min(map(len, drawn)) > 12
    assert not drawn[0] & drawn[1]


@pytest.mark.parametrize("name", WORLDS)
def test_what_the_drafter_draws_never_moves_the_text(name: str) -> None:
    """Report 1: sampled trees of several sizes draw more and fewer numbers; the text is that of plain sampling."""
    where = world(name)
    plain = autoregressive_decode(where.target, where.prompts[0], where.config(12, SAMPLED, seed=4))
    for budget in (1, 5, 12):
        config = replace(where.config(12, SAMPLED, seed=4), tree=replace(where.tree, budget=budget))
        speculator = where.speculator("dyspec", SAMPLED, "target_sample")
        trace = speculative_decode(where.target, speculator, where.prompts[0], config)
        assert trace.tokens == plain.tokens


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.kind is TreeKind.FIXED])
def test_the_ratio_rule_refuses_the_fixed_trees_of_every_method(name: str, method: str) -> None:
    """Report 2: on children that were picked, not drawn, p/q is no chance of anything."""
    where = world(name)
    with pytest.raises(ValueError, match="lossless only for children drawn from the drafter"):
        where.speculator(method, SAMPLED, "rejection_swor")
    deceived = replace(where.speculator(method, SAMPLED), rule=rejection_swor)
    with pytest.raises(ValueError, match="this tree is fixed: use target_sample or traversal"):
        DecodeSession(where.target, deceived, where.prompts[0], where.config(4, SAMPLED))


@pytest.mark.parametrize("name", WORLDS)
def test_greedy_text_survives_a_drafter_that_is_always_wrong(name: str) -> None:
    """Report 3: wrong drafts in two branches cost target calls and no token."""
    where = world(name)
    prompt, plain = where.prompts[0], where.plain(12)
    trace = decode_foreknowing(where, [*prompt, *plain], len(prompt), where.config(12), greedy, is_right=False)
    assert trace.tokens == plain
    assert {step.accepted for step in trace.steps} == {0}
    assert max(len(step.tree.leaves()) for step in trace.steps) > 2


@pytest.mark.parametrize("name", WORLDS)
def test_sampled_text_survives_a_drafter_that_is_always_wrong(name: str) -> None:
    """Report 3: a fixed tree has no q at all, and the text is still a draw from p."""
    where = world(name)
    prompt, config = where.prompts[0], where.config(12, SAMPLED, seed=1)
    plain = autoregressive_decode(where.target, prompt, config).tokens
    trace = decode_foreknowing(where, [*prompt, *plain], len(prompt), config, target_sample, is_right=False)
    assert trace.tokens == plain
    assert {step.accepted for step in trace.steps} == {0}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize(
    ("method", "rule"), [("tfm", "target_sample"), ("tfm", "traversal"), ("dyspec", "rejection_swor")]
)
def test_a_target_with_one_possible_token_is_followed_by_every_rule(name: str, method: str, rule: str) -> None:
    """Report 4: top-1 sampling leaves nothing of p once its token is among the rejected or the covered ones."""
    where = world(name)
    one = SamplingConfig(temperature=1.0, top_k=1)
    trace = speculative_decode(
        where.target, where.speculator(method, one, rule), where.prompts[0], where.config(12, one)
    )
    assert trace.tokens == where.plain(12)


def test_in_bfloat16_a_text_leaves_the_plain_one_at_near_ties_alone() -> None:
    """Report 5: the tools name step and margin; in float32 and float64 the same texts never part."""
    found: list[Divergence] = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        where = world("llama", dtype)
        config = DecodeConfig(24, GREEDY, where.tree)
        divergences = [
            first_divergence(where.target, where.speculator("tfm"), random_tokens(9, seed), config)
            for seed in (0, 6, 7)
        ]
        found = [divergence for divergence in divergences if divergence is not None]
        assert dtype is torch.bfloat16 or not found
    assert found, "no text parted in bfloat16 either, so that this shows nothing"
    for divergence in found:
        assert divergence.verdict == "numerics"
        assert divergence.margin <= 2.0 * divergence.bound
        assert divergence.step >= 0
        assert divergence.dtype == "bfloat16"
