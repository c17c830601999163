"""The frozen form keeps what a reader needs and nothing that changes from run to run."""

from pathlib import Path
from typing import Any

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from notebook_builder import METRIC, notebook_of

from tfm_lab.recording import METRIC_MIME
from tfm_lab.runner.freeze import freeze, freeze_problems, with_outputs_of

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><title>a tree</title></svg>'
PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"


def showing(data: dict[str, Any], **metadata: Any) -> NotebookNode:
    """A notebook whose fourth cell shows one output."""
    notebook = notebook_of(METRIC)
    notebook.cells[3].outputs = [new_output("display_data", data=data, metadata={"isolated": True})]
    notebook.cells[3].metadata.update(metadata)
    return notebook


def frozen_data(data: dict[str, Any]) -> dict[str, Any]:
    return dict(freeze(showing(data)).cells[3].outputs[0].data)


def test_pictures_texts_and_metrics_stay() -> None:
    data = {METRIC_MIME: {"name": "m"}, "image/svg+xml": SVG, "text/html": "<table></table>", "text/plain": "a tree"}
    assert frozen_data(data) == data


@pytest.mark.parametrize(("live", "content"), [(PLOTLY, {}), (WIDGET, {}), ("application/javascript", "alert(1)")])
def test_what_needs_a_kernel_or_a_script_goes(live: str, content: object) -> None:
    assert frozen_data({live: content, "image/svg+xml": SVG}) == {"image/svg+xml": SVG}


@pytest.mark.parametrize(
    "html",
    [
        "<script>alert(1)</script>",
        '<div onclick="go()">x</div>',
        '<img src="https://example.org/a.png">',
        '<link rel="stylesheet" href="a.css">',
        '<iframe src="a.html"></iframe>',
        '<a href="javascript:go()">x</a>',
    ],
)
def test_active_html_goes(html: str) -> None:
    assert frozen_data({"text/html": html, "text/plain": "x"}) == {"text/plain": "x"}
    assert freeze_problems(showing({"text/html": html, "text/plain": "x"})) != []


@pytest.mark.parametrize("html", ['<a href="https://arxiv.org">paper</a>', "<p>version one = 'a'</p>"])
def test_plain_html_stays(html: str) -> None:
    assert frozen_data({"text/html": html}) == {"text/html": html}


def test_metadata_counts_and_paths_go() -> None:
    notebook = showing({"text/plain": "x"}, execution={"iopub": "now"}, tags=["kept"], papermill={"duration": 1})
    notebook.metadata.update(widgets={"state": {}}, papermill={"duration": 1})
    notebook.cells[3].execution_count = 7
    notebook.cells[3].outputs.append(new_output("stream", name="stdout", text="saved /somewhere/project/build/a.txt\n"))
    frozen = freeze(notebook, Path("/somewhere/project"))
    assert set(frozen.metadata) == {"kernelspec", "language_info"}
    assert frozen.cells[3].metadata == {"tags": ["kept"]}
    assert frozen.cells[3].execution_count is None
    assert frozen.cells[3].outputs[0].metadata == {}
    assert frozen.cells[3].outputs[1].text == "saved build/a.txt\n"
    assert freeze(frozen) == frozen
    assert notebook.cells[3].execution_count == 7, "the argument must not change"


def test_volatile_outputs_and_injected_cells_go() -> None:
    notebook = showing({"text/plain": "1.3 s"}, tags=["volatile"])
    notebook.cells.insert(3, new_code_cell("BUDGET = 2", metadata={"tags": ["injected-parameters"]}))
    frozen = freeze(notebook)
    assert len(frozen.cells) == 4
    assert frozen.cells[3].outputs == []


@pytest.mark.parametrize("live", [PLOTLY, WIDGET])
def test_a_live_picture_without_a_still_one_is_a_problem(live: str) -> None:
    assert live in freeze_problems(showing({live: {}, "text/plain": "Figure()"}))[0]
    assert freeze_problems(showing({live: {}, "image/svg+xml": SVG})) == []


def test_outputs_are_matched_by_cell_id() -> None:
    source = notebook_of(METRIC)
    executed = showing({"text/plain": "x"})
    executed.cells[3].source = "changed by a tool"
    executed.cells.insert(0, new_code_cell("added by a tool"))
    result = with_outputs_of(source, executed)
    assert [cell.source for cell in result.cells] == [cell.source for cell in source.cells]
    assert result.cells[3].outputs[0].data == {"text/plain": "x"}
    assert source.cells[3].outputs == []
