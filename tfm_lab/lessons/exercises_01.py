"""Exercises of notebook 01, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import residual, total_variation
from tfm_lab.draws import Draws
from tfm_lab.exact import enumerate_outcomes
from tfm_lab.lessons.by_hand import accept_prob, spec_step
from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.properties import LimitedDraws, failing, named_rows

Vocab = Float[Tensor, " vocab"]
Step = Callable[[Tensor, Tensor, Draws], tuple[int, bool]]

CASES = (
    ("two tokens", (0.5, 0.5), (0.9, 0.1)),
    ("three tokens", (0.6, 0.3, 0.1), (0.2, 0.3, 0.5)),
    ("a zero in p", (0.7, 0.3, 0.0), (0.2, 0.2, 0.6)),
    ("a zero in q", (0.2, 0.2, 0.6), (0.7, 0.3, 0.0)),
    ("p equals q", (0.25, 0.5, 0.25), (0.25, 0.5, 0.25)),
)


class Rows(NamedTuple):
    """A target row and a drafter row, float64."""

    name: str
    p: Vocab
    q: Vocab


def rows() -> list[Rows]:
    """Fresh tensors each time, so that an answer that writes into its arguments spoils nothing."""
    return [Rows(name, *named_rows(p, q)) for name, p, q in CASES]


# accept_prob


def wrong_overlap(p: Vocab, q: Vocab, token: int) -> float:
    return float(torch.minimum(p, q)[token])


def wrong_ratio(p: Vocab, q: Vocab, token: int) -> float:
    return float(p[token] / q[token])


def wrong_way_up(p: Vocab, q: Vocab, token: int) -> float:
    return min(1.0, float(q[token] / p[token]))


def wrong_target(p: Vocab, q: Vocab, token: int) -> float:
    return float(p[token])


def _drafted(row: Rows) -> list[int]:
    return [token for token in range(len(row.q)) if row.q[token] > 0]


def _each_token(answer: Callable[..., float], wanted: Callable[[float, float], float | None]) -> str:
    for row in rows():
        for token in _drafted(row):
            p, q = float(row.p[token]), float(row.q[token])
            value, right = float(answer(row.p.clone(), row.q.clone(), token)), wanted(p, q)
            if right is not None and not abs(value - right) <= 1e-12:
                return f"p = {p:g}, q = {q:g}: got {value:.4g}, not {right:.4g}"
    return ""


def _mean_acceptance(answer: Callable[..., float]) -> str:
    def one(row: Rows) -> str:
        mean = sum(float(row.q[t]) * float(answer(row.p.clone(), row.q.clone(), t)) for t in _drafted(row))
        right = 1.0 - float(total_variation(row.p, row.q))
        return "" if abs(mean - right) <= 1e-12 else f"the mean over drafts is {mean:.4g}, 1 - TV is {right:.4g}"

    return failing(rows(), one)


ACCEPT_PROB = Exercise(
    name="01.accept_prob",
    title="the coin",
    task="Write <code>accept_prob(p, q, token)</code>: the probability of keeping a draft <code>token</code> that was "
    "drawn from <code>q</code>. Both are tensors of probabilities; <code>q[token]</code> is never 0. Return a float.",
    difficulty=1,
    importance=3,
    minutes=5,
    reread="One draft, one coin",
    hints=(
        "Drafts come up with probability q. Which share of them may stay so that a token comes up at most as often as "
        "p wants it to?",
        "q(x) times the coin must not exceed p(x), and the coin must not exceed 1. Make it as large as that allows.",
        "Divide p(x) by q(x), and cut off what is above 1.",
    ),
    solution=accept_prob,
    explanation="A draft comes up with probability q(x) and stays with min(1, p(x)/q(x)); together that is "
    "min(q(x), p(x)), the overlap.",
    properties=(
        Property(
            "where p is at least q, every draft stays", lambda a: _each_token(a, lambda p, q: 1.0 if p >= q else None)
        ),
        Property(
            "where p is below q, the share p/q stays", lambda a: _each_token(a, lambda p, q: p / q if p < q else None)
        ),
        Property("over all drafts the acceptance is 1 - TV(p, q)", _mean_acceptance),
    ),
    behaviour=lambda answer: [float(answer(r.p, r.q, t)) for r in rows() for t in _drafted(r)],
    misconceptions=(
        Misconception(
            "The overlap min(p, q) is how often a token is drafted AND kept; the coin is thrown when it has "
            "already been drafted, so divide by q.",
            wrong_overlap,
        ),
        Misconception(
            "p/q as it is; where the target likes the token more than the drafter that is above 1, and a "
            "probability ends at 1.",
            wrong_ratio,
        ),
        Misconception(
            "q/p, the ratio upside down: that keeps the tokens that the drafter likes too much.", wrong_way_up
        ),
        Misconception(
            "Keep it with probability p: a token would need luck twice, once to be drafted and once to be "
            "kept, and would come up q times p.",
            wrong_target,
        ),
    ),
)


# residual


def wrong_distance(p: Vocab, q: Vocab) -> Vocab:
    gap = (p - q).abs()
    return gap / gap.sum() if bool(gap.sum() > 0) else p


def wrong_unscaled(p: Vocab, q: Vocab) -> Vocab:
    return (p - q).clamp_min(0.0)


def wrong_fresh_start(p: Vocab, q: Vocab) -> Vocab:
    return p


def wrong_other_way(p: Vocab, q: Vocab) -> Vocab:
    gap = (q - p).clamp_min(0.0)
    return gap / gap.sum() if bool(gap.sum() > 0) else p


def wrong_zero_by_zero(p: Vocab, q: Vocab) -> Vocab:
    gap = (p - q).clamp_min(0.0)
    return gap / gap.sum()


def _each_residual(complaint: Callable[[Rows, Tensor], str]) -> Callable[[Callable[..., Tensor]], str]:
    return lambda answer: failing(rows(), lambda row: complaint(row, answer(row.p.clone(), row.q.clone())))


def _adds_up(row: Rows, left: Tensor) -> str:
    law = torch.minimum(row.p, row.q) + total_variation(row.p, row.q) * left
    return (
        ""
        if torch.allclose(law, row.p, rtol=0, atol=1e-12)
        else f"emitted {_short(law)}, the target is {_short(row.p)}"
    )


def _is_distribution(row: Rows, left: Tensor) -> str:
    is_one = bool((left >= 0).all()) and abs(float(left.sum()) - 1.0) <= 1e-12
    return "" if is_one else f"got {_short(left)}, which sums to {float(left.sum()):.4g}"


def _short(row: Tensor) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in row.tolist()) + "]"


RESIDUAL = Exercise(
    name="01.residual",
    title="what is left of p",
    task="Write <code>residual(p, q)</code>: the distribution to draw from after a draft was rejected. If p and q are "
    "equal no draft is ever rejected; return p then.",
    difficulty=2,
    importance=3,
    minutes=8,
    reread="After a rejection",
    hints=(
        "Accepted drafts already bring min(p, q) of every token. What does each token still lack?",
        "It lacks p - min(p, q), which is p - q where that is positive and 0 elsewhere.",
        "Clamp p - q at 0 and divide by its sum, unless the sum is 0.",
    ),
    solution=residual,
    explanation="A token lacks p - min(p, q) = max(p - q, 0). The sum of that is TV(p, q), which is just the "
    "probability "
    "of a rejection: drawing from the normalised residual after each rejection fills the gap exactly.",
    properties=(
        Property("it is a distribution", _each_residual(_is_distribution)),
        Property("accepted drafts and residual together give p", _each_residual(_adds_up)),
    ),
    behaviour=lambda answer: [answer(row.p, row.q) for row in rows()],
    misconceptions=(
        Misconception(
            "The distance |p - q| also gives to tokens of which there is too much already; only those with "
            "p above q lack anything.",
            wrong_distance,
        ),
        Misconception("max(p - q, 0) is right up to its scale: a distribution sums to 1.", wrong_unscaled),
        Misconception(
            "A fresh draw from p: accepted drafts already brought min(p, q), so tokens that both like come "
            "up too often.",
            wrong_fresh_start,
        ),
        Misconception(
            "max(q - p, 0), the wrong way round: those tokens were drafted too often, not too rarely.", wrong_other_way
        ),
        Misconception("Right, until p equals q: then it divides 0 by 0.", wrong_zero_by_zero),
    ),
)


# spec_step


def wrong_trust(p: Vocab, q: Vocab, draws: Draws) -> tuple[int, bool]:
    return draws.categorical(q), True


def wrong_fresh_draw(p: Vocab, q: Vocab, draws: Draws) -> tuple[int, bool]:
    draft = draws.categorical(q)
    if draws.bernoulli(accept_prob(p, q, draft)):
        return draft, True
    return draws.categorical(p), False


def wrong_favourite(p: Vocab, q: Vocab, draws: Draws) -> tuple[int, bool]:
    draft = int(q.argmax())
    if draws.bernoulli(accept_prob(p, q, draft)):
        return draft, True
    return draws.categorical(residual(p, q)), False


def wrong_second_draft(p: Vocab, q: Vocab, draws: Draws) -> tuple[int, bool]:
    draft = draws.categorical(q)
    if draws.bernoulli(accept_prob(p, q, draft)):
        return draft, True
    return draws.categorical(q), False


STEPS: dict[str, Step] = {
    "honest": spec_step,
    "no residual": wrong_fresh_draw,
    "likeliest draft": wrong_favourite,
    "accept everything": wrong_trust,
}
"""One honest step and three in which a line is wrong, for the interactive picture."""


class StepLaw(NamedTuple):
    """What a step does, exactly: the law of the token, and of the token where the draft was accepted."""

    emitted: Vocab
    accepted: Vocab


def step_law(step: Step, p: Vocab, q: Vocab) -> StepLaw:
    """By enumeration of all draws.

    Raises:
        ValueError: if one step takes more than ten random decisions.
    """
    emitted, accepted = torch.zeros_like(p), torch.zeros_like(p)
    for chance, (token, kept) in enumerate_outcomes(lambda draws: step(p.clone(), q.clone(), LimitedDraws(draws))):
        emitted[token] += chance
        accepted[token] += chance * bool(kept)
    return StepLaw(emitted, accepted)


def _each_law(complaint: Callable[[Rows, StepLaw], str]) -> Callable[[Step], str]:
    return lambda answer: failing(rows(), lambda row: complaint(row, step_law(answer, row.p, row.q)))


def _has_law_p(row: Rows, law: StepLaw) -> str:
    bias = float(total_variation(law.emitted, row.p))
    return "" if bias <= 1e-12 else f"emitted {_short(law.emitted)}, the target is {_short(row.p)}: TV = {bias:.3f}"


def _accepts_overlap(row: Rows, law: StepLaw) -> str:
    overlap = torch.minimum(row.p, row.q)
    is_right = torch.allclose(law.accepted, overlap, rtol=0, atol=1e-12)
    return "" if is_right else f"accepted {_short(law.accepted)}, the overlap is {_short(overlap)}"


SPEC_STEP = Exercise(
    name="01.spec_step",
    title="one lossless step",
    task="Write <code>spec_step(p, q, draws)</code>: draft, coin, and what follows a rejection. Return the token and "
    "whether it is the accepted draft. <code>draws.categorical(weights)</code> draws an index, "
    "<code>draws.bernoulli(probability)</code> throws a coin; use no other randomness. Your <code>accept_prob</code> "
    "and "
    "<code>residual</code> are there.",
    difficulty=2,
    importance=3,
    minutes=8,
    reread="After a rejection",
    hints=(
        "Three random decisions at most: the draft, the coin, and a replacement.",
        "The draft comes from q, the replacement from the residual.",
        "Draw from q; if the coin with accept_prob says so, return the draft and True; else draw from the residual.",
    ),
    solution=spec_step,
    explanation="The check replays your step over every outcome of every draw, so it knows the exact law of what you "
    "emit. No sampling, no tolerance beyond rounding.",
    properties=(
        Property("the emitted token has exactly the law p", _each_law(_has_law_p)),
        Property("drafts are accepted with the overlap min(p, q)", _each_law(_accepts_overlap)),
    ),
    behaviour=lambda answer: [part for row in rows() for part in step_law(answer, row.p, row.q)],
    misconceptions=(
        Misconception("Every draft is accepted: fast, and the text is the drafter's.", wrong_trust),
        Misconception(
            "After a rejection the token is drawn from p instead of the residual: what both like comes up twice.",
            wrong_fresh_draw,
        ),
        Misconception(
            "The draft is the drafter's likeliest token, while the coin divides by q as if it had been drawn.",
            wrong_favourite,
        ),
        Misconception("After a rejection a second draft is taken without a coin.", wrong_second_draft),
    ),
)


# suspect


def _is_the_one(answer: str) -> str:
    return "" if str(answer).strip().upper() == "C" else f"{answer!r} is not it"


SUSPECT = Exercise(
    name="01.suspect",
    title="find the biased one",
    task="One of the four pairs A, B, C, D above emits a text that is not the target's. Collect evidence, then set "
    "<code>suspect</code> to its letter.",
    difficulty=1,
    importance=2,
    minutes=5,
    reread="Proof by enumeration",
    hints=(
        "How often drafts are accepted proves nothing, neither a high number nor a low one.",
        "exact_emission_distribution gives the law of the text, bias its distance from plain sampling.",
        "Take exact_emission_distribution(pair.builder, pair.rule, P, Q, 3, CHAIN) of each pair, and bias of that.",
    ),
    solution="C",
    explanation="C draws its drafts after top-k and divides by the q from before it. Everything else is exact: A is "
    "the "
    "plain rule; B matches drafts with the target's own sample, which wastes some of them but changes nothing; D never "
    "proposes half of the vocabulary, and reports just that.",
    properties=(Property("the exact law of its text differs from plain sampling", _is_the_one),),
    behaviour=lambda answer: str(answer).strip().upper(),
    misconceptions=(
        Misconception("A is the rule of this notebook, and its text is exact.", "A"),
        Misconception(
            "B accepts least, because it compares with a sample of the target. What does not match is still "
            "the target's own token, so it is wasteful and exact.",
            "B",
        ),
        Misconception(
            "D never proposes half of the vocabulary. The residual brings those tokens in: q may be anything, "
            "as long as it is the q that was drawn from.",
            "D",
        ),
    ),
)

EXERCISES_01: Sequence[Exercise] = (ACCEPT_PROB, RESIDUAL, SPEC_STEP, SUSPECT)
