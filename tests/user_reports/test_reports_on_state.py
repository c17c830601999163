"""Reports 9 to 15: one committed state whatever the trees were, and the rule that moves it."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from gdn_cases import delta_inputs
from models.test_target import state_difference, tensors_of
from user_reports.worlds import SAMPLED, WORLDS, world

from tfm_lab import gdn
from tfm_lab.decoding import DecodeSession, Speculator
from tfm_lab.distributions import TargetRows
from tfm_lab.drafting import Draft, DraftSource, TreeConfig, TreeKind, best_first, chain
from tfm_lab.draws import Draws
from tfm_lab.models import TargetState
from tfm_lab.models.config import DeltaNetConfig
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance, Greedy, greedy

pytestmark = pytest.mark.unchecked


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("method", ["tfm", "dyspec"])
def test_steps_with_and_without_drafts_share_one_state(name: str, method: str) -> None:
    """Report 9: budgets 8, 0, 3, 0 and 1 within one decode; after every step the state is that of a plain prefill."""
    where = world(name, torch.float64)
    speculator = where.speculator(method, SAMPLED)
    session = DecodeSession(where.target, speculator, where.prompts[0], where.config(40, SAMPLED, seed=3))
    for budget in (8, 0, 3, 0, 1, 8, 0):
        session.step(budget=budget)
        trace = session.trace()
        wanted = where.target.prefill([*trace.prompt, *trace.tokens[:-1]]).state
        assert state_difference(session.state, wanted) < 1e-10
    assert name == "llama" or any(step.accepted for step in session.trace().steps), "nothing was ever accepted"


def spine_in_front(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """A best-first tree that may not branch: the chain, grown by another builder."""
    assert source.marginals is not None
    only_best = source.marginals.logits.new_full(source.marginals.logits.shape, -torch.inf)
    best = source.marginals.logits.argmax(-1, keepdim=True)
    only_best.scatter_(1, best, 0.0)
    return best_first(root, DraftSource(source.marginals._replace(logits=only_best)), config, draws)


@pytest.mark.parametrize("name", WORLDS)
def test_a_tree_without_branches_is_the_chain(name: str) -> None:
    """Report 11: the same proposals, acceptances and texts, step by step."""
    where = world(name)
    config = replace(where.config(16), tree=replace(where.tree, budget=6, max_depth=6))
    sessions = [
        DecodeSession(
            where.target,
            Speculator("spine", where.drafter, None, builder, TreeKind.FIXED, greedy),
            where.prompts[1],
            config,
        )
        for builder in (chain, spine_in_front)
    ]
    while not sessions[0].is_finished:
        steps = [session.step() for session in sessions]
        assert steps[0].tree.tokens.tolist() == steps[1].tree.tokens.tolist()
        assert steps[0].tree.parents.tolist() == steps[1].tree.parents.tolist()
        assert steps[0].acceptance == steps[1].acceptance
        assert state_difference(sessions[0].state, sessions[1].state) == 0.0
    assert sessions[1].is_finished


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("method", ["ddtree", "dyspec"])
def test_more_nodes_never_lower_greedy_acceptance(name: str, method: str) -> None:
    """Report 11: best-first trees of growing budgets hold one another, and so do sampled ones of one seed."""
    where = world(name)
    for prompt in where.prompts:
        accepted = []
        tokens: list[set[tuple[int, ...]]] = []
        for budget in (1, 2, 4, 8, 16):
            session = DecodeSession(where.target, where.speculator(method), prompt, where.config(20))
            step = session.step(budget=budget)
            tokens.append({step.tree.path_tokens(node) for node in range(len(step.tree))})
            accepted.append(step.accepted)
        assert all(small <= large for small, large in pairwise(tokens))
        assert accepted == sorted(accepted)


def test_the_state_decays_before_it_is_corrected() -> None:
    """Report 13, by hand: decay 1/2, keys 1, state 4. Halved to 2, moved half way to 6: 4. Halved to 2, set to 10."""
    one = torch.ones(1, 2, 1, dtype=torch.float64)
    value = torch.tensor([[[6.0], [10.0]]], dtype=torch.float64)
    log_decay = torch.full((1, 2), 0.5, dtype=torch.float64).log()
    beta = torch.tensor([[0.5, 1.0]], dtype=torch.float64)
    inputs = (one, one, value, log_decay, beta, 4.0 * one[:, :1])
    for rule in (gdn.delta_rule_recurrent, gdn.delta_rule_chunked):
        output, state = rule(*inputs)
        torch.testing.assert_close(output.flatten(), torch.tensor([4.0, 10.0], dtype=torch.float64))
        assert state.item() == pytest.approx(10.0)
    along = torch.ones(2, 2, dtype=torch.bool).tril()
    output, writes = gdn.tree_verify(*inputs, along)
    torch.testing.assert_close(output.flatten(), torch.tensor([4.0, 10.0], dtype=torch.float64))
    assert gdn.commit_path(inputs[-1], writes, (0, 1)).item() == pytest.approx(10.0)


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (2, 4), (1, 3)])
def test_value_head_h_reads_key_head_h_over_the_group(heads: tuple[int, int]) -> None:
    """Report 14: the same as repeating every key head for its group by hand; what does not divide is refused."""
    inputs = delta_inputs(7, seed=3, heads=heads)
    group = heads[1] // heads[0]
    repeated = inputs._replace(
        query=torch.stack([inputs.query[h // group] for h in range(heads[1])]),
        key=torch.stack([inputs.key[h // group] for h in range(heads[1])]),
    )
    for rule in (gdn.delta_rule_recurrent, gdn.delta_rule_chunked):
        for got, wanted in zip(rule(*inputs), rule(*repeated), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0.0, atol=1e-12)
    with pytest.raises(ValueError, match="multiple of 2 value heads"):
        DeltaNetConfig(key_heads=2, value_heads=3, key_dim=8, value_dim=8, convolution_width=4)


def relative_drift(state: TargetState, wanted: TargetState) -> float:
    """Largest difference of any part of the state, in units of that part's largest number."""
    pairs = zip(tensors_of(state), tensors_of(wanted), strict=True)
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


class RejectAll(Greedy):
    """Takes no draft, whatever it is."""

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        return Acceptance((0,), int(target.probabilities(0).argmax()))


def two_branches(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    return Draft(DraftTree.from_parents([root, 0, 1, 2], [-1, 0, 1, 0]), TreeKind.FIXED)


def test_rejections_do_not_let_the_state_drift() -> None:
    """Report 15: 200 rounds of the hybrid in which every draft is rejected, in float32, against float64."""
    where, exact, rounds = world("hybrid"), world("hybrid", torch.float64), 200
    speculator = Speculator("rejected", where.drafter, None, two_branches, TreeKind.FIXED, RejectAll())
    session = DecodeSession(where.target, speculator, where.prompts[0], where.config(rounds + 1))
    drifts: dict[int, float] = {}
    for done in range(1, rounds + 1):
        assert len(session.step().committed) == 1
        if done in (25, rounds):
            trace = session.trace()
            wanted = exact.target.prefill([*trace.prompt, *trace.tokens[:-1]]).state
            drifts[done] = relative_drift(session.state, wanted)
    assert max(drifts.values()) < 1e-4
    assert drifts[rounds] < 3 * drifts[25], "the error grows with the number of rounds, not with its root"
