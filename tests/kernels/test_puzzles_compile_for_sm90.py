"""The solutions of notebook 09 are Triton that a GPU's compiler takes, not only the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfm_lab.lessons.puzzles import PUZZLES


def test_the_solutions_of_the_puzzles_compile_for_sm90(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("compile_puzzles_for_sm90.py")],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    if run.returncode == 77:
        pytest.skip("this Triton wheel has no cuobjdump to read register use with")
    assert run.returncode == 0, run.stderr
    variants = json.loads(run.stdout)
    assert len(variants) == len(PUZZLES) + 1
    for name, usage in variants.items():
        assert usage["stack"] == usage["local"] == 0, f"{name} spills: {usage}"
