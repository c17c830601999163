"""Notebook outputs that show something everywhere: plotly where it runs, SVG elsewhere, a sentence for everyone."""

import json
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from tfm_lab.show.charts import bars_svg, lines_svg
from tfm_lab.show.plots import bars_figure, lines_figure, tree_figure
from tfm_lab.show.style import METHOD_COLOURS
from tfm_lab.show.svg import tree_svg
from tfm_lab.show.views import TreeView

PLOTLY = "application/vnd.plotly.v1+json"


class Picture:
    """One picture in several forms; the front end takes the best that it can show.

    Args:
        svg: static form.
        description: what the picture shows, in a sentence.
        figure: interactive form, if there is one.
    """

    def __init__(self, svg: str, description: str, figure: go.Figure | None = None) -> None:
        self.svg, self.description, self.figure = svg, description, figure

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"image/svg+xml": self.svg, "text/plain": self.description}
        if self.figure is not None:
            bundle[PLOTLY] = json.loads(self.figure.to_json() or "{}") | {"config": {"displaylogo": False}}
        return bundle


def tree_picture(view: TreeView, *, interactive: bool = False) -> Picture:
    """A tree; ``interactive`` adds the plotly form, in which nodes can be hovered over."""
    return Picture(tree_svg(view), view.description, tree_figure(view) if interactive else None)


def bars_picture(
    values: Mapping[str, float], title: str, x_title: str, colours: Mapping[str, str] = METHOD_COLOURS
) -> Picture:
    """Horizontal bars, one per name."""
    told = ", ".join(f"{name} {value:g}" for name, value in values.items())
    figure = bars_figure(values, title, x_title, colours)
    return Picture(bars_svg(values, title, x_title, colours), f"{title}. {x_title}: {told}.", figure)


def lines_picture(
    curves: Mapping[str, Mapping[float, float]],
    title: str,
    x_title: str,
    y_title: str,
    colours: Mapping[str, str] = METHOD_COLOURS,
) -> Picture:
    """One line per curve, x to y."""
    told = "; ".join(f"{n}: {', '.join(f'{x:g} gives {y:.3g}' for x, y in p.items())}" for n, p in curves.items())
    figure = lines_figure(curves, title, x_title, y_title, colours)
    return Picture(lines_svg(curves, title, x_title, y_title, colours), f"{title}. {told}.", figure)
