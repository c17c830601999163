"""Pictures and players: what the notebooks show of trees, decodes and measurements."""

from tfm_lab.show.guess import Guesses
from tfm_lab.show.marked_text import marked_html, marked_plain
from tfm_lab.show.picture import Picture, bars_picture, lines_picture, tree_picture
from tfm_lab.show.player import Frame, Player
from tfm_lab.show.views import Role, TreeView, frontier, growth_view, step_view

__all__ = [
    "Frame",
    "Guesses",
    "Picture",
    "Player",
    "Role",
    "TreeView",
    "bars_picture",
    "frontier",
    "growth_view",
    "lines_picture",
    "marked_html",
    "marked_plain",
    "step_view",
    "tree_picture",
]
