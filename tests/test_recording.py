"""Recorded metrics: what is accepted, what is refused, what a reader sees."""

import math

import numpy as np
import pytest
import torch

from tfm_lab.recording import Metric, record


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": "MAL woven"}, "lower-case words joined by dots"),
        ({"name": "mal..woven"}, "lower-case words joined by dots"),
        ({"kind": "approximate"}, "exact, identity, stat, trained, info"),
        ({"value": math.nan}, "record a finite number"),
        ({"kind": "identity", "value": -1e-9}, "cannot be"),
        ({"kind": "trained", "value": "high"}, "needs a number"),
        ({"kind": "identity", "value": True}, "needs a number"),
        ({"kind": "stat"}, "give n"),
        ({"n": 100}, "give n"),
        ({"kind": "stat", "n": 0}, "at least 1"),
    ],
)
def test_metrics_that_mean_nothing_are_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Metric(**({"name": "mal.woven", "value": 3.5, "kind": "exact"} | fields))  # pyright: ignore[reportArgumentType]


def test_outside_a_notebook_the_metric_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    record("mal.woven", 3.5, "stat", n=100)
    assert capsys.readouterr().out == "metric mal.woven = 3.5  (stat, n = 100)\n"


@pytest.mark.parametrize("value", [torch.tensor(2.5), torch.tensor([2.5]), np.float64(2.5), np.array([2.5])])
def test_single_elements_count_as_numbers(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    record("mal", value, "info")  # pyright: ignore[reportArgumentType]
    assert capsys.readouterr().out == "metric mal = 2.5  (info)\n"


@pytest.mark.unchecked
@pytest.mark.parametrize("value", [torch.ones(2), np.ones(2), [1.0], None])
def test_what_is_no_single_value_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="metric mal: record"):
        record("mal", value, "info")  # pyright: ignore[reportArgumentType]
