"""The ancestor matrix with its blocks, and how often each node was computed, as deterministic SVG."""

from collections.abc import Sequence
from html import escape

from tfm_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER

TILE = 16
LEFT, TOP, SIDE, BARS, LINE = 46.0, 64.0, 384.0, 176.0, 18.0
LOOKS = {
    "start": (ORANGE, "6 3", ""),
    "block": (GREEN, "", ""),
    "skip": (GREY, "3 3", "skipped"),
    "diagonal": (GREEN, "", ""),
}


def solve_svg(
    ancestors: Sequence[Sequence[bool]],
    blocks: Sequence[tuple[str, tuple[int, int]]],
    branch: Sequence[int],
    times: Sequence[int],
    most: int,
    lines: Sequence[str],
    description: str,
    *,
    standalone: bool,
) -> str:
    """Left the ancestors of every node, one row each; beside it a bar per node; below it lines of text.

    Args:
        ancestors: inclusive mask, node by node.
        blocks: kinds and places of the blocks so far, the last one is the present one.
        branch: nodes of the present branch, whose rows are marked.
        times: how often each node was computed, the length of its bar.
        most: longest bar that there is room for.
        lines: text below.
        description: for readers who do not see it.
        standalone: on a light background; otherwise in the colour of the surrounding text.
    """
    nodes, ink = len(ancestors), INK if standalone else "currentColor"
    cell = SIDE / nodes
    width, height = LEFT + SIDE + 24 + BARS + 20, TOP + SIDE + 24 + LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}">',
        "<title>Forward substitution over the ancestor matrix</title>",
        f"<desc>{escape(description)}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    bars = LEFT + SIDE + 24
    parts += [
        f'<text x="{LEFT:.0f}" y="22" font-size="14" font-weight="bold">who is whose ancestor</text>',
        f'<text x="{LEFT:.0f}" y="40">row: node, column: ancestor or itself</text>',
        f'<text x="{bars:.0f}" y="22" font-size="14" font-weight="bold">times computed</text>',
        f'<text x="{bars:.0f}" y="40">one bar per node, longest {max(times)}</text>',
        f'<rect x="{LEFT:.0f}" y="{TOP:.0f}" width="{SIDE:.0f}" height="{SIDE:.0f}" fill="none" stroke="{ink}" '
        'stroke-opacity="0.3"/>',
    ]
    for first in range(0, nodes, TILE):
        place = first * cell
        parts.append(f'<text x="{LEFT - 6:.0f}" y="{TOP + place + 11:.1f}" text-anchor="end">{first}</text>')
        if nodes - first > TILE / 4:
            parts.append(f'<text x="{LEFT + place + 1:.1f}" y="{TOP - 5:.0f}">{first}</text>')
    for node in branch:
        y = TOP + node * cell
        parts.append(
            f'<rect x="{LEFT:.0f}" y="{y:.1f}" width="{SIDE:.0f}" height="{cell:.1f}" '
            f'fill="{ORANGE}" fill-opacity="0.25"/>'
        )
    stroke = f'fill="none" stroke-width="{max(cell - 1, 1):.3g}"'
    parts.append(f'<path d="{_dots(ancestors, cell)}" {stroke} stroke="{BLUE}"/>')
    drawn = {place: kind for kind, place in blocks}
    present = blocks[-1][1] if blocks else None
    for place, kind in drawn.items():
        parts += _block(place, kind, nodes, cell, is_present=place == present)
    unit = min(12.0, BARS / most)
    middle = TOP + cell / 2
    lengths = "".join(
        f"M{bars:.0f} {middle + node * cell:.4g}h{unit * count:.3g}" for node, count in enumerate(times) if count
    )
    parts.append(f'<path d="{lengths}" {stroke} stroke="{GREEN}"/>')
    below = TOP + SIDE + 24
    for number, line in enumerate(lines):
        weight = "normal" if number else "bold"
        parts.append(
            f'<text x="{LEFT:.0f}" y="{below + LINE * number:.0f}" font-weight="{weight}">{escape(line)}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def _dots(ancestors: Sequence[Sequence[bool]], cell: float) -> str:
    """All entries of the matrix as one path of short strokes."""
    side = max(cell - 1, 1)
    return "".join(
        f"M{LEFT + cell * column:.4g} {TOP + cell * (row + 0.5):.4g}h{side:.3g}"
        for row, line in enumerate(ancestors)
        for column, sees in enumerate(line)
        if sees
    )


def _block(place: tuple[int, int], kind: str, nodes: int, cell: float, *, is_present: bool) -> list[str]:
    colour, dash, word = LOOKS[kind]
    rows, columns = (min(TILE, nodes - TILE * tile) for tile in place)
    x, y = LEFT + cell * TILE * place[1], TOP + cell * TILE * place[0]
    # rows that are being started reach over the whole row of blocks
    left, wide = (LEFT, x - LEFT + cell * columns) if kind == "start" else (x, cell * columns)
    colour = ORANGE if is_present else colour
    fill = f'fill="{colour}" fill-opacity="{0.22 if is_present else 0.1}"' if kind != "skip" else 'fill="none"'
    pattern = f' stroke-dasharray="{dash}"' if dash else ""
    high = cell * rows
    parts = [
        f'<rect x="{left + 1:.1f}" y="{y + 1:.1f}" width="{wide - 2:.1f}" height="{max(high - 2, 1):.1f}" {fill} '
        f'stroke="{colour}" stroke-width="{3 if is_present else 1.5}"{pattern}/>'
    ]
    if word and cell * TILE >= 48:
        parts.append(f'<text x="{left + wide / 2:.1f}" y="{y + high / 2 + 4:.1f}" text-anchor="middle">{word}</text>')
    return parts
