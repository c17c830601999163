"""``tfm-lab exercises``: the exercises of the notebooks, and proof that their checks reject wrong answers."""

from pathlib import Path

import click

from tfm_lab.cli.options import check_writable


@click.command("exercises")
@click.argument("names", nargs=-1, metavar="[EXERCISE]...")
@click.option("--mutants", is_flag=True, help="Judge every wrong answer and say which property rejects it.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.md",
    help="Also write the table of --mutants as Markdown.",
)
def command(names: tuple[str, ...], mutants: bool, out: Path | None) -> int:
    """List the exercises of the notebooks, or try their checks.

    EXERCISE is a name such as 07.walk, or the number of a notebook. Without one all are taken.

    Every exercise comes with wrong answers that a learner might give. With --mutants each of them is judged: the check
    must reject it and name the idea behind it. The exit status is 1 if one passes or is taken for another.

    \b
    Examples:
      tfm-lab exercises
      tfm-lab exercises 01 03.best_first --mutants
      tfm-lab exercises --mutants --out mutants.md
    """
    from rich.console import Console
    from rich.table import Table

    from tfm_lab.lessons import EXERCISES
    from tfm_lab.lessons.interpreting import can_interpret
    from tfm_lab.lessons.mutants import judge_mutants, mutants_markdown
    from tfm_lab.provenance import describe_run

    if out is not None and not mutants:
        raise ValueError("--out writes the table of --mutants: add --mutants")
    chosen = [item for name in names or ("",) for item in EXERCISES.values() if item.name.startswith(name)]
    for name in names:
        if not any(item.name.startswith(name) for item in EXERCISES.values()):
            raise ValueError(f"no exercise begins with {name}: there are {', '.join(EXERCISES)}")
    chosen = list(dict.fromkeys(item.name for item in chosen))
    console = Console()
    if not mutants:
        table = Table("exercise", "title", "minutes", "wrong answers", box=None)
        for name in chosen:
            item = EXERCISES[name]
            table.add_row(name, item.title, str(item.minutes), str(len(item.misconceptions)))
        console.print(table)
        return 0
    if any(name.startswith("09.") for name in chosen) and not can_interpret():
        raise ValueError("the exercises of notebook 09 run in Triton's interpreter: set TRITON_INTERPRET=1")
    if out is not None:
        check_writable(out)
    with console.status("") as status:
        rows = judge_mutants((EXERCISES[name] for name in chosen), lambda name: status.update(name))
    table = Table("exercise", "the wrong idea", "rejected because it lacks", box=None)
    for row in rows:
        named = "" if row.is_named else " [bold red](taken for another)[/]"
        table.add_row(row.exercise, row.belief, (row.rejected_by or "[bold red]not rejected[/]") + named)
    console.print(table)
    failed = sum(not row.passed for row in rows)
    console.print(f"{len(rows)} wrong answers of {len(chosen)} exercises, {failed} that a check does not recognise")
    if out is not None:
        made = describe_run("cpu")
        origin = f"{made['command']}, {made['date']}, commit {made['commit']}, {made['device']}"
        out.write_text(f"# Wrong answers, and why their checks reject them\n\n{origin}\n\n{mutants_markdown(rows)}")
    return int(failed > 0)
