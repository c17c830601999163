"""Every notebook of the series runs from top to bottom and records what expected.toml says."""

import re
from pathlib import Path

import pytest

from tfm_lab.runner.execute import Limits
from tfm_lab.runner.parameters import declared_parameters
from tfm_lab.runner.reading import read_notebook
from tfm_lab.runner.series import prepare_job, run_notebook

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
WITH_EXERCISES = [path for path in NOTEBOOKS if "SOLUTIONS" in declared_parameters(read_notebook(path))]


def named(name: str) -> Path:
    (path,) = (path for path in NOTEBOOKS if path.stem == name)
    return path


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_numbers_hold(path: Path) -> None:
    assert run_notebook(prepare_job(path, {}), Limits()).problems == ()


@pytest.mark.notebooks
@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_EXERCISES, ids=lambda path: path.stem)
def test_every_check_passes_with_the_solutions(path: Path) -> None:
    assert run_notebook(prepare_job(path, {"SOLUTIONS": True}), Limits()).problems == ()


@pytest.mark.notebooks
@pytest.mark.slow
def test_growing_trees_takes_a_budget_that_no_width_divides() -> None:
    """129 is also more than the explorer takes, and its width by rule is none of the compared ones."""
    job = prepare_job(named("06_growing_trees"), {"BUDGET": 129, "CONTEXTS": 1})
    assert run_notebook(job, Limits()).problems == ()


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("00_start_here", {"NEW_TOKENS": 1}, "takes NEW_TOKENS of 2 or more"),
        ("00_start_here", {"BUDGET": 0}, "and a BUDGET from 1 to 256"),
        (
            "06_growing_trees",
            {"BUDGET": 0},
            "takes a BUDGET from 1 to 256, a WIDTH from 1 to 32 and CONTEXTS of 1 or more",
        ),
        ("06_growing_trees", {"CONTEXTS": 0}, "CONTEXTS of 1 or more, not 32, 2 and 0"),
        ("01_lossless_by_construction", {"SAMPLES": 10}, "SAMPLES of 1000 or more, not 10"),
        ("02_parallel_ceiling", {"DEPTH": 3}, "a DEPTH from 4 to 16, not 0.05 and 3"),
        ("03_chain_to_tree", {"CONCENTRATION": 0.0}, "takes a CONCENTRATION from 0.01 to 10"),
        ("04_weaver_conditionals", {"POOL": 100}, "a POOL of 32, 64, 128, 256, 512, 1024"),
        ("05_train_the_weaver", {"STEPS": 10}, "STEPS from 20 to 400 and a POOL from 8 to 64, not 1, 0.04, 10 and 32"),
        ("07_verifying_trees", {"BUDGET": 65}, "takes a BUDGET from 1 to 64, not 65"),
        ("08_matrix_memory", {"TREES": 0}, "takes TREES from 1 to 200 and NODES from 1 to 128, not 0 and 24"),
        ("09_fused_kernel", {"BUDGET": 15}, "takes a BUDGET from 16 to 127, not 15"),
        (
            "10_tokens_to_seconds",
            {"NEW_TOKENS": 7},
            "takes NEW_TOKENS from 8 to 256 and a BATCH from 1 to 64, not 7 and 1",
        ),
        ("11_claim_ledger", {"SHOW": "doubts"}, "takes as SHOW one of all claims, proved or enumerated, "),
    ],
)
def test_a_parameter_out_of_range_is_refused_below_the_parameters(
    name: str, parameters: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first three cells of code alone: imports, parameters, and the one that refuses."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # notebook 09 sets it, and it is put back
    job = prepare_job(named(name), parameters)
    cells = [cell for cell in read_notebook(job.path).cells if cell.cell_type == "code"][:3]
    assert [cell.id for cell in cells] == ["imports", "parameters", "allowed"]
    values: dict[str, object] = {"__name__": "__main__"}
    for cell in cells[:2]:
        exec(cell.source, values)
    exec(cells[2].source, dict(values))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        exec(cells[2].source, values | dict(job.parameters))


@pytest.mark.notebooks
@pytest.mark.slow
def test_a_run_with_a_parameter_out_of_range_ends_where_it_is_refused() -> None:
    job = prepare_job(named("00_start_here"), {"BUDGET": 0})
    (problem,) = run_notebook(job, Limits()).problems
    assert "(id allowed, " in problem
    assert "and a BUDGET from 1 to 256, not 64 and 0" in problem
