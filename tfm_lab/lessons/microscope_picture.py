"""What the kernel microscope shows, as deterministic SVG: the tree, X, Y and the updates that are known."""

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from tfm_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER
from tfm_lab.show.views import tidy_layout
from tfm_lab.tree import DraftTree

SIDE, TOP, MARGIN, GAP, DEPTH = 264.0, 66.0, 16.0, 34.0, 22.0
LEVELS = (0.3, 0.5, 0.75, 1.0)
"""Strengths in which entries are drawn, weakest first."""


class Glimpse(NamedTuple):
    """One moment under the microscope.

    Attributes:
        tree: in depth-first order.
        X, Y: [nodes, nodes], see ``memory_by_hand.system``.
        updates: [nodes, value_dim], NaN where nothing is known yet.
        rows: nodes that are worked on.
        reads: nodes whose updates that needs.
        skipped: nodes that are passed over.
        done: nodes whose updates are known.
        tile: nodes in a tile or block.
        node: whose path and rows are marked.
        title: above the picture.
    """

    tree: DraftTree
    X: Float[Tensor, "nodes nodes"]
    Y: Float[Tensor, "nodes nodes"]
    updates: Float[Tensor, "nodes value_dim"]
    rows: Sequence[int]
    reads: Sequence[int]
    skipped: Sequence[int]
    done: frozenset[int]
    tile: int
    node: int
    title: str


def microscope_svg(glimpse: Glimpse, description: str, *, standalone: bool) -> str:
    """The tree, X, Y and U side by side, one line for each node.

    Args:
        glimpse: what is shown.
        description: for readers who do not see it.
        standalone: on a light background; otherwise in the colour of the surrounding text.
    """
    ink, count = INK if standalone else "currentColor", len(glimpse.tree)
    cell = SIDE / count
    tree_width = max(DEPTH * (glimpse.tree.max_depth + 1) + 30, 130.0)
    lefts = [MARGIN + tree_width + GAP + (SIDE + GAP) * place for place in range(3)]
    wide = max(3.0 * glimpse.updates.shape[1] * 6, 54.0)
    width, height = lefts[2] + wide + 90, TOP + SIDE + 62
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}">',
        "<title>The solve of a draft tree under the microscope</title>",
        f"<desc>{escape(description)}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    parts.append(f'<text x="{MARGIN:.0f}" y="24" font-size="14" font-weight="bold">{escape(glimpse.title)}</text>')
    titles = ("X: writes take from writes", "Y: reads take from writes", "U: updates")
    for left, title in zip(lefts, titles, strict=True):
        parts.append(f'<text x="{left:.0f}" y="{TOP - 12:.0f}" font-weight="bold">{title}</text>')
    parts.append(f'<text x="{MARGIN:.0f}" y="{TOP - 12:.0f}" font-weight="bold">the tree</text>')
    parts += _tree(glimpse, cell, ink)
    for left, matrix in zip(lefts, (glimpse.X, glimpse.Y), strict=False):
        parts += _matrix(glimpse, matrix, left, cell, ink)
    parts += _updates(glimpse, lefts[2], wide, cell, ink)
    return "\n".join([*parts, *_legend(height - 14), "</svg>"])


def _tree(glimpse: Glimpse, cell: float, ink: str) -> list[str]:
    """Nodes on the lines of their rows; the depth goes to the right."""
    tree, path = glimpse.tree, set(glimpse.tree.path(glimpse.node))
    depths = tidy_layout(tree.to_networkx())

    def at(node: int) -> tuple[float, float]:
        return MARGIN + 22 + DEPTH * depths[node][0], TOP + cell * (node + 0.5)

    parts = list[str]()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            (x, y), (px, py) = at(node), at(parent)
            on_path = node in path
            look = f'stroke="{BLUE}" stroke-width="2"' if on_path else f'stroke="{GREY}"'
            parts.append(f'<path d="M{px:.1f} {py:.1f}V{y:.1f}H{x:.1f}" fill="none" {look}/>')
    size = min(5.0, cell * 0.42)
    for node in range(len(tree)):
        x, y = at(node)
        bold = ' font-weight="bold"' if node == glimpse.node else ""
        if cell >= 7.5 or node == glimpse.node:
            small = min(11.0, cell + 1)
            parts.append(
                f'<text x="{MARGIN + 8:.0f}" y="{y + small / 3:.1f}" font-size="{small:.0f}" '
                f'text-anchor="end"{bold}>{node}</text>'
            )
        parts.append(_mark(glimpse, node, x, y, size))
    return parts


def _mark(glimpse: Glimpse, node: int, x: float, y: float, size: float) -> str:
    """Square: worked on; diamond: read; filled circle: done; hollow circle: waiting."""
    if node in glimpse.rows:
        side = 2 * size
        return f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{side:.1f}" height="{side:.1f}" fill="{ORANGE}"/>'
    if node in glimpse.reads:
        d = size + 1
        return f'<path d="M{x:.1f} {y - d:.1f}l{d:.1f} {d:.1f} {-d:.1f} {d:.1f} {-d:.1f} {-d:.1f}z" fill="{BLUE}"/>'
    look = f'fill="{GREEN}"' if node in glimpse.done else f'fill="none" stroke="{GREY}"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size - 0.5:.1f}" {look}/>'


