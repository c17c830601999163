"""Bring ``expected.toml`` up to date with what notebooks recorded, keeping its comments and order.

Only what one run can know is written: values of exact metrics, and first bounds of identities. The entries of stat and
trained metrics come from theory or from many runs, so a person writes them. A new entry has an empty ``why``, which the
next run refuses until somebody has filled it in.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from tfm_lab.recording import Metric, Scalar
from tfm_lab.runner.expectations import Expectation, Verdict, compare, load_expectations

SMALLEST_BOUND = 1e-12


@dataclass(frozen=True, slots=True)
class Change:
    """One edit. ``before`` is None for a new entry, ``after`` for a removed one."""

    notebook: str
    metric: str
    before: Scalar | None
    after: Scalar | None


def update_expectations(path: Path, recorded: Mapping[str, Mapping[str, Metric]]) -> list[Change]:
    """Rewrite the file where the recorded metrics call for it; returns the edits.

    Args:
        path: ``expected.toml``; created if needed, left alone if nothing changes.
        recorded: metrics by notebook (file name without suffix) and name.

    Raises:
        ValueError: if the file is not a valid set of expectations.
    """
    expected = load_expectations(path)
    document = tomlkit.parse(path.read_text()) if path.exists() else tomlkit.document()
    changes: list[Change] = []
    for notebook, metrics in recorded.items():
        entries: Any = document.setdefault(notebook, tomlkit.table())
        for verdict in compare(metrics, expected.get(notebook, {}), default_parameters=True):
            change = _edit(notebook, entries, verdict)
            if change is not None:
                changes.append(change)
    if changes:
        path.write_text(tomlkit.dumps(document))
    return changes


def _edit(notebook: str, entries: Any, verdict: Verdict) -> Change | None:
    """Change one table of the file so that the verdict would be good; None if there is nothing to do or to know."""
    metric, expectation = verdict.metric, verdict.expectation
    if metric is None and expectation is not None:
        del entries[expectation.name]
        return Change(notebook, expectation.name, _bound(expectation), None)
    if metric is None or verdict.status != "failed" or metric.kind not in ("exact", "identity"):
        return None
    if expectation is None:
        entry = tomlkit.table()
        after = metric.value if metric.kind == "exact" else _first_bound(float(metric.value))
        entry.update({"kind": metric.kind, "value" if metric.kind == "exact" else "at_most": after, "why": ""})
        entries[metric.name] = entry
        return Change(notebook, metric.name, None, after)
    if metric.kind == expectation.kind == "exact":
        entries[metric.name]["value"] = metric.value
        return Change(notebook, metric.name, expectation.value, metric.value)
    return None


def _bound(expectation: Expectation) -> Scalar:
    """The expectation as one value for the table of changes."""
    candidates = (expectation.value, expectation.at_most, expectation.at_least)
    return next((value for value in candidates if value is not None), expectation.kind)


def _first_bound(error: float) -> float:
    """The power of ten at least ten times above an observed error."""
    return max(SMALLEST_BOUND, 10.0 ** (math.ceil(math.log10(error)) + 1)) if error else SMALLEST_BOUND
