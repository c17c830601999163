"""Importing the package settles Triton's mode, and nothing else."""

import os
import subprocess
import sys

import pytest


def answer_of(code: str, **variables: str) -> str:
    """What a fresh Python prints, with Triton's variable unset unless it is given."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | variables
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


SHOW = "; import os, sys; print(os.environ.get('TRITON_INTERPRET'), 'torch' in sys.modules, 'triton' in sys.modules)"


def test_without_a_gpu_the_interpreter_is_chosen_and_nothing_is_imported() -> None:
    hide = "import pathlib; pathlib.Path.glob = lambda self, pattern: iter(()); import tfm_lab"
    assert answer_of(hide + SHOW) == "1 False False"


@pytest.mark.parametrize(("gpu", "mode"), [("True", "None"), ("False", "1")])
def test_where_a_driver_may_be_torch_decides(gpu: str, mode: str) -> None:
    pretend = "import pathlib; pathlib.Path.glob = lambda self, pattern: iter([self / pattern])"
    answer = f"import torch; torch.cuda.is_available = lambda: {gpu}; import tfm_lab"
    assert answer_of(f"{pretend}; {answer}{SHOW}") == f"{mode} True False"


def test_the_users_choice_wins() -> None:
    assert answer_of("import tfm_lab" + SHOW, TRITON_INTERPRET="0").startswith("0 ")


def test_an_imported_triton_is_left_alone() -> None:
    pretend = "import sys, types; sys.modules['triton'] = types.ModuleType('triton'); import tfm_lab"
    assert answer_of(pretend + SHOW).startswith("None False")


def test_the_interpreter_runs_kernels_after_an_optimizer_was_built() -> None:
    pytest.importorskip("triton")
    code = (
        "import tfm_lab, torch; torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]); "
        "from triton import knobs; print(knobs.runtime.interpret)"
    )
    assert answer_of(code, CUDA_VISIBLE_DEVICES="") == "True"


def test_the_package_works_without_triton() -> None:
    assert answer_of("import sys; sys.modules['triton'] = None; import tfm_lab.tree; print('works')") == "works"
