"""HTML pages show pictures and formulas and load nothing."""

import re

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_output
from notebook_builder import METRIC, notebook_of

from tfm_lab.runner.freeze import freeze
from tfm_lab.runner.page import notebook_page

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><title>a tree</title></svg>'


def page_of(notebook: NotebookNode) -> str:
    return notebook_page(freeze(notebook), "00_small", ".")


def with_text(text: str) -> NotebookNode:
    notebook = notebook_of(METRIC)
    notebook.cells.append(new_markdown_cell(text, id="text"))
    return notebook


def test_pictures_are_inline_and_nothing_is_loaded() -> None:
    notebook = notebook_of(METRIC)
    plotly = {"data": [], "layout": {}}
    notebook.cells[3].outputs = [
        new_output("display_data", data={"application/vnd.plotly.v1+json": plotly, "image/svg+xml": SVG})
    ]
    page = page_of(notebook)
    assert SVG in page
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=[\"']?https?:|@import|url\([\"']?https?:", page)


@pytest.mark.parametrize(
    ("text", "display"),
    [
        (r"so $\alpha \le 1$ holds", "inline"),
        (r"$$\sum_i \beta_i$$", "block"),
        (r"\begin{align} a &= b \end{align}", "block"),
    ],
)
def test_formulas_become_mathml(text: str, display: str) -> None:
    assert re.search(rf'<math [^>]*display="{display}"', page_of(with_text(text)))


def test_a_formula_that_cannot_be_converted_stays_readable() -> None:
    assert r"<code>\left( 1</code>" in page_of(with_text(r"so $\left( 1$ holds"))


def test_links_between_notebooks_become_links_between_pages() -> None:
    page = page_of(with_text("[next](06_growing_trees.ipynb#The-heap) and [paper](https://arxiv.org/abs/2607.06763)"))
    assert 'href="06_growing_trees.html#The-heap"' in page
    assert 'href="https://arxiv.org/abs/2607.06763"' in page


def test_a_fold_holds_everything_down_to_its_end() -> None:
    page = page_of(with_text("<details><summary>Answers</summary>\n\n1. forty-two\n\n</details>\n\nafter"))
    fold = page[page.index("<summary>Answers") : page.index("</details>")]
    assert "forty-two" in fold
    assert "after" not in fold
