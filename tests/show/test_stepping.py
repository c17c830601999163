"""Buttons that step through lists, because JupyterLab keeps the arrow keys."""

from types import SimpleNamespace

import ipywidgets as widgets

from tfm_lab.show import stepping_buttons


def test_buttons_step_and_stop_at_the_ends() -> None:
    chooser = widgets.Select(options=[("first", 10), ("second", 20), ("third", 30)], value=None)
    back, on = stepping_buttons(chooser, "number")
    assert (back.tooltip, on.tooltip) == ("previous number", "next number")
    on.click()
    assert chooser.value == 10
    for _ in range(4):
        on.click()
    assert chooser.value == 30
    back.click()
    assert chooser.value == 20


def test_an_empty_list_is_left_alone() -> None:
    chooser = widgets.Select(options=[])
    for button in stepping_buttons(chooser, "number"):
        button.click()
    assert chooser.index is None


def test_stepping_from_nothing_begins_with_the_first() -> None:
    chooser = widgets.Select(options=[1, 2, 3], value=None)
    stepping_buttons(chooser, "number")[0].click()
    assert chooser.value == 1


def test_no_place_past_an_end_is_asked_for() -> None:
    """On a plain object, because a widget would refuse such a place without a word to the caller."""
    chooser = SimpleNamespace(options=["a", "b"], index=1)
    back, on = stepping_buttons(chooser, "letter")
    on.click()
    assert chooser.index == 1
    back.click()
    back.click()
    assert chooser.index == 0
