"""From accepted tokens and step seconds to speed: tokens per second, break-even lengths, the best plan."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tfm_lab.planning.costs import PLAIN, Hardware, ModelCosts, Plan, StepSeconds, rule_width, step_seconds
from tfm_lab.planning.curves import METHODS, MalCurve
from tfm_lab.planning.fitting import FittedCosts
from tfm_lab.planning.published import KernelName

WIDTHS = (1, 2, 4, 8, 16)


class Outcome(NamedTuple):
    """A plan and what comes of it.

    Attributes:
        mal: tokens per step and request.
        step: seconds of a step by part.
        speedup: over plain decoding of the same batch.
    """

    plan: Plan
    mal: float
    step: StepSeconds
    speedup: float

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together."""
        return self.plan.batch * tokens_per_second(self.mal, self.step.total)


def tokens_per_second(mal: float, seconds: float) -> float:
    """Of one request: MAL / step seconds."""
    return mal / seconds


def break_even_mal(step: float, baseline_step: float, baseline_mal: float = 1.0) -> float:
    """MAL at which a step of this length is as fast as the baseline; against plain decoding its MAL is 1."""
    return baseline_mal * step / baseline_step


def plans(curve: MalCurve, batch: int = 1, kernel: KernelName = "fused", *, by_rule: bool = False) -> list[Plan]:
    """Plain decoding, and every method and budget of the curve.

    Args:
        curve: accepted lengths.
        batch, kernel: of every plan.
        by_rule: TfM in the width of the rule alone, in place of all widths up to its budget.
    """
    found = [Plan(PLAIN, batch=batch, kernel=kernel)]
    for method in METHODS:
        for budget in sorted(curve.points.get(method, {})):
            widths = [0]
            if method == "tfm":
                widths = [rule_width(budget)] if by_rule else [width for width in WIDTHS if width <= budget]
            found += [Plan(method, budget, width, batch, kernel) for width in widths]
    return found


def outcomes(
    curve: MalCurve, hardware: Hardware, costs: ModelCosts, batch: int = 1, kernel: KernelName = "fused"
) -> list[Outcome]:
    """Speed of every plan of :func:`plans`, by the parts of a step."""
    return _judged(curve, plans(curve, batch, kernel), lambda plan: step_seconds(hardware, costs, plan))


def fitted_outcomes(curve: MalCurve, fitted: FittedCosts, context: int) -> list[Outcome]:
    """Speed of every plan of one request, by coefficients that were fitted to measured steps.

    No fit knows a batch, and that of the full-size model saw trees of 15 or 16 calls alone: TfM has the rule's width.

    Args:
        curve: accepted lengths.
        fitted: costs.
        context: committed tokens.
    """
    return _judged(curve, plans(curve, by_rule=True), lambda plan: fitted.parts(plan, context))


def _judged(curve: MalCurve, listed: Sequence[Plan], seconds: Callable[[Plan], StepSeconds]) -> list[Outcome]:
    """All plans against the first, which is plain decoding."""
    plain = seconds(listed[0]).total
    found: list[Outcome] = []
    for plan in listed:
        step, mal = seconds(plan), curve.mal(plan.method, plan.budget, plan.width)
        found.append(Outcome(plan, mal, step, mal * plain / step.total))
    return found


def fastest(found: Iterable[Outcome]) -> Outcome:
    """The largest speed-up; of equal ones that with the smallest budget, then the fewest calls of the Weaver."""
    return max(found, key=lambda item: (item.speedup, -item.plan.budget, -item.plan.calls))


def fastest_by_method(found: Iterable[Outcome]) -> dict[str, Outcome]:
    """For every method its best plan."""
    by_method: dict[str, list[Outcome]] = {}
    for item in found:
        by_method.setdefault(item.plan.method, []).append(item)
    return {method: fastest(items) for method, items in by_method.items()}


def by_batch(
    curve: MalCurve, hardware: Hardware, costs: ModelCosts, batches: Sequence[int], kernel: KernelName = "fused"
) -> Mapping[int, list[Outcome]]:
    """For every batch size the outcomes of all plans."""
    return {batch: outcomes(curve, hardware, costs, batch, kernel) for batch in batches}
