"""Every notebook of the series runs from top to bottom and records what expected.toml says."""

from pathlib import Path

import pytest

from tfm_lab.runner.execute import Limits
from tfm_lab.runner.series import prepare_job, run_notebook

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_numbers_hold(path: Path) -> None:
    assert run_notebook(prepare_job(path, {}), Limits()).problems == ()
