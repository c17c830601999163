"""Runs a compile script in a process in which Triton was not told to interpret."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def compile_report(script: str, cache: Path, *words: str) -> Any:
    """What a script of tests/kernels prints, as JSON. Skips the test without Triton or its cuobjdump."""
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, Path(__file__).parent / "kernels" / script, *words],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode == 77:
        pytest.skip("this Triton wheel has no cuobjdump to read register use with")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
