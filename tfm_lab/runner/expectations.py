"""``notebooks/expected.toml``: what each recorded number must be, and why.

    [06_growing_trees."mal.woven"]
    kind = "exact"
    value = 3.5836
    why = "growing 4 nodes a round finds the same tree as one at a time"
    headline = "tokens per target call"    # optional: shown on top of the report

Keys by kind: exact needs ``value``; identity ``at_most``; stat ``value`` and ``std`` (standard deviation of one
sample); trained ``at_least``, ``at_most`` or both; info nothing.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal, cast

from tfm_lab.recording import Metric, MetricKind, Scalar

EXACT_TOLERANCE = 1e-9
Z_LIMIT = NormalDist().inv_cdf(1 - 1e-6 / 2)  # 4.89: one run in a million fails by chance
FIELDS: dict[str, tuple[set[str], set[str]]] = {  # by kind: needed, allowed
    "exact": ({"value"}, {"value"}),
    "identity": ({"at_most"}, {"at_most"}),
    "stat": ({"value", "std"}, {"value", "std"}),
    "trained": (set(), {"at_least", "at_most"}),
    "info": (set(), set()),
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """What one metric must satisfy; the module docstring says which fields go with which kind."""

    name: str
    kind: MetricKind
    why: str
    value: Scalar | None = None
    at_least: float | None = None
    at_most: float | None = None
    std: float | None = None
    headline: str = ""


Status = Literal["ok", "failed", "kept", "not compared"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A metric held against its expectation.

    Attributes:
        metric: what was recorded; None if it is missing.
        expectation: what was expected; None if nothing is.
        status: ``kept`` for an info metric, ``not compared`` where changed parameters make the comparison meaningless.
        sentence: the reason of a failure, otherwise empty.
    """

    metric: Metric | None
    expectation: Expectation | None
    status: Status
    sentence: str = ""


def load_expectations(path: Path) -> dict[str, dict[str, Expectation]]:
    """Expectations by notebook (file name without suffix) and metric; empty if the file does not exist.

    Raises:
        ValueError: if the file is no TOML, or an entry lacks a field, has an unknown one or gives no reason.
    """
    if not path.exists():
        return {}
    try:
        tables = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name} is not valid TOML: {error}") from None
    return {
        notebook: {name: _read_entry(f"{path.name}, {notebook}, {name}", name, entry) for name, entry in table.items()}
        for notebook, table in tables.items()
    }


def compare(
    metrics: Mapping[str, Metric], expected: Mapping[str, Expectation], default_parameters: bool
) -> list[Verdict]:
    """Verdicts for every recorded and every expected metric.

    Args:
        metrics: what the notebook recorded.
        expected: what it must record.
        default_parameters: False if the caller changed a parameter; then only identities are compared, and only they
            must be there: how many of the others there are may hang on the parameter.
    """
    verdicts = [_judge(metric, expected.get(name), default_parameters) for name, metric in metrics.items()]
    needed = [item for item in expected.values() if default_parameters or item.kind == "identity"]
    missing = [item for item in needed if item.name not in metrics]
    return verdicts + [Verdict(None, item, "failed", f"metric {item.name} was not recorded") for item in missing]


def _judge(metric: Metric, expectation: Expectation | None, default_parameters: bool) -> Verdict:
    if expectation is None:
        if metric.kind == "info":
            return Verdict(metric, None, "kept")
        sentence = f"metric {metric.name} = {metric.value!r} has no entry in expected.toml: add one and say why"
        return Verdict(metric, None, "failed", sentence)
    if metric.kind != expectation.kind:
        sentence = f"metric {metric.name} was recorded as {metric.kind}, expected.toml says {expectation.kind}"
        return Verdict(metric, expectation, "failed", sentence)
    if metric.kind == "info":
        return Verdict(metric, expectation, "kept")
    if not default_parameters and metric.kind != "identity":
        return Verdict(metric, expectation, "not compared")
    complaint = _complaint(metric, expectation)
    if not complaint:
        return Verdict(metric, expectation, "ok")
    return Verdict(metric, expectation, "failed", f"metric {metric.name} = {metric.value!r} {complaint}")


def _complaint(metric: Metric, expectation: Expectation) -> str:
    """Why the value breaks the expectation of the same kind; empty if it does not."""
    if metric.kind == "exact":
        return "" if _equal(metric.value, expectation.value) else f"differs from {expectation.value!r}"
    value = float(metric.value)
    if metric.kind == "stat":
        spread = cast(float, expectation.std) / cast(int, metric.n) ** 0.5
        z = (value - float(cast(float, expectation.value))) / spread
        return "" if abs(z) <= Z_LIMIT else f"is {z:+.1f} standard errors from {expectation.value!r} (n = {metric.n})"
    if expectation.at_least is not None and value < expectation.at_least:
        return f"is below {expectation.at_least!r}"
    if expectation.at_most is not None and value > expectation.at_most:
        return f"is above {expectation.at_most!r}"
    return ""


def _equal(value: Scalar, wanted: Scalar | None) -> bool:
    numbers = [number for number in (value, wanted) if isinstance(number, int | float) and not isinstance(number, bool)]
    if len(numbers) == 2:
        return abs(numbers[0] - numbers[1]) <= EXACT_TOLERANCE
    return type(value) is type(wanted) and value == wanted


def _read_entry(where: str, name: str, entry: object) -> Expectation:
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: write a table with kind, why and the expected value")
    kind = entry.get("kind")
    if kind not in FIELDS:
        raise ValueError(f"{where}: kind must be one of {', '.join(FIELDS)}, got {kind!r}")
    if not str(entry.get("why", "")).strip():
        raise ValueError(f"{where}: write in 'why' why the number must be so")
    needed, allowed = FIELDS[kind]
    unknown = set(entry) - allowed - {"kind", "why", "headline"}
    if unknown:
        raise ValueError(f"{where}: kind {kind} has no {', '.join(sorted(unknown))}")
    if needed - set(entry) or (kind == "trained" and not allowed & set(entry)):
        raise ValueError(f"{where}: kind {kind} needs {', '.join(sorted(needed)) or 'at_least or at_most'}")
    for field in allowed & set(entry) - ({"value"} if kind == "exact" else set()):
        if isinstance(entry[field], bool) or not isinstance(entry[field], int | float):
            raise ValueError(f"{where}: {field} must be a number, got {entry[field]!r}")
    if kind == "stat" and entry["std"] <= 0:
        raise ValueError(f"{where}: std must be positive, got {entry['std']!r}")
    return Expectation(name=name, **entry)
