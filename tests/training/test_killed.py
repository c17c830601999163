"""A training killed with SIGKILL, wherever it happens to be, goes on to the same weights."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from training.test_fit import CONFIG, Task, same_tensors

from tfm_lab.training.fit import fit

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")

CHILD = """
import os, pathlib, signal, sys
from training.test_fit import CONFIG, Task
from tfm_lab.training import fit as module

point, folder = sys.argv[1], pathlib.Path(sys.argv[2])
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
save, rename, saves, renames = module.save_file, pathlib.Path.replace, [], []

def counted_save(tensors, path):
    saves.append(path)
    if point == "half a checkpoint" and len(saves) == 2:
        path.write_bytes(b"cut")
        die()
    save(tensors, path)

def counted_rename(path, target):
    renames.append(path)
    if point == "between two renames" and len(renames) == 3:  # the first checkpoint takes one, the second two
        die()
    return rename(path, target)

def at_step(progress):
    if point == "a step" and progress.step == 5:
        die()

module.save_file, pathlib.Path.replace = counted_save, counted_rename
module.fit(Task(), CONFIG, folder, on_step=at_step)
"""


@pytest.mark.parametrize("point", ["a step", "half a checkpoint", "between two renames"])
def test_a_killed_training_ends_with_the_same_weights(tmp_path: Path, point: str) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert fit(Task(), CONFIG, whole) == CONFIG.steps
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-c", CHILD, point, str(killed)]
    assert subprocess.run(command, env=environment, timeout=300).returncode == -signal.SIGKILL
    steps: list[int] = []
    assert fit(Task(), CONFIG, killed, on_step=lambda progress: steps.append(progress.step)) == CONFIG.steps
    assert steps[0] == {"a step": 5, "half a checkpoint": 3, "between two renames": 3}[point]
    assert same_tensors(whole, killed)
    assert (killed / "history.jsonl").read_text() == (whole / "history.jsonl").read_text()
    assert sorted(path.name for path in killed.iterdir()) == ["history.jsonl", "state"]
