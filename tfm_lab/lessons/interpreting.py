"""Run a Triton kernel in the interpreter with an eye on every access: what is read, written, and out of bounds.

The launch of a kernel gives each of its tensors a place of its own in one piece of memory, with wide gaps between them.
Every entry that a kernel touches then belongs to one tensor or to none, and what belongs to none is not touched: a read
gives NaN, a write goes nowhere, and both are reported. Triton can be missing; a launch then says so.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tfm_lab.lessons.judging import NotAttemptedError

GAP = 1 << 16
"""Bytes between two tensors: more than a kernel of a lesson strays."""


class Access(NamedTuple):
    """What all programs of a launch did to one tensor.

    Attributes:
        loads, stores: how often ``tl.load`` and ``tl.store`` were called on it, once per program and call.
        bytes_read, bytes_written: over all of them, masked entries left out.
    """

    loads: int = 0
    stores: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """What came of a launch.

    Attributes:
        tensors: all tensors by name, as the kernel left them.
        access: by the name of the tensor.
        product_flops: floating-point operations in ``tl.dot``, two for each multiply-add.
        strays: sentences about accesses outside of all tensors, without repetitions.
    """

    tensors: dict[str, Tensor]
    access: dict[str, Access]
    product_flops: int
    strays: tuple[str, ...]

    @property
    def bytes_read(self) -> int:
        return sum(access.bytes_read for access in self.access.values())

    @property
    def bytes_written(self) -> int:
        return sum(access.bytes_written for access in self.access.values())


def launch(kernel: Any, arguments: Mapping[str, Tensor | int], grid: tuple[int, ...]) -> Launch:
    """Run all programs of a grid, one after the other. The tensors that are given are not changed.

    Args:
        kernel: a function with or without ``@triton.jit``; its parameters are those names, in that order.
        arguments: tensors on the CPU, and numbers.
        grid: number of programs along up to three axes.

    Raises:
        ValueError: for bfloat16 tensors, whose bit patterns the interpreter would multiply, or if Triton was told to
            compile when it was imported.
        NotAttemptedError: if the kernel still holds a ``todo()``.
        ModuleNotFoundError: if Triton is not installed.
        Exception: whatever the kernel raises.
    """
    function = plain_function(kernel)
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in inspect.signature(function).parameters.values()):
        kernel(*arguments.values())  # what it raises says more
        raise ValueError("a kernel names its parameters; hand over the function below @triton.jit itself")
    if function.__name__ == "<lambda>":
        raise ValueError("a kernel needs a name: write it with def")
    if "todo" in function.__code__.co_names:
        raise NotAttemptedError
    if any(isinstance(value, Tensor) and value.dtype == torch.bfloat16 for value in arguments.values()):
        raise ValueError("the interpreter multiplies the bit patterns of bfloat16 numbers; pass float32")
    interpreted, InterpreterError = _interpreted(function)
    memory = _Memory.holding({name: value for name, value in arguments.items() if isinstance(value, Tensor)})
    values = [memory.tensors.get(name, value) for name, value in arguments.items()]
    try:
        with _watched_by(memory), np.errstate(all="ignore"):
            interpreted[grid](*values)
    except InterpreterError as error:
        raise (error.__cause__ or error) from None
    return Launch(memory.tensors, memory.access(), memory.product_flops, tuple(memory.strays))


def plain_function(kernel: Any) -> Callable[..., Any]:
    """The Python function below ``@triton.jit``, or the function itself."""
    return inspect.unwrap(getattr(inspect.unwrap(kernel), "fn", kernel))


def can_interpret() -> bool:
    """Whether Triton is installed and interprets in this process."""
    try:
        from triton import knobs
    except ModuleNotFoundError:
        return False
    return knobs.runtime.interpret


def _interpreted(function: Callable[..., Any]) -> tuple[Any, type[Exception]]:
    try:
        from triton.runtime.errors import InterpreterError
        from triton.runtime.interpreter import InterpretedFunction
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the puzzles run Triton's interpreter: pip install triton (Linux only)") from error
    if not can_interpret():
        raise ValueError("Triton compiles in this process; set TRITON_INTERPRET=1 before Python imports it")
    return InterpretedFunction(function), InterpreterError


@dataclass(slots=True)
class _Memory:
    """Tensors with gaps between them, and what was done to each.

    Attributes:
        tensors: views of one storage, by name.
        counts: by name: loads, stores, bytes read, bytes written.
    """

    tensors: dict[str, Tensor]
    counts: dict[str, list[int]]
    product_flops: int = 0
    strays: dict[str, None] = field(default_factory=dict)

    @classmethod
    def holding(cls, tensors: Mapping[str, Tensor]) -> "_Memory":
        """Copies of these tensors; the memory around them is not part of any."""
        size = GAP
        starts: dict[str, int] = {}
        for name, tensor in tensors.items():
            starts[name] = size
            size += 64 * math.ceil(tensor.nbytes / 64) + GAP
        storage = torch.full((size,), 255, dtype=torch.uint8)
        views = {
            name: storage[start : start + tensors[name].nbytes].view(tensors[name].dtype).view(tensors[name].shape)
            for name, start in starts.items()
        }
        for name, view in views.items():
            view.copy_(tensors[name])
        return cls(views, {name: [0, 0, 0, 0] for name in views})

    def access(self) -> dict[str, Access]:
        return {name: Access(*counts) for name, counts in self.counts.items()}

    def admit(self, addresses: np.ndarray, wanted: np.ndarray, size: int, *, writes: bool) -> np.ndarray:
        """Count an access, and say which of the wanted entries lie inside the tensor that it goes to."""
        touched = addresses[wanted].astype(np.int64)
        if not touched.size:
            return wanted
        name = self._nearest(int(touched.min()))
        tensor = self.tensors[name]
        first, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        places = addresses.astype(np.int64)
        inside = wanted & (places >= first) & (places + size <= end)
        counts = self.counts[name]
        counts[int(writes)] += 1
        counts[2 + int(writes)] += size * int(inside.sum())
        outside = int(wanted.sum() - inside.sum())
        if outside:
            verb = "writes" if writes else "reads"
            self.strays[f"a program {verb} {outside} entries outside of {name}"] = None
        return inside

    def _nearest(self, address: int) -> str:
        """The tensor that an access is meant for: the one that its first entry lies in or is closest to."""

        def distance(name: str) -> int:
            tensor = self.tensors[name]
            return max(tensor.data_ptr() - address, address - tensor.data_ptr() - tensor.nbytes + 1, 0)

        return min(self.tensors, key=distance)


@contextmanager
def _watched_by(memory: _Memory) -> Iterator[None]:
    """Put ``memory`` between the interpreter and its loads, stores and products.

    Triton has no public hook for this. All loads and stores of all kernels go through these three methods of one object
    (Triton 3.6 to 3.9), and a test would fail if they no longer did.
    """
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    builder: Any = interpreter_builder
    load, store, dot = builder.create_masked_load, builder.create_masked_store, builder.create_dot

    def watched_load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        kind = pointers.get_element_ty()
        wanted = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        inside = memory.admit(pointers.data, wanted, kind.primitive_bitwidth // 8, writes=False)
        found = load(pointers, TensorHandle(inside, mask.dtype), other, *rest)
        data = found.data
        nothing = np.nan if np.issubdtype(data.dtype, np.floating) else np.iinfo(data.dtype).max
        undefined = ~inside if other is None else wanted & ~inside  # what stands there is whatever a register held
        return TensorHandle(np.where(undefined, np.array(nothing, dtype=data.dtype), data), found.dtype)

    def watched_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        wanted = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        size = pointers.get_element_ty().primitive_bitwidth // 8
        inside = memory.admit(pointers.data, wanted, size, writes=True)
        return store(pointers, value, TensorHandle(inside, mask.dtype), *rest)

    def watched_dot(a: Any, b: Any, *rest: Any) -> Any:
        memory.product_flops += 2 * math.prod(a.data.shape) * b.data.shape[-1]
        return dot(a, b, *rest)

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    builder.create_dot = watched_dot
    try:
        yield
    finally:
        del builder.create_masked_load, builder.create_masked_store, builder.create_dot
