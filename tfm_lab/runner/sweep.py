"""Sweeps: one notebook at several values of its parameters, and the table in which their numbers stand side by side."""

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfm_lab.recording import Scalar
from tfm_lab.runner.history import shown_name
from tfm_lab.runner.parameters import Parameter, declared_parameters
from tfm_lab.runner.reading import read_notebook
from tfm_lab.runner.series import NotebookJob, NotebookReport, prepare_job

POINTS_AT_MOST = 256


@dataclass(frozen=True, slots=True)
class SweepTable:
    """The runs of one notebook side by side.

    Attributes:
        notebook: its name, with its folder where another one of that name ran too.
        stem: name of the table's file, without suffix: no other table of the same report has it.
        parameters: names that differ between the runs.
        metrics: names of all recorded numbers, in the order in which they were recorded.
        rows: for each run the values of ``parameters`` and then of ``metrics``; None where a number is missing.
    """

    notebook: str
    stem: str
    parameters: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: tuple[tuple[Scalar | None, ...], ...]

    @property
    def lines(self) -> list[tuple[str, tuple[Scalar | None, ...]]]:
        """Each parameter and each metric with its values over the runs: the table as it is shown, a run a column."""
        names = (*self.parameters, *self.metrics)
        return [(name, tuple(row[index] for row in self.rows)) for index, name in enumerate(names)]

    def csv(self) -> str:
        """The table as comma-separated values, a run a line; a missing number is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([(*self.parameters, *self.metrics), *self.rows])
        return text.getvalue()


def prepare_jobs(path: Path, given: Mapping[str, str]) -> list[NotebookJob]:
    """One job, or one for each combination where a number or truth value is given as a list: ``16,32,64``.

    Args:
        path: the notebook.
        given: values as text, by name. A comma separates values unless the parameter is a text or a list itself.

    Raises:
        ValueError: as ``prepare_job``; also for a value given twice, a missing one, or more than 256 combinations.
    """
    declared = declared_parameters(read_notebook(path))
    choices = {name: _values(declared.get(name), name, text) for name, text in given.items()}
    count = 1
    for values in choices.values():
        count *= len(values)
    if count > POINTS_AT_MOST:
        raise ValueError(f"{path.name}: {count} combinations are too many, leave at most {POINTS_AT_MOST}")
    return [prepare_job(path, dict(zip(choices, point, strict=True))) for point in itertools.product(*choices.values())]


def sweep_tables(reports: Sequence[NotebookReport]) -> list[SweepTable]:
    """A table for each notebook that ran more than once."""
    by_path: dict[Path, list[NotebookReport]] = {}
    for report in reports:
        by_path.setdefault(report.job.path, []).append(report)
    groups = [group for group in by_path.values() if len(group) > 1]
    stems = numbered([f"{group[0].job.name}-sweep" for group in groups])
    return [_table(shown_name(group[0].job, reports), stem, group) for group, stem in zip(groups, stems, strict=True)]


def numbered(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that stand there more than once.

    >>> numbered(["a", "b", "a"])
    ['a-1', 'b', 'a-2']
    """
    return [
        name if names.count(name) == 1 else f"{name}-{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def _table(shown: str, stem: str, reports: Sequence[NotebookReport]) -> SweepTable:
    declared = declared_parameters(read_notebook(reports[0].job.path))
    settings = [{name: item.default for name, item in declared.items()} | dict(r.job.parameters) for r in reports]
    varied = tuple(name for name in declared if len({repr(setting[name]) for setting in settings}) > 1)
    metrics = tuple(dict.fromkeys(name for report in reports for name in report.metrics))
    rows = tuple(
        (
            *(_scalar(setting[name]) for name in varied),
            *(report.metrics[name].value if name in report.metrics else None for name in metrics),
        )
        for setting, report in zip(settings, reports, strict=True)
    )
    return SweepTable(shown, stem, varied, metrics, rows)


def _values(parameter: Parameter | None, name: str, text: str) -> list[str]:
    if parameter is None or isinstance(parameter.default, str | list) or "," not in text:
        return [text]
    values = [part.strip() for part in text.split(",")]
    if "" in values:
        raise ValueError(f"{name} {text}: a value is missing beside a comma, write for example 16,32,64")
    if len(set(values)) < len(values):
        raise ValueError(f"{name} {text}: a value stands there twice, name each once")
    return values


def _scalar(value: object) -> Scalar:
    return value if isinstance(value, bool | int | float | str) else repr(value)
