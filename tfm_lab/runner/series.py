"""Run notebooks, one after another or several at a time, and judge them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import tfm_lab
from tfm_lab.recording import Metric
from tfm_lab.runner.execute import Execution, Limits, execute
from tfm_lab.runner.expectations import Verdict, compare, load_expectations
from tfm_lab.runner.freeze import freeze_problems
from tfm_lab.runner.outputs import recorded_metrics, stderr_problems
from tfm_lab.runner.parameters import declared_parameters, resolve, unread_parameters
from tfm_lab.runner.reading import read_notebook

EXPECTED_FILE = "expected.toml"


@dataclass(frozen=True, slots=True)
class NotebookJob:
    """A notebook and the parameters in which the run departs from the defaults, all checked."""

    path: Path
    parameters: Mapping[str, object]

    @property
    def name(self) -> str:
        """File name without suffix: how reports and expectations call the notebook."""
        return self.path.stem

    @property
    def title(self) -> str:
        """The name with the parameters that differ from the defaults: ``06_growing_trees, BUDGET = 32``."""
        return ", ".join([self.name, *(f"{name} = {value}" for name, value in self.parameters.items())])

    @property
    def expected_file(self) -> Path:
        """The file of expectations, beside the notebook."""
        return self.path.parent / EXPECTED_FILE


@dataclass(frozen=True, slots=True)
class NotebookReport:
    """What came of one notebook.

    Attributes:
        job: notebook and parameters.
        execution: how it ran.
        metrics: recorded numbers by name.
        verdicts: the numbers held against the expectations; empty if a cell failed.
        problems: one sentence for each thing that is wrong; the notebook passed if there is none.
    """

    job: NotebookJob
    execution: Execution
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.problems


def notebooks_folder() -> Path:
    """The folder of the series: beside the package in a checkout, otherwise below the current folder.

    Raises:
        FileNotFoundError: if there is none.
    """
    for root in (Path(tfm_lab.__file__).resolve().parent.parent, Path.cwd()):
        if any((root / "notebooks").glob("*.ipynb")):
            return root / "notebooks"
    raise FileNotFoundError("there is no folder notebooks here: go to the project's folder, or name a notebook file")


def find_notebooks(names: Sequence[str]) -> list[Path]:
    """Paths of the named notebooks; of the whole series, in order, if no name is given.

    Args:
        names: files, or beginnings of names in the series such as ``06``.

    Raises:
        FileNotFoundError: if a name fits no notebook.
        ValueError: if a name fits several.
    """
    if not names:
        return sorted(notebooks_folder().glob("*.ipynb"))
    return list(dict.fromkeys(_find(name) for name in names))


def prepare_job(path: Path, given: Mapping[str, object]) -> NotebookJob:
    """Check a notebook and the parameters for it before anything runs.

    Raises:
        ValueError: if the file is no notebook of format 4.5, a parameter is unknown or of the wrong type, a declared
            parameter has no effect, or the file of expectations is not valid.
    """
    notebook = read_notebook(path)
    try:
        parameters = declared_parameters(notebook)
        unread = unread_parameters(notebook)
        if unread:
            name, reason = next(iter(unread.items()))
            raise ValueError(f"parameter {name} has no effect: {reason}")
        values = resolve(parameters, given)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    job = NotebookJob(path, {name: value for name, value in values.items() if value != parameters[name].default})
    load_expectations(job.expected_file)
    return job


def run_notebook(
    job: NotebookJob,
    limits: Limits,
    on_cell: Callable[[int], None] = lambda number: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> NotebookReport:
    """Execute a notebook and judge it.

    Args:
        job: what to run, see ``prepare_job``.
        limits: time and threads.
        on_cell: called with the number (from 1) of each cell that starts.
        cancelled: once it answers True, the run is ended.
    """
    return judge(job, execute(job.path, job.parameters, limits, on_cell, cancelled))


def run_notebooks(
    jobs: Sequence[NotebookJob],
    limits: Limits,
    at_a_time: int = 1,
    on_cell: Callable[[int, int], None] = lambda job, number: None,
    on_report: Callable[[int, NotebookReport], None] = lambda job, report: None,
) -> list[NotebookReport]:
    """Execute several notebooks, each in a process of its own; an interruption ends all of them.

    Args:
        jobs: what to run.
        limits: time and threads, for each notebook.
        at_a_time: how many run at once.
        on_cell: called with the index of a job and the number (from 1) of its cell that starts; on another thread.
        on_report: called with the index of a job that is done and its report.

    Returns:
        The reports in the order of ``jobs``.

    Raises:
        ValueError: if ``at_a_time`` is not positive.
    """
    if at_a_time < 1:
        raise ValueError(f"at least one notebook must run at a time, got {at_a_time}")
    stop = threading.Event()
    reports: dict[int, NotebookReport] = {}
    with ThreadPoolExecutor(at_a_time) as pool:
        futures = {
            pool.submit(
                run_notebook, job, limits, lambda number, index=index: on_cell(index, number), stop.is_set
            ): index
            for index, job in enumerate(jobs)
        }
        try:
            for future in as_completed(futures):
                index = futures[future]
                reports[index] = future.result()
                on_report(index, reports[index])
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [reports[index] for index in range(len(jobs))]


def judge(job: NotebookJob, execution: Execution) -> NotebookReport:
    """Check metrics, standard error, and whether the pictures survive freezing.

    Raises:
        ValueError: if the file of expectations is not valid.
    """
    expected = load_expectations(job.expected_file).get(job.name, {})
    if execution.failure or execution.notebook is None:
        return NotebookReport(job, execution, problems=(execution.failure,))
    problems = [f"unexpected standard error: {line}" for line in execution.stderr]
    problems += stderr_problems(execution.notebook) + freeze_problems(execution.notebook)
    try:
        metrics = recorded_metrics(execution.notebook)
    except ValueError as error:
        return NotebookReport(job, execution, problems=(*problems, str(error)))
    verdicts = compare(metrics, expected, default_parameters=not job.parameters)
    problems += [verdict.sentence for verdict in verdicts if verdict.status == "failed"]
    if not metrics:
        problems.append("no metric was recorded: end the notebook with record(name, value, kind)")
    return NotebookReport(job, execution, metrics, tuple(verdicts), tuple(problems))


def _find(name: str) -> Path:
    if name.endswith(".ipynb") and Path(name).exists():
        return Path(name)
    if name.endswith(".ipynb") and Path(name).name != name:
        raise FileNotFoundError(f"there is no notebook {name}")
    series = sorted(notebooks_folder().glob("*.ipynb"))
    found = [path for path in series if path.name == name or path.stem.startswith(name.removesuffix(".ipynb"))]
    if len(found) > 1:
        raise ValueError(f"{name} fits {len(found)} notebooks: {', '.join(path.stem for path in found)}")
    if not found:
        raise FileNotFoundError(f"no notebook begins with {name}: there are {', '.join(path.stem for path in series)}")
    return found[0]
