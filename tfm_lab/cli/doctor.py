"""``tfm-lab doctor``: does this machine have what the notebooks need?"""

import json
from dataclasses import asdict

import click


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> int:
    """Say whether this machine has what the notebooks need.

    Looks at versions, device, widgets, threads, memory, disk and browser, and says how to mend what is wrong.

    \b
    good      as it should be
    note      works, but slower or without an optional feature
    problem   something that the notebooks need is missing; the exit status is 1

    \b
    Examples:
      tfm-lab doctor
      tfm-lab doctor --json > environment.json
    """
    from rich.console import Console
    from rich.table import Table

    from tfm_lab.environment import inspect_environment

    findings = inspect_environment()
    problems = [finding for finding in findings if finding.level == "problem"]
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return int(bool(problems))
    styles = {"good": "green", "note": "yellow", "problem": "bold red"}
    table = Table("what", "found", "", box=None, pad_edge=False)
    for finding in findings:
        table.add_row(finding.name, finding.value, f"[{styles[finding.level]}]{finding.level}[/]")
    console = Console()
    console.print(table)
    for finding in findings:
        if finding.level != "good":
            console.print(f"[{styles[finding.level]}]{finding.level}[/] {finding.name}: {finding.remedy}")
    if not problems:
        console.print("This machine has what the notebooks need.")
    return int(bool(problems))
