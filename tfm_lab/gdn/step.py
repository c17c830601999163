"""A decoding step of a Gated DeltaNet layer: verify draft trees and commit lazily, as plain tensors for a whole batch.

:mod:`tfm_lab.gdn.tree` verifies one tree and commits its path at once. An engine cannot wait for that: it verifies many
trees of different sizes, keeps the states of all requests in one pool, and learns the accepted paths when all layers
are done. So a commit is put off until the next step reads the state anyway:

    output, stash = tree_step(..., pool, pending)      folds the paths of the last step into the pool, then verifies
    pending = accept_path(stash, accepted)             keeps their few rows; the stash can go
    flush(pool, pending)                               at the end of a decode, or before anything else reads a state

Rows are [batch, nodes, heads, dim], as projections leave them, and keys and queries are raw: gates and normalisation
belong to the step. ``impl="triton"`` takes the fused kernels of ``tfm_kernels`` (``kernels/README.md``).
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from tfm_kernels.gdn_tree import DIMS, Pending, Settings, Stash, StatePool
from tfm_kernels.gdn_tree import settings_for as settings_for
from tfm_kernels.launching import check_place, load_kernels
from tfm_kernels.tree_layout import BLOCK, PADDING, TreeLayout, path_rows
from torch import Tensor

from tfm_lab.gdn.convolution import convolution_ancestors
from tfm_lab.gdn.delta_rule import gates, normalised_query_and_key
from tfm_lab.gdn.inputs import at_least_float32
from tfm_lab.gdn.tree import tree_verify

StepImplementation = Literal["reference", "triton"]
"""``reference`` is the PyTorch of this module; ``triton`` the fused kernels: float32 or bfloat16, at most 512 nodes."""


def tree_layout(
    parents: Int[Tensor, "batch nodes"],
    *,
    max_depth: int | None = None,
    width: int = 4,
    impl: StepImplementation = "reference",
) -> TreeLayout:
    """What all layers of a step have to know of its trees.

    Args:
        parents: int32; -1 at the root, -2 at the padding behind the last node of a smaller tree. Nodes are in
            depth-first order: ``tree.reordered(tree.preorder())``.
        max_depth: proposed tokens on the longest path, if known; up to 16 the kernels are fastest.
        width: taps of the short convolution.

    Raises:
        ValueError: for parents of another dtype or an unknown ``impl``; the reference also for trees that are not in
            depth-first order or deeper than promised, for which the kernels, which never wait, give NaN outputs.
    """
    if is_triton(impl):
        from tfm_kernels.tree_layout import tree_layout as launch

        return launch(parents, max_depth, width)
    batch, nodes = parents.shape
    rows, blocks = path_rows(nodes, max_depth), -(-nodes // BLOCK)
    path = torch.full((batch, blocks, rows), -1, dtype=torch.int32)
    words = torch.zeros(batch, blocks * BLOCK, dtype=torch.int32)
    taps = []
    for request, row in enumerate(parents.tolist()):
        ancestors = _ancestor_lists(row, rows)
        for node, above in enumerate(ancestors):
            start = node - node % BLOCK
            inside = sum(1 << (other - start) for other in above if other >= start)
            words[request, node] = (1 << 30) | (sum(other < start for other in above) << 16) | inside
            if node == start:
                path[request, node // BLOCK, : len(above)] = torch.tensor(above, dtype=torch.int32)
        whole = torch.tensor([-1 if parent < 0 else parent for parent in row])
        whole[len(ancestors) :] = 0
        taps.append(convolution_ancestors(whole, width).to(torch.int32))
    tensors = (parents, path, words, torch.stack(taps) if taps else parents.new_empty(0, nodes, width))
    return TreeLayout(*(tensor.to(parents.device) for tensor in tensors))


def tree_step(
    query: Float[Tensor, "batch nodes key_heads key_dim"],
    key: Float[Tensor, "batch nodes key_heads key_dim"],
    value: Float[Tensor, "batch nodes value_heads value_dim"],
    a: Float[Tensor, "batch nodes value_heads"],
    b: Float[Tensor, "batch nodes value_heads"],
    A_log: Float[Tensor, " value_heads"],
    dt_bias: Float[Tensor, " value_heads"],
    tree: TreeLayout,
    pool: StatePool,
    pending: Pending | None = None,
    *,
    output_dtype: torch.dtype | None = None,
    into: Stash | None = None,
    settings: Settings | None = None,
    impl: StepImplementation = "reference",
) -> tuple[Float[Tensor, "batch nodes value_heads value_dim"], Stash]:
    """Fold ``pending`` into the pool's states (in place), then verify one tree per request against them.

    Args:
        query: neither normalised nor scaled.
        key: not normalised.
        value: what to store under each key.
        a: input of the decay, see :func:`tfm_lab.gdn.gates`.
        b: input of the writing strength.
        A_log: per value head.
        dt_bias: per value head.
        tree: of :func:`tree_layout`.
        pool: states [slots, value_heads, value_dim, key_dim] and the slot of each request.
        pending: of :func:`accept_path` after the last step; ``None`` for nothing.
        output_dtype: dtype of the output; that of the values if ``None``.
        into: tensors that the kernels write the stash to, for example one layer's part of a stash for all layers.
        settings: tiles and warps of the kernels, for measurements.
        impl: which implementation computes it.

    Returns:
        ``(output, stash)``; rows of padding are 0 in the output and hold no meaning in the stash.

    Raises:
        ValueError: if the chosen implementation cannot take these arguments, or ``impl`` is unknown.
        ModuleNotFoundError: if ``impl="triton"`` and Triton is not installed.
    """
    if is_triton(impl):
        from tfm_kernels.gdn_tree import gdn_tree_verify

        return gdn_tree_verify(
            query, key, value, a, b, A_log, dt_bias, tree, pool, pending,
            output_dtype=output_dtype, into=into, settings=settings,
        )  # fmt: skip
    if settings is not None or into is not None:
        raise ValueError('settings and into belong to the kernels; leave them out, or ask for impl="triton"')
    if pending is not None:
        flush(pool, pending)
    log_decay, beta = gates(a.mT, b.mT, A_log, dt_bias)
    unit_query, unit_key = normalised_query_and_key(query.transpose(1, 2), key.transpose(1, 2))
    wide_value = at_least_float32(value.transpose(1, 2))
    states = pool.states[pool.slots.long()].mT
    output = torch.zeros(value.shape, dtype=output_dtype or value.dtype, device=value.device)
    update = torch.zeros(wide_value.shape, dtype=states.dtype, device=value.device)
    for request, parents in enumerate(tree.parents.tolist()):
        own = slice(0, sum(parent != PADDING for parent in parents))
        verified = tree_verify(
            unit_query[request, :, own],
            unit_key[request, :, own],
            wide_value[request, :, own],
            log_decay[request, :, own],
            beta[request, :, own],
            states[request],
            _ancestor_mask(parents[own]).to(value.device),
        )
        output[request, own] = verified.output.transpose(0, 1).to(output.dtype)
        update[request, :, own] = verified.writes.update
    squares = at_least_float32(key.transpose(1, 2)).square().sum(-1)
    norm = (squares + 1e-6).rsqrt().repeat_interleave(value.shape[2] // key.shape[2], dim=1)
    return output, Stash(key, update, log_decay, norm)


def accept_path(
    stash: Stash, accepted: Int[Tensor, "batch rows"], *, impl: StepImplementation = "reference"
) -> Pending:
    """The rows of the stash that the accepted paths need.

    Args:
        accepted: int32, nodes from the root to the last accepted one, then -1; the rows are a multiple of 16. A row of
            -1 alone accepts nothing.

    Raises:
        ValueError: if shapes or dtypes do not fit, or ``impl`` is unknown.
    """
    if is_triton(impl):
        from tfm_kernels.gdn_tree import accept_path as launch

        return launch(stash, accepted)
    if accepted.shape[1] == 0 or accepted.shape[1] % BLOCK:
        raise ValueError(f"accepted paths take a multiple of {BLOCK} rows, got {accepted.shape[1]}")
    there = accepted >= 0
    index = accepted.clamp_min(0).long()
    request = torch.arange(len(index), device=index.device)[:, None]
    key = stash.key[request, index] * there[..., None, None]
    update = stash.update.transpose(1, 2)[request, index] * there[..., None, None]
    log_decay, norm = (tensor.mT[request, index] * there[..., None] for tensor in (stash.log_decay, stash.key_norm))
    to_end = log_decay.flip(1).cumsum(1).flip(1)
    behind = torch.cat([to_end[:, 1:], torch.zeros_like(to_end[:, :1])], dim=1)
    weight = behind.exp() * norm
    count = there.sum(1).to(torch.int32)
    return Pending(
        key.contiguous(),
        update.transpose(1, 2).contiguous(),
        weight.mT.contiguous(),
        to_end[:, 0].exp(),
        count,
    )


def flush(pool: StatePool, pending: Pending, *, impl: StepImplementation = "reference") -> None:
    """Fold pending paths into the pool's states now, in place: S <- e^g S + sum of u_j (w_j k_j)^T along each path.

    Raises:
        ValueError: if the chosen implementation cannot take these arguments, or ``impl`` is unknown.
    """
    if is_triton(impl):
        from tfm_kernels.gdn_tree import flush as launch

        launch(pool, pending)
        return
    heads_per_key = pool.states.shape[1] // pending.key.shape[2]
    key = at_least_float32(pending.key.transpose(1, 2)).repeat_interleave(heads_per_key, dim=1)
    slots = pool.slots.long()
    written = pending.update.mT @ (pending.weight[..., None] * key)
    pool.states[slots] = (pending.decay[..., None, None] * pool.states[slots] + written).to(pool.states.dtype)


def check_step(key_dim: int, value_dim: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse what the kernels cannot take, before anything is computed.

    Raises:
        ValueError: for other head sizes or dtypes than they take, and without a GPU unless Triton interprets.
        ModuleNotFoundError: if Triton is not installed.
    """
    if key_dim not in DIMS or value_dim not in DIMS:
        raise ValueError(
            f"the tree kernels take head sizes {', '.join(map(str, DIMS))}, and this target's are {key_dim} and "
            f"{value_dim}; use the reference"
        )
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"the tree kernels take float32 or bfloat16, and this target is {dtype}; use the reference")
    check_place(load_kernels("_gdn_tree")[1], torch.empty(0, dtype=dtype, device=device))


