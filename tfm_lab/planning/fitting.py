"""Fit the coefficients of a step to a table of measured steps, and predict a configuration that was not measured.

    seconds = step + row * rows + draft * drafted + call * calls

Least squares of relative errors, so that short steps count as much as long ones. Within one table floor and rest are
one constant, and Gated DeltaNet's time per node is part of the time per row: both grow with the nodes alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfm_lab.planning.costs import PLAIN, Plan

NAMES = ("step", "row", "draft", "call")
SMALLEST_PART = 1e-9


class MeasuredStep(NamedTuple):
    """A plan and the mean seconds of its steps, measured on one device with one batch size."""

    plan: Plan
    seconds: float


class FittedCosts(NamedTuple):
    """Seconds per step, per row, per drafter pass and per call of the Weaver."""

    step: float
    row: float
    draft: float
    call: float

    def predict(self, plan: Plan) -> float:
        """Seconds of a step of this plan."""
        return float(np.dot(self, _features(plan)))


class HeldOut(NamedTuple):
    """A step that the fit did not see, and what the fit says about it; seconds."""

    plan: Plan
    measured: float
    predicted: float

    @property
    def relative_error(self) -> float:
        return self.predicted / self.measured - 1.0


def fit_costs(table: Sequence[MeasuredStep]) -> FittedCosts:
    """The coefficients with the smallest sum of squared relative errors.

    Raises:
        ValueError: if a time is not positive, or the table cannot tell the coefficients apart.
    """
    if any(not entry.seconds > 0.0 for entry in table):
        raise ValueError("every measured step needs a time above 0 seconds")
    seconds = np.array([entry.seconds for entry in table], dtype=float)
    rows = np.array([_features(entry.plan) for entry in table], dtype=float).reshape(len(table), len(NAMES))
    scale = np.maximum(np.abs(rows).max(axis=0, initial=0.0), 1.0)
    weighted = rows / scale / seconds[:, None]
    singular = np.linalg.svd(weighted * seconds.mean() if len(table) else weighted, compute_uv=False)
    if len(table) < len(NAMES) or singular[-1] <= SMALLEST_PART * singular[0]:
        raise ValueError(
            "these steps cannot tell the time of a step, a row, a draft and a call apart: measure plain decoding, two "
            "budgets without a Weaver, and one with it"
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
        found.append(HeldOut(entry.plan, entry.seconds, fitted.predict(entry.plan)))
    return found


def _features(plan: Plan) -> tuple[float, float, float, float]:
    return 1.0, float(plan.rows), float(plan.method != PLAIN), float(plan.calls)
