"""Compile gate without a GPU: every variant of the dense kernel must build for Hopper and spill no register."""

from pathlib import Path

from compile_reports import compile_report


def test_the_dense_kernel_compiles_without_spills(tmp_path: Path) -> None:
    variants = compile_report("compile_dense.py", tmp_path)
    assert len(variants) == 4
    for name, usage in variants.items():
        assert usage["stack"] == usage["local"] == 0, f"{name} spills: {usage}"
        assert usage["registers"] <= 128, f"{name} uses more registers than it should: {usage}"
