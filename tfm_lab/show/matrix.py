"""Matrices side by side as SVG: every entry says its value, so that neither colour nor its strength is ever needed."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from tfm_lab.show.picture import Picture
from tfm_lab.show.style import BLUE, INK, ORANGE, PAPER

CELL, LINE, GAP, LETTER, TOP = 42.0, 25.0, 28.0, 7.0, 48.0


class MatrixPanel(NamedTuple):
    """One matrix.

    Attributes:
        title: above it.
        values: its entries; exact zeros are drawn as dots, without a cell.
        rows, columns: a name for each; an empty sequence for none.
    """

    title: str
    values: Float[Tensor, "rows columns"]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()


class PlacedPanel(NamedTuple):
    """Drawn parts of a panel, and how much room it takes with its names."""

    parts: list[str]
    width: float
    height: float


def matrices_picture(panels: Sequence[MatrixPanel], title: str) -> Picture:
    """Panels from left to right; blue is positive, orange negative, the stronger the larger within its panel.

    Raises:
        ValueError: if there are no panels, or names and entries do not fit.
    """
    if not panels:
        raise ValueError("a picture of matrices needs at least one matrix")
    description = " ".join([f"{title}.", *map(panel_words, panels)])
    left, drawn, height = 14.0, list[str](), 0.0
    for panel in panels:
        placed = draw_panel(panel, left, TOP)
        drawn += placed.parts
        left, height = left + placed.width + GAP, max(height, placed.height)
    width, height = max(left - GAP + 14, 14 + 8.0 * len(title)), TOP + height + 14
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description)}</desc>",
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>',
        f'<text x="14" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    return Picture("\n".join([*head, *drawn, "</svg>"]), description)


def draw_panel(panel: MatrixPanel, x: float, y: float) -> PlacedPanel:
    """A panel whose title stands at (x, y); its entries begin one line lower, or two with names of the columns.

    Raises:
        ValueError: if names and entries do not fit.
    """
    _check(panel)
    names = LETTER * max(map(len, panel.rows), default=0) + (12 if panel.rows else 0)
    top, left = y + (LINE if panel.columns else 9.0), x + names
    height, width = LINE * panel.values.shape[0], CELL * panel.values.shape[1]
    parts = [f'<text x="{x:.0f}" y="{y:.0f}" font-weight="bold">{escape(panel.title)}</text>']
    for place, name in enumerate(panel.columns):
        parts.append(
            f'<text x="{left + CELL * (place + 0.5):.0f}" y="{top - 6:.0f}" text-anchor="middle">{escape(name)}</text>'
        )
    for place, name in enumerate(panel.rows):
        parts.append(f'<text x="{x:.0f}" y="{top + LINE * (place + 0.5) + 4:.1f}">{escape(name)}</text>')
    frame = f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}"'
    parts.append(f'{frame} fill="none" stroke="currentColor" stroke-opacity="0.35"/>')
    return PlacedPanel(
        parts + _entries(panel.values, left, top),
        max(names + width, LETTER * len(panel.title)),
        top - y + height,
    )


def panel_words(panel: MatrixPanel) -> str:
    """The entries of a panel that are not zero, in words."""
    lines = []
    for place, row in enumerate(panel.values.tolist()):
        name = panel.rows[place] if panel.rows else f"row {place}"
        entries = [
            f"{number(value)}{f' at {panel.columns[column]}' if panel.columns else ''}"
            for column, value in enumerate(row)
            if value != 0.0 or not panel.columns
        ]
        lines.append(f"{name}: {', '.join(entries) or 'all zero'}")
    return f"{panel.title}: {'; '.join(lines)}."


def number(value: float) -> str:
    """Two decimals, and a true minus sign."""
    return f"{value:.2f}".replace("-", "−")


def _entries(values: Tensor, left: float, top: float) -> list[str]:
    largest = float(values.abs().max()) or 1.0
    cells, texts = list[str](), list[str]()
    for row, line in enumerate(values.tolist()):
        for column, value in enumerate(line):
            x, y = left + CELL * column, top + LINE * row
            if value != 0.0:
                colour, strength = BLUE if value > 0 else ORANGE, 0.12 + 0.4 * abs(value) / largest
                cells.append(
                    f'<rect x="{x + 1:.0f}" y="{y + 1:.0f}" width="{CELL - 2:.0f}" height="{LINE - 2:.0f}" '
                    f'fill="{colour}" fill-opacity="{strength:.2f}"/>'
                )
            shown = "·" if value == 0.0 else number(value)
            texts.append(f'<text x="{x + CELL / 2:.0f}" y="{y + LINE / 2 + 4:.1f}">{shown}</text>')
    return [*cells, '<g text-anchor="middle">', *texts, "</g>"]


def _check(panel: MatrixPanel) -> None:
    rows, columns = panel.values.shape
    for names, count, what in ((panel.rows, rows, "rows"), (panel.columns, columns, "columns")):
        if names and len(names) != count:
            raise ValueError(f"the matrix {panel.title!r} has {count} {what}, and {len(names)} of them have a name")
