"""Compile the dense tree kernel for sm_90 without a GPU and print what each variant uses, as JSON.

A script of its own, since Triton must not have been told to interpret in this process.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from tfm_kernels import gdn_tree_dense as launcher
from tfm_kernels._gdn_tree_dense import gdn_tree_dense_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BF16_ROWS = {"query", "key", "value"}


def compile_variant(element: str, dims: tuple[int, int], nodes: int) -> bytes:
    """The cubin for Qwen's head layout (16 key heads, 48 value heads)."""
    key, value = (torch.empty(heads, nodes, dim, device="meta") for heads, dim in zip((16, 48), dims, strict=True))
    constants = launcher.Geometry.of(key, value).constants()
    names = gdn_tree_dense_kernel.arg_names
    signature = {}
    for name in names:
        if name in constants:
            signature[name] = "constexpr"
        elif name == "nodes":
            signature[name] = "i32"
        else:
            signature[name] = "*" + ("u8" if name == "ancestors" else element if name in BF16_ROWS else "fp32")
    source = ASTSource(
        fn=gdn_tree_dense_kernel,
        signature=signature,
        constexprs={(names.index(name),): size for name, size in constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if signature[name][0] == "*"},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=launcher.OPTIONS)
    return compiled.asm["cubin"]


def resources(cuobjdump: Path, cubin: bytes) -> dict[str, int]:
    """Registers per thread, bytes of stack and local memory (spills), bytes of shared memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(
            [cuobjdump, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = re.search(r"gdn_tree_dense_kernel.*?REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", report, re.DOTALL)
    if usage is None:
        raise ValueError(f"no resource usage in the report of cuobjdump: {report}")
    return dict(zip(("registers", "stack", "shared", "local"), map(int, usage.groups()), strict=True))


def main() -> None:
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not cuobjdump.exists():
        sys.exit(77)
    variants = [("fp32", (128, 128), 128), ("bf16", (128, 128), 65), ("fp32", (256, 256), 17), ("fp32", (64, 64), 65)]
    print(json.dumps({str(variant): resources(cuobjdump, compile_variant(*variant)) for variant in variants}))


if __name__ == "__main__":
    main()
