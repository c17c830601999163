"""Buttons that step through a list.

JupyterLab takes the arrow keys away from a focused list or drop-down: they move to another cell. A list needs buttons
beside it to be used without a mouse.
"""

from typing import Any

import ipywidgets as widgets


def stepping_buttons(chooser: Any, what: str) -> tuple[widgets.Button, widgets.Button]:
    """Two buttons that choose the entry before and after the present one; at an end they stay where they are.

    Args:
        chooser: a ``Select``, ``Dropdown`` or other widget with ``index`` and ``options``.
        what: is stepped through, for the tooltips.
    """
    layout = widgets.Layout(width="auto")
    buttons = (
        widgets.Button(description="▲", tooltip=f"previous {what}", layout=layout),
        widgets.Button(description="▼", tooltip=f"next {what}", layout=layout),
    )

    def step(by: int) -> None:
        if chooser.options:
            place = -by if chooser.index is None else chooser.index
            chooser.index = max(0, min(place + by, len(chooser.options) - 1))

    for button, by in zip(buttons, (-1, 1), strict=True):
        button.on_click(lambda _, by=by: step(by))
    return buttons
