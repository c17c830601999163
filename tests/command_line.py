"""Running ``tfm-lab`` inside a test."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from tfm_lab.cli import main as cli


def run(*words: str) -> int:
    """Exit status of the command line."""
    with pytest.raises(SystemExit) as exit_info:
        cli.main(words)
    return int(exit_info.value.code or 0)


def assert_refused(words: Sequence[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command exits with status 2 and one sentence on stderr, prints nothing else, and leaves ``folder`` alone."""
    before = sorted(folder.rglob("*"))
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("Error: ")
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert sorted(folder.rglob("*")) == before


def examples_of(help_page: str) -> list[list[str]]:
    """The words after ``tfm-lab`` in every example of a help page."""
    lines = help_page.split("Example", 1)[1].splitlines()[1:]
    commands = [line.strip().split("tfm-lab ", 1)[1] for line in lines if "tfm-lab " in line]
    return [shlex.split(command) for command in commands]


def parse(words: Sequence[str]) -> click.Context:
    """Parse a command line to its last option without running it."""
    command: click.Command = cli.cli
    context = click.Context(command, info_name="tfm-lab")
    rest = list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command = found
    return command.make_context(command.name, rest, parent=context)
