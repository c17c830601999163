"""The type checker that tests put on the package: beartype, with protocols made checkable first."""

import typing
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

CONFIG = BeartypeConf(is_pep484_tower=True)  # an int may stand where a float is annotated, as everywhere in Python


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its annotations checked at every call."""
    for hint in getattr(function, "__annotations__", {}).values():
        _make_checkable(hint)
    return beartype(conf=CONFIG)(function)


def _make_checkable(hint: object) -> None:
    """A protocol must be marked before ``isinstance`` accepts it; the package itself never asks."""
    if getattr(hint, "_is_protocol", False) and isinstance(hint, type):
        typing.runtime_checkable(hint)
    for part in typing.get_args(hint):
        _make_checkable(part)
