"""Two small Triton kernels that always run in Triton's interpreter, whatever mode Triton is in: exhibits 11 and 12.

The module can be imported without Triton; its functions then say what is missing.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

try:
    from triton import language as tl
except ModuleNotFoundError:
    tl: Any = None

SIDE = 16
"""Of all tiles here, written into the kernels as a number: the smallest that ``tl.dot`` takes."""


def _interpreted(kernel: Callable[..., None]) -> Any:
    if tl is None:
        raise ModuleNotFoundError("this exhibit runs Triton's interpreter: pip install triton (Linux only)")
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(inspect.unwrap(kernel))  # it reads the kernel's source, and the globals beside it


def _add(x, y, total):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    tl.store(total + i, tl.load(x + i) + tl.load(y + i))


def _dot(a, b, product):
    row = tl.arange(0, 16)
    place = row[:, None] * 16 + row[None, :]
    tl.store(product + place, tl.dot(tl.load(a + place), tl.load(b + place)))


def addition() -> Any:
    """The kernel of a vector addition, interpreted.

    Raises:
        ModuleNotFoundError: if Triton is not installed.
    """
    return _interpreted(_add)


def launch_addition(kernel: Any, programs: int) -> Float[Tensor, " entries"]:
    """1 + 1 in every entry, one tile per program of the grid."""
    x = torch.ones(programs * SIDE)
    total = torch.zeros_like(x)
    kernel[(programs,)](x, x, total)
    return total


def dot(a: Float[Tensor, "16 16"], b: Float[Tensor, "16 16"]) -> Float[Tensor, "16 16"]:
    """``tl.dot`` of two tiles in their own dtype, interpreted; float32 out.

    Raises:
        ModuleNotFoundError: if Triton is not installed.
    """
    product = torch.zeros(SIDE, SIDE)
    _interpreted(_dot)[(1,)](a, b, product)
    return product
