"""Notebook files that nbformat would repair or accept are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from notebook_builder import METRIC, write_notebook

from tfm_lab.runner.reading import read_notebook


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda raw: raw.update(nbformat_minor=4), "format 4.4, it must be 4.5"),
        (lambda raw: raw["cells"][1].pop("id"), "cell 2 has no id"),
        (lambda raw: raw["cells"][1].update(id="cell-2"), "two cells have the id cell-2"),
        (lambda raw: raw["cells"][1].update(cell_type="poem"), "not a valid notebook"),
        (lambda raw: raw.pop("cells"), "not a notebook file"),
    ],
)
def test_bad_files_are_refused(spoil: Callable[[dict[str, Any]], None], sentence: str, tmp_path: Path) -> None:
    path = write_notebook(tmp_path, METRIC)
    raw = json.loads(path.read_text())
    spoil(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=sentence):
        read_notebook(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.ipynb"
    path.write_text("# notes")
    with pytest.raises(ValueError, match=r"notes\.ipynb is not a notebook file"):
        read_notebook(path)
    with pytest.raises(FileNotFoundError):
        read_notebook(tmp_path / "absent.ipynb")


def test_a_good_file_is_read(tmp_path: Path) -> None:
    assert read_notebook(write_notebook(tmp_path, METRIC)).cells[3].source == METRIC
