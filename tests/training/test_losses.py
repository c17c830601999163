"""Training objectives against computation by hand."""

import math

import pytest
import torch
from torch import Tensor

from tfm_lab.distributions import total_variation
from tfm_lab.training.losses import WEAVER_LOSSES, PoolComparison, block_cross_entropy, lk_loss, position_weights

TARGET = torch.tensor([0.5, 0.2, 0.1])
"""On the pool; 0.2 lies outside of it."""
WEAVER = torch.tensor([0.2, 0.3, 0.5])


def compare(target: Tensor, log_q: Tensor) -> PoolComparison:
    """With the first pool entry as the text's next token."""
    return PoolComparison(target, log_q, torch.arange(log_q.shape[-1]).eq(0).expand_as(log_q))


def comparison(target: Tensor, weaver: Tensor) -> PoolComparison:
    return compare(target, weaver.log())


def test_position_weights_decay_from_one() -> None:
    assert position_weights(3, 2.0).tolist() == pytest.approx([1.0, math.exp(-0.5), math.exp(-1.0)])


def test_block_cross_entropy_by_hand() -> None:
    """Two blocks of two drafts over two tokens; the second draft weighs exp(-1) of the first."""
    probabilities = torch.tensor([[[0.9, 0.1], [0.5, 0.5]], [[0.2, 0.8], [0.25, 0.75]]])
    labels = torch.tensor([[0, 1], [0, 1]])
    weight = math.exp(-1.0)
    blocks = [-math.log(0.9) - weight * math.log(0.5), -math.log(0.2) - weight * math.log(0.75)]
    wanted = sum(blocks) / 2 / (1.0 + weight)
    assert float(block_cross_entropy(probabilities.log(), labels, 1.0)) == pytest.approx(wanted)


def test_block_cross_entropy_of_uniform_logits_is_log_vocabulary_for_any_weights() -> None:
    logits, labels = torch.zeros(2, 3, 4, 7), torch.randint(7, (2, 3, 4))
    for gamma in (0.5, 7.0):
        assert float(block_cross_entropy(logits, labels, gamma)) == pytest.approx(math.log(7))


def test_logits_in_half_precision_are_compared_in_float32() -> None:
    logits, labels = torch.randn(5, 4, 50).bfloat16(), torch.randint(50, (5, 4))
    loss = block_cross_entropy(logits, labels, 7.0)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, block_cross_entropy(logits.float(), labels, 7.0))


def test_pool_comparison_by_hand() -> None:
    figures = comparison(TARGET, WEAVER)
    assert float(figures.pool_mass) == pytest.approx(0.8)
    assert float(figures.acceptance) == pytest.approx(0.2 + 0.2 + 0.1)
    renormalised = [0.625, 0.25, 0.125]
    wanted = sum(p * math.log(p / q) for p, q in zip(renormalised, (0.2, 0.3, 0.5), strict=True))
    assert float(figures.divergence) == pytest.approx(wanted, rel=1e-5)


def test_acceptance_is_one_minus_the_total_variation_of_whole_distributions() -> None:
    whole = torch.randn(50, 11, dtype=torch.float64).softmax(-1)
    weaver = torch.randn(50, 4, dtype=torch.float64).softmax(-1)
    padded = torch.cat([weaver, torch.zeros(50, 7, dtype=torch.float64)], dim=-1)
    figures = compare(whole[:, :4], weaver.log())
    assert torch.allclose(figures.acceptance, 1.0 - total_variation(whole, padded), atol=1e-12)
    assert bool((figures.acceptance <= figures.pool_mass + 1e-12).all())


def test_divergence_looks_at_the_pool_alone() -> None:
    """How much probability the pool misses changes acceptance, not the divergence on the pool."""
    whole, part = comparison(TARGET / TARGET.sum(), WEAVER), comparison(0.3 * TARGET, WEAVER)
    assert float(part.divergence) == pytest.approx(float(whole.divergence), rel=1e-5)
    assert float(part.acceptance) < float(whole.acceptance)
    assert float(comparison(0.3 * WEAVER, WEAVER).divergence) == pytest.approx(0.0, abs=1e-6)


def test_tokens_without_probability_are_no_trouble() -> None:
    target = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]])
    log_q = torch.log_softmax(torch.tensor([[[0.0, -200.0, 3.0]]] * 2), dim=-1).requires_grad_(True)
    figures = compare(target, log_q)
    lk_loss(figures, 3.0, None).backward()
    assert log_q.grad is not None
    for values in (figures.pool_mass, figures.acceptance, figures.divergence, log_q.grad):
        assert bool(values.isfinite().all())