def _matrix(glimpse: Glimpse, matrix: Tensor, left: float, cell: float, ink: str) -> list[str]:
    count = len(glimpse.tree)
    frame = f'width="{SIDE:.0f}" height="{SIDE:.0f}" fill="none" stroke="{ink}" stroke-opacity="0.4"'
    parts = [f'<rect x="{left:.0f}" y="{TOP:.0f}" {frame}/>']
    for cut in range(glimpse.tile, count, glimpse.tile):
        place = cell * cut
        line = f"M{left:.1f} {TOP + place:.1f}h{SIDE:.0f}M{left + place:.1f} {TOP:.1f}v{SIDE:.0f}"
        parts.append(f'<path d="{line}" stroke="{ink}" stroke-opacity="0.18" fill="none"/>')
    y = TOP + cell * glimpse.node
    parts.append(
        f'<rect x="{left:.1f}" y="{y:.1f}" width="{SIDE:.0f}" height="{cell:.1f}" fill="{BLUE}" fill-opacity="0.16"/>'
    )
    if matrix is glimpse.X:
        first, last = glimpse.rows[0], glimpse.rows[-1] + 1
        top, high = TOP + cell * first, cell * (last - first)
        for columns, colour, dash in (
            (glimpse.reads, BLUE, ""),
            (glimpse.skipped, GREY, ' stroke-dasharray="3 3"'),
            (glimpse.rows if first in glimpse.done else (), ORANGE, ""),
        ):
            for begin, end in _runs(columns):
                x, wide = left + cell * begin, cell * (end - begin)
                parts.append(
                    f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}" '
                    f'fill-opacity="{0.0 if dash else 0.12}" stroke="{colour}" stroke-width="2"{dash}/>'
                )
    return parts + _entries(matrix, lambda row, column: (left + cell * column, TOP + cell * row), cell, cell)


def _updates(glimpse: Glimpse, left: float, wide: float, cell: float, ink: str) -> list[str]:
    columns = glimpse.updates.shape[1]
    step = wide / columns
    frame = f'width="{wide:.0f}" height="{SIDE:.0f}" fill="none" stroke="{ink}" stroke-opacity="0.4"'
    parts = [f'<rect x="{left:.0f}" y="{TOP:.0f}" {frame}/>']
    known = glimpse.updates.nan_to_num(0.0)
    parts += _entries(known, lambda row, column: (left + step * column, TOP + cell * row), step, cell)
    told = f"{len(glimpse.done)} of {len(glimpse.tree)} known"
    return [*parts, f'<text x="{left:.0f}" y="{TOP + SIDE + 16:.0f}">{told}</text>']


def _entries(matrix: Tensor, at: Callable[[int, int], tuple[float, float]], wide: float, high: float) -> list[str]:
    """Entries that are not zero, as one path for each sign and strength; negative ones are hatched by a gap."""
    largest = float(matrix.abs().max()) or 1.0
    strokes: dict[tuple[bool, int], list[str]] = {}
    for row, line in enumerate(matrix.tolist()):
        for column, value in enumerate(line):
            if value == 0.0:
                continue
            level = min(int(4 * abs(value) / largest), 3)
            x, y = at(row, column)
            short = 0.45 if value < 0 else 0.9  # half as wide: the sign shows without colour
            stroke = f"M{x + 0.05 * wide:.1f} {y + high / 2:.1f}h{short * wide:.1f}"
            strokes.setdefault((value < 0, level), []).append(stroke)
    return [
        f'<path d="{"".join(pieces)}" stroke="{ORANGE if negative else BLUE}" stroke-opacity="{LEVELS[level]}" '
        f'stroke-width="{0.9 * high:.1f}" fill="none"/>'
        for (negative, level), pieces in sorted(strokes.items())
    ]


def _runs(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring numbers as (first, end) pairs."""
    runs = list[tuple[int, int]]()
    for node in sorted(nodes):
        if runs and runs[-1][1] == node:
            runs[-1] = (runs[-1][0], node + 1)
        else:
            runs.append((node, node + 1))
    return runs


def _legend(y: float) -> list[str]:
    items = (
        (f'<rect x="{{x}}" y="{y - 9:.0f}" width="9" height="9" fill="{ORANGE}"/>', "worked on"),
        (f'<path d="M{{x5}} {y - 10:.0f}l5.5 5.5 -5.5 5.5 -5.5 -5.5z" fill="{BLUE}"/>', "read"),
        (f'<circle cx="{{x5}}" cy="{y - 4.5:.1f}" r="4.5" fill="{GREEN}"/>', "done"),
        (f'<circle cx="{{x5}}" cy="{y - 4.5:.1f}" r="4" fill="none" stroke="{GREY}"/>', "waiting"),
        (f'<rect x="{{x}}" y="{y - 9:.0f}" width="9" height="9" fill="{BLUE}" fill-opacity="0.6"/>', "positive"),
        (
            f'<rect x="{{x}}" y="{y - 9:.0f}" width="5" height="9" fill="{ORANGE}" fill-opacity="0.6"/>',
            "negative (half)",
        ),
    )
    parts, x = list[str](), MARGIN
    for shape, text in items:
        parts.append(shape.replace("{x5}", f"{x + 5:.1f}").replace("{x}", f"{x:.1f}"))
        parts.append(f'<text x="{x + 15:.1f}" y="{y:.0f}">{text}</text>')
        x += 40 + 6.6 * len(text)
    return parts
