"""Pictures and players: what the notebooks show of trees, decodes and measurements."""

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
