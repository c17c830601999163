"""Launcher of the fused tree kernels for the gated delta rule: verify a tree, fold what the last step accepted."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tfm_kernels.launching import check_place, check_tensors, load_kernels, row_strides
from tfm_kernels.tree_layout import BLOCK, TreeLayout

DIMS = (32, 64, 128)
"""Head sizes that the kernels take, for keys and for values."""


class StatePool(NamedTuple):
    """Recurrent states of many requests, and which of them a step works on.

    Attributes:
        states: [slots, value_heads, value_dim, key_dim], float32, contiguous. Folding writes here, in place.
        slots: [batch] int32, all different: the slot of each request.
    """

    states: Tensor
    slots: Tensor


class Stash(NamedTuple):
    """What a verification leaves for all nodes, until a path is accepted.

    Attributes:
        key: [batch, nodes, key_heads, key_dim]: the keys that were verified, not normalised; the caller's own tensor.
        update: [batch, value_heads, nodes, value_dim], float32: what each node writes under its key.
        log_decay: [batch, value_heads, nodes], float32, at least -128 (exp of that is 0 in float32).
        key_norm: the same shape: what normalises each key.
    """

    key: Tensor
    update: Tensor
    log_decay: Tensor
    key_norm: Tensor


class Pending(NamedTuple):
    """An accepted path that is not in the state yet; the next verification folds it in.

    Attributes:
        key: [batch, rows, key_heads, key_dim], as the keys of the stash; rows is a multiple of 16.
        update: [batch, value_heads, rows, value_dim], float32.
        weight: [batch, value_heads, rows], float32: decay behind the row times the norm of its key; 0 behind the path.
        decay: [batch, value_heads], float32: what is left of the old state.
        length: [batch] int32: nodes of the path; 0 leaves the state as it is.
    """

    key: Tensor
    update: Tensor
    weight: Tensor
    decay: Tensor
    length: Tensor


class Settings(NamedTuple):
    """What decides the speed and nothing else.

    Attributes:
        value_tile: value columns of a program.
        groups: programs that share the blocks of one head and value tile; one block each if there are that many.
        warps: of the programs that multiply with the state.
        prepare_warps: of the programs that make the mixing matrices; their substitution has lanes for two.
        key_step: key columns that are multiplied at a time, where registers are short.
        fold_tile: rows of the state that one program folds.
        stages: of software pipelining in the loop over blocks.
        registers: that a thread of the programs that multiply with the state may take at most; ``None`` for as many as
            the compiler likes. Fewer let more programs run at once.
        chained: whether both launches may be prepared while the kernel before them still runs, and then wait for it
            (programmatic dependent launch).
    """

    value_tile: int = 16
    groups: int = 2
    warps: int = 2
    prepare_warps: int = 2
    key_step: int = 128
    fold_tile: int = 16
    stages: int = 1
    registers: int | None = None
    chained: bool = False


WIDE_FOLDS = (*range(2, 9), *range(13, 33))
"""Blocks of one tree beside which folds of 32 rows of a state are faster than of 16.

