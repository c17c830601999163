"""``tfm-lab run``: execute the notebooks and check every number that they record."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfm_lab.cli.options import check_writable

if TYPE_CHECKING:
    from rich.console import Console

    from tfm_lab.runner.execute import Limits
    from tfm_lab.runner.history import Difference
    from tfm_lab.runner.series import NotebookJob, NotebookReport
    from tfm_lab.runner.update import Change


@click.command("run")
@click.argument("notebooks", nargs=-1, metavar="[NOTEBOOK]...")
@click.option(
    "-p",
    "--parameter",
    "parameters",
    nargs=2,
    multiple=True,
    metavar="NAME VALUE",
    help="Set a parameter of the notebook. Repeat for more. Several numbers, such as 16,32,64, make a sweep.",
)
@click.option("-j", "--jobs", type=int, default=1, show_default=True, help="Notebooks that run at a time.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/report"),
    show_default=True,
    help="Folder of the report.",
)
@click.option("--timeout", type=float, default=300.0, show_default=True, help="Seconds that one notebook may take.")
@click.option("--cell-timeout", type=float, default=120.0, show_default=True, help="Seconds that one cell may take.")
@click.option("--threads", type=int, default=2, show_default=True, help="Threads of the numerical libraries.")
@click.option(
    "--compare",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OLD.jsonl",
    help="Show what changed since the last runs in this metrics.jsonl; a regression fails.",
)
@click.option("--update", is_flag=True, help="Write new exact values into expected.toml and list the changes.")
@click.option("--render", is_flag=True, help="Write the frozen outputs back into the notebooks.")
def command(
    notebooks: tuple[str, ...],
    parameters: tuple[tuple[str, str], ...],
    out: Path,
    timeout: float,
    cell_timeout: float,
    threads: int,
    jobs: int,
    compare: Path | None,
    update: bool,
    render: bool,
) -> int:
    """Execute notebooks and check what they record.

    NOTEBOOK is a file or the beginning of a name in the series, such as 06. Without one the whole series runs.

    Each notebook runs in a process of its own. It fails if a cell raises or takes too long, if it writes to standard
    error, or if a recorded number is not what expected.toml says. Unknown parameters and parameters without effect are
    refused. With other parameters than the defaults only identities are compared.

    The report is a folder: index.html, summary.md, a page and the executed notebook each, and metrics.jsonl with all
    runs so far. The exit status is 1 if a notebook failed, or if --compare finds a regression: an exact number that
    changed, a number that is gone, or one that passed and fails now.

    \b
    Examples:
      tfm-lab run                          the whole series
      tfm-lab run 00 06                    two notebooks
      tfm-lab run 06 -p BUDGET 32          one with another parameter
      tfm-lab run 06 -p BUDGET 16,32,64 --jobs 2      a sweep, with one table of all numbers
      tfm-lab run --compare old/metrics.jsonl         show regressions since an older report
      tfm-lab run 06 --render              run, then store its outputs in the notebook
      tfm-lab run --update                 accept new exact values, after a look at the table
    """
    from rich.console import Console

    from tfm_lab.runner.execute import Limits
    from tfm_lab.runner.history import check_comparable, differences, read_history
    from tfm_lab.runner.report import write_report
    from tfm_lab.runner.series import find_notebooks
    from tfm_lab.runner.sweep import prepare_jobs

    if parameters and (update or render):
        raise ValueError("--update and --render need the default parameters: leave out -p")
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    history = None if compare is None else read_history(compare)
    check_writable(out / "index.html")
    if (out / "metrics.jsonl").is_file():
        read_history(out / "metrics.jsonl")  # the report adds to it: better refused now than after the runs
    limits = Limits(timeout, cell_timeout, threads)
    prepared = [job for path in find_notebooks(notebooks) for job in prepare_jobs(path, _by_name(parameters))]
    if history is not None:
        check_comparable(prepared, history)
    console = Console()
    reports = _run_with_progress(prepared, limits, jobs, console)
    if update:
        reports = _update(reports, console)
    if render:
        _render(reports, console)
    compared = None if history is None else differences(reports, history)
    index = write_report(reports, out, compared)
    _print_summary(reports, console)
    _print_sweeps(reports, console)
    if compared is not None:
        _print_differences(compared, console)
    console.print(f"Report: {index}", soft_wrap=True, highlight=False, markup=False)
    return int(not all(report.passed for report in reports) or any(item.is_regression for item in compared or ()))


def _by_name(parameters: tuple[tuple[str, str], ...]) -> dict[str, str]:
    names = [name for name, _ in parameters]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"-p {twice} was given twice: write several values as one list, -p {twice} 16,32")
    return dict(parameters)


def _run_with_progress(
    jobs: "list[NotebookJob]", limits: "Limits", at_a_time: int, console: "Console"
) -> "list[NotebookReport]":
    """Run the notebooks behind lines that show cell and time; leave one line with the result of each."""
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from tfm_lab.runner.reading import read_notebook
    from tfm_lab.runner.series import run_notebooks

    cells = [len(read_notebook(job.path).cells) for job in jobs]
    titles = [escape(job.title) for job in jobs]
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks = [progress.add_task(title, start=False, visible=False) for title in titles]

        def show_cell(index: int, number: int) -> None:
            if number <= 1:
                progress.start_task(tasks[index])
            description = f"{titles[index]}  cell {number} of {cells[index]}"
            progress.update(tasks[index], visible=True, description=description)

        def show_report(index: int, report: "NotebookReport") -> None:
            progress.update(tasks[index], visible=False)
            mark = "[green]passed[/]" if report.passed else "[bold red]failed[/]"
            seconds = report.execution.wall_seconds
            progress.console.print(f"{mark} {titles[index]}  {seconds:.1f} s", highlight=False)

        return run_notebooks(jobs, limits, at_a_time, show_cell, show_report)


def _update(reports: "list[NotebookReport]", console: "Console") -> "list[NotebookReport]":
    """Update the expectations of all notebooks that ran to the end, show the changes, and judge again."""
    from rich.markup import escape
    from rich.table import Table

    from tfm_lab.runner.report import number_text
    from tfm_lab.runner.series import judge
    from tfm_lab.runner.update import update_expectations

    finished = [report for report in reports if report.metrics]
    changes: list[Change] = []
    for path in dict.fromkeys(report.job.expected_file for report in finished):
        recorded = {report.job.name: report.metrics for report in finished if report.job.expected_file == path}
        changes += update_expectations(path, recorded)
    table = Table("notebook", "metric", "before", "after", title=f"expected.toml: {len(changes)} changes", box=None)
    for change in changes:
        before = "new" if change.before is None else number_text(change.before)
        after = "removed" if change.after is None else number_text(change.after)
        table.add_row(*map(escape, (change.notebook, change.metric, before, after)))
    console.print(table)
    return [judge(report.job, report.execution) for report in reports]


def _render(reports: "list[NotebookReport]", console: "Console") -> None:
    from tfm_lab.runner.report import render_into_source

    for report in reports:
        if report.passed:
            render_into_source(report)
        else:
            console.print(f"{report.job.name} failed and keeps its old outputs", highlight=False, markup=False)


def _print_summary(reports: "list[NotebookReport]", console: "Console") -> None:
    """The final table, and every problem on a line of its own."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("notebook", "result", box=None)
    for title in ("seconds", "CPU seconds", "peak MB", "metrics"):
        table.add_column(title, justify="right")
    for report in reports:
        execution = report.execution
        table.add_row(
            escape(report.job.title),
            "[green]passed[/]" if report.passed else "[bold red]failed[/]",
            f"{execution.wall_seconds:.1f}",
            f"{execution.cpu_seconds:.1f}",
            f"{execution.peak_bytes / 1e6:.0f}",
            str(len(report.metrics)),
        )
    console.print(table)
    for report in reports:
        for problem in report.problems:
            line = f"[bold red]failed[/] {escape(report.job.title)}: {escape(problem)}"
            console.print(line, soft_wrap=True, highlight=False)


