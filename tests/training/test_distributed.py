"""Two processes train the weights that one process trains; gloo on CPUs, as torchrun starts them."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training.tiny import prepared

from tfm_lab.training.data import load_written
from tfm_lab.training.distributed import (
    from_first_process,
    mean_over_processes,
    process_count,
    process_rank,
    replicated,
    shard,
)
from tfm_lab.training.fit import read_history
from tfm_lab.training.recipe import SHIPPED

STAGES = ("target", "drafter", "weaver", "autoregressive")
ALL_STAGES = """
import sys
from contextlib import nullcontext
from tfm_lab.cli.main import cli
from tfm_lab.training import distributed

with distributed.joined("cpu") as device:
    distributed.joined = lambda wanted: nullcontext(device)  # torchrun's processes come together once
    for stage in sys.argv[1].split(","):
        if distributed.process_rank() == 0:
            print("stage", stage, flush=True)
        words = ["--recipe", "short.toml", "--work", f"{sys.argv[2]}/{stage}", "--device", "cpu", *sys.argv[3:]]
        assert not cli.main(["train", stage, *words], standalone_mode=False)
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python; no process of a group that hangs is left behind."""
    with subprocess.Popen(
        [sys.executable, *words], cwd=folder, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def run(folder: Path, *words: str, processes: int) -> str:
    """Run a program of one process, or of several that torchrun starts."""
    found = start(folder, *([] if processes == 1 else [*TORCHRUN, str(processes)]), *words)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


@pytest.fixture(scope="module")
def trained(tiny_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work folders ``1/STAGE`` and ``2/STAGE`` of all stages after a few steps of so many processes.

    The second half resumes the first. A process takes the stages one after another, as most of its time is its start.
    """
    home = tmp_path_factory.mktemp("trained")
    text = (SHIPPED / "tiny.toml").read_text(encoding="utf-8")
    for steps in ("steps = 30", "steps = 20"):
        text = text.replace(steps, "steps = 4")
    text = text.replace("[autoregressive]", '[autoregressive]\nlabels = "law"')
    (home / "short.toml").write_text(text.replace('optimiser = "muon"', 'optimiser = "adamw"'), encoding="utf-8")
    (home / "all_stages.py").write_text(ALL_STAGES, encoding="utf-8")
    for processes in (1, 2):
        (home / str(processes)).mkdir()
        for stage in STAGES:
            prepared(tiny_work, home / str(processes) / stage, stage)
        words = ["all_stages.py", ",".join(STAGES), str(processes)]
        run(home, *words, "--minutes", "1e-9", processes=processes)
        _, *told = run(home, *words, processes=processes).split("stage ")
        assert [part.split("\n")[0] for part in told] == list(STAGES)
        assert [part.count("step 4 ") for part in told] == [1] * len(STAGES)
    return home


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_two_processes_train_the_weights_of_one(trained: Path, stage: str) -> None:
    """Float32 sums in another order: a few steps differ by rounding alone."""
    folders = [trained / processes / stage / stage for processes in ("1", "2")]
    states = [load_file(folder / "state" / "state.safetensors") for folder in folders]
    assert [len(list(read_history(folder))) for folder in folders] == [1, 1]
    assert states[0].keys() == states[1].keys()
    for key, tensor in states[0].items():
        if key.startswith("model."):
            assert torch.allclose(tensor, states[1][key], atol=2e-5, rtol=1e-4), key


@pytest.mark.slow
def test_two_processes_write_texts_of_their_own(tiny_work: Path, tmp_path: Path) -> None:
    folder = prepared(tiny_work, tmp_path / "work", "drafter")
    (folder / "text.npz").unlink()
    words = ["text", "--recipe", "tiny", "--work", "work", "--device", "cpu"]
    output = run(tmp_path, "-m", "tfm_lab", "train", *words, processes=2)
    assert output.count("text.npz: kept") == 2  # training texts and held-out ones, told once each
    wanted, written = load_written(tiny_work / "text.npz"), load_written(folder / "text.npz")
    assert written.tokens.shape == wanted.tokens.shape
    assert written.temperatures is not None
    assert written.temperatures.tolist() == [1.0, 0.0] * (len(written.tokens) // 2)
    assert len(np.unique(written.tokens, axis=0)) == len(written.tokens)


def test_alone_everything_is_as_if_there_were_no_group() -> None:
    rows, module = torch.arange(6.0, requires_grad=True), torch.nn.Linear(1, 1)
    assert (process_count(), process_rank()) == (1, 0)
    assert torch.equal(shard(rows), rows)
    assert mean_over_processes(rows).requires_grad is False
    assert replicated(module) is module
    assert from_first_process(True) is True


def test_a_batch_that_does_not_divide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm_lab.training.distributed.process_count", lambda: 4)
    with pytest.raises(ValueError, match="a batch of 6 does not divide among 4 processes"):
        shard(torch.zeros(6, 2))
