"""Notebook 05's exercise on the loss, with the wrong answers that its check must reject. ``wrong_...`` is WRONG ON
PURPOSE.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.properties import failing
from tfm_lab.lessons.training_by_hand import lk_loss

CLOSE = 1e-9


class LossCase(NamedTuple):
    """The target on the pool, the Weaver's logits there, and eta."""

    name: str
    p: Sequence[Sequence[Sequence[float]]]
    logits: Sequence[Sequence[Sequence[float]]]
    eta: float

    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """p, the logits as a leaf, and log q from them; float64."""
        p, logits = (torch.tensor(x, dtype=torch.float64) for x in (self.p, self.logits))
        return p, logits.requires_grad_(True), logits.log_softmax(-1)


ROWS = [[[0.6, 0.2, 0.1], [0.3, 0.3, 0.2]], [[0.1, 0.1, 0.7], [0.05, 0.9, 0.03]]]
LOGITS = [[[0.3, -0.2, 0.9], [1.0, 0.0, -1.0]], [[-0.5, 0.4, 0.1], [0.2, 1.5, -0.7]]]
LOSSES = (
    LossCase("the whole of p on the pool, q equal to it", [[[0.25, 0.75]]], [[[0.0, 1.0986122886681098]]], 3.0),
    LossCase("eta 0, KL alone", ROWS, LOGITS, 0.0),
    LossCase("eta 200, TV alone", ROWS, LOGITS, 200.0),
    LossCase("one row and depth, eta 3", [ROWS[0][:1]], [LOGITS[0][:1]], 3.0),
    LossCase("two rows and two depths, eta 3", ROWS, LOGITS, 3.0),
)

Answer = Callable[[Tensor, Tensor, float], Tensor]


def value_and_gradient(answer: Answer, case: LossCase) -> tuple[float, Tensor]:
    """The loss of a case and its gradient by the Weaver's logits (zeros where there is none)."""
    p, logits, log_q = case.arguments()
    loss = answer(p, log_q, case.eta)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ValueError("the loss is one number, as a tensor")
    (gradient,) = torch.autograd.grad(loss.sum(), logits, allow_unused=True) if loss.requires_grad else (None,)
    return loss.item(), torch.zeros_like(logits) if gradient is None else gradient


def _value_is(cases: Sequence[LossCase]) -> Callable[[Answer], str]:
    def complaint(answer: Answer) -> str:
        def one(case: LossCase) -> str:
            found, right = value_and_gradient(answer, case)[0], value_and_gradient(lk_loss, case)[0]
            return "" if abs(found - right) <= CLOSE else f"{found:.6f}, not {right:.6f}"

        return failing(cases, one)

    return complaint


def _gradient_is(answer: Answer) -> str:
    def one(case: LossCase) -> str:
        found, right = value_and_gradient(answer, case)[1], value_and_gradient(lk_loss, case)[1]
        largest = float((found - right).abs().max())
        return "" if largest <= CLOSE else f"a gradient by the logits is off by {largest:.4f}"

    return failing(LOSSES, one)