def is_triton(impl: str) -> bool:
    """Whether the kernels were asked for; a ValueError for an unknown name."""
    if impl not in get_args(StepImplementation):
        raise ValueError(f"impl must be one of {', '.join(get_args(StepImplementation))}, got {impl!r}")
    return impl == "triton"


def _ancestor_lists(parents: list[int], rows: int) -> list[list[int]]:
    """Strict ancestors of every node that is no padding, root first."""
    ancestors: list[list[int]] = []
    for node, parent in enumerate(parents):
        if parent == PADDING and node and all(other == PADDING for other in parents[node:]):
            break
        fits = parent == -1 if node == 0 else parent == node - 1 or parent in ancestors[node - 1]
        if not fits:
            raise ValueError(
                f"node {node} has parent {parent}: nodes must be in depth-first order, the root's parent -1 and that "
                f"of the padding at the end {PADDING}; use tree.reordered(tree.preorder())"
            )
        ancestors.append([*ancestors[parent], parent] if node else [])
        if node % BLOCK == 0 and len(ancestors[node]) > rows:
            raise ValueError(f"node {node} lies at depth {len(ancestors[node])}, deeper than max_depth promised")
    return ancestors


def _ancestor_mask(parents: list[int]) -> Tensor:
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents[1:], start=1):
        mask[node] |= mask[parent]
    return mask
