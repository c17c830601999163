"""Plotly figures, made by pure functions. Trees are two traces (edges and nodes), whatever their size."""

from collections.abc import Mapping
from html import escape

import plotly.graph_objects as go

from tfm_lab.show.geometry import geometry
from tfm_lab.show.style import INK, METHOD_COLOURS, STYLES
from tfm_lab.show.views import TreeView

TRANSPARENT = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"size": 12, "color": "#6b7280"},
}
SYMBOLS = {"circle": "circle", "square": "square", "diamond": "diamond"}


def tree_figure(view: TreeView) -> go.Figure:
    """A tree view with hovering; the same positions, shapes and colours as its SVG."""
    drawing = geometry(view)
    placed = list(zip(view.nodes, drawing.places, strict=True))
    xs: list[float | None] = []
    ys: list[float | None] = []
    for node, place in placed:
        if node.parent >= 0:
            parent = drawing.places[node.parent]
            start = min(parent.label_end, place.x - 12)
            xs += [start, (start + place.x) / 2, place.x, None]
            ys += [-parent.y, -(parent.y + place.y) / 2, -place.y, None]
    line = {"color": "rgba(107,114,128,0.6)", "width": 1, "shape": "spline"}
    edges = go.Scatter(x=xs, y=ys, mode="lines", line=line, hoverinfo="skip", name="edges")
    styles = [STYLES[node.role] for node in view.nodes]
    marker = {
        "symbol": [SYMBOLS[style.shape] + ("" if style.filled else "-open") for style in styles],
        "color": [style.colour for style in styles],
        "size": [12 if style.strong else 9 for style in styles],
        "opacity": 1,
    }
    names = [f"<b>{escape(n.label)}</b>" if STYLES[n.role].strong else escape(n.label) for n in view.nodes]
    nodes = go.Scatter(
        x=[place.x for _, place in placed],
        y=[-place.y for _, place in placed],
        mode="markers+text",
        text=names,
        textposition="middle right",
        customdata=[[node.role.value, node.detail] for node in view.nodes],
        hovertemplate="%{text}<br>%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        marker=marker,
        name="nodes",
    )
    figure = go.Figure([edges, nodes])
    margin = {"l": 0, "r": 0, "t": 34, "b": 0}
    figure.update_layout(title=view.title, width=drawing.width + 8, height=drawing.height + 34, margin=margin)
    figure.update_layout(showlegend=False, **TRANSPARENT)
    figure.update_xaxes(visible=False, range=[0, drawing.width + 8])
    figure.update_yaxes(visible=False, range=[-drawing.height, 0])
    return figure


def lines_figure(
    curves: Mapping[str, Mapping[float, float]],
    title: str,
    x_title: str,
    y_title: str,
    colours: Mapping[str, str] = METHOD_COLOURS,
) -> go.Figure:
    """One line with markers per curve, x to y."""
    dashes = ("solid", "dash", "dot", "dashdot")
    figure = go.Figure()
    for index, (name, points) in enumerate(curves.items()):
        line = {"color": colours.get(name, INK), "dash": dashes[index % 4]}
        figure.add_scatter(x=list(points), y=list(points.values()), mode="lines+markers", name=name, line=line)
    _plain(figure, title, 360)
    figure.update_xaxes(title=x_title)
    figure.update_yaxes(title=y_title)
    return figure


def bars_figure(
    values: Mapping[str, float], title: str, x_title: str, colours: Mapping[str, str] = METHOD_COLOURS
) -> go.Figure:
    """One horizontal bar per name, with its value written at its end."""
    names = list(values)
    bars = go.Bar(
        x=list(values.values()),
        y=names,
        orientation="h",
        text=[f"{value:g}" for value in values.values()],
        textposition="outside",
        cliponaxis=False,
        marker_color=[colours.get(name, INK) for name in names],
    )
    figure = go.Figure(bars)
    _plain(figure, title, 110 + 34 * len(names))
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title=x_title)
    return figure


def _plain(figure: go.Figure, title: str, height: float) -> None:
    margin = {"l": 20, "r": 20, "t": 50, "b": 40}
    figure.update_layout(title=title, height=height, margin=margin, **TRANSPARENT)
