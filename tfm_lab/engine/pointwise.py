"""What stands between the matrix products of a step: norms, gates, rotations. Each is one kernel if it is fused.

A decode step launches a few thousand small kernels where PyTorch runs them one by one. ``Fusing`` has each of these
functions compiled (CUDA), or runs it as it is (CPU, or where the compiler is missing); the arithmetic is the same.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm_lab.models.layers import Rotary, at_least_float32

T = TypeVar("T", bound=Callable[..., object])

MOST_SHAPES = 4096
"""Shapes that one function may be compiled for; torch gives up after 8 unless told otherwise."""


class Fusing:
    """Turns a function of tensors into one kernel, or leaves it alone.

    A function that cannot be compiled on this machine runs as it is, and ``failures`` says so.

    Args:
        compiles: ask ``torch.compile``. Shapes are fixed, so every shape is compiled once.

    Attributes:
        failures: name of a function -> first line of what its compilation said.
    """

    def __init__(self, *, compiles: bool) -> None:
        self.compiles = compiles
        self.failures: dict[str, str] = {}
        if compiles:
            for name in ("recompile_limit", "accumulated_recompile_limit"):
                if hasattr(torch._dynamo.config, name):  # their names have changed between releases of torch
                    setattr(torch._dynamo.config, name, MOST_SHAPES)

    def __call__(self, function: T) -> T:
        """The function, compiled if asked for."""
        if not self.compiles:
            return function
        compiled, name = torch.compile(function, fullgraph=True, dynamic=False), function.__name__

        @wraps(function)
        def run(*arguments: Any) -> object:
            if name in self.failures:
                return function(*arguments)
            try:
                return compiled(*arguments)
            except Exception as error:  # whatever the compiler raises: the function itself is the fallback
                self.failures[name] = str(error).strip().split("\n")[0]
                return function(*arguments)

        return cast(T, run)


def norm(x: Tensor, weight: Tensor, epsilon: float, zero_centred: bool) -> Tensor:
    """As :class:`tfm_lab.models.layers.RMSNorm` without a bias."""
    wide = at_least_float32(x)
    scale = weight.to(wide.dtype)
    return F.rms_norm(wide, scale.shape, 1.0 + scale if zero_centred else scale, epsilon).to(x.dtype)


def biased_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """As :class:`tfm_lab.models.layers.RMSNorm` with a bias."""
    wide = at_least_float32(x)
    return (F.rms_norm(wide, weight.shape, weight.to(wide.dtype), epsilon) + bias.to(wide.dtype)).to(x.dtype)


def add_norm(x: Tensor, delta: Tensor, weight: Tensor, epsilon: float, zero_centred: bool) -> tuple[Tensor, Tensor]:
    """The residual stream after a layer's part, and its norm."""
    x = x + delta
    return x, norm(x, weight, epsilon, zero_centred)


def gated(inner: Tensor) -> Tensor:
    """silu(gate) * up of a product with both, gate first."""
    gate, up = inner.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_norm(output: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Norm of every head of a memory's output, times silu(gate): [..., heads, size] -> [..., heads * size]."""
    normed = norm(output, weight, epsilon, False)
    return (normed * F.silu(at_least_float32(gate))).to(gate.dtype).flatten(-2)


def angles(positions: Tensor, rotary_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions [batch, rows], as :func:`rotate` takes them: [batch, rows, 1, rotary]."""
    rotary = Rotary(positions, rotary_dim, theta, dtype)
    return rotary.cosines.transpose(1, 2), rotary.sines.transpose(1, 2)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """As ``Rotary.rotate``, for heads [batch, rows, heads, size] and angles [batch, rows, 1, rotary]."""
    width = cosines.shape[-1]
    pairs, rest = x[..., :width], x[..., width:]
    rotated = torch.addcmul(pairs * cosines, pairs.roll(width // 2, dims=-1), sines)
    return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated


def grouped(query: Tensor, shared: int) -> Tensor:
    """[batch, rows, heads, size] -> [batch, shared, groups * rows, size]: heads of a group are further queries."""
    return query.unflatten(2, (shared, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def ungrouped(attended: Tensor, rows: int) -> Tensor:
    """The inverse of :func:`grouped`: [batch, shared, groups * rows, size] -> [batch, rows, heads, size]."""
    return attended.unflatten(2, (-1, rows)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def gated_attention_inputs(
    projected: Tensor, query_norm: Tensor, key_norm: Tensor, epsilon: float, cosines: Tensor, sines: Tensor, shared: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the hybrid's fused projection: grouped queries, keys and values [2, batch, rows, shared, size], the gates."""
    size = query_norm.shape[0]
    width = shared * size
    queries, keys, values = projected.split([projected.shape[-1] - 2 * width, width, width], dim=-1)
    query, gate = queries.unflatten(-1, (-1, 2 * size)).chunk(2, dim=-1)
    query = rotate(norm(query, query_norm, epsilon, True), cosines, sines)
    key = rotate(norm(keys.unflatten(-1, (shared, size)), key_norm, epsilon, True), cosines, sines)
    return grouped(query, shared), torch.stack([key, values.unflatten(-1, (shared, size))]), gate


def plain_attention_inputs(
    projected: Tensor, cosines: Tensor, sines: Tensor, shared: int, size: int
) -> tuple[Tensor, Tensor]:
    """The same for a llama, which has neither norms nor gates."""
    width = shared * size
    queries, keys, values = projected.split([projected.shape[-1] - 2 * width, width, width], dim=-1)
    query = rotate(queries.unflatten(-1, (-1, size)), cosines, sines)
    key = rotate(keys.unflatten(-1, (shared, size)), cosines, sines)
    return grouped(query, shared), torch.stack([key, values.unflatten(-1, (shared, size))])


def drafter_attention_inputs(
    queries: Tensor, keys_values: Tensor, query_norm: Tensor, key_norm: Tensor, epsilon: float,
    cosines: Tensor, sines: Tensor, shared: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same for a drafter, whose norms are not centred on zero."""
    size = query_norm.shape[0]
    query = rotate(norm(queries.unflatten(-1, (-1, size)), query_norm, epsilon, False), cosines, sines)
    return grouped(query, shared), drafter_keys_values(keys_values, key_norm, epsilon, cosines, sines, shared)


def drafter_keys_values(
    keys_values: Tensor, key_norm: Tensor, epsilon: float, cosines: Tensor, sines: Tensor, shared: int
) -> Tensor:
    """Normed, rotated keys and plain values [2, batch, rows, shared, size] of a product with both."""
    keys, values = keys_values.chunk(2, dim=-1)
    size = key_norm.shape[0]
    key = rotate(norm(keys.unflatten(-1, (shared, size)), key_norm, epsilon, False), cosines, sines)
    return torch.stack([key, values.unflatten(-1, (shared, size))])


def ungrouped_gated(attended: Tensor, gate: Tensor) -> Tensor:
    """Attention output times sigmoid(gate): grouped queries -> [batch, rows, heads * size]."""
    return (ungrouped(attended, gate.shape[1]) * gate.sigmoid()).flatten(-2)
