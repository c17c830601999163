"""The command group and its common behaviour.

To add a command: write ``tfm_lab/cli/<name>.py`` with a click command called ``command`` and add ``<name>`` to
``COMMANDS``. Keep the imports at the top of that module light (click and the standard library) and import torch and the
rest of the package inside the function, so that ``tfm-lab --help`` stays quick.

The library reports bad input as ``ValueError`` with one sentence, and the system reports a file that it cannot read or
write as ``OSError``. ``main`` prints one sentence and exits with status 2, so commands need no error handling of their
own.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

import tfm_lab

COMMANDS = (
    "doctor",
    "decode",
    "run",
    "exercises",
    "evaluate",
    "compare",
    "bench",
    "divergence",
    "frequencies",
    "train",
    "fetch",
)


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"tfm_lab.cli.{cmd_name}").command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tfm_lab.__version__, prog_name="tfm-lab")
@click.option("--traceback", is_flag=True, expose_value=False, help="Show where an error was raised.")
def cli() -> None:
    """Understand, prove and measure tree speculative decoding.

    \b
    Examples:
      tfm-lab doctor                 does this machine have what the notebooks need?
      tfm-lab run                    execute all notebooks, report in build/report/index.html
      tfm-lab run 06 -p BUDGET 32    one notebook with another parameter
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 success, 1 a check failed, 2 bad input, 130 interrupted.

    Args:
        arguments: the words after ``tfm-lab``; those of the process when None.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads its thread pool: idle threads then sleep
    try:
        status = cli.main(words, prog_name="tfm-lab", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.UsageError as error:
        command = " ".join(["tfm-lab", *[word for word in words if word in COMMANDS][:1]])
        _fail(f"{_sentence(error.format_message())} (see {command} --help)", 2)
    except click.ClickException as error:
        _fail(_sentence(error.format_message()), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except (ValueError, OSError) as error:
        if "--traceback" in words:
            traceback.print_exc()
        _drop_unwritten_output()
        _fail(_system_sentence(error) if isinstance(error, OSError) else _sentence(str(error)), 2)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(sentence: str, status: int) -> NoReturn:
    click.echo(f"Error: {sentence}", err=True)
    sys.exit(status)


def _sentence(message: str) -> str:
    """The message on one line, without a closing full stop."""
    return " ".join(message.split()).removesuffix(".")


def _system_sentence(error: OSError) -> str:
    if error.strerror is None:  # a library's own kind of OSError, such as a failed connection
        return _sentence(str(error))
    if error.filename is None:
        return f"reading or writing failed: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return f"there is no file {error.filename}"
    return f"cannot read or write {error.filename}: {error.strerror}"


def _drop_unwritten_output() -> None:
    """Where standard output takes nothing more, what waits for it goes nowhere; Python would complain at its end."""
    output = sys.stdout
    if output is None:
        return
    try:
        output.flush()
    except OSError:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, output.fileno())
        os.close(sink)
