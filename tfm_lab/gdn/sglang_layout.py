"""Tree verification in the argument layout of SGLang's recurrent kernel, so that the fused kernels can stand in for it.

SGLang 0.5 verifies a draft tree with ``fused_sigmoid_gating_delta_rule_update``: nodes in any order in which parents
come first, the state before the root in a pool [slots, value_heads, value_dim, key_dim], and the whole state of every
node written to ``intermediate_states_buffer``, from which an accepted node's state is copied afterwards. Here

    verified = verify_like_sglang(..., intermediate_states_buffer=None)
    pending = accept_nodes(verified, accepted)         only the path's rows; the next verification folds them in

does without the buffer. With one, every node's state is formed from the same solve and written there, so that a caller
can be moved over in two steps; that costs the memory traffic which the solve is there to avoid.

Nothing here waits for the device.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from tfm_kernels.gdn_tree import Pending, Stash, StatePool
from tfm_kernels.tree_layout import BLOCK
from torch import Tensor

from tfm_lab.gdn import step
from tfm_lab.gdn.delta_rule import path_decay
from tfm_lab.gdn.inputs import at_least_float32, repeat_heads


class LikeSGLang(NamedTuple):
    """A verification in the caller's order of nodes.

    Attributes:
        output: [batch, nodes, value_heads, value_dim].
        stash: in depth-first order.
        ranks: place of each node in depth-first order, int64.
    """

    output: Tensor
    stash: Stash
    ranks: Int[Tensor, "batch nodes"]


def parents_of(
    retrieve_next_token: Int[Tensor, "batch nodes"], retrieve_next_sibling: Int[Tensor, "batch nodes"]
) -> Int[Tensor, "batch nodes"]:
    """Parents from first children and next siblings (-1 where there is none); the root's parent is -1.

    The links from each node to the sibling before it are doubled until they reach the first one, whose parent is known.
    """
    nodes = retrieve_next_token.shape[1]
    index = torch.arange(nodes, device=retrieve_next_token.device).expand_as(retrieve_next_token)
    parent_of_first = _scatter(retrieve_next_token, index, torch.full_like(index, -1))
    earlier = _scatter(retrieve_next_sibling, index, index.clone())
    for _ in range(_doublings(nodes)):
        earlier = earlier.gather(1, earlier)
    return parent_of_first.gather(1, earlier)


def depth_first_ranks(parents: Int[Tensor, "batch nodes"]) -> Int[Tensor, "batch nodes"]:
    """Place of each node in depth-first order, siblings by their index.

    A node comes behind its ancestors and behind the whole subtrees of the earlier siblings of all nodes on its path.
    """
    inclusive = ancestors_of(parents).to(torch.float32)
    size = inclusive.sum(1)
    index = torch.arange(parents.shape[1], device=parents.device)
    earlier = (parents[:, :, None] == parents[:, None, :]) & (index[:, None] > index)
    skipped = earlier.to(torch.float32) @ size[..., None]
    return ((inclusive @ (skipped + 1)).squeeze(-1) - 1).to(torch.int64)


def ancestors_of(parents: Int[Tensor, "batch nodes"]) -> Bool[Tensor, "batch nodes nodes"]:
    """Which nodes are on the path to which: row i holds node i and its ancestors."""
    index = torch.arange(parents.shape[1], device=parents.device)
    reached = (parents[:, :, None] == index) | (index[:, None] == index)
    for _ in range(_doublings(parents.shape[1])):
        reached = (reached.to(torch.float32) @ reached.to(torch.float32)) > 0.5
    return reached


def verify_like_sglang(
    A_log: Float[Tensor, " value_heads"],
    a: Float[Tensor, "*rows value_heads"],
    dt_bias: Float[Tensor, " value_heads"],
    softplus_beta: float,
    softplus_threshold: float,
    q: Float[Tensor, "outer tokens key_heads key_dim"],
    k: Float[Tensor, "outer tokens key_heads key_dim"],
    v: Float[Tensor, "outer tokens value_heads value_dim"],
    b: Float[Tensor, "*rows value_heads"],
    initial_state_source: Float[Tensor, "slots value_heads value_dim key_dim"],
    initial_state_indices: Int[Tensor, " batch"],
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = True,
    intermediate_states_buffer: Float[Tensor, "caches steps value_heads value_dim key_dim"] | None = None,
    intermediate_state_indices: Int[Tensor, " batch"] | None = None,
    retrieve_parent_token: Int[Tensor, "batch nodes"] | None = None,
    *,
    pending: Pending | None = None,
    max_depth: int | None = None,
    impl: step.StepImplementation = "triton",
) -> LikeSGLang:
    """Verify one draft tree per request; names and layouts of the arguments are SGLang's.

    Args:
        a: rows as of ``q``, with or without its first axis.
        q: [batch, nodes, ...], or all requests behind each other as [1, batch * nodes, ...]; neither normalised nor
            scaled.
        initial_state_source: float32. It is only read, unless ``pending`` holds something.
        initial_state_indices: the slot of each request; all different and none negative.
        intermediate_states_buffer: takes the state after every node, if it is given; float32.
        intermediate_state_indices: its slot for each request.
        retrieve_parent_token: parents, that of the root -1; see :func:`parents_of`. ``None`` for chains.
        pending: of :func:`accept_nodes` after the step before, if states are committed that way.
        max_depth: proposed tokens on the longest path, if known: up to 16 the kernels are fastest.

    Raises:
        ValueError: for options that the delta rule of the kernels does not have, or what ``tree_step`` refuses.
    """
    if (softplus_beta, softplus_threshold) != (1.0, 20.0) or not use_qk_l2norm_in_kernel:
        raise ValueError(
            "the tree kernels have softplus_beta 1, softplus_threshold 20 and normalise queries and keys; got "
            f"{softplus_beta}, {softplus_threshold} and use_qk_l2norm_in_kernel={use_qk_l2norm_in_kernel}"
        )
    if scale is not None and not math.isclose(scale, k.shape[-1] ** -0.5):
        raise ValueError(f"the tree kernels scale queries by key_dim ** -0.5, so leave scale out; got {scale}")
    if (intermediate_states_buffer is None) != (intermediate_state_indices is None):
        raise ValueError("intermediate_states_buffer and intermediate_state_indices belong together: give both or none")
    batch = initial_state_indices.shape[0]
    rows = [x.reshape(batch, -1, *x.shape[-2:]) for x in (q, k, v)] + [
        x.reshape(batch, -1, x.shape[-1]) for x in (a, b)
    ]
    nodes = rows[0].shape[1]
    if retrieve_parent_token is None:
        retrieve_parent_token = torch.arange(-1, nodes - 1, device=q.device).expand(batch, nodes)
    parents = retrieve_parent_token.to(torch.int64)
    ranks = depth_first_ranks(parents)
    order = ranks.argsort(1)
    placed = ranks.gather(1, parents.gather(1, order).clamp_min(0))
    placed[:, 0] = -1
    request = torch.arange(batch, device=q.device)[:, None]
    query, key, value, own_a, own_b = (x[request, order] for x in rows)
    layout = step.tree_layout(placed.to(torch.int32), max_depth=max_depth, impl=impl)
    pool = StatePool(initial_state_source, initial_state_indices.to(torch.int32))
    output, stash = step.tree_step(query, key, value, own_a, own_b, A_log, dt_bias, layout, pool, pending, impl=impl)
    if intermediate_states_buffer is not None and intermediate_state_indices is not None:
        states = node_states(stash, placed, initial_state_source[initial_state_indices.long()])
        intermediate_states_buffer[intermediate_state_indices.long(), :nodes] = states[request, ranks]
    return LikeSGLang(output[request, ranks].reshape(v.shape), stash, ranks)


def accept_nodes(
    verified: LikeSGLang, accepted: Int[Tensor, "batch length"], *, impl: step.StepImplementation = "triton"
) -> Pending:
    """What the next verification folds into the states.

    Args:
        accepted: nodes from the root to the last accepted one in the caller's numbering, then -1.
    """
    rows = torch.where(accepted >= 0, verified.ranks.gather(1, accepted.clamp_min(0).long()), -1).to(torch.int32)
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK), value=-1)
    return step.accept_path(verified.stash, padded, impl=impl)


def node_states(
    stash: Stash,
    parents: Int[Tensor, "batch nodes"],
    before: Float[Tensor, "batch value_heads value_dim key_dim"],
) -> Float[Tensor, "batch nodes value_heads value_dim key_dim"]:
    """The state after every node: S_i = a_i S0 + sum over j on the path of D_ij u_j k_j^T (2607.06763, eq. 11).

    Args:
        stash: nodes in the order of ``parents``.
        before: the state before the root.
    """
    update, log_decay = stash.update, stash.log_decay
    inclusive = ancestors_of(parents)
    key = repeat_heads(at_least_float32(stash.key.transpose(1, 2)), update.shape[1]) * stash.key_norm[..., None]
    decay = torch.stack([path_decay(own, mask) for own, mask in zip(log_decay, inclusive, strict=True)])
    written = (update[..., :, None] * key[..., None, :]).flatten(-2)
    from_root = (inclusive[:, None].to(log_decay.dtype) @ log_decay[..., None]).exp()
    states = (decay @ written).unflatten(-1, before.shape[-2:]) + from_root[..., None] * before[:, :, None]
    return states.transpose(1, 2)


def _doublings(nodes: int) -> int:
    return max(1, (nodes - 1).bit_length())


def _scatter(links: Tensor, values: Tensor, into: Tensor) -> Tensor:
    """``into[links[i]] = values[i]`` per request; links of -1 go to a column that is cut off."""
    nodes = into.shape[1]
    wide = torch.cat([into, into[:, :1]], dim=1)
    return wide.scatter(1, torch.where(links >= 0, links, nodes).long(), values)[:, :nodes]