On an H200 with bfloat16 rows, measured at 1, 3, 5, 9 and 17 blocks. The programs of blocks and folds share the
multiprocessors, so it is no matter of size alone.
"""


def settings_for(nodes: int, batch: int, key_dim: int, value_dim: int, *, wide: bool, walks: bool = False) -> Settings:
    """The settings that a launch takes when it is given none; a table, so that launches stay the same in a graph.

    Args:
        wide: whether queries, keys and values are float32.
        walks: whether trees may be deeper than a block.
    """
    blocks = math.ceil(nodes / BLOCK)
    if walks:
        return Settings(min(32, value_dim), warps=4 if wide else 2, key_step=min(32 if wide else 128, key_dim))
    if wide:
        # Three TF32 terms of a state leave no registers for a loop: one block each.
        return Settings(min(16, value_dim), max(1, blocks), key_step=16)
    tile, is_alone = min(64, value_dim), batch == 1
    fold_tile = 32 if is_alone and blocks in WIDE_FOLDS else 16
    groups = max(1, blocks) if is_alone else 1
    warps, key_step = 4 if tile == 64 else 2, min(128, key_dim)
    return Settings(tile, groups, warps, key_step=key_step, fold_tile=min(fold_tile, value_dim))


def gdn_tree_verify(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    tree: TreeLayout,
    pool: StatePool,
    pending: Pending | None = None,
    *,
    output_dtype: torch.dtype | None = None,
    into: Stash | None = None,
    settings: Settings | None = None,
) -> tuple[Tensor, Stash]:
    """Outputs of all nodes of one draft tree per request; first the pending paths are folded into the pool's states.

    Args:
        query: [batch, nodes, key_heads, key_dim], neither normalised nor scaled; float32 or bfloat16, a view of a wider
            projection will do.
        key: as query, with its strides.
        value: [batch, nodes, value_heads, value_dim], same dtype.
        a: [batch, nodes, value_heads], input of the decay; any floating dtype.
        b: as a, with its strides: input of beta.
        A_log: [value_heads].
        dt_bias: [value_heads].
        tree: layout of the trees, of :func:`tfm_kernels.tree_layout.tree_layout`.
        pool: the states; those of the slots are overwritten if ``pending`` holds something.
        pending: of :func:`accept_path` after the last step; ``None`` for nothing.
        output_dtype: of the output; that of the values if ``None``.
        into: tensors for the stash (``key`` is not used), for example rows of one allocation for all layers.
        settings: for measurements.

    Returns:
        ``(output, stash)``: output [batch, nodes, value_heads, value_dim]; NaN where ``tree`` is unsound, 0 at padding.

    Raises:
        ValueError: if shapes, strides, dtypes or devices are not as above, or a gradient is asked for, or the tensors
            are bfloat16 and Triton interprets, or on the CPU and it does not.
        ModuleNotFoundError: if Triton is not installed.
    """
    batch, nodes, key_heads, value_heads, key_dim, value_dim = _check(
        query, key, value, a, b, A_log, dt_bias, tree, pool
    )
    if pending is not None:
        _check_pending(pending, key, value_heads, value_dim)
    kernels, interpreted = load_kernels("_gdn_tree")
    preparation, _ = load_kernels("_gdn_tree_prepare")
    check_place(interpreted, query)
    wide = query.dtype == torch.float32
    walks = tree.path.shape[2] > BLOCK
    settings = settings or settings_for(nodes, batch, key_dim, value_dim, wide=wide, walks=walks)
    if value_dim % settings.value_tile or value_dim % settings.fold_tile:
        raise ValueError(f"tiles of {settings.value_tile} and {settings.fold_tile} do not divide {value_dim} values")
    if interpreted and settings.chained:
        raise ValueError("programmatic dependent launch needs a GPU; the interpreter has none")
    blocks, path = tree.blocks, tree.path.shape[2]
    device, heads = key.device, batch * value_heads

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    stash = Stash(key, *_checked_stash(into, batch, value_heads, nodes, value_dim, device))
    output = torch.empty(value.shape, dtype=output_dtype or value.dtype, device=device)
    if 0 in output.shape:
        return output, stash
    mixing, factors, scratch = (empty(heads, blocks, size) for size in ((512, 64, 256) if walks else (1024, 112, 1696)))
    rows, values = row_strides("key", key), row_strides("value", value)
    sizes: dict[str, Any] = {"HK": key_heads, "HV": value_heads, "DK": key_dim, "DV": value_dim}
    common = sizes | {"WIDE": wide, "CHAINED": settings.chained}
    key_step = min(settings.key_step, key_dim)
    # Without a pending path there are no programs behind the blocks, and nothing reads these.
    folded = pending or Pending(key, mixing, mixing, mixing, pool.slots)
    fold_programs = value_dim // settings.fold_tile if pending else 0
    chain = {"launch_pdl": True} if settings.chained else {}
    prepare = kernels.prepare_walk_kernel if walks else preparation.prepare_kernel
    prepare[(blocks + fold_programs, heads)](
        query, key, a, b, A_log, dt_bias, tree.path, tree.words, pool.states, pool.slots, *folded,
        mixing, factors, stash.log_decay, stash.key_norm, scratch, key_dim**-0.5, nodes, blocks,
        *([path] if walks else []), *rows, *row_strides("a", a),
        PENDING=folded.key.shape[1] if pending else BLOCK, FOLD_TILE=settings.fold_tile, KEY_STEP=key_step,
        **common, **chain, num_warps=settings.prepare_warps,
    )  # fmt: skip
    options: dict[str, Any] = {"VALUE_TILE": settings.value_tile, "num_warps": settings.warps} | chain
    tiles = value_dim // settings.value_tile
    if walks:
        # One stage, so no software pipelining: the kernel reads back what it wrote.
        kernels.walk_kernel[(tiles, heads)](
            query, key, value, tree.path, tree.words, mixing, factors, stash.log_decay, stash.key_norm, pool.states,
            pool.slots, stash.update, output, nodes, blocks, path, *rows, *values,
            KEY_STEP=key_step, **common, **options, num_stages=1,
        )  # fmt: skip
    else:
        groups = min(settings.groups, blocks)
        limit = {"maxnreg": settings.registers} if settings.registers else {}
        kernels.blocks_kernel[(tiles, groups, heads)](
            query, key, value, mixing, factors, pool.states, pool.slots, stash.update, output, nodes, blocks,
            *rows, *values, GROUPS=groups, LOOPS=groups < blocks, **common, **options, **limit,
            num_stages=settings.stages,
        )  # fmt: skip
    return output, stash


def accept_path(stash: Stash, accepted: Tensor) -> Pending:
    """What the next step folds for these paths: their rows of the stash, which can then be freed.

    Args:
        stash: of :func:`gdn_tree_verify`, or all layers of a step stacked along a new first axis: one launch for all.
        accepted: [batch, rows] int32: nodes from the root to the last accepted one, then -1; rows a multiple of 16.

    Returns:
        The pending paths, with the layer axis of the stash if it has one (``length`` too).

    Raises:
        ValueError: if shapes, dtypes or devices do not fit.
    """
    layered = stash.update.ndim == 5
    key, update, log_decay, key_norm = stash if layered else (tensor[None] for tensor in stash)
    if key.ndim != 5 or accepted.ndim != 2:
        raise ValueError("accepted must be [batch, rows], and the stash as gdn_tree_verify returns it, or stacked")
    layers, batch, value_heads, nodes, value_dim = update.shape
    key_heads, key_dim = key.shape[3:]
    rows = accepted.shape[1]
    if rows == 0 or rows % BLOCK:
        raise ValueError(f"accepted paths take a multiple of {BLOCK} rows (fill them up with -1), got {rows}")
    named = {
        "key": (key, [layers, batch, nodes, key_heads, key_dim], None),
        "update": (update, list(update.shape), torch.float32),
        "log_decay": (log_decay, [layers, batch, value_heads, nodes], torch.float32),
        "key_norm": (key_norm, [layers, batch, value_heads, nodes], torch.float32),
        "accepted": (accepted, [batch, rows], torch.int32),
    }
    check_tensors(named, update.device, because="this stash")
    if not all(tensor.is_contiguous() for tensor in (update, log_decay, key_norm)):
        raise ValueError("the tensors of the stash must be contiguous; stack the layers along a new first axis")
    kernels, interpreted = load_kernels("_gdn_tree")
    check_place(interpreted, key, multiplies=False)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(layers, batch, *shape, dtype=dtype, device=update.device)

    pending = Pending(
        empty(rows, key_heads, key_dim, dtype=key.dtype),
        empty(value_heads, rows, value_dim),
        empty(value_heads, rows),
        empty(value_heads),
        empty(dtype=torch.int32),
    )
    if 0 not in (layers, batch):
        kernels.gather_kernel[(layers, batch, value_heads)](
            key, update, log_decay, key_norm, accepted.contiguous(), *pending, nodes, key.stride(0),
            *row_strides("key", key[0]), HK=key_heads, HV=value_heads, DK=key_dim, DV=value_dim, PENDING=rows,
            num_warps=2,
        )  # fmt: skip
    return pending if layered else Pending(*(tensor[0] for tensor in pending))


def flush(pool: StatePool, pending: Pending, *, fold_tile: int = 16) -> None:
    """Fold pending paths into the states now, in place: before a prefill, a copy of a state or the end of a decode.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit.
    """
    _check_pool(pool, pending.key.device)
    value_heads, value_dim, key_dim = pool.states.shape[1:]
    batch, rows, key_heads, _ = pending.key.shape
    like = pending.key.new_empty((batch, 0, key_heads, key_dim))
    _check_pending(pending, like, value_heads, value_dim)
    check_tensors({"slots": (pool.slots, [batch], torch.int32)}, pending.key.device, because="these pending paths")
    kernels, interpreted = load_kernels("_gdn_tree")
    check_place(interpreted, pending.key)
    if batch:
        kernels.flush_kernel[(value_dim // fold_tile, batch * value_heads)](
            pool.states, pool.slots, *pending, HK=key_heads, HV=value_heads, DK=key_dim, DV=value_dim, PENDING=rows,
            FOLD_TILE=fold_tile, num_warps=2,
        )  # fmt: skip


def _checked_stash(
    into: Stash | None, batch: int, value_heads: int, nodes: int, value_dim: int, device: torch.device
) -> list[Tensor]:
    """Tensors to write to: update, log decay, key norm."""
    shapes = [[batch, value_heads, nodes, value_dim], *[[batch, value_heads, nodes]] * 2]
    if into is None:
        return [torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes]
    given = list(into[1:])
    named = {n: (t, shape, torch.float32) for n, t, shape in zip(Stash._fields[1:], given, shapes, strict=True)}
    check_tensors(named, device, because="these inputs")
    if not all(tensor.is_contiguous() for tensor in given):
        raise ValueError("the tensors of the stash must be contiguous")
    return given


def _check(
    query: Tensor, key: Tensor, value: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor,
    tree: TreeLayout, pool: StatePool,
) -> tuple[int, int, int, int, int, int]:  # fmt: skip
    """Batch, nodes, key heads, value heads, key dim, value dim; raises a ValueError that names what does not fit."""
    if key.ndim != 4 or value.ndim != 4:
        raise ValueError("query, key and value must be [batch, nodes, heads, dim]")
    batch, nodes, key_heads, key_dim = key.shape
    value_heads, value_dim = value.shape[2:]
    if key_heads == 0 or value_heads % key_heads:
        raise ValueError(f"{value_heads} value heads cannot share {key_heads} key heads evenly")
    if key_dim not in DIMS or value_dim not in DIMS:
        raise ValueError(
            f"the tree kernel takes head sizes {', '.join(map(str, DIMS))}, got {key_dim} and {value_dim}; "
            "use the PyTorch reference"
        )
    if {query.dtype, key.dtype, value.dtype} not in ({torch.float32}, {torch.bfloat16}):
        raise ValueError(
            "query, key and value must all be float32 or all bfloat16 for the Triton kernel, got "
            f"{query.dtype}, {key.dtype} and {value.dtype}; the PyTorch reference takes any dtype"
        )
    _check_pool(pool, key.device)
    blocks = math.ceil(nodes / BLOCK)
    named = {
        "query": (query, list(key.shape), None),
        "key": (key, list(key.shape), None),
        "value": (value, [batch, nodes, value_heads, value_dim], None),
        "a": (a, [batch, nodes, value_heads], None),
        "b": (b, [batch, nodes, value_heads], a.dtype),
        "A_log": (A_log, [value_heads], None),
        "dt_bias": (dt_bias, [value_heads], None),
        "states": (pool.states, [pool.states.shape[0], value_heads, value_dim, key_dim], torch.float32),
        "slots": (pool.slots, [batch], torch.int32),
        "parents": (tree.parents, [batch, nodes], torch.int32),
        "path": (tree.path, [batch, blocks, tree.path.shape[-1]], torch.int32),
        "words": (tree.words, [batch, blocks * BLOCK], torch.int32),
    }
    check_tensors(named, key.device, because="these keys and values")
    if _used_strides(query) != _used_strides(key) or _used_strides(a) != _used_strides(b):
        raise ValueError("query and key must have the same strides, and so must a and b: take both from one projection")
    return batch, nodes, key_heads, value_heads, key_dim, value_dim


def _used_strides(tensor: Tensor) -> list[int]:
    """Strides of the axes that have more than one entry."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _check_pool(pool: StatePool, device: torch.device) -> None:
    states = pool.states
    if states.ndim != 4 or states.dtype != torch.float32 or not states.is_contiguous() or states.device != device:
        raise ValueError(
            "states must be a contiguous float32 tensor [slots, value_heads, value_dim, key_dim] on the device of the "
            f"keys, got {states.dtype} {list(states.shape)} on {states.device}"
        )


def _check_pending(pending: Pending, key: Tensor, value_heads: int, value_dim: int) -> None:
    batch, _, key_heads, key_dim = key.shape
    rows = pending.weight.shape[-1]
    if rows == 0 or rows % BLOCK:
        raise ValueError(f"pending paths take a multiple of {BLOCK} rows, got {rows}")
    named = {
        "pending.key": (pending.key, [batch, rows, key_heads, key_dim], key.dtype),
        "pending.update": (pending.update, [batch, value_heads, rows, value_dim], torch.float32),
        "pending.weight": (pending.weight, [batch, value_heads, rows], torch.float32),
        "pending.decay": (pending.decay, [batch, value_heads], torch.float32),
        "pending.length": (pending.length, [batch], torch.int32),
    }
    check_tensors(named, key.device, because="these keys and values")
    if not all(tensor.is_contiguous() for tensor in pending):
        raise ValueError("the tensors of a pending path must be contiguous")
