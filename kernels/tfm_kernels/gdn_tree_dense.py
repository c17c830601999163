"""Launcher of the dense tree kernel for the gated delta rule; the mathematics is in ``kernels/README.md``."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_kernels.launching import check_place, load_kernels

MAX_NODES = 128
MAX_DIM = 256
TILE = 16
"""Side of every tile (nodes, key columns, value columns): the smallest that ``tl.dot`` takes."""

OPTIONS = {"num_warps": 2, "num_stages": 1}
"""Two warps spill no registers on sm_90. One stage, so no software pipelining: the kernel reads back what it wrote."""


class Geometry(NamedTuple):
    """Compile-time sizes of a launch; each combination is compiled once."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tiles: int

    @classmethod
    def of(cls, key: Tensor, value: Tensor) -> "Geometry":
        """Sizes for these tensors; the nodes are padded to whole tiles."""
        tiles = math.ceil(key.shape[-2] / TILE)
        return cls(key.shape[-3], value.shape[-3], key.shape[-1], value.shape[-1], tiles)

    def constants(self) -> dict[str, int]:
        """The kernel's constexpr arguments."""
        return {name.upper(): size for name, size in self._asdict().items()} | {"TILE": TILE}


def gdn_tree_dense(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs and updates of all nodes of one draft tree per batch element; the state is only read.

    Args:
        query: [..., key_heads, nodes, key_dim], normalised and scaled; float32 (on a GPU also bfloat16).
        key: [..., key_heads, nodes, key_dim], normalised; same dtype.
        value: [..., value_heads, nodes, value_dim]; same dtype.
        log_decay: [..., value_heads, nodes], float32, finite, at most 0.
        beta: [..., value_heads, nodes], float32.
        state: [..., value_heads, key_dim, value_dim], float32.
        ancestors: [nodes, nodes] bool, inclusive, parents before children.

    Returns:
        ``(output, update)``: both [..., value_heads, nodes, value_dim] in float32.

    Raises:
        ValueError: if shapes, dtypes or devices are not as above, or the tree has more than 128 nodes, or the tensors
            are on the CPU and Triton was not told to interpret, or a gradient is asked for (there is no backward).
        ModuleNotFoundError: if Triton is not installed.
    """
    _check(query, key, value, log_decay, beta, state, ancestors)
    kernels, interpreted = load_kernels("_gdn_tree_dense")
    check_place(interpreted, query)
    geometry = Geometry.of(key, value)
    path_sum, path_rest = _path_sums(log_decay, ancestors)
    output, update = (torch.empty(value.shape, dtype=torch.float32, device=value.device) for _ in range(2))
    programs = (math.ceil(geometry.value_dim / TILE), math.prod(value.shape[:-2]))
    if 0 not in programs:
        kernels.gdn_tree_dense_kernel[programs](
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            path_sum.contiguous(),
            path_rest.contiguous(),
            beta.contiguous(),
            state.contiguous(),
            ancestors.to(torch.uint8).contiguous(),
            output,
            update,
            key.shape[-2],
            **geometry.constants(),
            **OPTIONS,
        )
    return output, update


def _path_sums(log_decay: Tensor, ancestors: Tensor) -> tuple[Tensor, Tensor]:
    """Log decay from the root to each node (included) as a float32 number and the float32 remainder.

    The kernel takes differences of these sums. After a node that forgets all (log decay -1e4) a single float32 would
    leave 3 correct digits in them; two terms keep all.
    """
    sums = (ancestors.to(torch.float64) @ log_decay.to(torch.float64)[..., None]).squeeze(-1)
    rounded = sums.to(torch.float32)
    return rounded, (sums - rounded.to(torch.float64)).to(torch.float32)


def _check(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, ancestors: Tensor
) -> None:
    """Raise a ValueError that names what does not fit."""
    if min(query.ndim, key.ndim, value.ndim, state.ndim) < 3:
        raise ValueError("query, key, value and state need at least three axes: [..., heads, nodes, dim]")
    *batch, key_heads, nodes, key_dim = key.shape
    value_heads, value_dim = value.shape[-3], value.shape[-1]
    if key_heads == 0 or value_heads % key_heads:
        raise ValueError(f"{value_heads} value heads cannot share {key_heads} key heads evenly")
    if not 1 <= nodes <= MAX_NODES:
        raise ValueError(f"the dense tree kernel takes 1 to {MAX_NODES} nodes, got {nodes}; use the PyTorch reference")
    if not (1 <= key_dim <= MAX_DIM and 1 <= value_dim <= MAX_DIM):
        raise ValueError(f"the dense tree kernel takes dims of 1 to {MAX_DIM}, got {key_dim} and {value_dim}")
    dtypes = {query.dtype, key.dtype, value.dtype}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.bfloat16}:
        raise ValueError(
            "query, key and value must all be float32 or all bfloat16 for the Triton kernel, got "
            f"{query.dtype}, {key.dtype} and {value.dtype}; the PyTorch reference takes any dtype"
        )
    expected = {
        "query": (query, [*batch, key_heads, nodes, key_dim], None),
        "key": (key, [*batch, key_heads, nodes, key_dim], None),
        "value": (value, [*batch, value_heads, nodes, value_dim], None),
        "log_decay": (log_decay, [*batch, value_heads, nodes], torch.float32),
        "beta": (beta, [*batch, value_heads, nodes], torch.float32),
        "state": (state, [*batch, value_heads, key_dim, value_dim], torch.float32),
        "ancestors": (ancestors, [nodes, nodes], torch.bool),
    }
    for name, (tensor, shape, dtype) in expected.items():
        if list(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; with these keys and values it must be {shape}")
        if dtype is not None and tensor.dtype != dtype:
            raise ValueError(f"{name} must be {dtype} for the Triton kernel, got {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device} and query on {query.device}; move them to one device")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor, _, _ in expected.values()):
        raise ValueError("the Triton kernel has no gradients; use torch.no_grad() or the PyTorch reference")
