"""Each rule for committed notebooks must be able to fail."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from notebook_builder import METRIC, notebook_of, write_notebook

from tfm_lab.recording import METRIC_MIME
from tfm_lab.runner.expectations import Expectation
from tfm_lab.runner.hygiene import NOTEBOOK_BYTES, notebook_problems, series_problems

EXPECTED = {"budget.doubled": Expectation("budget.doubled", "exact", "twice the budget", value=32)}
METRIC_OUTPUT = {METRIC_MIME: {"name": "budget.doubled", "value": 32, "kind": "exact", "n": None}, "text/plain": "32"}


def clean_notebook() -> NotebookNode:
    notebook = notebook_of(METRIC)
    notebook.cells[3].outputs = [new_output("display_data", data=METRIC_OUTPUT)]
    return notebook


def problems_of(notebook: NotebookNode, folder: Path) -> list[str]:
    path = folder / "00_small.ipynb"
    nbformat.write(notebook, path)
    return notebook_problems(path, EXPECTED)


def test_a_clean_notebook_has_no_problem(tmp_path: Path) -> None:
    assert problems_of(clean_notebook(), tmp_path) == []


def _text(source: str) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.cells.append(new_markdown_cell(source, id="added"))


def _code(source: str) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.cells.append(new_code_cell(source, id="added"))


def _output(**data: str) -> Callable[[NotebookNode], None]:
    output = new_output("display_data", data={key.replace("_", "/"): value for key, value in data.items()})
    return lambda notebook: notebook.cells[3].outputs.append(output)


def _source(number: int, source: str) -> Callable[[NotebookNode], None]:
    return lambda notebook: notebook.cells[number].update(source=source)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda notebook: notebook.metadata.update(widgets={}), "frozen form"),
        (lambda notebook: notebook.cells[3].update(execution_count=3), "frozen form"),
        (lambda notebook: notebook.cells[3].metadata.update(papermill={}), "frozen form"),
        (lambda notebook: notebook.metadata.kernelspec.update(name="my-env"), "kernel must be python3"),
        (lambda notebook: notebook.cells[2].metadata.clear(), "0 code cells tagged"),
        (lambda notebook: notebook.cells[3].outputs.clear(), "no committed output holds"),
        (_source(1, "import numpy"), "must import tfm_lab"),
        (_source(2, "BUDGET = 16"), "lacks a comment"),
        (_source(3, 'record("budget.doubled", 32)'), "BUDGET has no effect"),
        (_source(0, "## A notebook"), "must be the title"),
        (_source(0, "no title"), "no title"),
        (_text("# Another title"), "second title"),
        (_text("### Too deep"), "skips a level"),
        (_text("![image.png](tree.png)"), "alternative text"),
        (_text("![](tree.png)"), "alternative text"),
        (_text('<img src="tree.png">'), "alternative text"),
        (_text("[next](01_missing.ipynb)"), "leads nowhere"),
        (_text("[there](#No-such-heading)"), "no such heading"),
        (_code("open('/home/someone/data.txt')"), "path of one machine"),
        (_code("!pip install torch"), "installs packages"),
        (_output(text_plain="saved to /home/someone/data.txt"), "path of one machine"),
        (_output(text_plain="<Tree object at 0x7f2a3b4c5d6e>"), "memory address"),
        (_output(text_plain="open http://localhost:8888/lab"), "local address"),
        (_output(text_plain="x" * NOTEBOOK_BYTES), "bytes"),
        (
            lambda notebook: notebook.cells[3].outputs.append(new_output("stream", name="stderr", text="w")),
            "standard error",
        ),
        (lambda notebook: notebook.cells[3].outputs.append(new_output("error", ename="KeyError")), "shows an error"),
        (lambda notebook: notebook.cells[3].outputs[0].data[METRIC_MIME].update(value=31), "differs from 32"),
        (lambda notebook: notebook.cells[3].outputs.append(notebook.cells[3].outputs[0]), "recorded twice"),
    ],
)
def test_every_rule_can_fail(spoil: Callable[[NotebookNode], None], problem: str, tmp_path: Path) -> None:
    notebook = clean_notebook()
    spoil(notebook)
    assert any(problem in found for found in problems_of(notebook, tmp_path))


@pytest.mark.parametrize(
    "allow",
    [
        _text("## A section\n\n[up](#A-notebook), [itself](00_small.ipynb#A-section), [paper](https://arxiv.org)"),
        _text("```python\n# no heading\n```"),
        _text("![A draft tree with four nodes](tree.png)"),
        _code('import sys\nif "google.colab" in sys.modules:\n    get_ipython().system("pip install tfm-lab")'),
        _output(text_html="<table><tr><td>1</td></tr></table>"),
    ],
)
def test_what_is_allowed(allow: Callable[[NotebookNode], None], tmp_path: Path) -> None:
    notebook = clean_notebook()
    allow(notebook)
    assert problems_of(notebook, tmp_path) == []


def test_timings_may_be_absent_from_committed_outputs(tmp_path: Path) -> None:
    path = tmp_path / "00_small.ipynb"
    nbformat.write(clean_notebook(), path)
    assert notebook_problems(path, EXPECTED | {"seconds": Expectation("seconds", "info", "time")}) == []
    problems = notebook_problems(path, EXPECTED | {"mal": Expectation("mal", "exact", "theory", value=1)})
    assert problems == ["committed outputs: metric mal was not recorded"]


def test_the_chain_of_next_links(tmp_path: Path) -> None:
    paths = [write_notebook(tmp_path, METRIC, name=name) for name in ("00_first", "06_second")]
    assert series_problems(paths) == ["00_first.ipynb has no link [next](06_second.ipynb)"]
    notebook = notebook_of(METRIC)
    notebook.cells.append(new_markdown_cell("[Next: growing trees](06_second.ipynb)", id="link"))
    nbformat.write(notebook, paths[0])
    assert series_problems(paths) == []


def test_the_series_has_a_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm_lab.runner.hygiene.SERIES_BYTES", 10)
    assert "together" in series_problems([write_notebook(tmp_path, METRIC)])[0]
