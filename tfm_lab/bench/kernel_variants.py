"""Ways to verify trees through the Gated DeltaNet layers of a step, side by side. All take the same inputs.

Gates and normalisation are part of the fused kernels. For the other variants they are done before the clock starts, and
so is everything that depends on the tree alone: that is in their favour.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.bench.kernel_cases import Builder, KernelCase, Work, new_pool
from tfm_lab.bench.kernel_peers import fla_path_parallel, sglang_recurrent
from tfm_lab.gdn import step
from tfm_lab.gdn.inputs import repeat_heads
from tfm_lab.gdn.tree import dense_kernel


def state_copy(case: KernelCase) -> Work:
    """The floor: every state read and written once, nothing else."""
    target = torch.empty_like(case.states)

    def copy() -> list[Tensor]:
        for layer in range(case.layers):
            target[layer].copy_(case.states[layer])
        return []

    return Work(copy)


def fused(settings: step.Settings | None = None, *, any_depth: bool = False, commit: bool = False) -> Builder:
    """The fused kernels: verification alone, or with the lagged commit of the path that was accepted before.

    Args:
        settings: ``None`` for those of the table.
        any_depth: the kernel that walks from block to block, even where the trees are shallow.
        commit: every run folds the deepest path into the states, in place.
    """

    def build(case: KernelCase) -> Work:
        layout = step.tree_layout(case.parents, max_depth=None if any_depth else case.max_depth, impl="triton")
        pools = [new_pool(case, layer) for layer in range(case.layers)]
        accepted = case.deepest_paths()

        def verify(layer: int, pending: step.Pending | None) -> tuple[Tensor, step.Stash]:
            rows, gates, pool = case.rows_of(layer), (case.A_log, case.dt_bias), pools[layer]
            return step.tree_step(*rows, *gates, layout, pool, pending, settings=settings, impl="triton")

        pending: list[step.Pending | None] = [None] * case.layers
        if commit:
            for layer in range(case.layers):
                pending[layer] = step.accept_path(verify(layer, None)[1], accepted, impl="triton")
        return Work(
            lambda: [verify(layer, pending[layer])[0] for layer in range(case.layers)], case.states if commit else None
        )

    return build


def fused_variants(text: str) -> dict[str, Builder]:
    """The fused kernels with some settings changed, without and with the commit.

    Args:
        text: changes such as ``groups=3 fold_tile=32``, separated by spaces; whatever it leaves out is as in the table
            of settings for the case.

    Raises:
        ValueError: if a change is not a setting and a number, or ``None``.
    """
    changes = dict(_change(part) for part in text.split())

    def build(commit: bool) -> Builder:
        def chosen(case: KernelCase) -> Work:
            nodes, shape = case.parents.shape[1], case.shape
            wide = case.rows[0].query.dtype == torch.float32
            table = step.settings_for(nodes, len(case.trees), shape.key_dim, shape.value_dim, wide=wide)
            return fused(table._replace(**changes), commit=commit)(case)

        return chosen

    return {f"fused verify{'+commit' * commit}, {text}": build(commit) for commit in (False, True)}


def _change(text: str) -> tuple[str, int | None]:
    name, _, value = text.partition("=")
    if name not in step.Settings._fields or not (value.isdecimal() or value == "None"):
        known = ", ".join(step.Settings._fields)
        raise ValueError(f"{text!r} changes no setting; write groups=3, with one of {known}")
    return name, None if value == "None" else int(value)


def dense_triton(case: KernelCase) -> Work:
    """The masked solve over the whole tree in Triton, as in the paper; float32 products, at most 128 nodes."""
    inputs = [_prepared(case, layer) for layer in range(case.layers)]
    masks = _masks(case)
    if len(case.trees) > 1 and not bool((masks == masks[0]).all()):
        raise ValueError("the dense kernel takes one tree for all requests")
    states = [case.states[layer].mT.contiguous() for layer in range(case.layers)]

    def verify() -> list[Tensor]:
        return [
            dense_kernel(*rows, state, masks[0])[0].transpose(1, 2) for rows, state in zip(inputs, states, strict=True)
        ]

    return Work(verify)


def dense_torch(case: KernelCase) -> Work:
    """The masked solve over the whole tree in PyTorch: Grams, one triangular solve, four products."""
    inputs = [_prepared(case, layer) for layer in range(case.layers)]
    masks, states = _masks(case)[:, None], [case.states[layer].mT.contiguous() for layer in range(case.layers)]
    value_heads, ones = case.shape.value_heads, masks.float()

    def verify() -> list[Tensor]:
        outputs = []
        for (query, key, value, log_decay, beta), state in zip(inputs, states, strict=True):
            query, key, strength = repeat_heads(query, value_heads), repeat_heads(key, value_heads), beta[..., None]
            decay = (ones @ (log_decay[..., None] * ones.tril(-1))).masked_fill(~masks, -torch.inf).exp()
            from_root = (ones @ log_decay[..., None]).exp()
            system = strength * decay * (key @ key.mT)
            right = strength * (value - from_root * (key @ state))
            update = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
            output = from_root * (query @ state) + (decay * (query @ key.mT)) @ update
            outputs.append(output.transpose(1, 2))
        return outputs

    return Work(verify)


def path_parallel_torch(case: KernelCase) -> Work:
    """Every path from the root to a leaf is a sequence of its own; the recurrence runs on all of them at once."""
    inputs = [_prepared(case, layer) for layer in range(case.layers)]
    states = [case.states[layer].mT.contiguous() for layer in range(case.layers)]
    paths = [(request, tree.path(leaf)) for request, tree in enumerate(case.trees) for leaf in tree.leaves()]
    device, longest = case.states.device, max(len(path) for _, path in paths)
    request = torch.tensor([request for request, _ in paths], device=device)
    nodes = torch.tensor([[*path, *[path[-1]] * (longest - len(path))] for _, path in paths], device=device)
    owner = torch.zeros(2, len(case.trees), len(case.trees[0]), dtype=torch.int64)
    for index, (of_request, path) in enumerate(paths):
        owner[0, of_request, list(path)], owner[1, of_request, list(path)] = index, torch.arange(len(path))
    owner = owner.to(device)
    value_heads = case.shape.value_heads
    taken = (request[:, None], slice(None), nodes)

    def verify() -> list[Tensor]:
        outputs = []
        for (query, key, value, log_decay, beta), state in zip(inputs, states, strict=True):
            q, k = (repeat_heads(x, value_heads)[taken] for x in (query, key))
            v, alpha, strength = value[taken], log_decay[taken].exp(), beta[taken]
            memory, read = state[request], []
            for at in range(longest):
                memory = alpha[:, at, :, None, None] * memory
                known = (k[:, at, :, None, :] @ memory).squeeze(-2)
                update = strength[:, at, :, None] * (v[:, at] - known)
                memory = memory + k[:, at, :, :, None] * update[:, :, None, :]
                read.append((q[:, at, :, None, :] @ memory).squeeze(-2))
            outputs.append(torch.stack(read, dim=1)[owner[0], owner[1]])
        return outputs

    return Work(verify)


def step_with_layout(case: KernelCase) -> Work:
    """All that a step adds for its trees: layout once, fused kernels with commit, all accepted paths gathered once."""
    pools, accepted = [new_pool(case, layer) for layer in range(case.layers)], case.deepest_paths()
    layers, batch, heads, value_dim, _ = case.states.shape
    nodes, device = case.parents.shape[1], case.states.device
    keys = torch.stack([case.rows_of(layer).key for layer in range(layers)])
    stash = step.Stash(
        keys,
        torch.empty(layers, batch, heads, nodes, value_dim, device=device),
        *(torch.empty(layers, batch, heads, nodes, device=device) for _ in range(2)),
    )
    gates = (case.A_log, case.dt_bias)

    def verify(pending: step.Pending | None) -> list[Tensor]:
        layout = step.tree_layout(case.parents, max_depth=case.max_depth, impl="triton")
        outputs = []
        for layer, pool in enumerate(pools):
            own = step.Pending(*(tensor[layer] for tensor in pending)) if pending else None
            into = step.Stash(*(tensor[layer] for tensor in stash))
            rows = case.rows_of(layer)
            outputs.append(step.tree_step(*rows, *gates, layout, pool, own, into=into, impl="triton")[0])
        return outputs

    verify(None)
    pending = step.accept_path(stash, accepted, impl="triton")

    def whole() -> list[Tensor]:
        outputs = verify(pending)
        step.accept_path(stash, accepted, impl="triton")
        return outputs

    return Work(whole, case.states)


VARIANTS: dict[str, Builder] = {
    "state copy": state_copy,
    "SGLang recurrent BV=32": sglang_recurrent(32),
    "SGLang recurrent BV=4": sglang_recurrent(4),
    "path-parallel FLA": fla_path_parallel,
    "path-parallel torch": path_parallel_torch,
    "dense torch": dense_torch,
    "dense Triton": dense_triton,
    "fused verify": fused(),
    "fused verify+commit": fused(commit=True),
    "fused walk verify+commit": fused(commit=True, any_depth=True),
    "fused whole step": step_with_layout,
}
"""Name -> builder. The first is no verification but the time that the states alone take."""


class _Prepared(NamedTuple):
    """Arguments of the delta rule before the state, float32: [batch, heads, nodes, dim] and [batch, heads, nodes]."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor


def _prepared(case: KernelCase, layer: int) -> _Prepared:
    rows = case.rows_of(layer)
    query, key = gdn.normalised_query_and_key(rows.query.transpose(1, 2), rows.key.transpose(1, 2))
    log_decay, beta = gdn.gates(rows.a.mT, rows.b.mT, case.A_log, case.dt_bias)
    value = rows.value.transpose(1, 2).float().contiguous()
    return _Prepared(query.contiguous(), key.contiguous(), value, log_decay.contiguous(), beta.contiguous())


def _masks(case: KernelCase) -> Tensor:
    """Inclusive ancestor masks [batch, nodes, nodes]."""
    return torch.stack([tree.ancestors() for tree in case.trees]).to(case.states.device)
