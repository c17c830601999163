"""What every form of the delta rule does first: check the shapes, widen the dtype, clamp the decay."""

from contextlib import AbstractContextManager
from functools import reduce
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MIN_LOG_DECAY = -1e4
"""exp of it is 0 in every dtype, and sums of it stay finite, which sums of -inf minus -inf do not."""


class DeltaRuleInputs(NamedTuple):
    """Checked arguments of the delta rule, all in one dtype that is float32 or wider."""

    query: Float[Tensor, "*batch key_heads tokens key_dim"]
    key: Float[Tensor, "*batch key_heads tokens key_dim"]
    value: Float[Tensor, "*batch value_heads tokens value_dim"]
    log_decay: Float[Tensor, "*batch value_heads tokens"]
    beta: Float[Tensor, "*batch value_heads tokens"]
    state: Float[Tensor, "*batch value_heads key_dim value_dim"]


def checked_inputs(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> DeltaRuleInputs:
    """The arguments in the widest of their dtypes, at least float32, with the log decay clamped at ``MIN_LOG_DECAY``.

    Raises:
        ValueError: with a sentence, if the shapes do not belong together.
    """
    if min(query.ndim, key.ndim, value.ndim, state.ndim) < 3:
        raise ValueError("query, key, value and state need at least three axes: [..., heads, tokens, dim]")
    if query.shape != key.shape:
        raise ValueError(f"query and key must have the same shape, got {list(query.shape)} and {list(key.shape)}")
    *batch, key_heads, tokens, key_dim = key.shape
    value_heads, value_dim = value.shape[-3], value.shape[-1]
    if key_heads == 0 or value_heads % key_heads:
        raise ValueError(
            f"{value_heads} value heads cannot share {key_heads} key heads evenly; "
            "the number of value heads must be a multiple of the number of key heads"
        )
    expected = {
        "value": (value, [*batch, value_heads, tokens, value_dim]),
        "log_decay": (log_decay, [*batch, value_heads, tokens]),
        "beta": (beta, [*batch, value_heads, tokens]),
        "state": (state, [*batch, value_heads, key_dim, value_dim]),
    }
    for name, (tensor, shape) in expected.items():
        if list(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; with these queries and values it must be {shape}")
    tensors = (query, key, value, log_decay, beta, state)
    dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    query, key, value, log_decay, beta, state = (tensor.to(dtype) for tensor in tensors)
    return DeltaRuleInputs(query, key, value, log_decay.clamp_min(MIN_LOG_DECAY), beta, state)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor itself if it is float32 or float64, else its float32 copy."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Autocast would round the operands of the products below to bf16, and with them the state for good."""
    return torch.autocast(tensor.device.type, enabled=False)


def repeat_heads(
    x: Float[Tensor, "*batch key_heads tokens dim"], value_heads: int
) -> Float[Tensor, "*batch value_heads tokens dim"]:
    """Give each value head its key head: value head h reads key head ``h // (value_heads / key_heads)``."""
    return x.repeat_interleave(value_heads // x.shape[-3], dim=-3)
