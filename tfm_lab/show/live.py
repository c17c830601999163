"""Widgets that live with their page: one plotly tree updated in place, and nothing left behind by a cell run again."""

import os
from copy import deepcopy
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, Protocol

import ipywidgets as widgets
import plotly.graph_objects as go
import psutil
import traitlets

from tfm_lab.show.plots import tree_spec
from tfm_lab.show.views import TreeView

SERVERS = ("jupyter-lab", "jupyterlab", "jupyter-notebook", "jupyterhub-singleuser", "voila")


class Dismissible(Protocol):
    """Something that can be closed with all its widgets."""

    def dismiss(self) -> None: ...


# Plotly writes its text in a fixed colour; here it takes that of the page, light or dark. The hover box keeps its own.
FIGURE = "tfm-figure"
PAGE_COLOURS = (
    f"<style>.{FIGURE} .scatterlayer text, .{FIGURE} .infolayer text "
    "{fill: var(--jp-ui-font-color1, currentColor) !important;}</style>"
)
LOADER = """
const programs = (globalThis.tfmLabPlotly ??= new Map());

function load(program) {
  if (!programs.has(program)) {
    const url = URL.createObjectURL(new Blob([program], { type: "text/javascript" }));
    programs.set(program, import(url).finally(() => URL.revokeObjectURL(url)));
  }
  return programs.get(program);
}

export default () => {
  let figure;
  async function start(model) {
    const { default: make } = await load(model.get("_plotly_program"));
    const started = make();
    started.initialize({ model });
    return started;
  }
  return {
    async render({ model, el }) {
      figure ??= start(model);
      return (await figure).render({ model, el });
    },
  };
};
"""

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


class PatientFigure(go.FigureWidget):
    """A FigureWidget that may take its time in the browser.

    anywidget gives the program of a widget two seconds to start, and then drops every message to it. Plotly's program
    has 5 MB and takes longer on a busy machine: the figure stays empty, or never moves again. So the program that
    starts is a small one. It brings plotly when the figure is drawn, once for all figures of a page, and shows the
    state of that moment; ``sync`` keeps that state whole.
    """

    _esm = LOADER
    _plotly_program = traitlets.Unicode().tag(sync=True)

    def __init__(self, spec: dict[str, Any]) -> None:
        self._is_whole = False
        super().__init__(spec)
        self._plotly_program = _plotly_program()
        self._dom_classes = (FIGURE,)
        self._is_whole = True
        self.open()

    def open(self) -> None:
        """Announce the figure to the browser, once it is whole."""
        if self._is_whole:
            super().open()

    def sync(self) -> None:
        """Send all data anew; plotly's own messages are changes, which a program that has not started would miss."""
        with self.hold_sync():
            self._widget_layout = deepcopy(self._layout_obj._props)
            self._widget_data = deepcopy(self._data)


@cache
def _plotly_program() -> str:
    return (files("plotly") / "package_data" / "widgetbundle.js").read_text(encoding="utf-8")


class TreeFigure:
    """A plotly FigureWidget of a tree. It is never freed, so make one and show every further tree in it.

    Attributes:
        widget: the FigureWidget; its last trace holds the nodes.
    """

    def __init__(self, view: TreeView) -> None:
        self._spec = tree_spec(view)
        self.widget: Any = PatientFigure(self._spec)

    def show(self, view: TreeView) -> None:
        """Show another tree, in one message that holds only what differs: plotly checks whatever it is given."""
        before, self._spec = self._spec, tree_spec(view)
        with self.widget.batch_update():
            for trace, old, new in zip(self.widget.data, before["data"], self._spec["data"], strict=True):
                _assign(trace, old, new)
            _assign(self.widget.layout, before["layout"], self._spec["layout"])
        self.widget.sync()


def _assign(part: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
    for name, value in new.items():
        if value != old[name]:
            part[name] = value
