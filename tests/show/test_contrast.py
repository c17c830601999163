"""Colours can be read: text at 4.5 to 1, marks at 3 to 1 (WCAG 2.2, 1.4.3 and 1.4.11), on light and dark pages."""

import pytest
from show.samples import decode, step

from tfm_lab.show import step_view, style
from tfm_lab.show.plots import tree_figure

LIGHT, DARK = style.PAPER, "#111111"
MARKS = {"blue": style.BLUE, "orange": style.ORANGE, "green": style.GREEN, "grey": style.GREY}


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


@pytest.mark.parametrize("page", [LIGHT, DARK])
@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS.keys())
def test_marks_on_light_and_dark_pages(mark: str, page: str) -> None:
    assert contrast(mark, page) >= 3.0


def test_text_in_a_hover_box() -> None:
    """The box has colours of its own, so that it can be read on every page."""
    label = tree_figure(step_view(step(), decode)).layout.hoverlabel
    assert contrast(label.font.color, label.bgcolor) >= 4.5
