"""Fit the coefficients of a step to a table of measured steps, and predict a configuration that was not measured.

    seconds = step + row * rows + draft * drafted + call * calls + context * (token * batch + token_row * rows)

Least squares of relative errors, so that short steps count as much as long ones. Within one table floor and rest are
one constant, and Gated DeltaNet's time per node is part of the time per row: both grow with the nodes alone. The last
two terms are attention over the committed tokens: each request's cache is read once, and every row looks at all of it.
They are fitted where the contexts of a table differ; a table of one context holds them in ``step`` and ``row``.

There is no term for further requests. More of them are more rows, but also more caches, memories and drafts, which a
table with one batch size cannot tell apart.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm_lab.planning.costs import PLAIN, Plan, StepSeconds

SMALLEST_PART = 1e-9


class MeasuredStep(NamedTuple):
    """A plan and the seconds of its steps, measured on one device with one batch size.

    Attributes:
        context: committed tokens of a request.
    """

    plan: Plan
    seconds: float
    context: int = 0


class FittedCosts(NamedTuple):
    """Seconds per step, row, drafter pass, call of the Weaver, token of context, and token of context that a row sees.

    The last two are 0 for a table of one context: such a fit says nothing about another one.
    """

    step: float
    row: float
    draft: float
    call: float
    token: float = 0.0
    token_row: float = 0.0

    def predict(self, plan: Plan, context: int = 0) -> float:
        """Seconds of a step of this plan."""
        return self.parts(plan, context).total

    def parts(self, plan: Plan, context: int = 0) -> StepSeconds:
        """The same by part. Verification is in the time per row, the rest in that of a step."""
        floor = self.step + self.token * plan.batch * context
        rows = plan.rows * (self.row + self.token_row * context)
        draft = self.draft if plan.method != PLAIN else 0.0
        return StepSeconds(floor, rows, 0.0, draft, self.call * plan.calls, 0.0)


class HeldOut(NamedTuple):
    """A step that the fit did not see, and what the fit says about it; seconds."""

    step: MeasuredStep
    predicted: float

    @property
    def relative_error(self) -> float:
        return self.predicted / self.step.seconds - 1.0


def fit_costs(table: Sequence[MeasuredStep]) -> FittedCosts:
    """The coefficients with the smallest sum of squared relative errors.

    Raises:
        ValueError: if a time is not positive, or the table cannot tell the coefficients apart.
    """
    if any(not entry.seconds > 0.0 for entry in table):
        raise ValueError("every measured step needs a time above 0 seconds")
    several = len({entry.context for entry in table}) > 1
    seconds = np.array([entry.seconds for entry in table], dtype=float)
    rows = np.array([_features(entry, several) for entry in table], dtype=float).reshape(
        len(table), 6 if several else 4
    )
    scale = np.maximum(np.abs(rows).max(axis=0, initial=0.0), 1.0)
    weighted = rows / scale / seconds[:, None]
    singular = np.linalg.svd(weighted * seconds.mean() if len(table) else weighted, compute_uv=False)
    if len(table) < rows.shape[1] or singular[-1] <= SMALLEST_PART * singular[0]:
        raise ValueError(
            "these steps cannot tell the time of a step, a row, a draft and a call apart: measure plain decoding, two "
            "budgets without a Weaver, and one with it; for several contexts, two budgets in two of them"
        )
    solution = np.linalg.lstsq(weighted, np.ones(len(table)), rcond=None)[0] / scale
    return FittedCosts(*map(float, solution))


def leave_one_out(table: Sequence[MeasuredStep]) -> list[HeldOut]:
    """Every step that the others suffice to predict, predicted from them."""
    found: list[HeldOut] = []
    for place, entry in enumerate(table):
        try:
            fitted = fit_costs([*table[:place], *table[place + 1 :]])
        except ValueError:
            continue
        found.append(HeldOut(entry, fitted.predict(entry.plan, entry.context)))
    return found


def _features(entry: MeasuredStep, several: bool) -> tuple[float, ...]:
    plan, context = entry.plan, entry.context
    alone = (1.0, float(plan.rows), float(plan.method != PLAIN), float(plan.calls))
    return (*alone, float(plan.batch * context), float(plan.rows * context)) if several else alone
