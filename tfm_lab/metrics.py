"""Figures from decode traces: mean accepted length, acceptance by depth, stage times, with standard errors.

Counts of several traces are added before anything is divided, so that a figure for a collection is what one would get
from one long trace; it is never an average of ratios.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tfm_lab.distributions import TargetRows
from tfm_lab.trace import DecodeStep, DecodeTrace, StageSeconds
from tfm_lab.tree import DraftTree


class Estimate(NamedTuple):
    """A figure and its standard error over independent texts (NaN with fewer than two)."""

    value: float
    standard_error: float


class DepthAcceptance(NamedTuple):
    """Acceptance at one depth.

    Attributes:
        depth: 1 for the first drafted token of a path.
        reached: steps whose tree had a node of this depth below the accepted path so far.
        accepted: steps that accepted a token at this depth.
        steps: all steps.
    """

    depth: int
    reached: int
    accepted: int
    steps: int

    @property
    def conditional(self) -> float:
        """Share accepted among the steps that could have: acceptance given that the path got here."""
        return self.accepted / self.reached if self.reached else float("nan")

    @property
    def cumulative(self) -> float:
        """Share of all steps that accepted at least this many drafts; these sum to the mean of accepted drafts."""
        return self.accepted / self.steps if self.steps else float("nan")


def mean_accepted_length(traces: Sequence[DecodeTrace]) -> Estimate:
    """MAL over several texts: tokens committed per target call, bonus included.

    The standard error is that of a ratio estimator, with texts as independent units.
    """
    tokens = [float(sum(len(step.committed) for step in trace.steps)) for trace in traces]
    calls = [float(trace.target_calls) for trace in traces]
    return ratio_estimate(tokens, calls)


def ratio_estimate(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """sum of numerators / sum of denominators, with its delta-method standard error.

    Raises:
        ValueError: if the two do not pair up.
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} numerators do not pair up with {len(denominators)} denominators")
    total = sum(denominators)
    count = len(denominators)
    if total == 0.0:
        return Estimate(float("nan"), float("nan"))
    ratio = sum(numerators) / total
    if count < 2:
        return Estimate(ratio, float("nan"))
    spread = sum((n - ratio * d) ** 2 for n, d in zip(numerators, denominators, strict=True)) / (count - 1)
    return Estimate(ratio, math.sqrt(spread * count) / total)


def acceptance_by_depth(traces: Iterable[DecodeTrace]) -> tuple[DepthAcceptance, ...]:
    """Acceptance at every depth that any tree reached."""
    steps = [step for trace in traces for step in trace.steps]
    deepest = max((step.tree.max_depth for step in steps), default=0)
    reached, accepted = [0] * (deepest + 1), [0] * (deepest + 1)
    for step in steps:
        for depth in range(1, step.accepted + 1):
            reached[depth] += 1
            accepted[depth] += 1
        if _has_children(step, step.acceptance.path[-1]):
            reached[step.accepted + 1] += 1
    return tuple(DepthAcceptance(depth, reached[depth], accepted[depth], len(steps)) for depth in range(1, deepest + 1))


def expected_tokens_per_call(tree: DraftTree, target: TargetRows) -> float:
    """Expected tokens of one step under membership verification: 1 + sum over proposed nodes of p(path).

    p(path) is the product of the target's probabilities along the path from the root, which is the probability that
    the target's own sample goes through the node; the 1 is the bonus token. Exact, no sampling.

    Args:
        tree: any tree with this kind of verification (``target_sample``).
        target: the target's distributions, one row per node.
    """
    mass = [1.0]
    parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
    for node in range(1, len(tree)):
        mass.append(mass[parents[node]] * float(target.probabilities(parents[node])[tokens[node]]))
    return sum(mass)


def mean_stage_seconds(traces: Iterable[DecodeTrace]) -> StageSeconds:
    """Mean seconds per step in each stage; NaN without steps."""
    steps = [step for trace in traces for step in trace.steps]
    if not steps:
        return StageSeconds(*[float("nan")] * 5)
    return StageSeconds(*(sum(column) / len(steps) for column in zip(*(step.seconds for step in steps), strict=True)))


def _has_children(step: DecodeStep, node: int) -> bool:
    return bool((step.tree.parents == node).any())
