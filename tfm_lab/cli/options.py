"""Options that several commands share."""

from collections.abc import Callable
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
