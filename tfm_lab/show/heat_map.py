"""A table of numbers as a heat map: every cell says its value, so that colour is never needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import plotly.graph_objects as go

from tfm_lab.show.picture import Picture
from tfm_lab.show.plots import ON_PAPER
from tfm_lab.show.style import GREEN, INK, ORANGE, PAPER

CELL, LINE, LEFT, HEAD = 108.0, 46.0, 190.0, 74.0


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One cell.

    Attributes:
        value: decides how strong its colour is, between 0 and the largest of the table; 0 is good.
        label: the value in a few characters.
        note: a second line, may be empty; such a cell has a dashed frame.
    """

    value: float
    label: str
    note: str = ""


Cells = Mapping[str, Mapping[str, HeatCell]]


def heat_map_picture(cells: Cells, title: str, corner: str) -> Picture:
    """Rows of cells: green where the value is 0, orange where it is not, the stronger the larger.

    Args:
        cells: by row, then by column; every row has the same columns.
        title: of the picture.
        corner: what rows and columns are.

    Raises:
        ValueError: if there are no cells or the rows differ in their columns.
    """
    columns = _columns(cells)
    told = "; ".join(
        f"{row}: "
        + ", ".join(f"{column} {cell.label}{f' ({cell.note})' if cell.note else ''}" for column, cell in line.items())
        for row, line in cells.items()
    )
    description = f"{title}. {told}."
    return Picture(_svg(cells, columns, title, corner, description), description, heat_map_figure(cells, title))


def heat_map_figure(cells: Cells, title: str) -> go.Figure:
    """The same with hovering."""
    columns, largest = _columns(cells), _largest(cells)
    words = [[f"{c.label}<br>{c.note}" if c.note else c.label for c in line.values()] for line in cells.values()]
    heat = go.Heatmap(
        x=list(columns),
        y=list(cells),
        z=[[cell.value for cell in line.values()] for line in cells.values()],
        text=words,
        texttemplate="%{text}",
        textfont={"color": INK},
        hovertemplate="%{y}<br>%{x}<br>%{text}<extra></extra>",
        colorscale=[[0.0, "#BFE3D6"], [0.001, "#FBE3D2"], [1.0, "#F0A070"]],
        zmin=0.0,
        zmax=largest,
        showscale=False,
        xgap=3,
        ygap=3,
    )
    figure = go.Figure(heat)
    margin = {"l": 20, "r": 20, "t": 80, "b": 20}
    figure.update_layout(title=title, height=120 + 52 * len(cells), margin=margin, **ON_PAPER)
    figure.update_xaxes(side="top", showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def _columns(cells: Cells) -> Sequence[str]:
    rows = [tuple(line) for line in cells.values()]
    if not rows or not rows[0] or any(row != rows[0] for row in rows):
        raise ValueError("a heat map needs cells, and the same columns in every row")
    return rows[0]


def _largest(cells: Cells) -> float:
    return max(cell.value for line in cells.values() for cell in line.values()) or 1.0


def _svg(cells: Cells, columns: Sequence[str], title: str, corner: str, description: str) -> str:
    width, height = LEFT + CELL * len(columns) + 14, HEAD + LINE * len(cells) + 14
    largest = _largest(cells)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description)}</desc>",
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>',
        f'<text x="14" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
        f'<text x="14" y="{HEAD - 10:.0f}">{escape(corner)}</text>',
    ]
    for index, column in enumerate(columns):
        x = LEFT + CELL * (index + 0.5)
        for line, text in enumerate(reversed(_wrapped(column))):
            parts.append(
                f'<text x="{x:.0f}" y="{HEAD - 10 - 14 * line:.0f}" text-anchor="middle">{escape(text)}</text>'
            )
    for index, (row, line) in enumerate(cells.items()):
        y = HEAD + LINE * index
        for number, text in enumerate(lines := _wrapped(row, 26)):
            offset = LINE / 2 + 4 + 14 * (number - (len(lines) - 1) / 2)
            parts.append(f'<text x="14" y="{y + offset:.0f}">{escape(text)}</text>')
        for place, cell in enumerate(line.values()):
            parts += _cell(LEFT + CELL * place, y, cell, cell.value / largest)
    return "\n".join([*parts, "</svg>"])


def _cell(x: float, y: float, cell: HeatCell, strength: float) -> list[str]:
    fill = (
        f'fill="{GREEN}" fill-opacity="0.22"'
        if cell.value == 0.0
        else f'fill="{ORANGE}" fill-opacity="{0.15 + 0.4 * strength:.2f}"'
    )
    dash = f' stroke="{INK}" stroke-dasharray="4 3"' if cell.note else ""
    lines = [cell.label, cell.note] if cell.note else [cell.label]
    parts = [
        f'<rect x="{x + 2:.0f}" y="{y + 2:.0f}" width="{CELL - 4:.0f}" height="{LINE - 4:.0f}" rx="3" {fill}{dash}/>'
    ]
    for number, text in enumerate(lines):
        offset = LINE / 2 + 4 + 15 * (number - (len(lines) - 1) / 2)
        parts.append(f'<text x="{x + CELL / 2:.0f}" y="{y + offset:.0f}" text-anchor="middle">{escape(text)}</text>')
    return parts


def _wrapped(text: str, most: int = 16) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
