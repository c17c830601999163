"""The process that executes one notebook: ``python -m tfm_lab.runner.worker FOLDER``.

The folder holds ``job.json`` on entry. The worker appends to ``cells.jsonl`` when a cell starts, lets papermill write
``executed.ipynb`` as it goes, and leaves ``result.json`` when it is done: the error if there was one, the kernel's
processor time, and how much of ``stderr.txt`` was written before the last cell was done (null after an error). A
separate process lets the runner end a hung notebook from outside.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError


def main(folder: Path) -> None:
    """Execute the job in ``folder``; whatever goes wrong inside the notebook ends up in ``result.json``."""
    job = json.loads((folder / "job.json").read_text())

    def log_cell(cell: Any, cell_index: int) -> None:
        with (folder / "cells.jsonl").open("a") as log:
            log.write(json.dumps({"id": cell.get("id", ""), "index": cell_index}) + "\n")

    stderr_bytes = {}

    def note_stderr(cell: Any, cell_index: int, execute_reply: Any) -> None:
        stderr_bytes["of_cells"] = (folder / "stderr.txt").stat().st_size

    error = ""
    try:
        papermill.execute_notebook(
            job["notebook"],
            str(folder / "executed.ipynb"),
            parameters=job["parameters"],
            kernel_name="python3",
            cwd=job["cwd"],
            progress_bar=False,
            execution_timeout=job["cell_seconds"],
            on_cell_start=log_cell,
            on_cell_executed=note_stderr,
            store_widget_state=False,
        )
    except papermill.PapermillExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue}"
    except CellTimeoutError:
        error = f"still running after {job['cell_seconds']:g} s, the limit for one cell"
    except DeadKernelError:
        error = "the kernel died (often too little memory)"
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {
        "error": error,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "stderr_bytes_of_cells": None if error else stderr_bytes.get("of_cells"),
    }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
