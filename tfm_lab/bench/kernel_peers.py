"""Kernels of other projects, measured where they are installed: SGLang's verification of trees, FLA's recurrence.

Neither is a dependency. ``pip install --no-deps sglang==0.5.23 fla-core==0.6.0 einops`` is all that a comparison takes:
of SGLang one file is loaded by its path, since the package itself wants a whole serving stack.
"""

import sys
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.bench.kernel_cases import Builder, KernelCase, Work

SGLANG_FILE = "sglang/kernels/ops/attention/linear/fused_sigmoid_gating_recurrent.py"


def installed_peers() -> dict[str, str]:
    """Distribution -> version of the peers that are there."""
    found = {}
    for name in ("sglang", "fla-core"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def sglang_update(value_tile: int) -> Callable[..., Tensor]:
    """SGLang's ``fused_sigmoid_gating_delta_rule_update``.

    Args:
        value_tile: value columns of a program: 32, its general setting, or 4, which it takes for the verification of
            trees on Hopper with heads of 128.

    Raises:
        ValueError: if SGLang is not installed, or Triton is not, or its file is not the one that is known here.
    """
    try:
        path = Path(str(metadata.distribution("sglang").locate_file(SGLANG_FILE)))
    except metadata.PackageNotFoundError:
        raise ValueError("SGLang is not installed: pip install --no-deps sglang==0.5.23") from None
    if not path.is_file():
        raise ValueError(f"this SGLang ({metadata.version('sglang')}) has no {SGLANG_FILE}; install sglang==0.5.23")
    spec = util.spec_from_file_location(f"tfm_lab_peer_sglang_{value_tile}", path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    stand_ins = _stand_ins(narrow=value_tile == 4)
    shadowed = {name: sys.modules[name] for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise ValueError(f"SGLang's kernel cannot be loaded: {error}; install sglang==0.5.23 and Triton") from None
    finally:
        for name in stand_ins:
            del sys.modules[name]
        sys.modules.update(shadowed)
    return module.fused_sigmoid_gating_delta_rule_update


def sglang_recurrent(value_tile: int) -> Builder:
    """SGLang's verification of trees: one program walks the nodes, and every node's whole state goes to memory.

    Verification alone. The accepted node's state would be copied by another launch.
    """

    def build(case: KernelCase) -> Work:
        update = sglang_update(value_tile)
        layers, batch, *state_shape = case.states.shape
        nodes, device = case.parents.shape[1], case.states.device
        slots = torch.arange(batch, dtype=torch.int32, device=device)
        every_state = torch.empty(batch, nodes, *state_shape, device=device)

        def verify(layer: int) -> Tensor:
            rows = case.rows_of(layer)
            return update(
                A_log=case.A_log,
                a=rows.a,
                dt_bias=case.dt_bias,
                softplus_beta=1.0,
                softplus_threshold=20.0,
                q=rows.query,
                k=rows.key,
                v=rows.value,
                b=rows.b,
                initial_state_source=case.states[layer],
                initial_state_indices=slots,
                use_qk_l2norm_in_kernel=True,
                disable_state_update=True,
                intermediate_states_buffer=every_state,
                intermediate_state_indices=slots,
                cache_steps=nodes,
                retrieve_parent_token=case.parents,
            )

        return Work(lambda: [verify(layer) for layer in range(layers)])

    return build


def fla_path_parallel(case: KernelCase) -> Work:
    """Every path from the root to a leaf is a sequence of its own for FLA's recurrent kernel.

    Gates are computed before the clock starts; rows and the initial state of every path are gathered while it runs.

    Raises:
        ValueError: if FLA is not installed.
    """
    try:
        from fla.ops.gated_delta_rule import (  # pyright: ignore[reportMissingImports]
            fused_recurrent_gated_delta_rule,
        )
    except ImportError:
        raise ValueError("FLA is not installed: pip install --no-deps fla-core==0.6.0 einops") from None
    device, nodes = case.states.device, case.parents.shape[1]
    paths = [(request, tree.path(leaf)) for request, tree in enumerate(case.trees) for leaf in tree.leaves()]
    lengths = torch.tensor([len(path) for _, path in paths])
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    rows = torch.tensor([request * nodes + node for request, path in paths for node in path])
    place = torch.empty(len(case.trees) * nodes, dtype=torch.int64)
    place[rows] = torch.arange(len(rows))
    requests = torch.tensor([request for request, _ in paths], device=device)
    rows, place, ends = rows.to(device), place.to(device), ends.to(device)
    gates = []
    for layer in range(case.layers):
        taken = case.rows_of(layer)
        log_decay, beta = gdn.gates(taken.a.mT, taken.b.mT, case.A_log, case.dt_bias)
        gates.append((log_decay.mT.contiguous(), beta.mT.contiguous()))
    states = [case.states[layer].mT.contiguous() for layer in range(case.layers)]

    def along_paths(x: Tensor) -> Tensor:
        return x.flatten(0, 1)[rows][None]

    def verify(layer: int) -> Tensor:
        taken = case.rows_of(layer)
        query, key, value, log_decay, beta = (
            along_paths(x) for x in (taken.query, taken.key, taken.value, *gates[layer])
        )
        output, _ = fused_recurrent_gated_delta_rule(
            query, key, value, g=log_decay, beta=beta, initial_state=states[layer][requests],
            use_qk_l2norm_in_kernel=True, cu_seqlens=ends,
        )  # fmt: skip
        return output[0, place].unflatten(0, (len(case.trees), nodes))

    return Work(lambda: [verify(layer) for layer in range(case.layers)])


def _stand_ins(*, narrow: bool) -> dict[str, ModuleType]:
    """What SGLang's file asks its package for: questions about the machine."""
    chains = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
    answers: dict[str, dict[str, object]] = {
        "sglang.kernels.jit.utils": {"is_arch_support_pdl": chains},
        "sglang.srt.utils": {
            "is_cuda": torch.cuda.is_available(),
            "is_hip": False,
            "is_gfx95_supported": False,
            "is_sm90_supported": narrow,
            "get_device_sm": 90,
        },
    }
    modules = {name: ModuleType(name) for name in ("sglang", "sglang.kernels", "sglang.kernels.jit", "sglang.srt")}
    for name, functions in answers.items():
        modules[name] = ModuleType(name)
        for function, answer in functions.items():
            setattr(modules[name], function, lambda answer=answer: answer)
    return modules
