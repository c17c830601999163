"""Compile the dense tree kernel for sm_90 without a GPU and print what each variant uses, as JSON.

A script of its own, since Triton must not have been told to interpret in this process.
"""

import json
import sys

import torch
from compiling import CUOBJDUMP, compile_kernel
from tfm_kernels import gdn_tree_dense as launcher
from tfm_kernels._gdn_tree_dense import gdn_tree_dense_kernel

BF16_ROWS = {"query", "key", "value"}


def compile_variant(element: str, dims: tuple[int, int], nodes: int) -> dict[str, int]:
    """Resources for Qwen's head layout (16 key heads, 48 value heads)."""
    key, value = (torch.empty(heads, nodes, dim, device="meta") for heads, dim in zip((16, 48), dims, strict=True))
    types = dict.fromkeys(gdn_tree_dense_kernel.arg_names, "*fp32") | dict.fromkeys(BF16_ROWS, f"*{element}")
    types |= {"ancestors": "*u8", "nodes": "i32"}
    constants = launcher.Geometry.of(key, value).constants()
    return compile_kernel(gdn_tree_dense_kernel, types, constants, launcher.OPTIONS, aligned=set())


def main() -> None:
    if not CUOBJDUMP.exists():
        sys.exit(77)
    variants = [("fp32", (128, 128), 128), ("bf16", (128, 128), 65), ("fp32", (256, 256), 17), ("fp32", (64, 64), 65)]
    print(json.dumps({str(variant): compile_variant(*variant) for variant in variants}))


if __name__ == "__main__":
    main()
