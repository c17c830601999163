"""Notebook 04's exercise on the pool, with the wrong answers that its check must reject. ``wrong_...`` is WRONG ON
PURPOSE.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.memory_cases import told
from tfm_lab.lessons.properties import failing
from tfm_lab.lessons.weaver_by_hand import pool_log_probs


class PoolCase(NamedTuple):
    """A drafter's row over a small vocabulary, a pool of it, and the Weaver's correction."""

    name: str
    logits: Sequence[float]
    tokens: Sequence[int]
    correction: Sequence[float]

    def arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Fresh arguments of ``weaver_by_hand.pool_log_probs``, float64 and int64."""
        logits, correction = (torch.tensor(x, dtype=torch.float64) for x in (self.logits, self.correction))
        return logits, torch.tensor(self.tokens), correction


FIVE = (2.0, 1.0, 0.0, -1.0, 1.5)
POOLS = (
    PoolCase("pool of three, no correction", FIVE, (0, 4, 1), (0.0, 0.0, 0.0)),
    PoolCase("pool of three, padded to four, no correction", FIVE, (0, 4, 1, -1), (0.0, 0.0, 0.0, 0.0)),
    PoolCase("pool of three, corrected", FIVE, (0, 4, 1), (-2.0, 0.5, 1.0)),
    PoolCase("pool of two, padded to four, corrected", FIVE, (0, 1, -1, -1), (-1.0, 1.0, 3.0, 0.0)),
    PoolCase("large logits", (1000.0, 998.0, 0.0), (0, 1), (0.0, 1.0)),
    PoolCase("one candidate 900 below the other", (900.0, 5.0, 0.0), (0, 2), (0.0, 0.0)),
)

Answer = Callable[[Tensor, Tensor, Tensor], Tensor]


def _cases(corrected: bool) -> list[PoolCase]:
    return [case for case in POOLS[:4] if any(case.correction) is corrected]


def _found(answer: Answer, case: PoolCase) -> Tensor:
    found = torch.as_tensor(answer(*case.arguments()), dtype=torch.float64)
    if found.shape != (len(case.tokens),):
        raise ValueError(f"it gives shape {tuple(found.shape)} for a pool of {len(case.tokens)} places")
    return found


def _is_a_law(answer: Answer) -> str:
    def one(case: PoolCase) -> str:
        chances = _found(answer, case).exp()
        padding = torch.tensor(case.tokens) < 0
        if bool((chances[padding] != 0).any()):
            return f"pool {list(case.tokens)}: padding has probability {float(chances[padding].max()):.3f}, not 0"
        total = float(chances.sum())
        return "" if abs(total - 1) <= 1e-9 else f"pool {list(case.tokens)}: the probabilities add up to {total:.3f}"

    return failing(POOLS[:4], one)


def _is_right(answer: Answer, cases: Sequence[PoolCase]) -> str:
    def one(case: PoolCase) -> str:
        found, right = _found(answer, case), pool_log_probs(*case.arguments())
        same = bool((torch.isclose(found, right, rtol=0, atol=1e-9) | (found == right)).all())
        return "" if same else f"probabilities {told(found.exp())}, not {told(right.exp())}"

    return failing(cases, one)


def _stays_finite(answer: Answer) -> str:
    def one(case: PoolCase) -> str:
        found, right = _found(answer, case), pool_log_probs(*case.arguments())
        return "" if torch.allclose(found, right, rtol=0, atol=1e-6) else f"{told(found)}, not {told(right)}"

    return failing(POOLS[4:], one)


