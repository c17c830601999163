"""Rules that every committed notebook keeps. Checked without running anything, in milliseconds.

``notebook_problems`` looks at one notebook, ``series_problems`` at the folder. Each problem is one sentence.
"""

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from nbformat import NotebookNode

from tfm_lab.runner.expectations import Expectation, compare
from tfm_lab.runner.freeze import freeze
from tfm_lab.runner.outputs import cell_outputs, recorded_metrics
from tfm_lab.runner.parameters import declared_parameters, unread_parameters
from tfm_lab.runner.reading import read_notebook

NOTEBOOK_BYTES = 150_000
SERIES_BYTES = 1_500_000
SHORTEST_ALT = 8

ABSOLUTE_PATH = re.compile(r"(?<![\w./~-])(?:/(?:home|root|Users|tmp|usr|opt|var|mnt|srv|private)/\w|[A-Z]:\\\w)")
ADDRESS = re.compile(r"https?://(?:localhost|127\.|0\.0\.0\.0|\[::)|\bat 0x[0-9a-f]{6,}")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)[^)]*\)|<img\b(?![^>]*\balt=)[^>]*>")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)[^)]*\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$", re.MULTILINE)


def notebook_problems(path: Path, expected: dict[str, Expectation]) -> list[str]:
    """Everything that is wrong with one committed notebook; empty if it is clean.

    Args:
        path: the notebook.
        expected: expectations for its metrics; the committed outputs are held against them.
    """
    try:
        notebook = read_notebook(path)
    except ValueError as error:
        return [str(error)]
    return [
        *_format_problems(path, notebook),
        *_parameter_problems(notebook),
        *_code_problems(notebook),
        *_output_problems(notebook, expected),
        *_text_problems(notebook),
        *_link_problems(path, notebook),
    ]


def series_problems(paths: Sequence[Path]) -> list[str]:
    """Problems of the folder as a whole: its size, and the chain of links named "next"."""
    problems = []
    size = sum(path.stat().st_size for path in paths)
    if size > SERIES_BYTES:
        problems.append(f"the notebooks take {size:,} bytes together, {SERIES_BYTES:,} are allowed")
    for path, following in itertools.pairwise(paths):
        links = [link for text, link in _links(read_notebook(path)) if "next" in text.lower()]
        if following.name not in links:
            problems.append(f"{path.name} has no link [next]({following.name})")
    return problems


def _format_problems(path: Path, notebook: NotebookNode) -> Iterator[str]:
    if path.stat().st_size > NOTEBOOK_BYTES:
        yield f"the file has {path.stat().st_size:,} bytes, {NOTEBOOK_BYTES:,} are allowed"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernel must be python3"
    if freeze(notebook) != notebook:
        yield "not in frozen form: run tfm-lab run --render"


def _parameter_problems(notebook: NotebookNode) -> Iterator[str]:
    try:
        parameters = declared_parameters(notebook)
        unread = unread_parameters(notebook)
    except ValueError as error:
        yield str(error)
        return
    yield from (f"parameter {name} has no effect: {reason}" for name, reason in unread.items())
    yield from (
        f"parameter {name} lacks a comment that explains it" for name in parameters if not parameters[name].help
    )


def _code_problems(notebook: NotebookNode) -> Iterator[str]:
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    if code and not _imports_package(code[0]):
        yield "the first code cell must import tfm_lab, before anything imports triton or builds an optimizer"
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        if ABSOLUTE_PATH.search(cell.source):
            yield f"cell {number} names a path of one machine: use a path relative to the notebook"
        if re.search(r"\b(?:pip|conda|mamba) install\b", cell.source) and "google.colab" not in cell.source:
            yield f"cell {number} installs packages: only the bootstrap for Colab may"


def _imports_package(source: str) -> bool:
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return False
    imported = [alias.name for item in statements if isinstance(item, ast.Import) for alias in item.names]
    imported += [item.module or "" for item in statements if isinstance(item, ast.ImportFrom)]
    return any(name.split(".")[0] == "tfm_lab" for name in imported)


def _output_problems(notebook: NotebookNode, expected: dict[str, Expectation]) -> Iterator[str]:
    for number, output in cell_outputs(notebook):
        if output.output_type == "error":
            yield f"cell {number} shows an error: {output.ename}"
        if output.output_type == "stream" and output.name == "stderr":
            yield f"cell {number} shows standard error"
        texts = [output.get("text", ""), *(str(value) for value in output.get("data", {}).values())]
        if any(ABSOLUTE_PATH.search(text) for text in texts):
            yield f"cell {number} shows a path of one machine"
        if any(ADDRESS.search(text) for text in texts):
            yield f"cell {number} shows a local address or a memory address, which differ from run to run"
    try:
        metrics = recorded_metrics(notebook)
    except ValueError as error:
        yield str(error)
        return
    if not metrics:
        yield "no committed output holds a recorded metric: run tfm-lab run --render"
        return
    for verdict in compare(metrics, expected, default_parameters=True):
        lost_timing = verdict.metric is None and verdict.expectation is not None and verdict.expectation.kind == "info"
        if verdict.status == "failed" and not lost_timing:
            yield f"committed outputs: {verdict.sentence}"


def _text_problems(notebook: NotebookNode) -> Iterator[str]:
    level = 0
    for number, text in _markdown(notebook):
        for match in IMAGE.finditer(text):
            alt = (match.group(1) or "").strip()
            if len(alt) < SHORTEST_ALT or re.fullmatch(r"\S+\.(?:png|svg|jpe?g|gif)", alt):
                yield f"cell {number} has an image without a real alternative text: {match.group(0)[:60]}"
        for match in HEADING.finditer(text):
            depth = len(match.group(1))
            if level == 0 and depth != 1:
                yield f"cell {number}: the first heading must be the title, with one #"
            elif level and depth == 1:
                yield f"cell {number}: a second title; use ## for {match.group(2)!r}"
            elif level and depth > level + 1:
                yield f"cell {number}: heading {match.group(2)!r} skips a level"
            level = depth
    if level == 0:
        yield "the notebook has no title"


def _link_problems(path: Path, notebook: NotebookNode) -> Iterator[str]:
    for _, link in _links(notebook):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        linked = path.parent / name if name else path
        if not linked.exists():
            yield f"link {link} leads nowhere: there is no {name}"
        elif anchor and linked.suffix == ".ipynb" and anchor not in _anchors(read_notebook(linked)):
            yield f"link {link} leads nowhere: {linked.name} has no such heading"


def _markdown(notebook: NotebookNode) -> Iterator[tuple[int, str]]:
    """Markdown texts without their code blocks, with the number (from 1) of the cell."""
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "markdown":
            yield number, FENCE.sub("", cell.source)


def _links(notebook: NotebookNode) -> list[tuple[str, str]]:
    """Text and address of every Markdown link."""
    return [(match.group(1), match.group(2)) for _, text in _markdown(notebook) for match in LINK.finditer(text)]


def _anchors(notebook: NotebookNode) -> set[str]:
    """Anchors that JupyterLab gives to headings: the text with hyphens for spaces."""
    return {match.group(2).replace(" ", "-") for _, text in _markdown(notebook) for match in HEADING.finditer(text)}
