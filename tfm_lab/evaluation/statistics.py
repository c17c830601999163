"""Percentile-bootstrap intervals for ratios of sums over texts, and for averages of such ratios over kinds of text."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES, SEED, LEVEL = 2000, 0, 0.95

Counts = NDArray[np.float64]
"""[texts, columns] (or [resamples, columns] once summed over texts)."""


class Bounded(NamedTuple):
    """A figure with its 95 % interval (NaN with fewer than two texts in any group)."""

    value: float
    low: float
    high: float


UNKNOWN = Bounded(float("nan"), float("nan"), float("nan"))


def mean_ratio(groups: Sequence[Counts]) -> Bounded:
    """The mean over groups of sum(column 0) / sum(column 1).

    One group gives a ratio over all texts: MAL, with committed tokens and target calls as columns. Several groups give
    a macro average, in which every kind of text counts alike; they are then resampled one by one (stratified).
    """
    return bootstrap(groups, _mean_of_ratios)


def gain_of_ratios(groups: Sequence[Counts]) -> Bounded:
    """Relative gain of :func:`mean_ratio` over columns 0 and 1 against columns 2 and 3 of the same texts (paired)."""
    return bootstrap(
        groups,
        lambda sums: _mean_of_ratios([s[:, :2] for s in sums]) / _mean_of_ratios([s[:, 2:] for s in sums]) - 1.0,
    )


def bootstrap(
    groups: Sequence[Counts], figure: Callable[[Sequence[Counts]], NDArray[np.float64]], resamples: int = RESAMPLES
) -> Bounded:
    """Value of a figure, and the percentile interval from resampling texts with replacement within each group.

    The generator is seeded afresh on every call, so an interval does not depend on what was computed before.

    Args:
        groups: independent texts, one row each.
        figure: from sums over texts, one row per resample, to one value per resample.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        if not groups or any(len(group) == 0 for group in groups):
            return UNKNOWN
        value = float(figure([group.sum(axis=0, keepdims=True) for group in groups])[0])
        if any(len(group) < 2 for group in groups):
            return Bounded(value, float("nan"), float("nan"))
        generator = np.random.default_rng(SEED)
        sums = [
            generator.multinomial(len(group), np.full(len(group), 1 / len(group)), size=resamples) @ group
            for group in groups
        ]
        values = figure(sums)
        values = values[np.isfinite(values)]
    if values.size == 0:
        return Bounded(value, float("nan"), float("nan"))
    low, high = np.percentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Bounded(value, float(low), float(high))


def _mean_of_ratios(sums: Sequence[Counts]) -> NDArray[np.float64]:
    return np.mean([s[:, 0] / s[:, 1] for s in sums], axis=0)
