"""The frozen form of a notebook: what is committed, and what a reader sees without a running kernel.

A frozen notebook keeps texts, SVG and PNG pictures, recorded metrics and HTML without scripts. Widget state, plotly
specifications, execution counts, timings and paths go. Every picture that a widget or a plotly figure shows needs an
SVG or PNG beside it, so that nothing is lost.
"""

import copy
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tfm_lab.recording import METRIC_MIME
from tfm_lab.runner.outputs import cell_outputs

KEPT_MIMES = (
    METRIC_MIME,
    "image/svg+xml",
    "image/png",
    "text/html",
    "text/markdown",
    "text/latex",
    "text/plain",
)
PICTURE_MIMES = ("image/svg+xml", "image/png", "text/html")
LIVE_MIMES = ("application/vnd.jupyter.widget-view+json", "application/vnd.plotly.v1+json")
KEPT_CELL_METADATA = ("tags", "jupyter")
VOLATILE_TAG = "volatile"
INJECTED_TAGS = ("injected-parameters", "papermill-error-cell-tag")
ACTIVE_HTML = re.compile(
    r"<(script|iframe|object|embed|link)\b|javascript:|<[^>]*\son[a-z]+\s*=|\bsrc\s*=\s*[\"']?https?:", re.IGNORECASE
)


def freeze(notebook: NotebookNode, root: Path | None = None) -> NotebookNode:
    """A frozen copy. Cells that papermill added are gone; outputs of cells tagged ``volatile`` too.

    Args:
        notebook: an executed notebook.
        root: folder whose absolute path is cut out of texts.
    """
    frozen = copy.deepcopy(notebook)
    frozen.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    frozen.cells = [cell for cell in frozen.cells if not set(INJECTED_TAGS) & set(cell.metadata.get("tags", []))]
    for cell in frozen.cells:
        cell.metadata = nbformat.from_dict(
            {key: cell.metadata[key] for key in KEPT_CELL_METADATA if cell.metadata.get(key)}
        )
        if cell.cell_type != "code":
            continue
        volatile = VOLATILE_TAG in cell.metadata.get("tags", [])
        cell.execution_count = None
        cell.outputs = [] if volatile else [_freeze_output(output, root) for output in cell.outputs]
    return frozen


def with_outputs_of(source: NotebookNode, executed: NotebookNode) -> NotebookNode:
    """The source notebook, its code cells carrying the outputs of the executed one (cells are matched by id)."""
    outputs = {cell.id: cell.outputs for cell in executed.cells if cell.cell_type == "code"}
    result = copy.deepcopy(source)
    for cell in result.cells:
        if cell.cell_type == "code":
            cell.outputs = copy.deepcopy(outputs.get(cell.id, []))
    return result


def freeze_problems(notebook: NotebookNode) -> list[str]:
    """One sentence for each output that would lose its picture in the frozen form."""
    problems = []
    for number, output in cell_outputs(notebook):
        data = output.get("data", {})
        if any(mime in data and not _is_active(mime, data[mime]) for mime in PICTURE_MIMES):
            continue
        live = next((mime for mime in LIVE_MIMES if mime in data), "")
        if live:
            problems.append(f"cell {number} shows {live} without an SVG beside it: it would be blank without a kernel")
        elif "text/html" in data:
            problems.append(f"cell {number} shows HTML that runs a script or loads something: use SVG or plain HTML")
    return problems


def _freeze_output(output: NotebookNode, root: Path | None) -> NotebookNode:
    if "data" in output:
        output.data = nbformat.from_dict(
            {
                mime: _without_path(output.data[mime], root)
                for mime in KEPT_MIMES
                if mime in output.data and not _is_active(mime, output.data[mime])
            }
        )
        output.metadata = nbformat.from_dict({})
    if "execution_count" in output:
        output.execution_count = None
    if "text" in output:
        output.text = _without_path(output.text, root)
    return output


def _is_active(mime: str, content: object) -> bool:
    return mime in ("text/html", "image/svg+xml") and bool(ACTIVE_HTML.search(str(content)))


def _without_path(content: object, root: Path | None) -> object:
    return content.replace(f"{root}/", "") if root is not None and isinstance(content, str) else content
