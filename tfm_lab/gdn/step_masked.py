"""The decoding step of :mod:`tfm_lab.gdn.step` from an ancestor mask, without ever waiting for the device.

The reference there walks over Python lists, so it cannot be recorded as a CUDA graph. Here every shape is fixed and
nothing is read back: one masked solve for all requests, rows of accepted paths by index. Also the plain token of a
decode without drafts, whose state moves on at once.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from tfm_kernels.gdn_tree import Pending, Stash, StatePool
from torch import Tensor

from tfm_lab.gdn.delta_rule import gates, normalise, normalised_query_and_key
from tfm_lab.gdn.inputs import at_least_float32, repeat_heads
from tfm_lab.gdn.step import flush

StaticImplementation = Literal["masked", "triton"]
"""``masked`` is the PyTorch of this module; ``triton`` the fused kernels."""


def masked_tree_step(
    query: Float[Tensor, "batch nodes key_heads key_dim"],
    key: Float[Tensor, "batch nodes key_heads key_dim"],
    value: Float[Tensor, "batch nodes value_heads value_dim"],
    a: Float[Tensor, "batch nodes value_heads"],
    b: Float[Tensor, "batch nodes value_heads"],
    A_log: Float[Tensor, " value_heads"],
    dt_bias: Float[Tensor, " value_heads"],
    ancestors: Bool[Tensor, "batch nodes nodes"],
    pool: StatePool,
    pending: Pending,
) -> tuple[Float[Tensor, "batch nodes value_heads value_dim"], Stash]:
    """:func:`tfm_lab.gdn.step.tree_step` for one tree per request, given as inclusive ancestor masks.

    Args:
        ancestors: parents before children; a row of padding sees itself alone, and its output holds no meaning.
        pending: folded into the pool's states first, in place; a decay of 1 and weights of 0 leave them as they are.
    """
    flush(pool, pending)
    log_decay, beta = gates(a.mT, b.mT, A_log, dt_bias)
    unit_query, unit_key = normalised_query_and_key(query.transpose(1, 2), key.transpose(1, 2))
    unit_query, unit_key = (repeat_heads(x, value.shape[2]) for x in (unit_query, unit_key))
    wide_value, state = at_least_float32(value.transpose(1, 2)), pool.states[pool.slots.long()].mT
    mask, strength = ancestors[:, None], beta[..., None]
    below = log_decay[..., None] * ancestors.to(log_decay.dtype).tril(-1)[:, None]
    decay = (mask.to(log_decay.dtype) @ below).masked_fill(~mask, -torch.inf).exp()
    from_root = (mask.to(log_decay.dtype) @ log_decay[..., None]).exp()
    system = strength * decay * (unit_key @ unit_key.mT)
    right = strength * (wide_value - from_root * (unit_key @ state))
    update = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    output = from_root * (unit_query @ state) + (decay * (unit_query @ unit_key.mT)) @ update
    squares = at_least_float32(key.transpose(1, 2)).square().sum(-1)
    norm = repeat_heads((squares + 1e-6).rsqrt()[..., None], value.shape[2])[..., 0]
    return output.transpose(1, 2).to(value.dtype), Stash(key, update, log_decay, norm)


def commit_windows_masked(
    x: Float[Tensor, "layers batch nodes channels"],
    windows: Float[Tensor, "layers batch rows channels"],
    path: Int[Tensor, "batch length"],
    count: Int[Tensor, " batch"],
) -> None:
    """Move the convolution windows of all layers past the accepted paths, in place.

    Args:
        x: what the convolutions of the verified trees took.
        path: nodes from the root on; what stands behind the first ``count`` does not matter, as long as it is a node.
        count: nodes of each path.
    """
    request = torch.arange(path.shape[0], device=path.device)[:, None]
    rows = windows.shape[2]
    extended = torch.cat([windows, x[:, request, path]], dim=2)
    windows.copy_(extended[:, request, count[:, None] + torch.arange(rows, device=path.device)])


def plain_token(
    x: Float[Tensor, "batch channels"],
    a: Float[Tensor, "batch value_heads"],
    b: Float[Tensor, "batch value_heads"],
    weight: Float[Tensor, "channels width"],
    A_log: Float[Tensor, " value_heads"],
    dt_bias: Float[Tensor, " value_heads"],
    window: Float[Tensor, "batch rows channels"],
    states: Float[Tensor, "batch value_heads value_dim key_dim"],
    key_heads: int,
) -> Float[Tensor, "batch value_heads value_dim"]:
    """One token of plain decoding: convolution, delta rule, and window and state moved on in place.

    Args:
        x: queries, keys and values before the convolution.
    """
    value_heads, value_dim, key_dim = states.shape[1:]
    taps = torch.cat([window, x[:, None]], dim=1)
    mixed = F.silu((at_least_float32(taps) * at_least_float32(weight).mT).sum(1).to(x.dtype))
    query, key, value = mixed.split([key_heads * key_dim, key_heads * key_dim, value_heads * value_dim], dim=-1)
    shared = value_heads // key_heads
    query = (normalise(query.unflatten(-1, (key_heads, key_dim))) * key_dim**-0.5).repeat_interleave(shared, dim=1)
    key = normalise(key.unflatten(-1, (key_heads, key_dim))).repeat_interleave(shared, dim=1)
    value = at_least_float32(value.unflatten(-1, (value_heads, value_dim)))
    log_decay, beta = gates(a[..., None], b[..., None], A_log, dt_bias)
    decayed = states * log_decay.exp()[..., None]
    update = beta * (value - (decayed * key[:, :, None]).sum(-1))
    moved = decayed + update[..., None] * key[:, :, None]
    output = (moved * query[:, :, None]).sum(-1).to(x.dtype)
    states.copy_(moved)
    window.copy_(taps[:, 1:])
    return output


def is_fused(implementation: str) -> bool:
    """Whether the kernels were asked for; a ValueError for an unknown name."""
    if implementation not in get_args(StaticImplementation):
        names = ", ".join(get_args(StaticImplementation))
        raise ValueError(f"the engine verifies memories with {names}, not with {implementation!r}")
    return implementation == "triton"
