"""Notebooks really executed: success, failure, hanging, death, noise. Each run costs a kernel start."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
import psutil
import pytest
from notebook_builder import EXPECTED, METRIC, write_notebook

from tfm_lab.runner.execute import Limits
from tfm_lab.runner.series import NotebookReport, prepare_job, run_notebook


def run(path: Path, limits: Limits | None = None) -> NotebookReport:
    return run_notebook(prepare_job(path, {}), limits or Limits(notebook_seconds=120, cell_seconds=60))


def processes_with(words: Sequence[str]) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == list(words)]


def test_a_good_notebook_passes_and_its_cells_are_counted(tmp_path: Path) -> None:
    (tmp_path / "expected.toml").write_text(EXPECTED)
    path = write_notebook(tmp_path, METRIC, "import os; print(os.environ['OMP_NUM_THREADS'], os.getcwd())")
    before = path.read_bytes()
    seen: list[int] = []
    job = prepare_job(path, {})
    report = run_notebook(job, Limits(notebook_seconds=120, threads=1), seen.append)
    assert report.problems == ()
    assert [verdict.status for verdict in report.verdicts] == ["ok"]
    assert max(seen) == 5
    assert report.execution.notebook is not None
    assert report.execution.notebook.cells[-1].outputs[0].text == f"1 {tmp_path}\n"
    assert report.execution.cpu_seconds > 0
    assert report.execution.peak_bytes > 10**6
    assert path.read_bytes() == before


def test_numbers_pictures_and_warnings_are_judged(tmp_path: Path) -> None:
    (tmp_path / "expected.toml").write_text(EXPECTED.replace("32", "33"))
    report = run(
        write_notebook(
            tmp_path, METRIC, "import warnings\nwarnings.warn('careful')", "import ipywidgets\nipywidgets.IntSlider(3)"
        )
    )
    assert report.execution.notebook is not None
    assert "widgets" not in report.execution.notebook.metadata, "the state of one figure is megabytes"
    found = "\n".join(report.problems)
    assert len(report.problems) == 3
    assert "metric budget.doubled = 32 differs from 33" in found
    assert "cell 5 wrote to standard error" in found
    assert "UserWarning: careful" in found
    assert "cell 6 shows application/vnd.jupyter.widget-view+json without an SVG" in found


def test_a_failing_cell_is_named(tmp_path: Path) -> None:
    report = run(write_notebook(tmp_path, METRIC, "ratio = 1 / (BUDGET - 16)", "print('never')"))
    assert report.problems == (
        "cell 5 of 6 (id cell-4, 'ratio = 1 / (BUDGET - 16)'): ZeroDivisionError: division by zero",
    )
    assert report.execution.notebook is not None


def test_a_hung_notebook_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    words = ["sleep", f"86399.{os.getpid()}"]
    hang = f"import subprocess, time\nsubprocess.Popen({words})\ntime.sleep(86399)"
    started = time.monotonic()
    report = run(write_notebook(tmp_path, METRIC, hang), limits=Limits(notebook_seconds=7, cell_seconds=600))
    assert report.problems == (
        "cell 5 of 5 (id cell-4, 'import subprocess, time'): stopped after 7 s, the limit for the whole notebook",
    )
    assert time.monotonic() - started < 60
    assert processes_with(words) == []


def test_a_hung_cell_is_ended(tmp_path: Path) -> None:
    report = run(write_notebook(tmp_path, METRIC, "import time\ntime.sleep(86399)"), limits=Limits(120, cell_seconds=1))
    assert "cell 5 of 5 (id cell-4, 'import time'): still running after 1 s, the limit for one cell" in report.problems


def test_a_dead_kernel_is_reported(tmp_path: Path) -> None:
    report = run(write_notebook(tmp_path, METRIC, "import os\nos._exit(3)"))
    assert "cell 5 of 5 (id cell-4, 'import os'): the kernel died" in report.problems[0]


@pytest.mark.parametrize(
    ("last_lines", "counted"),
    [
        pytest.param("write()", True, id="in a cell"),
        pytest.param("atexit.register(write)", False, id="while the kernel ends"),
        pytest.param("write()\nos._exit(3)", True, id="before it dies"),
    ],
)
def test_standard_error_counts_until_the_last_cell_is_done(tmp_path: Path, last_lines: str, counted: bool) -> None:
    written = "Assertion failed: pfd.revents & POLLIN (src/signaler.cpp:238)"
    lines = [
        "import atexit, os, pathlib",
        "stderr = pathlib.Path(f'/proc/{os.getppid()}/fd/2')  # what the kernel would write to before it captures it",
        "def write():",
        f"    with stderr.open('a') as file: file.write({written!r} + chr(10))",
    ]
    report = run(write_notebook(tmp_path, METRIC, "\n".join([*lines, last_lines])))
    assert bool(report.execution.failure) == ("_exit" in last_lines)
    assert (written in report.execution.stderr) == counted
    assert report.execution.failure or report.execution.stderr == (written,) * counted


def test_plain_papermill_works_too(tmp_path: Path) -> None:
    path = write_notebook(tmp_path, METRIC)
    out = tmp_path / "out.ipynb"
    command = [sys.executable, "-m", "papermill", str(path), str(out), "-p", "BUDGET", "32", "--no-progress-bar"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    outputs = [output for cell in nbformat.read(out, as_version=4).cells for output in cell.get("outputs", [])]
    assert outputs[0].data["text/plain"] == "metric budget.doubled = 64  (exact)"


@pytest.mark.parametrize("values", [(0, 1, 1), (1, -1, 1), (1, 1, 0), (math.nan, 1, 1), (1, math.nan, 1)])
def test_limits_must_be_positive(values: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Limits(*values)
