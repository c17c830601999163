"""Intervals: against a slow direct computation, and whether they cover what they should."""

import math

import numpy as np
import pytest

from tfm_lab.evaluation.statistics import RESAMPLES, SEED, Bounded, Counts, gain_of_ratios, mean_ratio


def texts(generator: np.random.Generator, count: int, mal: float) -> Counts:
    """Committed tokens and target calls of texts whose MAL varies round ``mal``; long and short ones."""
    calls = generator.integers(5, 40, count)
    rates = generator.gamma(8.0, mal / 8.0, count)
    return np.stack([calls * rates, calls], axis=1).astype(np.float64)


def by_hand(groups: list[Counts]) -> tuple[float, float]:
    """Percentile interval of the mean of ratios, one resample at a time, texts listed as often as they are drawn."""
    generator = np.random.default_rng(SEED)
    draws = [
        [generator.multinomial(len(group), [1 / len(group)] * len(group)) for _ in range(RESAMPLES)] for group in groups
    ]
    figures = []
    for resample in range(RESAMPLES):
        ratios = []
        for group, drawn in zip(groups, draws, strict=True):
            listed = [text for text, times in zip(group.tolist(), drawn[resample], strict=True) for _ in range(times)]
            assert len(listed) == len(group)
            ratios.append(sum(text[0] for text in listed) / sum(text[1] for text in listed))
        figures.append(sum(ratios) / len(ratios))
    figures.sort()

    def percentile(share: float) -> float:
        place = share * (RESAMPLES - 1)
        low = math.floor(place)
        return figures[low] + (place - low) * (figures[low + 1] - figures[low])

    return percentile(0.025), percentile(0.975)


@pytest.mark.parametrize("sizes", [(12,), (7, 15)])
def test_an_interval_is_that_of_a_direct_slow_computation(sizes: tuple[int, ...]) -> None:
    generator = np.random.default_rng(1)
    groups = [texts(generator, size, 2.0 + size / 10) for size in sizes]
    got = mean_ratio(groups)
    assert got.value == pytest.approx(np.mean([g[:, 0].sum() / g[:, 1].sum() for g in groups]))
    assert (got.low, got.high) == pytest.approx(by_hand(groups))
    assert got.low < got.value < got.high


def test_a_macro_average_counts_kinds_alike_however_many_texts_they_have() -> None:
    many, few = np.array([[30.0, 10.0]] * 100), np.array([[10.0, 10.0]] * 2)
    assert mean_ratio([many, few]) == pytest.approx((2.0, 2.0, 2.0))
    assert mean_ratio([np.concatenate([many, few])]).value == pytest.approx(3020 / 1020)


def test_a_gain_is_paired() -> None:
    """Ten per cent more on every text, however hard, has no spread at all."""
    generator = np.random.default_rng(2)
    baseline = texts(generator, 30, 3.0)
    better = baseline * [1.1, 1.0]
    gain = gain_of_ratios([np.concatenate([better, baseline], axis=1)])
    assert gain == pytest.approx((0.1, 0.1, 0.1))
    halves = [np.concatenate([better[part], baseline[part]], axis=1) for part in (slice(10), slice(10, 30))]
    assert gain_of_ratios(halves) == pytest.approx((0.1, 0.1, 0.1))


def test_too_few_texts_have_no_interval() -> None:
    one, two = np.array([[6.0, 2.0]]), np.array([[6.0, 2.0], [4.0, 2.0]])
    assert mean_ratio([one]).value == 3.0
    assert math.isnan(mean_ratio([one]).low)
    assert math.isnan(mean_ratio([two, one]).high)
    assert not math.isnan(mean_ratio([two, two]).high)
    for nothing in ([], [np.zeros((0, 2))], [np.zeros((3, 2))]):
        assert all(math.isnan(figure) for figure in mean_ratio(nothing))


def test_a_text_without_calls_does_no_harm() -> None:
    counts = np.array([[6.0, 2.0], [0.0, 0.0], [8.0, 4.0]])
    interval = mean_ratio([counts])
    assert interval.value == pytest.approx(14 / 6)
    assert interval.low >= 2.0
    assert interval.high <= 3.0


def coverage(intervals: list[Bounded], truth: float) -> float:
    return sum(interval.low <= truth <= interval.high for interval in intervals) / len(intervals)


def test_intervals_cover_the_truth_about_as_often_as_they_claim() -> None:
    """95 % claimed; a percentile bootstrap over 40 texts reaches a little less. 150 experiments: error about 2 %."""
    generator = np.random.default_rng(3)
    plain, macro, gains = [], [], []
    for _ in range(150):
        kinds = [texts(generator, 40, mal) for mal in (2.0, 5.0)]
        plain.append(mean_ratio(kinds[:1]))
        macro.append(mean_ratio(kinds))
        better = kinds[0] * np.stack([generator.uniform(0.9, 1.5, 40), np.ones(40)], axis=1)
        gains.append(gain_of_ratios([np.concatenate([better, kinds[0]], axis=1)]))
    for intervals, truth in ((plain, 2.0), (macro, 3.5), (gains, 0.2)):
        assert 0.88 < coverage(intervals, truth) < 0.995
