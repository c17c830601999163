"""``tfm-lab run``: execute the notebooks and check every number that they record."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfm_lab.cli.options import check_writable

if TYPE_CHECKING:
    from rich.console import Console

    from tfm_lab.runner.execute import Limits
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
    help="Set a parameter of the notebook. Repeat for more.",
)
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
@click.option("--update", is_flag=True, help="Write new exact values into expected.toml and list the changes.")
@click.option("--render", is_flag=True, help="Write the frozen outputs back into the notebooks.")
def command(
    notebooks: tuple[str, ...],
    parameters: tuple[tuple[str, str], ...],
    out: Path,
    timeout: float,
    cell_timeout: float,
    threads: int,
    update: bool,
    render: bool,
) -> int:
    """Execute notebooks and check what they record.

    NOTEBOOK is a file or the beginning of a name in the series, such as 06. Without one the whole series runs.

    Each notebook runs in a process of its own. It fails if a cell raises or takes too long, if it writes to standard
    error, or if a recorded number is not what expected.toml says. Unknown parameters and parameters without effect are
    refused. With other parameters than the defaults only identities are compared.

    The report is a folder: index.html, a page and the executed notebook each, and metrics.jsonl with all runs so far.
    The exit status is 1 if a notebook failed.

    \b
    Examples:
      tfm-lab run                          the whole series
      tfm-lab run 00 06                    two notebooks
      tfm-lab run 06 -p BUDGET 32          one with another parameter
      tfm-lab run 06 --render              run, then store its outputs in the notebook
      tfm-lab run --update                 accept new exact values, after a look at the table
    """
    from rich.console import Console

    from tfm_lab.runner.execute import Limits
    from tfm_lab.runner.report import write_report
    from tfm_lab.runner.series import find_notebooks, prepare_job

    if parameters and (update or render):
        raise ValueError("--update and --render need the default parameters: leave out -p")
    check_writable(out / "index.html")
    limits = Limits(timeout, cell_timeout, threads)
    jobs = [prepare_job(path, dict(parameters)) for path in find_notebooks(notebooks)]
    console = Console()
    reports = [_run_with_progress(job, limits, console) for job in jobs]
    if update:
        reports = _update(reports, console)
    if render:
        _render(reports, console)
    index = write_report(reports, out)
    _print_summary(reports, console)
    console.print(f"Report: {index}", soft_wrap=True, highlight=False)
    return int(not all(report.passed for report in reports))


def _run_with_progress(job: "NotebookJob", limits: "Limits", console: "Console") -> "NotebookReport":
    """Run one notebook behind a line that shows cell and time; leave one line with the result."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from tfm_lab.runner.reading import read_notebook
    from tfm_lab.runner.series import run_notebook

    cells = len(read_notebook(job.path).cells)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(job.name)
        report = run_notebook(
            job, limits, lambda number: progress.update(task, description=f"{job.name}  cell {number} of {cells}")
        )
    mark = "[green]passed[/]" if report.passed else "[bold red]failed[/]"
    console.print(f"{mark} {job.name}  {report.execution.wall_seconds:.1f} s", highlight=False)
    return report


def _update(reports: "list[NotebookReport]", console: "Console") -> "list[NotebookReport]":
    """Update the expectations of all notebooks that ran to the end, show the changes, and judge again."""
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
        table.add_row(change.notebook, change.metric, before, after)
    console.print(table)
    return [judge(report.job, report.execution) for report in reports]


def _render(reports: "list[NotebookReport]", console: "Console") -> None:
    from tfm_lab.runner.report import render_into_source

    for report in reports:
        if report.passed:
            render_into_source(report)
        else:
            console.print(f"{report.job.name} failed and keeps its old outputs", highlight=False)


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
            report.job.name,
            "[green]passed[/]" if report.passed else "[bold red]failed[/]",
            f"{execution.wall_seconds:.1f}",
            f"{execution.cpu_seconds:.1f}",
            f"{execution.peak_bytes / 1e6:.0f}",
            str(len(report.metrics)),
        )
    console.print(table)
    for report in reports:
        for problem in report.problems:
            console.print(f"[bold red]failed[/] {report.job.name}: {escape(problem)}", soft_wrap=True, highlight=False)
