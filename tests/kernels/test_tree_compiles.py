"""Compile gate without a GPU: no variant of the tree kernels and of a Weaver's round may spill, nor take more barriers
than is on record."""

import json
from pathlib import Path

import pytest
from compile_reports import compile_report


@pytest.mark.slow
@pytest.mark.parametrize("capability", [90, 100])
def test_the_tree_kernels_compile_without_spills(capability: int, tmp_path: Path) -> None:
    report = compile_report("compile_tree.py", tmp_path, str(capability))
    # Per version of Triton what each variant took when it was last looked at: --record of the script writes it.
    recorded = json.loads(Path(__file__).with_name(f"sm{capability}_resources.json").read_text())
    assert set(report["variants"]) == set(next(iter(recorded.values())))
    for name, usage in report["variants"].items():
        spills = usage["stack"] > 0 or usage["local"] > 0
        assert not spills, f"{name} spills: {usage}"
        known = recorded.get(report["triton"], {}).get(name)
        if known is not None:
            assert usage["barriers"] <= known["barriers"], f"{name} takes more barriers than on record: {usage}"
            assert usage["registers"] <= known["registers"] + 16, f"{name} takes more registers than on record: {usage}"
