"""Widgets that live with their page: one plotly tree updated in place, and nothing left behind by a cell run again."""

import os
from importlib.util import find_spec
from typing import Any, Protocol

import ipywidgets as widgets
import plotly.graph_objects as go
import psutil

from tfm_lab.show.plots import tree_spec
from tfm_lab.show.views import TreeView

SERVERS = ("jupyter-lab", "jupyterlab", "jupyter-notebook", "jupyterhub-singleuser", "voila")


class Dismissible(Protocol):
    """Something that can be closed with all its widgets."""

    def dismiss(self) -> None: ...


# Plotly writes its text in a fixed colour; here it takes that of the page, light or dark. The hover box keeps its own.
PAGE_COLOURS = (
    "<style>.tfm-figure .scatterlayer text, .tfm-figure .infolayer text "
    "{fill: var(--jp-ui-font-color1, currentColor) !important;}</style>"
)

_open: dict[str, Dismissible] = {}


def replace_open(key: str, widget: Dismissible) -> None:
    """Remember ``widget`` under ``key`` and dismiss the one that was there: the output of the same cell, run before."""
    if key in _open:
        _open.pop(key).dismiss()
    _open[key] = widget


def page_colours() -> widgets.HTML:
    """A widget without a picture that lets the plotly figures beside it take the text colour of the page."""
    return widgets.HTML(PAGE_COLOURS, layout={"display": "none"})


def close_all(root: widgets.Widget) -> None:
    """Close a widget and everything in it."""
    stack: list[widgets.Widget] = [root]
    while stack:
        widget = stack.pop()
        children: tuple[widgets.Widget, ...] = getattr(widget, "children", ())
        stack += children
        for part in ("layout", "style"):
            owned = getattr(widget, part, None)
            if isinstance(owned, widgets.Widget):
                owned.close()
        widget.close()


def has_live_front_end() -> bool:
    """True where a person looks at JupyterLab, Notebook or Voila; False under papermill and nbconvert, in VS Code and
    Colab.

    A FigureWidget would cost a saved notebook 5 MB each, and the last two are known to miss its events.
    """
    if "VSCODE_PID" in os.environ or "COLAB_RELEASE_TAG" in os.environ or find_spec("anywidget") is None:
        return False
    server = psutil.Process().parent()
    command = " ".join(server.cmdline()) if server is not None else ""
    return any(name in command for name in SERVERS)


class WholeFigure(go.FigureWidget):
    """A FigureWidget that is announced to the browser with all its data.

    Plotly announces an empty figure and sends the data behind it. A browser that is still fetching the states of a
    kernel that has just started can lose what comes behind, and would show empty axes for good.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._is_whole = False
        super().__init__(spec)
        self._dom_classes = ("tfm-figure",)
        self._is_whole = True
        self.open()

    def open(self) -> None:
        """Announce the figure, once it is whole."""
        if self._is_whole:
            super().open()


class TreeFigure:
    """A plotly FigureWidget of a tree. It is never freed, so make one and show every further tree in it.

    Attributes:
        widget: the FigureWidget; its last trace holds the nodes.
    """

    def __init__(self, view: TreeView) -> None:
        self._spec = tree_spec(view)
        self.widget: Any = WholeFigure(self._spec)

    def show(self, view: TreeView) -> None:
        """Show another tree, in one message that holds only what differs: plotly checks whatever it is given."""
        before, self._spec = self._spec, tree_spec(view)
        with self.widget.batch_update():
            for trace, old, new in zip(self.widget.data, before["data"], self._spec["data"], strict=True):
                _assign(trace, old, new)
            _assign(self.widget.layout, before["layout"], self._spec["layout"])


def _assign(part: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
    for name, value in new.items():
        if value != old[name]:
            part[name] = value
