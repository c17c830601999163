"""The committed notebooks keep every rule; takes milliseconds, runs nothing."""

from pathlib import Path

import pytest

from tfm_lab.runner.expectations import load_expectations
from tfm_lab.runner.hygiene import notebook_problems, series_problems

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_clean(path: Path) -> None:
    expected = load_expectations(FOLDER / "expected.toml").get(path.stem, {})
    assert notebook_problems(path, expected) == []


def test_the_series_is_clean() -> None:
    assert series_problems(NOTEBOOKS) == []


def test_every_expectation_belongs_to_a_notebook() -> None:
    assert set(load_expectations(FOLDER / "expected.toml")) <= {path.stem for path in NOTEBOOKS}
