"""Compile a Triton kernel for a GPU that is not there, and count what it uses."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def compile_kernel(
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    options: dict[str, Any],
    aligned: set[str],
    capability: int = 90,
) -> dict[str, int]:
    """Registers per thread, bytes of stack, local (spills) and shared memory, barriers and instructions of the cubin.

    Args:
        types: Triton type of every argument that is no constant.
        aligned: integer arguments that are multiples of 16; pointers always are.
        capability: 90 for Hopper, 100 for Blackwell.
    """
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(names)
            if signature[name][0] == "*" or name in aligned
        },
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        report, sass = (
            subprocess.run([CUOBJDUMP, flag, file.name], capture_output=True, text=True, check=True).stdout
            for flag in ("--dump-resource-usage", "--dump-sass")
        )
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", report)
    if usage is None:
        raise ValueError(f"no resource usage in the report of cuobjdump: {report}")
    counted = dict(zip(("registers", "stack", "shared", "local"), map(int, usage.groups()), strict=True))
    counted["shared"] = compiled.metadata.shared
    counted["barriers"] = len(re.findall(r"\bBAR\.SYNC", sass))
    counted["tensor_core"] = len(re.findall(r"\bHG?MMA\.", sass))
    counted["instructions"] = len(re.findall(r"/\*[0-9a-f]{4,5}\*/", sass))
    return counted
