"""A report in its three forms: JSON, Markdown tables and an HTML page, each with its provenance."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tfm_lab.evaluation.page import html_page
from tfm_lab.evaluation.statistics import LEVEL, RESAMPLES, SEED
from tfm_lab.evaluation.summary import Gain, PairedGain, Summary
from tfm_lab.evaluation.tables import Table
from tfm_lab.files import write_together

BOOTSTRAP = f"{RESAMPLES} resamples of contexts, percentile, {LEVEL:.0%}, seed {SEED}"
"""How every interval of a report was made."""


def publish(
    path: Path,
    title: str,
    document: dict[str, Any],
    notes: Sequence[str],
    tables: Sequence[Table],
    figures: Sequence[go.Figure] = (),
) -> None:
    """Write ``path`` (JSON), and tables (``.md``) and a page with figures (``.html``) beside it; all or nothing.

    Args:
        document: the JSON, with what it is, its provenance and its setup; NaN becomes null.
        notes: sentences that stand above the tables.

    Raises:
        OSError: if a file cannot be written.
    """
    what = f"{document['what'].capitalize()}."
    facts = document["provenance"] | document["setup"]
    listed = ", ".join(f"{name}: {value}" for name, value in facts.items())
    text = [f"# {title}", "", f"{what} {listed}.", "", *(f"{note}\n" for note in notes)]
    for table in tables:
        text += [f"## {table.title}", "", *([table.note, ""] if table.note else []), table.markdown()]
    files = {
        path: json.dumps(_without_nan(document), indent=1, allow_nan=False) + "\n",
        path.with_suffix(".md"): "\n".join(text),
        path.with_suffix(".html"): html_page(title, [what, *notes], facts, figures, tables),
    }
    write_together(files)


def summary_to_dict(summary: Summary) -> dict[str, Any]:
    """A summary as plain JSON, its setting field by field."""
    fields = summary._asdict()
    setting, interval = fields.pop("setting"), fields.pop("interval")
    fields["mal"] = interval._asdict() | {"standard_error": summary.mal.standard_error}
    fields["macro"] = summary.macro._asdict()
    fields["acceptance"] = [round(share, 4) for share in summary.acceptance]
    fields["conditional"] = [round(share, 4) for share in summary.conditional]
    return asdict(setting) | fields


def gain_to_dict(found: Gain) -> dict[str, Any]:
    """A gain of one setting over another as plain JSON."""
    return asdict(found.setting) | {"baseline": found.baseline.method} | gain_figures(found)


def gain_figures(found: Gain | PairedGain) -> dict[str, Any]:
    """The figures of a gain alone."""
    return {
        "contexts": found.contexts,
        "gain": found.overall.value,
        "standard_error": found.overall.standard_error,
        "low": found.interval.low,
        "high": found.interval.high,
        "macro": found.macro._asdict(),
    }


def _without_nan(value: Any) -> Any:
    """Null in place of NaN, which JSON does not have: the standard error of a single context, for example."""
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value
