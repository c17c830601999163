"""Exercises of notebook 10, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.properties import failing
from tfm_lab.lessons.speed_by_hand import break_even, choose_budget
from tfm_lab.planning import step_ratio
from tfm_lab.planning.published import KERNEL_TIMES, LAYERS, LENGTH_GAIN, NODES, SPEED_GAIN

CLOSE = 1e-9

# step_ratio


class Gains(NamedTuple):
    """What grew by which share."""

    name: str
    length: float
    speed: float


GAINS = (
    Gains("nothing gained", 0.0, 0.0),
    Gains("twice the tokens at the same speed", 1.0, 0.0),
    Gains("all of the gain in tokens is a gain in speed", 0.5, 0.5),
    Gains("the paper's gains", LENGTH_GAIN.value, SPEED_GAIN.value),
    Gains("slower in the end", 0.2, -0.2),
)


def wrong_difference(length_gain: float, speed_gain: float) -> float:
    return 1.0 + length_gain - speed_gain


def wrong_ratio_of_gains(length_gain: float, speed_gain: float) -> float:
    return length_gain / speed_gain


def wrong_inverse(length_gain: float, speed_gain: float) -> float:
    return 1.0 / step_ratio(length_gain, speed_gain)


def wrong_product(length_gain: float, speed_gain: float) -> float:
    return (1.0 + length_gain) * (1.0 + speed_gain)


def _ratio_is(cases: tuple[Gains, ...]) -> Callable[[Any], str]:
    def complaint(answer: Any) -> str:
        def one(case: Gains) -> str:
            value, right = float(answer(case.length, case.speed)), step_ratio(case.length, case.speed)
            return "" if abs(value - right) <= CLOSE else f"got {value:.3f}, not {right:.3f}"

        return failing(cases, one)

    return complaint


STEP_RATIO = Exercise(
    name="10.step_ratio",
    title="where did the gain go?",
    task="Write <code>step_ratio(length_gain, speed_gain)</code>. A tree accepts <code>1 + length_gain</code> times as "
    "many tokens per step as a chain and decodes <code>1 + speed_gain</code> times as fast (0.77 and 0.247 in the "
    "paper). Return how many times as long as a chain step a step of the tree lasts.",
    difficulty=1,
    importance=3,
    minutes=4,
    reread="One division",
    hints=(
        "Write the speed of both as a fraction. What do you get if you divide the two fractions?",
        "tokens per second = MAL / step seconds, so step seconds = MAL / tokens per second.",
        "The new MAL is (1 + length_gain) times the old one; divide it by (1 + speed_gain) times the old speed.",
    ),
    solution=step_ratio,
    explanation="Step seconds are MAL over speed. What the tree gains in tokens and does not gain in speed has gone "
    "into longer steps: 1.77 / 1.247.",
    properties=(
        Property("simple cases can be told without a formula", _ratio_is(GAINS[:3])),
        Property("a step lasts as long as MAL over speed says", _ratio_is(GAINS)),
    ),
    behaviour=lambda answer: [_number(lambda g=g: answer(g.length, g.speed)) for g in GAINS],
    misconceptions=(
        Misconception(
            "The gains were subtracted. Gains in per cent do not add up, they multiply: divide the two factors.",
            wrong_difference,
        ),
        Misconception(
            "The two gains were divided by each other. Divide the factors: 1.77 by 1.247, not 77 by 24.7.",
            wrong_ratio_of_gains,
        ),
        Misconception("Upside down: this is how long a chain step is, in steps of the tree.", wrong_inverse),
        Misconception(
            "The factors were multiplied. More speed with the same tokens means shorter steps, not longer ones.",
            wrong_product,
        ),
    ),
)


# the break-even


class Kernels(NamedTuple):
    """Arguments of ``break_even``."""

    name: str
    baseline_mal: float
    baseline_ms: float
    step_ms: float
    layers: int
    fused_us: float
    other_us: float


KERNELS = (
    Kernels("equal kernels, a step as long as the baseline's", 3.0, 10.0, 10.0, 48, 40.0, 40.0),
    Kernels("against plain decoding", 1.0, 10.0, 15.0, 48, 40.0, 200.0),
    Kernels("a chain, and the paper's kernels at 64 nodes", 4.0, 12.0, 17.0, LAYERS, *KERNEL_TIMES[NODES]),
    Kernels("a smaller model", 2.5, 4.0, 6.0, 24, 30.0, 90.0),
)


def wrong_one_layer(mal: float, base: float, step: float, layers: int, fused: float, other: float) -> Any:
    return break_even(mal, base, step, 1, fused, other)


def wrong_both_kernels(mal: float, base: float, step: float, layers: int, fused: float, other: float) -> Any:
    return break_even(mal, base, step, layers, 0.0, other)


def wrong_against_plain(mal: float, base: float, step: float, layers: int, fused: float, other: float) -> Any:
    return break_even(1.0, base, step, layers, fused, other)


def wrong_upside_down(mal: float, base: float, step: float, layers: int, fused: float, other: float) -> Any:
    other_step = step + layers * (other - fused) / 1000.0
    return mal * base / step, mal * base / other_step


def wrong_units(mal: float, base: float, step: float, layers: int, fused: float, other: float) -> Any:
    return break_even(mal, base, step, layers, 1000.0 * fused, 1000.0 * other)


def _break_even_is(part: int) -> Callable[[Any], str]:
    def complaint(answer: Any) -> str:
        def one(case: Kernels) -> str:
            value, right = float(answer(*case[1:])[part]), break_even(*case[1:])[part]
            return "" if abs(value - right) <= CLOSE else f"got {value:.3f}, not {right:.3f}"

        return failing(KERNELS, one)

    return complaint


BREAK_EVEN = Exercise(
    name="10.break_even",
    title="how many tokens must a step bring?",
    task="Write <code>break_even(baseline_mal, baseline_ms, step_ms, layers, fused_us, other_us)</code>. A baseline "
    "emits <code>baseline_mal</code> tokens in a step of <code>baseline_ms</code>. A tree's step takes "
    "<code>step_ms</code> with the fused kernel, which every one of <code>layers</code> layers runs once, for "
    "<code>fused_us</code> microseconds. Return two numbers: the MAL at which the tree is as fast as the baseline, "
    "with the fused kernel and with one of <code>other_us</code> microseconds in its place.",
    difficulty=2,
    importance=3,
    minutes=8,
    reread="The kernel in the step",
    hints=(
        "First the step with the other kernel: what leaves it, and what comes in?",
        "Equal speed: MAL / step = baseline_mal / baseline_ms.",
        "MAL = baseline_mal * step / baseline_ms, once with step_ms and once with "
        "step_ms + layers * (other_us - fused_us) / 1000.",
    ),
    solution=break_even,
    explanation="The MAL that is needed grows like the step. The exchange takes the fused kernel out of every layer "
    "and puts the other one in; a thousand microseconds are a millisecond.",
    properties=(
        Property("with the fused kernel both are as fast", _break_even_is(0)),
        Property("with the other kernel in its place both are as fast", _break_even_is(1)),
    ),
    behaviour=lambda answer: [_pair(lambda c=c: answer(*c[1:])) for c in KERNELS],
    misconceptions=(
        Misconception("The kernel was exchanged in one layer. Every layer runs it in every step.", wrong_one_layer),
        Misconception(
            "The other kernel was added and the fused one kept: what is exchanged must also leave the step.",
            wrong_both_kernels,
        ),
        Misconception(
            "This is the break-even with a baseline of one token per step. A chain emits more than that.",
            wrong_against_plain,
        ),
        Misconception("Upside down: a longer step needs more tokens, not fewer.", wrong_upside_down),
        Misconception("Microseconds were taken for milliseconds; a millisecond has a thousand of them.", wrong_units),
    ),
)


# choose_budget


class Curves(NamedTuple):
    """Arguments of ``choose_budget``."""

    name: str
    mal: Mapping[int, float]
    step_ms: Mapping[int, float]
    plain_ms: float


CURVES = (
    Curves("trees for free", {16: 3.0, 32: 3.5, 64: 3.9}, {16: 10.0, 32: 10.0, 64: 10.0}, 10.0),
    Curves("the middle is best", {16: 3.0, 32: 3.6, 64: 3.9}, {16: 12.0, 32: 13.0, 64: 16.0}, 10.0),
    Curves("the smallest is best", {16: 3.0, 32: 3.3, 64: 3.5}, {16: 12.0, 32: 16.0, 64: 24.0}, 10.0),
    Curves("no tree pays", {16: 1.4, 32: 1.5, 64: 1.6}, {16: 16.0, 32: 20.0, 64: 30.0}, 10.0),
    Curves("a dip on the way", {16: 3.0, 32: 3.1, 64: 4.5}, {16: 12.0, 32: 13.0, 64: 16.0}, 10.0),
)

Choice = Callable[[Mapping[int, float], Mapping[int, float], float], int]


def wrong_longest(mal: Mapping[int, float], step_ms: Mapping[int, float], plain_ms: float) -> int:
    return max(mal, key=lambda budget: mal[budget])


def wrong_per_node(mal: Mapping[int, float], step_ms: Mapping[int, float], plain_ms: float) -> int:
    return max(mal, key=lambda budget: mal[budget] / budget)


def wrong_always_a_tree(mal: Mapping[int, float], step_ms: Mapping[int, float], plain_ms: float) -> int:
    return max(mal, key=lambda budget: mal[budget] / step_ms[budget])


def wrong_first_decline(mal: Mapping[int, float], step_ms: Mapping[int, float], plain_ms: float) -> int:
    best = 0
    for budget in sorted(mal):
        speed = mal[best] / step_ms[best] if best else 1.0 / plain_ms
        if mal[budget] / step_ms[budget] <= speed:
            break
        best = budget
    return best


def _chooses(cases: tuple[Curves, ...]) -> Callable[[Choice], str]:
    def complaint(answer: Choice) -> str:
        def one(case: Curves) -> str:
            got, right = answer(dict(case.mal), dict(case.step_ms), case.plain_ms), choose_budget(*case[1:])
            return "" if got == right else f"got {got!r}, but {right or 'no tree (0)'} is faster"

        return failing(cases, one)

    return complaint


CHOOSE_BUDGET = Exercise(
    name="10.choose_budget",
    title="which tree, if any?",
    task="Write <code>choose_budget(mal, step_ms, plain_ms)</code>. <code>mal</code> and <code>step_ms</code> give MAL "
    "and step length for every budget; a plain step takes <code>plain_ms</code>. Return the budget with the most "
    "tokens per second, or 0 if plain decoding is at least as fast as all of them.",
    difficulty=1,
    importance=2,
    minutes=5,
    reread="Your own numbers",
    hints=(
        "What do you want most of: tokens per step, tokens per node, or tokens per second?",
        "Plain decoding is a budget too: 0 nodes, MAL 1, plain_ms.",
        "Put 0 with 1 / plain_ms beside all mal[b] / step_ms[b], and take the largest.",
    ),
    solution=choose_budget,
    explanation="Speed is MAL over step length. Both grow with the budget, so neither decides alone; and a MAL above 1 "
    "does not yet beat plain decoding.",
    properties=(
        Property("if trees cost nothing, the largest is best", _chooses(CURVES[:1])),
        Property("the budget with the most tokens per second", _chooses((*CURVES[1:3], CURVES[4]))),
        Property("no tree at all where plain decoding is faster", _chooses(CURVES[3:4])),
    ),
    behaviour=lambda answer: [_number(lambda c=c: answer(dict(c.mal), dict(c.step_ms), c.plain_ms)) for c in CURVES],
    misconceptions=(
        Misconception("The largest MAL was taken. It comes with the longest step.", wrong_longest),
        Misconception(
            "Tokens per node: that always favours small trees. Nodes are not what you pay with, seconds are.",
            wrong_per_node,
        ),
        Misconception(
            "Plain decoding was left out. Where no tree pays, the best tree still slows you down.", wrong_always_a_tree
        ),
        Misconception(
            "It stopped at the first decline. Measured curves have dips; look at all budgets.", wrong_first_decline
        ),
    ),
)

EXERCISES_10 = (STEP_RATIO, BREAK_EVEN, CHOOSE_BUDGET)


def _number(value: Callable[[], Any]) -> Any:
    """A number, or what was raised in its place: some wrong answers divide by zero on some cases."""
    try:
        return float(value())
    except ZeroDivisionError:
        return "divides by zero"


def _pair(value: Callable[[], Any]) -> list[float]:
    return [float(part) for part in value()]
