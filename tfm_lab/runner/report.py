"""The folder of a run: index page, one page and one frozen notebook each, and the history of all recorded numbers."""

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import nbformat
from jinja2 import Environment

import tfm_lab
from tfm_lab.provenance import commit, device_name
from tfm_lab.recording import Scalar
from tfm_lab.runner.expectations import Expectation, Verdict
from tfm_lab.runner.freeze import freeze, with_outputs_of
from tfm_lab.runner.page import notebook_page
from tfm_lab.runner.reading import read_notebook
from tfm_lab.runner.series import NotebookReport


def write_report(reports: Sequence[NotebookReport], folder: Path) -> Path:
    """Write everything below ``folder``; returns the path of the index page.

    Files: ``index.html``, ``NAME.html`` and ``notebooks/NAME.ipynb`` for each notebook, and ``metrics.jsonl``, to which
    each run appends one line per recorded number.
    """
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    for report in reports:
        _write_notebook(report, folder)
    time = datetime.now(UTC).isoformat(timespec="seconds")
    origin = {
        "tfm_lab": tfm_lab.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "processor": device_name("cpu"),
    }
    _append_history(reports, folder / "metrics.jsonl", {"time": time, **origin})
    template = Environment(autoescape=True).from_string(files("tfm_lab.runner").joinpath("report.html.j2").read_text())
    index = folder / "index.html"
    index.write_text(
        template.render(
            time=time.replace("T", " ").replace("+00:00", " UTC"),
            reports=reports,
            failed=sum(not report.passed for report in reports),
            cards=_cards(reports),
            rows=_rows(reports),
            origin=origin,
        )
    )
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


def _write_notebook(report: NotebookReport, folder: Path) -> None:
    if report.execution.notebook is None:
        return
    frozen = _frozen(report.job.path, report.execution.notebook)
    _write(frozen, folder / "notebooks" / report.job.path.name)
    page = notebook_page(frozen, report.job.name, str(report.job.path.parent))
    (folder / f"{report.job.name}.html").write_text(page)


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write by way of a second file, so that an interruption leaves the old notebook."""
    draft = path.with_name(f".{path.name}.part")
    nbformat.write(notebook, draft)
    draft.replace(path)


def _append_history(reports: Sequence[NotebookReport], path: Path, run: dict[str, str]) -> None:
    with path.open("a") as history:
        for report in reports:
            statuses = {verdict.metric.name: verdict.status for verdict in report.verdicts if verdict.metric}
            for name, metric in report.metrics.items():
                line = {
                    "notebook": report.job.name,
                    "metric": name,
                    "value": metric.value,
                    "kind": metric.kind,
                    "n": metric.n,
                    "status": statuses[name],
                    "parameters": dict(report.job.parameters),
                }
                history.write(json.dumps(run | line) + "\n")


def _cards(reports: Sequence[NotebookReport]) -> list[dict[str, str]]:
    return [
        {"notebook": report.job.name, "value": number_text(verdict.metric.value), "label": verdict.expectation.headline}
        for report in reports
        for verdict in report.verdicts
        if verdict.metric and verdict.expectation and verdict.expectation.headline
    ]


def _rows(reports: Sequence[NotebookReport]) -> list[dict[str, str]]:
    return [_row(report.job.name, verdict) for report in reports for verdict in report.verdicts]


def _row(notebook: str, verdict: Verdict) -> dict[str, str]:
    metric, expectation = verdict.metric, verdict.expectation
    return {
        "notebook": notebook,
        "metric": metric.name if metric else expectation.name if expectation else "",
        "kind": metric.kind if metric else expectation.kind if expectation else "",
        "value": number_text(metric.value) if metric else "missing",
        "expected": expected_text(expectation),
        "status": verdict.status,
        "why": expectation.why if expectation else "",
    }
