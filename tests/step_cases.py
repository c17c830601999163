"""Inputs of a decoding step for a batch of ragged trees, and its results by the float64 recurrence, node by node."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from gdn_cases import Inputs, states_of_nodes
from tfm_kernels.gdn_tree import StatePool
from tfm_kernels.tree_layout import PADDING
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.tree import DraftTree


class StepInputs(NamedTuple):
    """Arguments of ``tree_step`` before the tree, in its order."""

    query: Tensor
    key: Tensor
    value: Tensor
    a: Tensor
    b: Tensor
    A_log: Tensor
    dt_bias: Tensor

    def to(self, *arguments: object) -> "StepInputs":
        return StepInputs(*(tensor.to(*arguments) for tensor in self))  # pyright: ignore


def step_inputs(
    batch: int,
    nodes: int,
    seed: int,
    *,
    heads: tuple[int, int] = (1, 1),
    dims: tuple[int, int] = (32, 32),
    decay: float = 0.3,
    correlation: float = 0.0,
) -> StepInputs:
    """Random float32 inputs as a layer would make them; all rows of q, k and v are views of one projection.

    Args:
        heads: key heads, value heads.
        dims: key dim, value dim.
        decay: typical log decay, as a positive number; 0 for none.
        correlation: cosine between any two keys, about.
    """
    generator = torch.Generator().manual_seed(seed)
    (key_heads, value_heads), (key_dim, value_dim) = heads, dims

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    key_width = key_heads * key_dim
    projection = normal(batch, nodes, 2 * key_width + value_heads * value_dim)
    shared = normal(batch, 1, key_width)
    keys = projection[..., key_width : 2 * key_width]
    keys.mul_((1 - correlation) ** 0.5).add_(correlation**0.5 * shared)
    query, key, value = projection.split([key_width, key_width, value_heads * value_dim], dim=-1)
    gates = normal(batch, nodes, 2 * value_heads)
    gates[..., value_heads:] *= 2
    A_log = (
        torch.full((value_heads,), -torch.inf) if decay == 0 else normal(value_heads) * 0.2 + torch.tensor(decay).log()
    )
    return StepInputs(
        query.unflatten(-1, (key_heads, key_dim)),
        key.unflatten(-1, (key_heads, key_dim)),
        value.unflatten(-1, (value_heads, value_dim)),
        gates[..., :value_heads],
        gates[..., value_heads:],
        A_log,
        normal(value_heads),
    )


def padded_parents(trees: Sequence[DraftTree]) -> Tensor:
    """Parents of the trees, which are in depth-first order, as an int32 matrix."""
    parents = torch.full((len(trees), max(map(len, trees))), PADDING, dtype=torch.int32)
    for row, tree in zip(parents, trees, strict=True):
        row[: len(tree)] = tree.parents
    return parents


def new_pool(batch: int, inputs: StepInputs, seed: int, spare: int = 1) -> StatePool:
    """Random states in shuffled slots, with ``spare`` slots that belong to nobody."""
    generator = torch.Generator().manual_seed(seed)
    heads, value_dim = inputs.value.shape[2:]
    states = 0.3 * torch.randn(batch + spare, heads, value_dim, inputs.key.shape[3], generator=generator)
    slots = torch.randperm(batch + spare, generator=generator)[:batch].to(torch.int32)
    return StatePool(states, slots)


def recurrence(inputs: StepInputs, request: int, tree: DraftTree, state: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [nodes, heads, value_dim] and states [heads, nodes, value_dim, key_dim] of one request in float64.

    Args:
        state: [heads, value_dim, key_dim].
    """
    q, k, v, a, b = (tensor[request, : len(tree)].double().transpose(0, 1) for tensor in inputs[:5])
    log_decay, beta = gdn.gates(a, b, inputs.A_log.double(), inputs.dt_bias.double())
    query, key = gdn.normalised_query_and_key(q, k)
    rows = Inputs(query, key, v, log_decay, beta, state.double().mT)
    outputs, states = states_of_nodes(rows, tree.parents.tolist())
    return outputs.transpose(0, 1), states.mT


def accepted_paths(trees: Sequence[DraftTree], leaves: Sequence[int], rows: int = 16) -> Tensor:
    """Paths to these nodes, filled up with -1; a leaf of -1 accepts nothing."""
    accepted = torch.full((len(trees), rows), -1, dtype=torch.int32)
    for row, tree, leaf in zip(accepted, trees, leaves, strict=True):
        if leaf >= 0:
            path = torch.tensor(tree.path(leaf), dtype=torch.int32)
            row[: len(path)] = path
    return accepted
