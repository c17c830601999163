"""The records that builders exchange with drafters, and the ranking that settles ties."""

import math

import pytest
import torch
from support import random_marginals

from tfm_lab.drafting import MarginalSession, OpenNode, Proposal, TreeConfig
from tfm_lab.drafting.growth import stable_topk
from tfm_lab.exact import ROOT


def test_a_marginal_session_lists_the_pool_with_the_vocabularys_log_probabilities() -> None:
    rows = random_marginals(3, 20, seed=20)
    session = MarginalSession(rows, pool_size=5)
    assert session.max_depth == 3
    first, second = session.expand([OpenNode(0, -1, ROOT, 0), OpenNode(4, 2, 9, 2)])
    for proposal, depth in ((first, 0), (second, 2)):
        pool = rows.logits[depth].log_softmax(0).topk(5)
        assert proposal.tokens.tolist() == pool.indices.tolist()
        torch.testing.assert_close(proposal.log_probs, pool.values)
        assert float(proposal.log_probs.exp().sum()) < 1.0
    assert len(MarginalSession(rows, pool_size=999).expand([OpenNode(0, -1, ROOT, 0)])[0].tokens) == 20


def test_a_pool_holds_the_largest_logits_of_each_row() -> None:
    rows = random_marginals(3, 20, seed=21)
    pool = rows.pool(4)
    assert pool.tokens.shape == pool.logits.shape == (3, 4)
    assert torch.equal(pool.logits, rows.logits.sort(descending=True).values[:, :4])
    assert torch.equal(rows.logits.gather(1, pool.tokens), pool.logits)
    assert rows.pool(99).tokens.shape == (3, 20)


def test_a_dense_proposal_has_zeros_where_nothing_is_listed() -> None:
    proposal = Proposal(torch.tensor([3, 1]), torch.tensor([0.25, 0.5]).log())
    torch.testing.assert_close(proposal.dense(5), torch.tensor([0, 0.5, 0, 0.25, 0], dtype=torch.float64))


@pytest.mark.parametrize("count", [1, 3, 10, 17, 40])
def test_stable_topk_is_the_beginning_of_a_stable_sort(count: int) -> None:
    scores = torch.randint(0, 4, (5, 17), generator=torch.Generator().manual_seed(22)).float()
    scores[0, :12] = -math.inf
    scores[1] = torch.arange(17.0)
    ranked, full = stable_topk(scores, count), scores.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(ranked.indices, full.indices[:, :count])
    assert torch.equal(ranked.values, full.values[:, :count])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": -1}, "budget must be 0 or more proposed nodes, got -1"),
        ({"budget": 1025}, "budget must be at most 1024 proposed nodes, got 1025: the cost of a larger tree grows"),
        ({"max_depth": 0}, "max_depth must be at least 1, got 0"),
        ({"children": 0}, "children must be at least 1, got 0"),
        ({"pool_size": 0}, "pool_size must be at least 1, got 0"),
        ({"width": 0}, "width must be at least 1 node per drafter call, got 0"),
    ],
)
def test_impossible_sizes_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TreeConfig(**arguments)


@pytest.mark.parametrize(("budget", "width"), [(0, 1), (1, 1), (16, 1), (17, 2), (64, 4), (65, 5), (128, 8)])
def test_the_default_width_keeps_calls_at_sixteen(budget: int, width: int) -> None:
    assert TreeConfig(budget=budget).expand_width == width
    assert TreeConfig(budget=budget, width=3).expand_width == 3