def _print_sweeps(reports: "list[NotebookReport]", console: "Console") -> None:
    """One table for each notebook that ran more than once: a column for each run."""
    from rich.markup import escape
    from rich.table import Table

    from tfm_lab.runner.report import number_text
    from tfm_lab.runner.sweep import sweep_tables

    for sweep in sweep_tables(reports):
        table = Table(title=f"Sweep of {escape(sweep.notebook)}", box=None, show_header=False)
        for index in range(len(sweep.rows) + 1):
            table.add_column(justify="right" if index else "left")
        for name, values in sweep.lines:
            table.add_row(
                escape(name), *("missing" if value is None else escape(number_text(value)) for value in values)
            )
        console.print(table)


def _print_differences(compared: "list[Difference]", console: "Console") -> None:
    from rich.markup import escape
    from rich.table import Table

    from tfm_lab.runner.report import number_text

    regressions = sum(item.is_regression for item in compared)
    title = f"Compared with the older run: {len(compared)} differences, {regressions} regressions"
    table = Table("notebook", "metric", "kind", "before", "now", "finding", title=title, box=None)
    for item in compared:
        values = ("" if value is None else escape(number_text(value)) for value in (item.before, item.after))
        mark = f"[bold red]{item.finding}[/]" if item.is_regression else item.finding
        table.add_row(escape(item.notebook), escape(item.metric), item.kind, *values, mark)
    console.print(table)
