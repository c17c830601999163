"""The gated delta rule on a draft tree: all nodes verified at once, the state untouched, a closed-form commit.

This is the rollback-free verification of Trees from Marginals (arXiv 2607.06763, sec. 3.4, eq. 11). Let S0 be the state
before the root, a_i the product of the decays from the root to node i (both included), and D_ij that from j (excluded)
to i (included). Unrolling S_i = alpha_i S_parent(i) + k_i u_i^T along one path gives

    S_i = a_i S0 + sum over j on the path of D_ij k_j u_j^T

and with u_i = beta_i (v_i - alpha_i S_parent(i)^T k_i), the update of the recurrence, for all nodes together

    (I + X) U = diag(beta) (V - diag(a) K S0)      X_ij = beta_i D_ij (k_i . k_j)   j a strict ancestor of i
    O         = diag(a) Q S0 + Y U                 Y_ij = D_ij (q_i . k_j)          j an ancestor of i, or i

Off the ancestor mask X is zero, and so is the inverse of I + X: branches never see each other. A row of U depends on
its ancestors alone, so the state after an accepted path is the first formula, without a second solve.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfm_lab.gdn.delta_rule import path_decay
from tfm_lab.gdn.inputs import DeltaRuleInputs, checked_inputs, repeat_heads, without_autocast

TreeImplementation = Literal["reference", "triton"]
"""``reference`` is the PyTorch of this module; ``triton`` is ``tfm_kernels``, float32, at most 128 nodes."""


class TreeWrites(NamedTuple):
    """What a verification leaves for a commit, float32 or wider: ``update`` rounded to bf16 costs 2e-3 in the state.

    Attributes:
        key: normalised keys of the nodes.
        update: U, one row per node: what the node writes under its key.
        log_decay: log alpha of each node. The products along a path are formed at the commit, from these.
        ancestors: the inclusive ancestor mask that the verification used.
    """

    key: Float[Tensor, "*batch key_heads nodes key_dim"]
    update: Float[Tensor, "*batch value_heads nodes value_dim"]
    log_decay: Float[Tensor, "*batch value_heads nodes"]
    ancestors: Bool[Tensor, "nodes nodes"]


class TreeVerification(NamedTuple):
    """Outputs of all nodes (in the value's dtype) and what a commit needs."""

    output: Float[Tensor, "*batch value_heads nodes value_dim"]
    writes: TreeWrites


def tree_verify(
    query: Float[Tensor, "*batch key_heads nodes key_dim"],
    key: Float[Tensor, "*batch key_heads nodes key_dim"],
    value: Float[Tensor, "*batch value_heads nodes value_dim"],
    log_decay: Float[Tensor, "*batch value_heads nodes"],
    beta: Float[Tensor, "*batch value_heads nodes"],
    state: Float[Tensor, "*batch value_heads key_dim value_dim"],
    ancestors: Bool[Tensor, "nodes nodes"],
    *,
    impl: TreeImplementation = "reference",
) -> TreeVerification:
    """Outputs of all tree nodes, each as if its root path alone had been processed (equations in the module docstring).

    Args:
        query: normalised and scaled, see :func:`normalised_query_and_key`; one row per node, root first.
        key: normalised.
        value: what to store under each key.
        log_decay: log alpha, at most 0.
        beta: writing strength in [0, 1].
        state: S0, the memory before the root. It is only read.
        ancestors: ``[i, j]`` is true when j is i or an ancestor of i; ``DraftTree.ancestors()``. Any order of the nodes
            in which parents precede their children will do. Must be on the device of the other arguments.
        impl: which implementation computes it.

    Raises:
        ValueError: if the shapes do not belong together, the mask is not that of such a tree, ``impl`` is unknown, or
            the chosen implementation cannot take these inputs.
        ModuleNotFoundError: if ``impl="triton"`` and Triton is not installed.

    The two tokens of :func:`delta_rule_recurrent`, now as siblings, so that both see the state 4 (alpha = 0.5). The
    first has the update 0.5 (6 - 2) = 2 and leaves the state 4, the second 1 (10 - 2) = 8 and leaves 10.

    Example:
        >>> one = torch.ones(1, 3, 1, dtype=torch.float64)
        >>> value = torch.tensor([[[5.0], [6.0], [10.0]]], dtype=torch.float64)
        >>> log_decay = torch.tensor([[1.0, 0.5, 0.5]], dtype=torch.float64).log()
        >>> beta = torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.float64)
        >>> ancestors = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
        >>> output, writes = tree_verify(one, one, value, log_decay, beta, 4 * one[:, :1], ancestors)
        >>> output.flatten().tolist(), writes.update.flatten().tolist()
        ([4.0, 4.0, 10.0], [0.0, 2.0, 8.0])
        >>> commit_path(4 * one[:, :1], writes, path=(0, 2)).item()
        10.0
    """
    if impl not in get_args(TreeImplementation):
        raise ValueError(f"impl must be one of {', '.join(get_args(TreeImplementation))}, got {impl!r}")
    with without_autocast(value):
        inputs = checked_inputs(query, key, value, log_decay, beta, state)
        _check_ancestors(ancestors, value)
        if impl == "triton":
            output, update = dense_kernel(query, key, value, *inputs[3:], ancestors)
        else:
            output, update = _reference(inputs, ancestors)
    writes = TreeWrites(inputs.key, update, inputs.log_decay, ancestors)
    return TreeVerification(output.to(value.dtype), writes)


def dense_kernel(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    """Output and update rows by ``tfm_kernels.gdn_tree_dense``, without a look at the mask, which waits for a GPU."""
    from tfm_kernels.gdn_tree_dense import gdn_tree_dense

    return gdn_tree_dense(query, key, value, log_decay, beta, state, ancestors)


def _reference(inputs: DeltaRuleInputs, ancestors: Bool[Tensor, "nodes nodes"]) -> tuple[Tensor, Tensor]:
    """Output and update rows of all nodes: one unit-triangular solve, four products."""
    value, beta, state = inputs.value, inputs.beta[..., None], inputs.state
    query, key = (repeat_heads(x, value.shape[-3]) for x in (inputs.query, inputs.key))
    decay = path_decay(inputs.log_decay, ancestors)
    from_root = (ancestors.to(value.dtype) @ inputs.log_decay[..., None]).exp()
    # I + X: the solve takes the diagonal as 1 and reads neither it nor what is above it.
    system = beta * decay * (key @ key.mT)
    right = beta * (value - from_root * (key @ state))
    update = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return from_root * (query @ state) + (decay * (query @ key.mT)) @ update, update


def commit_path(
    state: Float[Tensor, "*batch value_heads key_dim value_dim"],
    writes: TreeWrites,
    path: Sequence[int] | Int[Tensor, " path"],
) -> Float[Tensor, "*batch value_heads key_dim value_dim"]:
    """The state after the nodes on ``path``: S = a_leaf S0 + sum over j on the path of D_leaf,j k_j u_j^T.

    Args:
        state: the state that was verified against. It is not changed.
        writes: what that verification returned.
        path: node indices from the root to the last accepted node, both included, as from ``DraftTree.path``.

    Returns:
        The new state, float32 or wider.

    Raises:
        ValueError: if ``path`` is not a path from the root of the verified tree.
    """
    nodes = torch.as_tensor(path, dtype=torch.int64, device=writes.update.device)
    _check_path(nodes.tolist(), writes.ancestors)
    with without_autocast(state):
        key = repeat_heads(writes.key.index_select(-2, nodes), writes.update.shape[-3])
        update = writes.update.index_select(-2, nodes)
        to_end = writes.log_decay.index_select(-1, nodes).flip(-1).cumsum(-1).flip(-1)
        after = F.pad(to_end[..., 1:], (0, 1)).exp()
        return to_end[..., :1, None].exp() * state.to(update.dtype) + (after[..., None] * key).mT @ update


def _check_ancestors(ancestors: Tensor, value: Tensor) -> None:
    """Refuse masks that are not those of a tree in topological order; reads the mask, so it waits for a GPU."""
    nodes = value.shape[-2]
    if list(ancestors.shape) != [nodes, nodes] or ancestors.dtype != torch.bool:
        raise ValueError(
            f"ancestors must be a bool mask of shape [{nodes}, {nodes}] for {nodes} nodes, "
            f"got {ancestors.dtype} of shape {list(ancestors.shape)}"
        )
    if ancestors.device != value.device:
        raise ValueError(f"ancestors are on {ancestors.device} and values on {value.device}; move them to one device")
    if nodes == 0:
        raise ValueError("a draft tree needs at least its root; there is nothing to verify without nodes")
    if not bool(ancestors.diagonal().all() & ancestors[:, 0].all() & ~ancestors.triu(1).any()):
        raise ValueError(
            "ancestors must hold every node itself and the root, node 0, and parents must precede their children: "
            "use DraftTree.ancestors()"
        )


def _check_path(path: list[int], ancestors: Bool[Tensor, "nodes nodes"]) -> None:
    """Refuse node lists that are not the whole path from the root to their last node."""
    nodes = ancestors.shape[0]
    if not path:
        raise ValueError("an accepted path holds at least the root, node 0; got an empty path")
    if not all(0 <= node < nodes for node in path):
        raise ValueError(f"path {path} names a node outside the tree; its {nodes} nodes are 0 to {nodes - 1}")
    whole = ancestors[path[-1]].nonzero().flatten().tolist()
    if path != whole:
        raise ValueError(f"path {path} is not a path of the verified tree; the one to node {path[-1]} is {whole}")
