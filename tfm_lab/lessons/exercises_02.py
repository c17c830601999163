"""Exercises of notebook 02, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.properties import failing, named_rows
from tfm_lab.theory import MarkovWorld, acceptance_of, best_factorised

Weights = Float[Tensor, " states"]
Rows = Float[Tensor, "states vocab"]


class Future(NamedTuple):
    """What may stand before a place, and what follows each of these pasts."""

    name: str
    weights: Weights
    conditionals: Rows


def futures() -> list[Future]:
    """Fresh tensors each time, the simplest first."""
    (certain,) = named_rows((1.0,))
    (halves,) = named_rows((0.5, 0.5))
    (thirds,) = named_rows((0.5, 0.3, 0.2))
    world = MarkovWorld.dirichlet(6, 0.3, seed=4)
    return [
        Future("one past", certain, torch.stack(named_rows((0.7, 0.2, 0.1)))),
        Future("New York, Los Angeles", halves, torch.stack(named_rows((1.0, 0.0), (0.0, 1.0)))),
        Future("three pasts", thirds, torch.stack(named_rows((0.8, 0.2, 0.0), (0.1, 0.8, 0.1), (0.0, 0.5, 0.5)))),
        Future("a small world", *world.conditionals(3)),
    ]


# marginal_ceiling


def marginal_ceiling(weights: Weights, conditionals: Rows) -> float:
    """Acceptance of a drafter that draws from the true marginal: 1 - E_X TV(m, p(. | X)) (2607.06763, section 3.5)."""
    return acceptance_of(weights @ conditionals, weights, conditionals)


def wrong_average_first(weights: Weights, conditionals: Rows) -> float:
    marginal = weights @ conditionals
    return float(torch.minimum(marginal, weights @ conditionals).sum())


def wrong_unweighted(weights: Weights, conditionals: Rows) -> float:
    return float(torch.minimum(weights @ conditionals, conditionals).sum(1).mean())


def wrong_point_mass(weights: Weights, conditionals: Rows) -> float:
    return float((weights @ conditionals).max())


def wrong_product(weights: Weights, conditionals: Rows) -> float:
    return float(weights @ (conditionals * (weights @ conditionals)).sum(1))


def _ceiling_is(answer: Callable[[Tensor, Tensor], float]) -> str:
    def one(case: Future) -> str:
        value = float(answer(case.weights.clone(), case.conditionals.clone()))
        right = marginal_ceiling(case.weights, case.conditionals)
        return "" if abs(value - right) <= 1e-9 else f"got {value:.4g}, not {right:.4g}"

    return failing(futures(), one)


def _nothing_between(answer: Callable[[Tensor, Tensor], float]) -> str:
    case = futures()[0]
    value = float(answer(case.weights, case.conditionals))
    return (
        ""
        if abs(value - 1.0) <= 1e-9
        else f"with one possible past nothing is hidden, and 1 is accepted, not {value:.4g}"
    )


MARGINAL_CEILING = Exercise(
    name="02.marginal_ceiling",
    title="the ceiling from conditionals",
    task="Write <code>marginal_ceiling(weights, conditionals)</code>. Row i of <code>conditionals</code> is the "
    "target's "
    "distribution after past i, <code>weights[i]</code> how probable that past is. The drafter does not see the past "
    "and "
    "draws from the true marginal. Return the share of its drafts that is accepted, on average over the pasts.",
    difficulty=2,
    importance=3,
    minutes=8,
    reread="York or Angeles",
    hints=(
        "What is the marginal? And once a past has come true, which overlap decides?",
        "m = sum of weights[i] times row i. After past i the acceptance is the sum of min(m, row i).",
        "Take the overlap of m with each row, and average these numbers with the weights.",
    ),
    solution=marginal_ceiling,
    explanation="The drafter has one m for all pasts; the target judges by the row of the past that came true. This is "
    "1 minus the expected total variation distance between the two, and no training changes it.",
    properties=(
        Property("if there is only one past, everything is accepted", _nothing_between),
        Property("it is the expected overlap of the marginal with what really follows", _ceiling_is),
    ),
    behaviour=lambda answer: [float(answer(case.weights, case.conditionals)) for case in futures()],
    misconceptions=(
        Misconception(
            "The rows are averaged before they are compared. The target never judges by the average: it knows the "
            "past.",
            wrong_average_first,
        ),
        Misconception("Every past counts alike. They come true with different probabilities.", wrong_unweighted),
        Misconception(
            "That is the acceptance of always drafting the likeliest token; this drafter draws.", wrong_point_mass
        ),
        Misconception(
            "The chance that two independent draws coincide. The coin min(1, p/q) accepts more than that.",
            wrong_product,
        ),
    ),
)


# best_q


def best_q(weights: Weights, conditionals: Rows) -> Float[Tensor, " vocab"]:
    """The distribution that no other factorised drafter beats."""
    return best_factorised(weights, conditionals).q


def wrong_mean(weights: Weights, conditionals: Rows) -> Tensor:
    return weights @ conditionals


def wrong_favourite(weights: Weights, conditionals: Rows) -> Tensor:
    marginal = weights @ conditionals
    return torch.zeros_like(marginal).index_fill_(0, marginal.argmax(), 1.0)


def wrong_uniform(weights: Weights, conditionals: Rows) -> Tensor:
    return torch.full_like(conditionals[0], 1.0 / conditionals.shape[1])


def wrong_sharpened(weights: Weights, conditionals: Rows) -> Tensor:
    squares = (weights @ conditionals) ** 2
    return squares / squares.sum()


CLOSE_TO_BEST = 1e-4
"""A search may stop so far below the optimum."""


def _is_a_distribution(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    def one(case: Future) -> str:
        q = torch.as_tensor(answer(case.weights.clone(), case.conditionals.clone())).double()
        good = bool((q >= -1e-9).all()) and abs(float(q.sum()) - 1.0) <= 1e-6
        return "" if good else f"{[round(value, 4) for value in q.tolist()]} sums to {float(q.sum()):.4g}"

    return failing(futures(), one)


def _is_best(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    def one(case: Future) -> str:
        q = torch.as_tensor(answer(case.weights.clone(), case.conditionals.clone())).double()
        value, best = (acceptance_of(row, case.weights, case.conditionals) for row in (q, best_q(*case[1:])))
        return "" if value >= best - CLOSE_TO_BEST else f"{value:.4f} is accepted, {best:.4f} is possible"

    return failing(futures(), one)


BEST_Q = Exercise(
    name="02.best_q",
    title="is the marginal the best one can do?",
    task="Write <code>best_q(weights, conditionals)</code>: the distribution q, the same for all pasts, of which "
    "most is "
    "accepted. A numerical search is fine: the check asks for the best acceptance within 0.0001.",
    difficulty=3,
    importance=1,
    minutes=20,
    reread="The best that a blind drafter can do",
    hints=(
        "Hand out the unit of probability in small pieces. To which token should the next piece go?",
        "Raising q(v) from its present level l gains only in pasts with p(v | past) > l: at the rate of their weight.",
        "Sort all entries of each column; between two neighbours the rate is constant. Take the pieces with the "
        "largest "
        "rates until they add up to 1.",
    ),
    solution=best_q,
    explanation="The acceptance is a concave function of q that splits by token, so the greedy choice is best. Where "
    "q(v) > 0 it is a quantile of p(v | X) over the pasts, not their mean.",
    properties=(
        Property("it is a distribution", _is_a_distribution),
        Property("no other q that is blind to the past is accepted more often", _is_best),
    ),
    behaviour=lambda answer: [torch.as_tensor(answer(case.weights, case.conditionals)) for case in futures()],
    misconceptions=(
        Misconception(
            "The marginal is the mean over the pasts, and the overlap does not reward means but quantiles.", wrong_mean
        ),
        Misconception(
            "All on the likeliest token: sometimes better than the marginal, but the first pieces given to other "
            "tokens gain more than the last ones given to this one.",
            wrong_favourite,
        ),
        Misconception("A uniform q wastes most of its probability on tokens that never follow.", wrong_uniform),
        Misconception("Sharpening the marginal goes in the right direction, without knowing how far.", wrong_sharpened),
    ),
)


# point_mass

SETTLED = (0.5, 0.3, 0.2)
"""Law of the past in the exercise, and so of the token that it settles."""


def _pair(answer: Sequence[float]) -> tuple[float, float]:
    drawn, favourite = answer
    return float(drawn), float(favourite)


def _drawn(answer: Sequence[float]) -> str:
    value = _pair(answer)[0]
    return "" if abs(value - 0.38) <= 1e-6 else f"drawing from the marginal is not accepted {value:g} of the time"


def _favourite(answer: Sequence[float]) -> str:
    value = _pair(answer)[1]
    return "" if abs(value - 0.5) <= 1e-6 else f"the likeliest token is not accepted {value:g} of the time"


POINT_MASS = Exercise(
    name="02.point_mass",
    title="to draw or not to draw",
    task="The past settles the token completely: with probabilities 0.5, 0.3 and 0.2 it must be a, b or c. Set "
    "<code>shares</code> to a pair: the accepted share of a drafter that draws from the marginal, and that of one that "
    "always says a.",
    difficulty=1,
    importance=2,
    minutes=4,
    reread="When a fixed guess beats a draw",
    hints=(
        "What is the marginal of the token?",
        "After a past that settles the token x, the overlap with m is m(x).",
        "Drawing: the mean of m(x) over x drawn from m. Saying a: how often is it a?",
    ),
    solution=(0.38, 0.5),
    explanation="Drawing is accepted when both draws coincide: 0.25 + 0.09 + 0.04 = 0.38. The fixed guess is accepted "
    "whenever it is right: 0.5. A sum of squares is never more than the largest of the numbers.",
    properties=(
        Property("the share of the drafter that draws", _drawn),
        Property("the share of the fixed guess", _favourite),
    ),
    behaviour=_pair,
    misconceptions=(
        Misconception("Both the same: a draw hits the likeliest token half of the time only.", (0.5, 0.5)),
        Misconception(
            "The marginal has the right law, but the draft must be right now, not on average: 1 is not accepted.",
            (1.0, 0.5),
        ),
        Misconception("A third: that is a uniform draw.", (1 / 3, 0.5)),
        Misconception("The fixed guess is right when the token is a, half of the time, not always.", (0.38, 1.0)),
    ),
)

EXERCISES_02: Sequence[Exercise] = (MARGINAL_CEILING, BEST_Q, POINT_MASS)
