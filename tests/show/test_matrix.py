"""Matrices as pictures: every entry with its value, zeros as dots, names where there are some."""

from xml.etree import ElementTree

import pytest
import torch

from tfm_lab.show.matrix import MatrixPanel, draw_panel, matrices_picture, number
from tfm_lab.show.style import BLUE, ORANGE

SVG = "{http://www.w3.org/2000/svg}"
VALUES = torch.tensor([[0.5, 0.0], [-0.25, 1.0]], dtype=torch.float64)


def texts(svg: str) -> list[str | None]:
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_entry_says_its_value_and_zeros_have_no_cell() -> None:
    picture = matrices_picture([MatrixPanel("S <1>", VALUES, ("a", "<b>"), ("0", "1"))], "A title")
    root = ElementTree.fromstring(picture.svg)
    assert root.findtext(f"{SVG}desc") == picture.description
    assert picture.description == "A title. S <1>: a: 0.50 at 0; <b>: −0.25 at 0, 1.00 at 1."
    assert texts(picture.svg) == ["A title", "S <1>", "0", "1", "a", "<b>", "0.50", "·", "−0.25", "1.00"]
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.get("fill-opacity")]
    assert [cell.get("fill") for cell in cells] == [BLUE, ORANGE, BLUE]
    strengths = [float(cell.get("fill-opacity", 0)) for cell in cells]
    assert strengths[1] < strengths[0] < strengths[2]


def test_panels_stand_side_by_side_without_touching() -> None:
    panels = [MatrixPanel("first", VALUES, ("long name", "x"), ()), MatrixPanel("second", torch.zeros(3, 4).double())]
    root = ElementTree.fromstring(matrices_picture(panels, "Two").svg)
    frames = [rect for rect in root.iter(f"{SVG}rect") if rect.get("stroke")]
    (left, right) = (float(frame.get("x", 0)) for frame in frames)
    assert right > left + float(frames[0].get("width", 0))
    assert float(root.get("width", 0)) >= right + float(frames[1].get("width", 0))
    bottom = max(float(frame.get("y", 0)) + float(frame.get("height", 0)) for frame in frames)
    assert float(root.get("height", 0)) > bottom


def test_without_names_of_columns_zeros_are_told_too() -> None:
    words = matrices_picture([MatrixPanel("S", VALUES)], "A title").description
    assert words == "A title. S: row 0: 0.50, 0.00; row 1: −0.25, 1.00."


@pytest.mark.parametrize(("rows", "columns"), [(("a",), ()), ((), ("a", "b", "c"))])
def test_names_must_fit(rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="the matrix 'S' has 2"):
        draw_panel(MatrixPanel("S", VALUES, rows, columns), 0.0, 0.0)


def test_a_picture_needs_a_matrix() -> None:
    with pytest.raises(ValueError, match="at least one matrix"):
        matrices_picture([], "A title")


def test_a_minus_is_a_minus() -> None:
    assert number(-0.125) == "−0.12"
