"""Colours can be read: text at 4.5 to 1, marks at 3 to 1 (WCAG 2.2, 1.4.3 and 1.4.11), on light and dark pages."""

from xml.etree import ElementTree

import pytest
import torch
from show.samples import decode, step

from tfm_lab.lessons.iso_speed import IsoSpeedState, iso_speed_svg
from tfm_lab.lessons.microscope import MicroscopeState
from tfm_lab.lessons.microscope_picture import microscope_svg
from tfm_lab.lessons.overlap import OverlapState, overlap_svg
from tfm_lab.lessons.two_writes import TwoWritesState, two_writes_svg
from tfm_lab.show import HeatCell, heat_map_picture, lines_picture, step_view, style
from tfm_lab.show.charts import lines_svg
from tfm_lab.show.grouped import grouped_picture
from tfm_lab.show.picture import Picture, bars_picture, tree_picture
from tfm_lab.show.plots import tree_figure
from tfm_lab.show.svg import tree_svg

PAGES = {"light": style.PAPER, "dark": "#111111", "dark grey": "#212121"}
MARKS = {
    "blue": style.BLUE,
    "orange": style.ORANGE,
    "green": style.GREEN,
    "grey": style.GREY,
    "purple": style.PURPLE,
}
TEXT = "{http://www.w3.org/2000/svg}text"
VIEW = step_view(step(), decode)
ON_PAPER = {
    "tree": tree_picture(VIEW, interactive=True),
    "bars": bars_picture({"chain": 9.0, "tfm": 4.0}, "Calls", "target calls"),
    "lines": lines_picture({"one": {1.0: 2.0}, "ddtree": {1.0: 1.5}}, "Width", "w", "tokens", {}),
    "groups": grouped_picture({"p": {"a": 0.5}, "q": {"a": 0.4}}, "Laws", "token", "probability", {}),
    "heat map": heat_map_picture({"rule": {"tree": HeatCell(0.2, "0.2", "refused")}}, "Bias", "rule, by tree"),
}
MICROSCOPE = MicroscopeState()
ON_PAGE = {
    "tree": tree_svg(VIEW, standalone=False),
    "lines of equal speed": iso_speed_svg(IsoSpeedState(), standalone=False),
    "microscope": microscope_svg(MICROSCOPE.glimpse(), MICROSCOPE.describe(), standalone=False),
    "two writes": two_writes_svg(TwoWritesState(angle=90.0), standalone=False),
    "overlap": overlap_svg(OverlapState(torch.tensor([0.7, 0.3]), (0.5, 0.5)), ("a", "b"), standalone=False),
}


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_black_on_white_is_21_to_1() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


@pytest.mark.parametrize("ink", [style.INK, style.GREY, style.BLUE, style.GREEN, style.PURPLE])
def test_text_on_the_paper_of_still_pictures(ink: str) -> None:
    assert contrast(ink, style.PAPER) >= 4.5


@pytest.mark.parametrize("colour", MARKS.values(), ids=MARKS.keys())
def test_coloured_text_on_paper(colour: str) -> None:
    assert contrast(style.text_on_paper(colour), style.PAPER) >= 4.5


def test_a_line_is_named_in_a_colour_that_can_be_read() -> None:
    texts = ElementTree.fromstring(lines_svg({"ddtree": {1.0: 2.0}}, "Width", "w", "tokens")).iter(TEXT)
    (ink,) = (text.get("fill") for text in texts if text.text == "ddtree")
    assert ink is not None
    assert contrast(ink, style.PAPER) >= 4.5


@pytest.mark.parametrize("picture", ON_PAPER.values(), ids=ON_PAPER.keys())
def test_plotly_outputs_bring_paper_and_ink(picture: Picture) -> None:
    """They are shown on light and dark pages, and nothing tells them on which."""
    assert picture.figure is not None
    layout = picture.figure.layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == style.PAPER
    assert contrast(layout.font.color, layout.paper_bgcolor) >= 4.5


@pytest.mark.parametrize("svg", ON_PAGE.values(), ids=ON_PAGE.keys())
def test_text_in_widgets_has_the_colour_of_the_page(svg: str) -> None:
    root = ElementTree.fromstring(svg)
    assert root.get("fill") == "currentColor"
    assert {text.get("fill") for text in root.iter(TEXT)} <= {None, "currentColor"}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS.keys())
def test_marks_on_light_and_dark_pages(mark: str, page: str) -> None:
    assert contrast(mark, page) >= 3.0


def test_text_in_a_hover_box() -> None:
    """The box has colours of its own, so that it can be read on every page."""
    label = tree_figure(step_view(step(), decode)).layout.hoverlabel
    assert contrast(label.font.color, label.bgcolor) >= 4.5
