"""Compile the solutions of notebook 09 without a GPU and print what each uses, as JSON.

A script of its own, since Triton must not have been told to interpret in this process.
"""

import inspect
import json
import sys

import triton
from compiling import CUOBJDUMP, compile_kernel

from tfm_lab.lessons import by_hand_kernels
from tfm_lab.lessons.interpreting import plain_function
from tfm_lab.lessons.puzzles import PUZZLES

TYPES = {"nodes": "i32", "longest": "i32", "ancestors": "*u8", "paths": "*i32"}


def compile_solution(name: str) -> dict[str, int]:
    """Resources at 64 columns, or at none for a kernel without DIM."""
    function = plain_function(getattr(by_hand_kernels, name))
    names = inspect.signature(function).parameters
    constants = {"DIM": 64} if "DIM" in names else {}
    types = dict.fromkeys(names, "*fp32") | TYPES
    return compile_kernel(triton.jit(function), types, constants, {"num_warps": 4, "num_stages": 1}, aligned=set())


def main() -> None:
    if not CUOBJDUMP.exists():
        sys.exit(77)
    names = [name.removeprefix("09.") for name in PUZZLES] + ["verify_branches"]
    print(json.dumps({name: compile_solution(name) for name in names}))


if __name__ == "__main__":
    main()
