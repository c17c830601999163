"""Execute one notebook in a fresh process, under limits of time that are enforced from outside."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from nbformat import NotebookNode

from tfm_lab.runner.reading import read_notebook

POLL_SECONDS = 0.1

# Lines that ipykernel 7 writes at every start, or when it is interrupted.
HARMLESS_STDERR = (
    "Kernel is running over TCP without encryption",
    "KeyboardInterrupt caught in kernel",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a notebook may use: seconds for all of it, seconds for one cell, threads for its numerical libraries.

    Raises:
        ValueError: if a limit is not positive.
    """

    notebook_seconds: float = 300.0
    cell_seconds: float = 120.0
    threads: int = 2

    def __post_init__(self) -> None:
        if not (self.notebook_seconds > 0 and self.cell_seconds > 0):
            raise ValueError(
                f"time limits must be positive, got {self.notebook_seconds:g} s for the notebook and "
                f"{self.cell_seconds:g} s for a cell"
            )
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")


@dataclass(frozen=True, slots=True)
class Execution:
    """What happened when a notebook ran.

    Attributes:
        notebook: the executed notebook, as far as it got; None if nothing was written.
        failure: one sentence that names the cell and the error; empty when every cell ran.
        stderr: unexpected lines that the kernel or papermill wrote to standard error until the last cell was done.
        wall_seconds: from start to end, kernel start included.
        cpu_seconds: processor time of the kernel (0 when it had to be killed).
        peak_bytes: largest memory (resident) of the kernel and its children.
    """

    notebook: NotebookNode | None
    failure: str
    stderr: tuple[str, ...]
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


def execute(
    path: Path,
    parameters: Mapping[str, object],
    limits: Limits,
    on_cell: Callable[[int], None] = lambda number: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Execution:
    """Run the notebook at ``path`` from top to bottom in its own folder.

    Args:
        path: the notebook; it is not changed.
        parameters: checked values, see ``parameters.resolve``.
        limits: time and threads.
        on_cell: called with the number (from 1) of each cell that starts.
        cancelled: asked ten times a second; once it answers True, the notebook and all its processes are ended.
    """
    source = read_notebook(path)
    with tempfile.TemporaryDirectory(prefix="tfm-lab-run-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        job = {
            "notebook": str(path.resolve()),
            "parameters": dict(parameters),
            "cwd": str(path.resolve().parent),
            "cell_seconds": limits.cell_seconds,
        }
        (folder / "job.json").write_text(json.dumps(job))
        started = time.monotonic()
        with (folder / "stderr.txt").open("ab") as stderr:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tfm_lab.runner.worker", str(folder)],
                env=_environment(folder, limits.threads),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        family = _Family(worker.pid)
        stopped = ""
        try:
            while worker.poll() is None and not stopped:
                time.sleep(POLL_SECONDS)
                family.look()
                on_cell(_place(source, folder))
                if time.monotonic() - started >= limits.notebook_seconds:
                    stopped = f"stopped after {limits.notebook_seconds:g} s, the limit for the whole notebook"
                elif cancelled():
                    stopped = "cancelled"
        finally:
            family.end()
            worker.wait()
        return _outcome(source, folder, stopped, time.monotonic() - started, family.peak_bytes)


class _Family:
    """A process with all its descendants. Kernels run in sessions of their own, so a signal to a group misses them."""

    def __init__(self, pid: int) -> None:
        self._members = {pid: psutil.Process(pid)}
        self._root = pid
        self.peak_bytes = 0

    def look(self) -> None:
        """Notice new descendants and the memory that they use."""
        with suppress(psutil.NoSuchProcess):
            for process in self._members[self._root].children(recursive=True):
                self._members.setdefault(process.pid, process)
        resident = 0
        for pid, process in self._members.items():
            with suppress(psutil.NoSuchProcess):
                resident += process.memory_info().rss if pid != self._root else 0
        self.peak_bytes = max(self.peak_bytes, resident)

    def end(self) -> None:
        """Kill every member that is still there."""
        self.look()
        for process in self._members.values():
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _environment(folder: Path, threads: int) -> dict[str, str]:
    """Environment of the worker: few and patient threads, and no personal Jupyter or IPython settings."""
    environment = dict(os.environ)
    environment.pop("PLOTLY_RENDERER", None)
    return environment | {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }


def _place(source: NotebookNode, folder: Path) -> int:
    """Number (from 1) of the cell that started last; 0 before the first. The injected cell counts as its parent."""
    log = folder / "cells.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    started = [json.loads(line)["id"] for line in lines if line.endswith("}")]
    numbers = {cell.get("id"): number for number, cell in enumerate(source.cells, start=1)}
    return next((numbers[cell_id] for cell_id in reversed(started) if cell_id in numbers), 0)


def _outcome(source: NotebookNode, folder: Path, stopped: str, wall_seconds: float, peak_bytes: int) -> Execution:
    notebook = None
    with suppress(FileNotFoundError, nbformat.reader.NotJSONError):  # killed before or while it was written
        notebook = nbformat.read(folder / "executed.ipynb", as_version=4)
    result_file = folder / "result.json"
    result = json.loads(result_file.read_text()) if result_file.exists() else {"error": "", "cpu_seconds": 0.0}
    stderr = _unexpected((folder / "stderr.txt").read_bytes(), result.get("stderr_bytes_of_cells"))
    if stopped:
        result["error"] = stopped
    elif not result_file.exists():
        result["error"] = f"the process that ran it ended early: {stderr[-1] if stderr else 'no message'}"
    failure = f"{describe_cell(source, _place(source, folder))}: {result['error']}" if result["error"] else ""
    return Execution(notebook, " ".join(failure.split()), stderr, wall_seconds, result["cpu_seconds"], peak_bytes)


def _unexpected(written: bytes, of_cells: int | None) -> tuple[str, ...]:
    """Lines on standard error that mean something; ``of_cells`` bytes were there when the last cell was done.

    What comes later is not the notebook's: a kernel that closes its sockets while messages still arrive may abort
    inside libzmq (zeromq/libzmq issues 1307 and 3715) or leave a traceback of ipykernel's own. After an error
    (``of_cells`` is None) everything counts.
    """
    return tuple(
        line
        for line in written[:of_cells].decode(errors="replace").splitlines()
        if line.strip() and not any(known in line for known in HARMLESS_STDERR)
    )


def describe_cell(notebook: NotebookNode, number: int) -> str:
    """A cell in words: its number (from 1), its id and its first line."""
    if number == 0:
        return "before the first cell"
    cell = notebook.cells[number - 1]
    first = next((line for line in cell.source.splitlines() if line.strip()), "")
    return f"cell {number} of {len(notebook.cells)} (id {cell.get('id')}, {first[:60]!r})"