def _summed(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    return logits[tokens.clamp_min(0)] + correction


def wrong_whole_vocabulary(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    present, full = tokens >= 0, logits.clone()
    full[tokens[present]] += correction[present]
    found = _summed(logits, tokens, correction) - full.logsumexp(0)
    return found.masked_fill(~present, -math.inf)


def wrong_last_token(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    return torch.log_softmax(logits[tokens] + correction, dim=0)


def wrong_padded_with_zero(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    return torch.log_softmax(_summed(logits, tokens, correction).masked_fill(tokens < 0, 0.0), dim=0)


def wrong_masked_afterwards(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    return torch.log_softmax(_summed(logits, tokens, correction), dim=0).masked_fill(tokens < 0, -math.inf)


def wrong_replaced(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    return torch.log_softmax(correction.masked_fill(tokens < 0, -math.inf), dim=0)


def wrong_added_to_probabilities(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    chances = pool_log_probs(logits, tokens, torch.zeros_like(correction)).exp() + correction
    chances = chances.clamp_min(0.0).masked_fill(tokens < 0, 0.0)
    return (chances / chances.sum()).log()


def wrong_logarithm_last(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    scores = _summed(logits, tokens, correction).masked_fill(tokens < 0, -math.inf)
    return torch.softmax(scores, dim=0).log()


def wrong_plain_exponentials(logits: Tensor, tokens: Tensor, correction: Tensor) -> Tensor:
    weights = _summed(logits, tokens, correction).masked_fill(tokens < 0, -math.inf).exp()
    return (weights / weights.sum()).log()


POOL_LOG_PROBS = Exercise(
    name="04.pool_log_probs",
    title="a softmax over the pool",
    task="Write <code>pool_log_probs(drafter_logits, tokens, correction)</code>: log q(v | path) for every place of a "
    "pool. <code>drafter_logits</code> is the drafter's row over the whole vocabulary; <code>tokens</code> are the ids "
    "in the pool, and -1 marks a place that holds no candidate (padding); <code>correction</code> is the Weaver's "
    "⟨head(v), z⟩ for every place. Padding gets probability 0, which is minus infinity as a logarithm.",
    difficulty=1,
    importance=3,
    minutes=8,
    reread="What the Weaver adds",
    hints=(
        "Which tokens share the probability? Only those that can be drafted: the candidates of the pool.",
        "The correction belongs to the logits. And an index of -1 is no error in Python: it means the last entry.",
        "logits = drafter_logits[tokens.clamp_min(0)] + correction; set those of padding to -math.inf; then "
        "torch.log_softmax.",
    ),
    solution=pool_log_probs,
    explanation="The mask comes before the softmax, so padding takes no share. <code>log_softmax</code> subtracts the "
    "largest logit first and never leaves the logarithm: scores of paths are sums of these numbers.",
    properties=(
        Property("the probabilities add up to 1, and padding has none of it", _is_a_law),
        Property(
            "without a correction: the drafter's softmax over the pool", lambda a: _is_right(a, _cases(corrected=False))
        ),
        Property(
            "with a correction: added to the logits of its own token", lambda a: _is_right(a, _cases(corrected=True))
        ),
        Property("large logits and very unlikely candidates keep finite log-probabilities", _stays_finite),
    ),
    behaviour=lambda answer: [torch.as_tensor(answer(*case.arguments())) for case in POOLS],
    misconceptions=(
        Misconception(
            "Normalised over the whole vocabulary: the tokens outside keep a share that nobody can draft.",
            wrong_whole_vocabulary,
        ),
        Misconception(
            "The index -1 reads the last token of the vocabulary, which is not in the pool.", wrong_last_token
        ),
        Misconception(
            "Padding with logit 0. That is an ordinary logit: its weight is exp(0) = 1.", wrong_padded_with_zero
        ),
        Misconception(
            "Padding is struck out after the softmax, when it has already taken its share.", wrong_masked_afterwards
        ),
        Misconception(
            "The correction takes the drafter's place. It is a residual: what the drafter says stays, and is "
            "corrected.",
            wrong_replaced,
        ),
        Misconception(
            "The correction is added to probabilities. It belongs to the logits: there any sum is a law again.",
            wrong_added_to_probabilities,
        ),
        Misconception(
            "A softmax first and the logarithm last: a candidate that is 900 below underflows to 0, and its logarithm "
            "is lost.",
            wrong_logarithm_last,
        ),
        Misconception(
            "Exponentials of the raw logits: exp(1000) is infinite. Subtract the largest logit first, or let "
            "log_softmax do it.",
            wrong_plain_exponentials,
        ),
    ),
)
