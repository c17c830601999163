"""Pictures and players: what the notebooks show of trees, decodes and measurements.

A name is imported when it is first asked for, so that ``charts`` draws where plotly and ipywidgets are missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfm_lab.show.grouped import grouped_picture
    from tfm_lab.show.guess import Guesses
    from tfm_lab.show.heat_map import HeatCell, heat_map_picture
    from tfm_lab.show.marked_text import marked_html, marked_plain
    from tfm_lab.show.picture import Picture, bars_picture, lines_picture, tree_picture
    from tfm_lab.show.player import Frame, Player
    from tfm_lab.show.stepping import stepping_buttons
    from tfm_lab.show.switch import PictureSwitch
    from tfm_lab.show.views import Role, TreeView, chosen_view, frontier, growth_view, step_view

__all__ = [
    "Frame",
    "Guesses",
    "HeatCell",
    "Picture",
    "PictureSwitch",
    "Player",
    "Role",
    "TreeView",
    "bars_picture",
    "chosen_view",
    "frontier",
    "grouped_picture",
    "growth_view",
    "heat_map_picture",
    "lines_picture",
    "marked_html",
    "marked_plain",
    "step_view",
    "stepping_buttons",
    "tree_picture",
]

_MODULES = {
    "grouped": "grouped_picture",
    "guess": "Guesses",
    "heat_map": "HeatCell heat_map_picture",
    "marked_text": "marked_html marked_plain",
    "picture": "Picture bars_picture lines_picture tree_picture",
    "player": "Frame Player",
    "stepping": "stepping_buttons",
    "switch": "PictureSwitch",
    "views": "Role TreeView chosen_view frontier growth_view step_view",
}
"""Module -> the names that it has."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
