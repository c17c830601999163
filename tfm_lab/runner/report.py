"""The folder of a run: index page, summary, one page and one frozen notebook each, and the history of all numbers."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import Environment, StrictUndefined

import tfm_lab
from tfm_lab.provenance import commit, device_name
from tfm_lab.recording import Scalar
from tfm_lab.runner.expectations import Expectation, Verdict
from tfm_lab.runner.freeze import freeze, with_outputs_of
from tfm_lab.runner.history import Difference, append_history, read_history, trail
from tfm_lab.runner.page import notebook_page
from tfm_lab.runner.reading import read_notebook
from tfm_lab.runner.series import NotebookReport
from tfm_lab.runner.sweep import numbered, sweep_tables


def write_report(reports: Sequence[NotebookReport], folder: Path, compared: Sequence[Difference] | None = None) -> Path:
    """Write everything below ``folder``; returns the path of the index page.

    Files: ``index.html``, ``summary.md`` for a log or a pull request, ``NAME.html`` and ``notebooks/NAME.ipynb`` for
    each run (``NAME-1``, ``NAME-2`` ... and ``NAME-sweep.csv`` in a sweep; ``NAME-sweep-1.csv`` and so on if notebooks
    of that name in several folders are swept), and ``metrics.jsonl``, to which each call appends one line per recorded
    number.

    Args:
        reports: what ran.
        folder: made if it is missing; pages of the same names are overwritten.
        compared: what changed since an older run; None if no comparison was asked for.
    """
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    stems = numbered([report.job.name for report in reports])
    for report, stem in zip(reports, stems, strict=True):
        _write_notebook(report, folder, stem)
    time = datetime.now(UTC).isoformat(timespec="seconds")
    origin = {
        "tfm_lab": tfm_lab.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "processor": device_name("cpu"),
    }
    history_file = folder / "metrics.jsonl"
    append_history(reports, history_file, {"time": time, **origin})
    history = read_history(history_file)
    trails = {
        (stem, name): trail(history, report, name)
        for report, stem in zip(reports, stems, strict=True)
        for name in report.metrics
    }
    sweeps = sweep_tables(reports)
    for sweep in sweeps:
        (folder / f"{sweep.stem}.csv").write_text(sweep.csv())
    facts: dict[str, Any] = {
        "time": time.replace("T", " ").replace("+00:00", " UTC"),
        "runs": list(zip(reports, stems, strict=True)),
        "failed": sum(not report.passed for report in reports),
        "cards": _cards(reports, stems),
        "rows": [
            _row(report.job.title, stem, verdict)
            for report, stem in zip(reports, stems, strict=True)
            for verdict in report.verdicts
        ],
        "sweeps": sweeps,
        "compared": compared,
        "trails": {key: _sparkline(values) for key, values in trails.items() if len(values) > 1},
        "origin": origin,
        "text": number_text,
    }
    index = folder / "index.html"
    for target, autoescape in ((folder / "summary.md", False), (index, True)):
        source = files("tfm_lab.runner").joinpath(f"{target.stem}_template{target.suffix}.j2").read_text()
        environment = Environment(autoescape=autoescape, trim_blocks=not autoescape, undefined=StrictUndefined)
        target.write_text(environment.from_string(source).render(facts))
    return index


def render_into_source(report: NotebookReport) -> None:
    """Write the frozen outputs of a run with default parameters back into the notebook itself.

    Raises:
        ValueError: if the run failed or used other parameters.
    """
    if not report.passed or report.job.parameters or report.execution.notebook is None:
        raise ValueError(f"{report.job.name} is not rendered: it must pass, with its default parameters")
    _write(_frozen(report.job.path, report.execution.notebook), report.job.path)


def expected_text(expectation: Expectation | None) -> str:
    """An expectation in a few characters."""
    if expectation is None:
        return ""
    if expectation.kind == "stat":
        return f"{number_text(expectation.value)} (std {number_text(expectation.std)})"
    bounds = [
        f"{sign} {number_text(bound)}"
        for sign, bound in (("≥", expectation.at_least), ("≤", expectation.at_most))
        if bound is not None
    ]
    return number_text(expectation.value) if expectation.value is not None else ", ".join(bounds)


def number_text(value: Scalar | None) -> str:
    """A value with at most six significant digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _frozen(path: Path, executed: nbformat.NotebookNode) -> nbformat.NotebookNode:
    source = read_notebook(path)
    return freeze(with_outputs_of(source, executed), root=path.resolve().parent.parent)


def _write_notebook(report: NotebookReport, folder: Path, stem: str) -> None:
    if report.execution.notebook is None:
        return
    frozen = _frozen(report.job.path, report.execution.notebook)
    _write(frozen, folder / "notebooks" / f"{stem}.ipynb")
    page = notebook_page(frozen, report.job.title, str(report.job.path.parent))
    (folder / f"{stem}.html").write_text(page)


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write by way of a second file, so that an interruption leaves the old notebook."""
    draft = path.with_name(f".{path.name}.part")
    nbformat.write(notebook, draft)
    draft.replace(path)


def _cards(reports: Sequence[NotebookReport], stems: Sequence[str]) -> list[dict[str, str]]:
    return [
        {
            "page": f"{stem}.html",
            "notebook": report.job.title,
            "value": number_text(verdict.metric.value),
            "label": verdict.expectation.headline,
        }
        for report, stem in zip(reports, stems, strict=True)
        if not report.job.parameters  # a headline may name the defaults
        for verdict in report.verdicts
        if verdict.metric and verdict.expectation and verdict.expectation.headline
    ]


def _sparkline(values: Sequence[float], width: int = 72, height: int = 18) -> dict[str, str]:
    """Points of a line through the last values, and the values in words."""
    low, high = min(values), max(values)
    step = (width - 4) / (len(values) - 1)
    span = high - low
    heights = [(value - low) / span if span > 0 else 0.5 for value in values]
    points = [f"{2 + step * k:.1f},{height - 3 - (height - 6) * part:.1f}" for k, part in enumerate(heights)]
    return {"points": " ".join(points), "words": ", ".join(number_text(value) for value in values)}


def _row(notebook: str, stem: str, verdict: Verdict) -> dict[str, str]:
    metric, expectation = verdict.metric, verdict.expectation
    return {
        "notebook": notebook,
        "stem": stem,
        "metric": metric.name if metric else expectation.name if expectation else "",
        "kind": metric.kind if metric else expectation.kind if expectation else "",
        "value": number_text(metric.value) if metric else "missing",
        "expected": expected_text(expectation),
        "status": verdict.status,
        "why": expectation.why if expectation else "",
    }
