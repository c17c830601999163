"""Options that several commands share."""

import errno
import os
import tempfile
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
        help="Shipped bundle, or a folder with target/, drafter/, weaver/, autoregressive/.",
    )


def target_option() -> Decorator:
    return click.option(
        "--target",
        default=None,
        help="Another target than the bundle's: a Hugging Face folder, or the name of one that was fetched.",
    )


def drafter_options() -> Decorator:
    """``--drafter`` and ``--weaver``."""
    drafter = click.option(
        "--drafter",
        default=None,
        help="A DFlash drafter for the target, instead of the bundle's models: a folder, or OWNER/NAME once fetched.",
    )
    weaver = click.option(
        "--weaver", default=None, help="A Weaver for the drafter: a folder, a .pth file, or OWNER/NAME once fetched."
    )
    return lambda command: drafter(weaver(command))


def device_option() -> Decorator:
    return click.option(
        "--device", default="auto", show_default=True, help="auto (a GPU when there is one), cpu, cuda or cuda:1."
    )


def dtype_option() -> Decorator:
    choice = click.Choice(["float32", "float64", "bfloat16"])
    return click.option("--dtype", type=choice, default="float32", show_default=True, help="Weights in memory.")


def choose_device(name: str) -> str:
    """The device to use. Switches cuDNN's attention off for this process.

    Raises:
        ValueError: if the name is unknown or there is no such device.
    """
    import torch

    # cuDNN's attention, which torch prefers on Hopper, makes a plan for every new length: 66 ms each on an H200, where
    # decoding, writing and replaying texts meet a new length in every step. The other kernels are as fast.
    torch.backends.cuda.enable_cudnn_sdp(False)
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
    """The dtype of a name.

    Raises:
        ValueError: if it is none of the usual ones.
    """
    import torch

    dtypes = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
    if name not in dtypes:
        raise ValueError(f"there is no dtype {name!r} to choose; use {', '.join(dtypes)}")
    return dtypes[name]


def check_report_path(path: Path | None) -> None:
    """Raise a ValueError unless a report can be written to ``path``, with a table beside it."""
    if path is None:
        return
    if path.suffix != ".json":
        raise ValueError(f"--out takes the name of a .json file (tables and pages go beside it), got {path}")
    check_writable(path)
    check_writable(path.with_suffix(".md"))


def check_writable(path: Path, *, makes_folder: bool = True) -> None:
    """Look, before the work starts, whether a file can be written; leaves nothing behind.

    Args:
        path: the file; links are followed.
        makes_folder: whether the folders above it will be made where they are missing.

    Raises:
        ValueError: saying why it cannot be written.
    """
    try:
        if path.exists():
            if path.is_dir():
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not os.access(path, os.W_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            return
        folder = path.resolve().parent
        if not makes_folder and not folder.is_dir():
            raise OSError(errno.ENOENT, "its folder does not exist")
        while not folder.exists():
            folder = folder.parent
        if not folder.is_dir():
            raise OSError(errno.ENOTDIR, f"{folder} is no folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    except RuntimeError:
        raise ValueError(f"cannot write {path}: it is a link to itself") from None


def write_whole(text: str, path: Path) -> None:
    """Write a file that appears whole or not at all; links are followed, pipes and devices are written as they are.

    Raises:
        ValueError: saying why it cannot be written.
    """
    place = path.resolve()
    try:
        if path.exists() and not (path.is_file() and os.access(place.parent, os.W_OK)):
            path.write_text(text, encoding="utf-8")
            return
        scratch = place.with_name(f".tfm-lab-{os.getpid()}.part")
        try:
            scratch.write_text(text, encoding="utf-8")
            scratch.replace(place)
        finally:
            scratch.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


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
