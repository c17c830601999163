"""The committed notebooks keep every rule; takes milliseconds, runs nothing."""

import re
from pathlib import Path

import pytest

from tfm_lab.runner.expectations import load_expectations
from tfm_lab.runner.hygiene import notebook_problems, series_problems
from tfm_lab.runner.reading import read_notebook

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_is_clean(path: Path) -> None:
    expected = load_expectations(FOLDER / "expected.toml").get(path.stem, {})
    assert notebook_problems(path, expected) == []


def test_the_series_is_clean() -> None:
    assert series_problems(NOTEBOOKS) == []


def test_the_first_notebook_leads_to_all_others() -> None:
    first, *others = NOTEBOOKS
    linked = set(re.findall(r"\]\((\w+\.ipynb)\)", read_notebook(first).cells[-1].source))
    assert linked == {path.name for path in others}


def test_every_expectation_belongs_to_a_notebook() -> None:
    assert set(load_expectations(FOLDER / "expected.toml")) <= {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_korean_abstract_names_metrics_that_the_notebook_records(path: Path) -> None:
    title = read_notebook(path).cells[0].source
    (abstract,) = re.findall(
        r'<details lang="ko"><summary>한국어 요약</summary>\n\n(.+?)\n\n</details>', title, re.DOTALL
    )
    named = set(re.findall(r"`([\w.]+)`", abstract))
    recorded = load_expectations(FOLDER / "expected.toml")[path.stem]
    assert named
    assert named <= {part for name in recorded for part in (name, name.partition(".")[0])}
