"""``metrics.jsonl``: every recorded number of every run, and what changed between two runs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tfm_lab.recording import MetricKind, Scalar
from tfm_lab.runner.expectations import EXACT_TOLERANCE
from tfm_lab.runner.series import NotebookJob, NotebookReport

Finding = Literal["changed", "gone", "fails now", "moved", "new"]
REGRESSIONS: tuple[Finding, ...] = ("changed", "gone", "fails now")
ROOT_MARKS = (".git", "pyproject.toml")
NEEDED = ("notebook", "metric", "value", "kind", "status", "parameters", "time")


@dataclass(frozen=True, slots=True)
class PastMetric:
    """One line of the history.

    Attributes:
        time: start of the report, ISO 8601 in UTC.
        notebook, metric, kind, value: what was recorded where.
        status: the verdict of that run: ok, failed, kept or not compared.
        parameters: how that run departed from the notebook's defaults, as sorted JSON.
        folder: of the notebook, see ``folder_of``; None in lines of older versions, which belong to every notebook of
            that name.
    """

    time: str
    notebook: str
    metric: str
    kind: MetricKind
    value: Scalar
    status: str
    parameters: str
    folder: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A number that is not what it was.

    Attributes:
        notebook, metric, kind: which one; the notebook with its folder where another one of that name ran too.
        before, after: the two values; None where it was not recorded.
        finding: ``changed`` (an exact value differs), ``gone`` (the notebook does not record it any more),
            ``fails now`` (it passed), ``moved`` (a measured or trained value differs), ``new``.
    """

    notebook: str
    metric: str
    kind: MetricKind
    before: Scalar | None
    after: Scalar | None
    finding: Finding

    @property
    def is_regression(self) -> bool:
        return self.finding in REGRESSIONS


def folder_of(notebook: Path) -> str:
    """The folder of a notebook: from the root of its project, so that checkouts can be compared; whole without one."""
    folder = notebook.resolve().parent
    for root in (folder, *folder.parents):
        if any((root / mark).exists() for mark in ROOT_MARKS):
            return folder.relative_to(root).as_posix()
    return folder.as_posix()


def shown_name(job: NotebookJob, reports: Sequence[NotebookReport]) -> str:
    """How a notebook among ``reports`` is called: its name, with its folder where another one of that name ran too."""
    folders = {folder_of(report.job.path) for report in reports if report.job.name == job.name}
    return job.name if len(folders) == 1 else f"{folder_of(job.path)}/{job.name}"


def append_history(reports: Sequence[NotebookReport], path: Path, run: Mapping[str, str]) -> None:
    """Append a line for each number of ``reports``; ``run`` holds the time and the origin.

    A last line that an interruption left unfinished is replaced.
    """
    before = path.read_text() if path.exists() else ""
    if before and not before.endswith("\n"):
        path.write_text("".join(line + "\n" for line in _whole_lines(before)))
    with path.open("a") as history:
        history.writelines(json.dumps({**run, **line}) + "\n" for report in reports for line in _lines(report))


def read_history(path: Path) -> list[PastMetric]:
    """All lines, oldest first; a last line that an interruption left unfinished is passed over.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line is none of ``append_history``'s.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no history {path}: name the metrics.jsonl of an earlier report")
    return [_read_line(path, number, text) for number, text in enumerate(_whole_lines(path.read_text()), start=1)]


def check_comparable(jobs: Sequence[NotebookJob], history: Sequence[PastMetric]) -> None:
    """Refuse a comparison in which there would be nothing to compare.

    Raises:
        ValueError: if ``history`` holds no run of any of ``jobs``.
    """
    if not any(_lines_of(job, history) for job in jobs):
        names = ", ".join(job.title for job in jobs)
        raise ValueError(f"the older history holds no run to compare {names} with: name another one")


def differences(reports: Sequence[NotebookReport], history: Sequence[PastMetric]) -> list[Difference]:
    """What changed since the last time that each notebook ran with the same parameters.

    Errors of identities are rounding, so they are listed only when they fail. Notebooks and parameters that
    ``history`` does not know are passed over.
    """
    found: list[Difference] = []
    for report in reports:
        lines = _lines_of(report.job, history)
        if not lines:
            continue
        shown = shown_name(report.job, reports)
        past = {line.metric: line for line in lines if line.time == lines[-1].time}
        statuses = {verdict.metric.name: verdict.status for verdict in report.verdicts if verdict.metric}
        for metric in report.metrics.values():
            before = past.pop(metric.name, None)
            finding = _finding(before, metric.value, metric.kind, statuses.get(metric.name, ""))
            if finding:
                value = before.value if before else None
                found.append(Difference(shown, metric.name, metric.kind, value, metric.value, finding))
        found += [Difference(shown, line.metric, line.kind, line.value, None, "gone") for line in past.values()]
    return found


def trail(history: Iterable[PastMetric], report: NotebookReport, metric: str, length: int = 12) -> tuple[float, ...]:
    """The last ``length`` numeric values of a metric under the same parameters, oldest first."""
    values = [line.value for line in _lines_of(report.job, history) if line.metric == metric]
    return tuple(float(value) for value in values if isinstance(value, int | float))[-length:]


def _lines_of(job: NotebookJob, history: Iterable[PastMetric]) -> list[PastMetric]:
    """What was recorded in runs of this notebook with these parameters."""
    run, folders = (job.name, _parameters_text(job)), (None, folder_of(job.path))
    return [line for line in history if (line.notebook, line.parameters) == run and line.folder in folders]


def _finding(before: PastMetric | None, value: Scalar, kind: MetricKind, status: str) -> Finding | None:
    if before is None:
        return "new"
    if status == "failed" and before.status != "failed":
        return "fails now"
    if kind == "identity" or _same(before.value, value):
        return None
    return "changed" if kind == "exact" else "moved"


def _same(before: Scalar, after: Scalar) -> bool:
    numbers = [value for value in (before, after) if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == 2:
        return abs(numbers[0] - numbers[1]) <= EXACT_TOLERANCE
    return before == after


def _parameters_text(job: NotebookJob) -> str:
    return json.dumps(dict(job.parameters), sort_keys=True)


def _lines(report: NotebookReport) -> list[dict[str, Any]]:
    statuses = {verdict.metric.name: verdict.status for verdict in report.verdicts if verdict.metric}
    return [
        {
            "notebook": report.job.name,
            "folder": folder_of(report.job.path),
            "metric": name,
            "value": metric.value,
            "kind": metric.kind,
            "n": metric.n,
            "status": statuses[name],
            "parameters": dict(report.job.parameters),
        }
        for name, metric in report.metrics.items()
    ]


def _whole_lines(text: str) -> list[str]:
    """The lines of a history, without a last one that breaks off."""
    *lines, rest = text.split("\n")
    with suppress(ValueError):
        json.loads(rest)
        lines.append(rest)
    return lines


def _read_line(path: Path, number: int, text: str) -> PastMetric:
    try:
        line = json.loads(text)
        fields = {name: line[name] for name in NEEDED}
        fields["parameters"] = json.dumps(dict(fields["parameters"]), sort_keys=True)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}, line {number}: this is no line of a metrics.jsonl that tfm-lab run wrote") from None
    return PastMetric(**fields, folder=line.get("folder"))
