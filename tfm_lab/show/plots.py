"""Plotly figures, made by pure functions. Trees have the same traces whatever their size: edges by role, then nodes."""

from collections.abc import Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go

from tfm_lab.show.geometry import MARGIN, ROW, Geometry, geometry
from tfm_lab.show.style import BLUE, GREY, INK, METHOD_COLOURS, PAPER, STYLES
from tfm_lab.show.views import NodeView, Role, TreeView

CLEAR, FAINT = "rgba(0,0,0,0)", "rgba(107,114,128,0.3)"
MODEBAR = {"bgcolor": CLEAR, "color": GREY, "activecolor": BLUE, "remove": ["select2d", "lasso2d"]}
# An output brings its own light paper, as its SVG does: plotly cannot take the colours of the page.
ON_PAPER = {
    "paper_bgcolor": PAPER,
    "plot_bgcolor": PAPER,
    "font": {"size": 12, "color": INK},
    "modebar": MODEBAR,
}
# In a widget the page shows through, and its text takes the colour of the page by PAGE_COLOURS.
ON_PAGE = ON_PAPER | {"paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR}
SYMBOLS = {"circle": "circle", "square": "square", "diamond": "diamond"}
STRONG_EDGES = tuple(role for role, style in STYLES.items() if style.strong and role is not Role.ROOT)


def tree_figure(view: TreeView) -> go.Figure:
    """A tree view with hovering, on paper; the same positions, shapes and colours as its SVG."""
    figure = go.Figure(tree_spec(view))
    figure.update_layout(ON_PAPER)
    return figure


def tree_spec(view: TreeView) -> dict[str, Any]:
    """The tree as plain data and layout, for a widget. Every view has the same traces and keys."""
    drawing = geometry(view)
    styles = [STYLES[node.role] for node in view.nodes]
    sizes = [12 if style.strong else 9 for style in styles]
    nodes = {
        "type": "scatter",
        "x": [place.x for place in drawing.places],
        "y": [-place.y for place in drawing.places],
        "mode": "markers+text",
        "text": [_name(node) for node in view.nodes],
        "textposition": "middle right",
        "customdata": [[node.role.value, node.detail.replace("; ", "<br>")] for node in view.nodes],
        "hovertemplate": "%{text}<br>%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        "marker": {
            "symbol": [SYMBOLS[style.shape] + ("" if style.filled else "-open") for style in styles],
            "color": [style.colour for style in styles],
            "size": [size + 7 * node.picked for size, node in zip(sizes, view.nodes, strict=True)],
            "opacity": 1,
        },
        "name": "nodes",
    }
    layout = {
        "title": {"text": view.title},
        "width": drawing.width + 8,
        "height": drawing.height + 34,
        "margin": {"l": 0, "r": 0, "t": 34, "b": 0},
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": GREY, "font": {"color": INK}},
        "annotations": _headings(view),
        "xaxis": {"visible": False, "range": [0, drawing.width + 8]},
        "yaxis": {"visible": False, "range": [-drawing.height, 0]},
        **ON_PAGE,
    }
    edges = [_edges(view, drawing, None), *(_edges(view, drawing, role) for role in STRONG_EDGES)]
    return {"data": [*edges, nodes], "layout": layout}


def _name(node: NodeView) -> str:
    """A label; bold for strong roles, marked by more than its size where the node is picked."""
    name = f"<b>{escape(node.label)}</b>" if STYLES[node.role].strong else escape(node.label)
    return f"◂ <u>{name}</u>" if node.picked else name


def _headings(view: TreeView) -> list[dict[str, Any]]:
    """The headings as annotations at the left edge."""
    return [
        {
            "text": f"<b>{escape(heading.text)}</b>", "x": MARGIN, "y": -(MARGIN + ROW * (heading.row + 0.5)),
            "xanchor": "left", "yanchor": "middle", "showarrow": False,
        }
        for heading in view.headings
    ]  # fmt: skip


def _edges(view: TreeView, drawing: Geometry, role: Role | None) -> dict[str, Any]:
    """The edges to nodes of one strong role, in its colour; without a role those to all others, thin and grey."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for node, place in zip(view.nodes, drawing.places, strict=True):
        if node.parent < 0 or (node.role if node.role in STRONG_EDGES else None) is not role:
            continue
        parent = drawing.places[node.parent]
        room = 6 * STYLES[view.nodes[node.parent].role].strong + 18 * view.nodes[node.parent].picked  # wider labels
        start = min(parent.label_end + room, place.x - 12)
        xs += [start, place.x, None]
        ys += [-parent.y, -place.y, None]
    line = {"color": STYLES[role].colour if role else "rgba(107,114,128,0.6)", "width": 2.4 if role else 1}
    name = f"edges: {role.value}" if role else "edges"
    return {"type": "scatter", "x": xs, "y": ys, "mode": "lines", "line": line, "hoverinfo": "skip", "name": name}


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
    figure.update_yaxes(autorange="reversed", showgrid=False, ticksuffix="  ")  # no line through the values
    figure.update_xaxes(title=x_title)
    return figure


def _plain(figure: go.Figure, title: str, height: float) -> None:
    margin = {"l": 20, "r": 20, "t": 50, "b": 40}
    figure.update_layout(title=title, height=height, margin=margin, **ON_PAPER)
    figure.update_xaxes(gridcolor=FAINT, zerolinecolor=FAINT)
    figure.update_yaxes(gridcolor=FAINT, zerolinecolor=FAINT)
