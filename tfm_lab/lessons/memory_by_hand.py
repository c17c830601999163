"""The gated delta rule on one head, as short as on paper: solutions of notebook 08.

``tfm_lab.gdn`` has the same for many heads, batches and awkward numbers; tests hold these functions against it. Here a
state is [key_dim, value_dim], and queries, keys, values and updates have one row per node.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def update(
    state: Float[Tensor, "key_dim value_dim"],
    key: Float[Tensor, " key_dim"],
    value: Float[Tensor, " value_dim"],
    alpha: float,
    beta: float,
) -> Float[Tensor, " value_dim"]:
    """What one token writes under its key: beta times what the faded memory still gets wrong (2412.06464, eq. 10)."""
    answer = alpha * (state.T @ key)
    return beta * (value - answer)


def system(
    query: Float[Tensor, "nodes key_dim"],
    key: Float[Tensor, "nodes key_dim"],
    log_decay: Float[Tensor, " nodes"],
    beta: Float[Tensor, " nodes"],
    ancestors: Bool[Tensor, "nodes nodes"],
) -> tuple[Float[Tensor, "nodes nodes"], Float[Tensor, "nodes nodes"]]:
    """X and Y of a tree (2607.06763, eq. 11): what writes take from earlier writes, and what reads take from writes.

    Args:
        query, key: one row per node.
        log_decay: log alpha of each node.
        beta: writing strength of each node.
        ancestors: ``[i, j]`` is true when j is i or an ancestor of i.
    """
    from_root = ancestors.to(key.dtype) @ log_decay
    between = (from_root[:, None] - from_root[None, :]).masked_fill(~ancestors, -math.inf).exp()
    X = beta[:, None] * between * (key @ key.T)
    Y = between * (query @ key.T)
    return X.tril(-1), Y


def solve(
    X: Float[Tensor, "nodes nodes"],
    Y: Float[Tensor, "nodes nodes"],
    from_root: Float[Tensor, " nodes"],
    query: Float[Tensor, "nodes key_dim"],
    key: Float[Tensor, "nodes key_dim"],
    value: Float[Tensor, "nodes value_dim"],
    beta: Float[Tensor, " nodes"],
    state: Float[Tensor, "key_dim value_dim"],
) -> tuple[Float[Tensor, "nodes value_dim"], Float[Tensor, "nodes value_dim"]]:
    """Updates and outputs of all nodes: (I + X) U = beta (V - a K S0), then O = a Q S0 + Y U.

    Args:
        X, Y: of :func:`system`.
        from_root: a, the product of the decays from the root to each node, both included.
        state: S0, the memory before the root.

    Returns:
        ``(update, output)``.
    """
    right = beta[:, None] * (value - from_root[:, None] * (key @ state))
    identity = torch.eye(len(X), dtype=X.dtype)
    update = torch.linalg.solve_triangular(identity + X, right, upper=False)
    return update, from_root[:, None] * (query @ state) + Y @ update


def commit(
    state: Float[Tensor, "key_dim value_dim"],
    key: Float[Tensor, "nodes key_dim"],
    update: Float[Tensor, "nodes value_dim"],
    log_decay: Float[Tensor, " nodes"],
    path: Sequence[int],
) -> Float[Tensor, "key_dim value_dim"]:
    """The memory after the nodes of an accepted path, root first: fade and add, without reading anything again."""
    for node in path:
        state = log_decay[node].exp() * state + torch.outer(key[node], update[node])
    return state
