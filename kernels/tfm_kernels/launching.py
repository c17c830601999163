"""What every launcher does first: load its kernels, and refuse with a sentence what they cannot take."""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor


def load_kernels(module: str) -> tuple[ModuleType, bool]:
    """A kernel module of this package, and whether Triton chose to interpret when it was first imported.

    Raises:
        ModuleNotFoundError: if Triton is not installed.
    """
    try:
        import triton
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the Triton kernel needs Triton, which is not installed: pip install triton, or use the PyTorch reference"
        ) from error
    kernels = import_module(f"tfm_kernels.{module}")
    compiled = any(isinstance(value, triton.JITFunction) for value in vars(kernels).values())
    return kernels, not compiled


def check_place(interpreted: bool, tensor: Tensor, *, multiplies: bool = True) -> None:
    """Refuse CPU tensors for compiled kernels, and products of bfloat16 in the interpreter.

    Raises:
        ValueError: saying what to do instead.
    """
    if interpreted and multiplies and tensor.dtype == torch.bfloat16:
        raise ValueError(
            "Triton's interpreter multiplies the bit patterns of bfloat16 numbers; pass float32, or run on a GPU"
        )
    if not interpreted and tensor.device.type != "cuda":
        raise ValueError(
            f"the Triton kernel runs on a GPU and the tensors are on {tensor.device}: move them to a GPU, use the "
            "PyTorch reference, or set TRITON_INTERPRET=1 before Python starts to try the kernel on the CPU"
        )


def check_tensors(
    named: Mapping[str, tuple[Tensor, list[int], torch.dtype | None]], device: torch.device, *, because: str
) -> None:
    """Compare shapes, dtypes and devices with what they must be; nothing is read from the device.

    Args:
        named: name -> (tensor, shape, dtype or None for any).
        because: the words behind "with" in the sentence about a wrong shape.

    Raises:
        ValueError: naming the first tensor that does not fit.
    """
    for name, (tensor, shape, dtype) in named.items():
        if list(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; with {because} it must be {shape}")
        if dtype is not None and tensor.dtype != dtype:
            raise ValueError(f"{name} must be {dtype} for the Triton kernel, got {tensor.dtype}")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device} and not on {device}; move all tensors to one device")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor, _, _ in named.values()):
        raise ValueError("the Triton kernel has no gradients; use torch.no_grad() or the PyTorch reference")


def row_strides(name: str, tensor: Tensor) -> tuple[int, int]:
    """Batch and node stride of a view [batch, nodes, ...] whose last axes are contiguous.

    Raises:
        ValueError: if they are not.
    """
    expected = 1
    for axis in range(tensor.ndim - 1, 1, -1):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != expected:
            raise ValueError(
                f"each node's part of {name} must be contiguous; strides {list(tensor.stride())} of shape "
                f"{list(tensor.shape)} are not: take a slice of the last axis, or call contiguous()"
            )
        expected *= tensor.shape[axis]
    return tensor.stride(0), tensor.stride(1)