def test_lk_loss_by_hand() -> None:
    """Two rows and two depths: the mixing weight is one number per depth, from the mean over rows."""
    targets = torch.tensor([[[0.6, 0.3], [0.5, 0.5]], [[0.2, 0.7], [0.1, 0.2]]])
    weavers = torch.tensor([[[0.5, 0.5], [0.9, 0.1]], [[0.6, 0.4], [0.3, 0.7]]])
    acceptance = [[0.5 + 0.3, 0.5 + 0.1], [0.2 + 0.4, 0.1 + 0.2]]
    total = 0.0
    for depth in range(2):
        share = math.exp(-2.0 * (acceptance[0][depth] + acceptance[1][depth]) / 2)
        for row in range(2):
            p = (targets[row, depth] / targets[row, depth].sum()).tolist()
            divergence = sum(a * math.log(a / b) for a, b in zip(p, weavers[row, depth].tolist(), strict=True))
            total += share * divergence + (1.0 - share) * (1.0 - acceptance[row][depth])
    assert float(lk_loss(comparison(targets, weavers), 2.0)) == pytest.approx(total / 4, rel=1e-5)


def test_lk_loss_turns_from_divergence_to_acceptance() -> None:
    """Without overlap it is the divergence alone; with full overlap nearly the total variation alone."""
    apart = comparison(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1e-9, 1.0 - 1e-9]]]))
    assert float(lk_loss(apart, 3.0)) == pytest.approx(-math.log(1e-9), rel=1e-4)
    close = comparison(torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[0.6, 0.4]]]))
    share = math.exp(-100.0 * 0.9)
    assert float(lk_loss(close, 100.0)) == pytest.approx(0.1, abs=share + 1e-6)


def test_no_gradient_flows_through_the_mixing_weight() -> None:
    logits = torch.tensor([[[0.3, -0.2, 0.9]]], dtype=torch.float64, requires_grad=True)
    target = TARGET.double()[None, None]
    lk_loss(compare(target, logits.log_softmax(-1)), 3.0).backward()
    q = logits.detach().softmax(-1)
    share = math.exp(-3.0 * float(torch.minimum(target, q).sum()))
    fixed = logits.detach().clone().requires_grad_(True)
    figures = compare(target, fixed.log_softmax(-1))
    (share * figures.divergence + (1.0 - share) * (1.0 - figures.acceptance)).mean().backward()
    assert logits.grad is not None
    assert fixed.grad is not None
    assert torch.allclose(logits.grad, fixed.grad, atol=1e-12)
    assert float(logits.grad.abs().max()) > 0.01


def test_the_other_objectives_by_hand() -> None:
    figures = comparison(torch.stack([TARGET, TARGET]), torch.stack([WEAVER, WEAVER.flip(0)]))
    accepted = torch.tensor([0.2 + 0.2 + 0.1, 0.5 + 0.2 + 0.1])
    assert float(WEAVER_LOSSES["tv"](figures, 3.0, None)) == pytest.approx(1.0 - float(accepted.mean()))
    assert float(WEAVER_LOSSES["kl"](figures, 3.0, None)) == pytest.approx(float(figures.divergence.mean()))
    assert float(WEAVER_LOSSES["ce"](figures, 3.0, None)) == pytest.approx(-(math.log(0.2) + math.log(0.5)) / 2)
    assert WEAVER_LOSSES["lk"] is lk_loss


def test_the_mixture_can_be_set_by_the_acceptance_of_a_larger_batch() -> None:
    figures = comparison(TARGET.expand(1, 2, 3), torch.stack([WEAVER, WEAVER.flip(0)]).unsqueeze(0))
    own = figures.acceptance.mean(0)
    assert float(lk_loss(figures, 3.0, own)) == pytest.approx(float(lk_loss(figures, 3.0)))
    assert float(lk_loss(figures, 3.0, torch.zeros(2))) == pytest.approx(float(figures.divergence.mean()))


def test_a_next_token_outside_the_pool_teaches_cross_entropy_nothing() -> None:
    logits = torch.randn(3, requires_grad=True)
    figures = PoolComparison(TARGET, logits.log_softmax(-1), torch.zeros(3, dtype=torch.bool))
    WEAVER_LOSSES["ce"](figures, 3.0, None).backward()
    assert logits.grad is not None
    assert logits.grad.eq(0).all()
