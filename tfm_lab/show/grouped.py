"""Grouped bars, one group per name and one bar per series: as SVG and as a plotly figure."""

from collections.abc import Mapping
from html import escape

import plotly.graph_objects as go

from tfm_lab.show.picture import Picture
from tfm_lab.show.plots import FAINT, ON_PAPER
from tfm_lab.show.scale import ticks
from tfm_lab.show.style import INK, PAPER

HEIGHT, LEFT, TOP, BOTTOM, LARGEST = 300.0, 60.0, 44.0, 236.0, 26.0

Groups = Mapping[str, Mapping[str, float]]


def grouped_picture(series: Groups, title: str, x_title: str, y_title: str, colours: Mapping[str, str]) -> Picture:
    """Vertical bars from zero.

    Args:
        series: for each series its values by group; the bars of a group stand in the order of the series. The first
            series is drawn hollow: it is what the others are held against.
        title, x_title, y_title: of the picture.
        colours: by series.
    """
    told = "; ".join(f"{name}: {', '.join(f'{x} {y:.3g}' for x, y in bars.items())}" for name, bars in series.items())
    description = f"{title}. {y_title} by {x_title}. {told}."
    svg = _svg(series, title, f"{y_title} by {x_title}", description, colours)
    return Picture(svg, description, grouped_figure(series, title, x_title, y_title, colours))


def grouped_figure(
    series: Groups, title: str, x_title: str, y_title: str, colours: Mapping[str, str], height: float = 320
) -> go.Figure:
    """The same with hovering."""
    figure = go.Figure()
    for index, (name, bars) in enumerate(series.items()):
        colour = colours.get(name, INK)
        marker = {"color": "rgba(0,0,0,0)" if index == 0 else colour, "line": {"color": colour, "width": 2}}
        figure.add_bar(x=list(bars), y=list(bars.values()), name=name, marker=marker)
    figure.update_layout(title=title, height=height, margin={"l": 20, "r": 20, "t": 50, "b": 40}, **ON_PAPER)
    figure.update_xaxes(title=x_title, gridcolor=FAINT, zerolinecolor=FAINT)
    figure.update_yaxes(title=y_title, gridcolor=FAINT, zerolinecolor=FAINT)
    return figure


def _svg(series: Groups, title: str, axes: str, description: str, colours: Mapping[str, str]) -> str:
    groups = list(dict.fromkeys(x for bars in series.values() for x in bars))
    slot = min(LARGEST * (len(series) + 0.8), 560 / max(1, len(groups)))
    bar = slot / (len(series) + 0.8)
    legend = sum(34 + 7 * len(name) for name in series)
    width = LEFT + max(slot * len(groups) + 20, float(legend), 7.5 * len(title), 260)
    marks = ticks(max((y for bars in series.values() for y in bars.values()), default=0.0))
    top = marks[-1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {HEIGHT:.0f}" '
        f'width="{width:.0f}" height="{HEIGHT:.0f}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description)}</desc>",
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>',
        f'<text x="14" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in marks:
        y = BOTTOM - (BOTTOM - TOP) * tick / top
        parts.append(f'<path d="M{LEFT:.0f} {y:.1f} H{width - 14:.0f}" stroke="{INK}" stroke-opacity="0.15"/>')
        parts.append(f'<text x="{LEFT - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    for place, group in enumerate(groups):
        start = LEFT + slot * place + 0.4 * bar
        for index, (name, bars) in enumerate(series.items()):
            height = (BOTTOM - TOP) * bars.get(group, 0.0) / top
            parts.append(_bar(start + bar * index, height, bar, colours.get(name, INK), index == 0))
        middle = start + bar * len(series) / 2
        parts.append(f'<text x="{middle:.1f}" y="{BOTTOM + 17:.0f}" text-anchor="middle">{escape(group)}</text>')
    x = LEFT
    for index, name in enumerate(series):
        parts.append(_key(x, colours.get(name, INK), index == 0, name))
        x += 34 + 7 * len(name)
    parts.append(f'<text x="{LEFT:.0f}" y="{BOTTOM + 36:.0f}">{escape(axes)}</text></svg>')
    return "\n".join(parts)


def _bar(x: float, height: float, width: float, colour: str, hollow: bool) -> str:
    fill = "none" if hollow else colour
    return (
        f'<rect x="{x + 1:.1f}" y="{BOTTOM - height:.1f}" width="{max(1.0, width - 2):.1f}" height="{height:.1f}" '
        f'fill="{fill}" stroke="{colour}" stroke-width="1.6"/>'
    )


def _key(x: float, colour: str, hollow: bool, name: str) -> str:
    fill = "none" if hollow else colour
    look = f'fill="{fill}" stroke="{colour}" stroke-width="1.6"'
    box = f'<rect x="{x:.0f}" y="{HEIGHT - 20:.0f}" width="12" height="12" {look}/>'
    return f'{box}<text x="{x + 18:.0f}" y="{HEIGHT - 10:.0f}">{escape(name)}</text>'
