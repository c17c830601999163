"""Inputs and an independent oracle for the tests of the gated delta rule."""

from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.tree import DraftTree

HEADS = [(1, 1), (2, 2), (2, 4), (1, 3)]
"""(key heads, value heads)"""


class Inputs(NamedTuple):
    """Arguments of the delta rule, in its order."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor
    state: Tensor

    def to(self, dtype: torch.dtype) -> "Inputs":
        return Inputs(*(tensor.to(dtype) for tensor in self))

    def along(self, nodes: tuple[int, ...] | list[int]) -> "Inputs":
        """The rows of ``nodes`` in that order, from the same state."""
        index = list(nodes)
        rows = (tensor[..., index, :] for tensor in (self.query, self.key, self.value))
        return Inputs(*rows, self.log_decay[..., index], self.beta[..., index], self.state)


def delta_inputs(
    tokens: int,
    seed: int,
    *,
    heads: tuple[int, int] = (2, 4),
    dims: tuple[int, int] = (8, 6),
    batch: tuple[int, ...] = (),
    decay: float = 1.0,
    correlation: float = 0.0,
) -> Inputs:
    """Random float64 inputs as a layer would make them.

    Args:
        heads: key heads, value heads.
        dims: key dim, value dim.
        decay: mean log decay, as a positive number.
        correlation: cosine between any two keys, about.
    """
    generator = torch.Generator().manual_seed(seed)
    (key_heads, value_heads), (key_dim, value_dim) = heads, dims

    def normal(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    key = (1 - correlation) ** 0.5 * normal(key_heads, tokens, key_dim) + correlation**0.5 * normal(
        key_heads, 1, key_dim
    )
    query, key = gdn.normalised_query_and_key(normal(key_heads, tokens, key_dim), key)
    log_decay = -decay * normal(value_heads, tokens).square()
    beta = torch.sigmoid(2 * normal(value_heads, tokens))
    value, state = normal(value_heads, tokens, value_dim), 0.3 * normal(value_heads, key_dim, value_dim)
    return Inputs(query, key, value, log_decay, beta, state)


def states_of_nodes(inputs: Inputs, parents: list[int]) -> tuple[Tensor, Tensor]:
    """Output and state of every node by S = alpha (I - beta k k^T) S_parent + beta k v^T, one dense state per node.

    Returns:
        Outputs [..., value_heads, nodes, value_dim] and states [..., value_heads, nodes, key_dim, value_dim].
    """
    query, key, value, log_decay, beta, root_state = inputs
    value_heads, key_dim = value.shape[-3], key.shape[-1]
    owner = [head * key.shape[-3] // value_heads for head in range(value_heads)]
    query, key = query[..., owner, :, :], key[..., owner, :, :]
    identity = torch.eye(key_dim, dtype=key.dtype)
    outputs: list[Tensor] = []
    states: list[Tensor] = []
    for node, parent in enumerate(parents):
        before = root_state if parent < 0 else states[parent]
        k, v, strength = key[..., node, :], value[..., node, :], beta[..., node, None, None]
        forget = identity - strength * k[..., :, None] * k[..., None, :]
        alpha = log_decay[..., node, None, None].exp()
        states.append(alpha * forget @ before + strength * k[..., :, None] * v[..., None, :])
        outputs.append((states[-1].mT @ query[..., node, :, None]).squeeze(-1))
    return torch.stack(outputs, dim=-2), torch.stack(states, dim=-3)


def oracle(inputs: Inputs, tree: DraftTree) -> tuple[Tensor, Tensor]:
    """:func:`states_of_nodes` in float64 on a draft tree."""
    return states_of_nodes(inputs.to(torch.float64), tree.parents.tolist())


def error_ratio(reference: Tensor, x: Tensor) -> float:
    """RMS of the error over RMS of the reference; NaN and infinities come through."""
    reference, x = reference.double(), x.double()
    return ((reference - x).square().mean().sqrt() / reference.square().mean().sqrt()).item()
