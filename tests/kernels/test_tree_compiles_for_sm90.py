"""Compile gate without a GPU: no variant of the tree kernels may spill, nor take more barriers than is on record."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RECORD = Path(__file__).with_name("sm90_resources.json")
"""Per version of Triton what each variant took when it was last looked at: ``--record`` of the script writes it."""


@pytest.mark.slow
def test_the_tree_kernels_compile_for_sm90_without_spills(tmp_path):
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("compile_tree_for_sm90.py")],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    if run.returncode == 77:
        pytest.skip("this Triton wheel has no cuobjdump to read register use with")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    recorded = json.loads(RECORD.read_text())
    assert set(report["variants"]) == set(next(iter(recorded.values())))
    for name, usage in report["variants"].items():
        assert usage["stack"] == usage["local"] == 0, f"{name} spills: {usage}"
        known = recorded.get(report["triton"], {}).get(name)
        if known is not None:
            assert usage["barriers"] <= known["barriers"], f"{name} takes more barriers than on record: {usage}"
            assert usage["registers"] <= known["registers"] + 16, f"{name} takes more registers than on record: {usage}"
