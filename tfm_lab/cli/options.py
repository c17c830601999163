"""Options that several commands share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import torch

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def bundle_option() -> Decorator:
    return click.option(
        "--bundle",
        default="hybrid",
        show_default=True,
        help="Shipped bundle, or a folder with target/, drafter/, weaver/.",
    )


def target_option() -> Decorator:
    return click.option(
        "--target",
        default=None,
        help="Another target than the bundle's: a Hugging Face folder, or the name of one that was fetched.",
    )


def device_option() -> Decorator:
    return click.option(
        "--device", default="auto", show_default=True, help="auto (a GPU when there is one), cpu, cuda or cuda:1."
    )


def dtype_option() -> Decorator:
    choice = click.Choice(["float32", "float64", "bfloat16"])
    return click.option("--dtype", type=choice, default="float32", show_default=True, help="Weights in memory.")


def choose_device(name: str) -> str:
    """The device to use.

    Raises:
        ValueError: if the name is unknown or there is no such device.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; use auto, cpu or cuda") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r} asks for a GPU that torch does not see; use --device cpu")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use cpu or cuda")
    return name


def choose_dtype(name: str) -> "torch.dtype":
    import torch

    return {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}[name]


def check_report_path(path: Path | None) -> None:
    """Raise a ValueError unless a report can be written to ``path``, with a table beside it."""
    if path is not None and path.suffix != ".json":
        raise ValueError(f"--out takes the name of a .json file (the table goes beside it as .md), got {path}")


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar with the remaining time, on a terminal; yields a function that takes how much is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)


def print_table(markdown: str) -> None:
    """Drawn on a terminal, plain Markdown in a file or a pipe."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    if console.is_terminal:
        console.print(Markdown(markdown))
    else:
        click.echo(markdown)


def comma_list(text: str, convert: Callable[[str], Any], what: str) -> tuple[Any, ...]:
    """Parse ``16,32,64``.

    Raises:
        ValueError: naming the entry that does not parse.
    """
    values = []
    for entry in text.split(","):
        try:
            values.append(convert(entry.strip()))
        except ValueError:
            raise ValueError(f"{what} takes a comma-separated list of numbers, and {entry.strip()!r} is none") from None
    return tuple(values)