def _parts(p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Acceptance and divergence, as they should be."""
    inside = p / p.sum(-1, keepdim=True)
    return torch.minimum(p, log_q.exp()).sum(-1), (inside * (inside.log() - log_q)).sum(-1)


def _mixed(share: Tensor, acceptance: Tensor, divergence: Tensor) -> Tensor:
    return (share * divergence + (1.0 - share) * (1.0 - acceptance)).mean()


def wrong_live_share(p: Tensor, log_q: Tensor, eta: float) -> Tensor:
    acceptance, divergence = _parts(p, log_q)
    return _mixed(torch.exp(-eta * acceptance.mean(0)), acceptance, divergence)


def wrong_share_by_row(p: Tensor, log_q: Tensor, eta: float) -> Tensor:
    acceptance, divergence = _parts(p, log_q)
    return _mixed(torch.exp(-eta * acceptance.detach()), acceptance, divergence)


def wrong_share_for_all(p: Tensor, log_q: Tensor, eta: float) -> Tensor:
    acceptance, divergence = _parts(p, log_q)
    return _mixed(torch.exp(-eta * acceptance.detach().mean()), acceptance, divergence)


def wrong_swapped(p: Tensor, log_q: Tensor, eta: float) -> Tensor:
    acceptance, divergence = _parts(p, log_q)
    return _mixed(1.0 - torch.exp(-eta * acceptance.mean(0).detach()), acceptance, divergence)


def wrong_reverse(p: Tensor, log_q: Tensor, eta: float) -> Tensor:
    acceptance, _ = _parts(p, log_q)
    inside = p / p.sum(-1, keepdim=True)
    reverse = (log_q.exp() * (log_q - inside.log())).sum(-1)
    return _mixed(torch.exp(-eta * acceptance.mean(0).detach()), acceptance, reverse)


def wrong_bare_p(p: Tensor, log_q: Tensor, eta: float) -> Tensor:
    acceptance, _ = _parts(p, log_q)
    return _mixed(torch.exp(-eta * acceptance.mean(0).detach()), acceptance, (p * (p.log() - log_q)).sum(-1))


def wrong_renormalised_everywhere(p: Tensor, log_q: Tensor, eta: float) -> Tensor:
    return lk_loss(p / p.sum(-1, keepdim=True), log_q, eta)


def wrong_maximised(p: Tensor, log_q: Tensor, eta: float) -> Tensor:
    acceptance, divergence = _parts(p, log_q)
    share = torch.exp(-eta * acceptance.mean(0).detach())
    return (share * divergence + (1.0 - share) * acceptance).mean()


LK_LOSS = Exercise(
    name="05.lk_loss",
    title="the LK loss",
    task="Write <code>lk_loss(p, log_q, eta)</code>. Both tensors have the axes rows × depth × pool: <code>p</code> "
    "the target's probabilities of the pool's tokens (they may sum to less than 1), <code>log_q</code> the Weaver's "
    "log-probabilities (normalised over the pool). Return the mean over rows and depths of "
    "λ·KL + (1 − λ)·TV, with λ = exp(−η·α), where α is the mean acceptance of a depth: one λ per depth, without "
    "gradient.",
    difficulty=2,
    importance=3,
    minutes=12,
    reread="What to minimise",
    hints=(
        "TV needs the p that verification uses. KL would be infinite with it; which p does it compare with?",
        "Acceptance is Σ min(p, q) over the pool, and TV is 1 − acceptance. KL(p̂‖q) = Σ p̂ (log p̂ − log q), with p̂ "
        "the p of the pool, scaled to sum 1.",
        "share = torch.exp(-eta * acceptance.mean(0).detach()), which broadcasts over the rows; then "
        "(share * kl + (1 - share) * (1 - acceptance)).mean().",
    ),
    solution=lk_loss,
    explanation="Acceptance takes the whole p, so mass outside the pool counts as lost; the divergence takes p on the "
    "pool, renormalised, because q is 0 outside. λ only weighs: with a gradient, the loss could be lowered by moving "
    "the weight instead of the Weaver.",
    properties=(
        Property("a Weaver that equals the target on a full pool costs nothing", _value_is(LOSSES[:1])),
        Property("eta = 0 leaves the divergence on the pool", _value_is(LOSSES[1:2])),
        Property("a large eta leaves the total variation", _value_is(LOSSES[2:3])),
        Property("in between both are mixed, each depth by its own mean acceptance", _value_is(LOSSES[3:])),
        Property("the gradient is that of the two parts; the weight passes none", _gradient_is),
    ),
    behaviour=lambda answer: [list(value_and_gradient(answer, case)) for case in LOSSES],
    misconceptions=(
        Misconception(
            "λ passes a gradient: part of the step goes into moving the weight instead of q. Detach it.",
            wrong_live_share,
        ),
        Misconception(
            "A λ for every row. It is one per depth, from the mean: rows that are hard by chance should not change "
            "their objective.",
            wrong_share_by_row,
        ),
        Misconception(
            "One λ for all depths. Deep places are accepted less and need the KL for longer.", wrong_share_for_all
        ),
        Misconception(
            "λ and 1 − λ are swapped: KL, which behaves well far from the target, must rule while acceptance is low.",
            wrong_swapped,
        ),
        Misconception(
            "KL(q‖p), the other way round: it lets q sit on one likely token and forget the rest.", wrong_reverse
        ),
        Misconception(
            "KL with a p that does not sum to 1 is no divergence: it can be negative, and is not 0 at its best.",
            wrong_bare_p,
        ),
        Misconception(
            "TV with the renormalised p: verification compares with the whole p, and mass outside the pool is lost.",
            wrong_renormalised_everywhere,
        ),
        Misconception("1 − λ weighs the acceptance itself: minimising that would lower it.", wrong_maximised),
    ),
)
