"""Closure blocks of a draft tree: 16 nodes in depth-first order with the root path of the first one, on the tree.

This is how the package's fused kernel cuts a tree into problems that need nothing of each other: ``kernels/README.md``.
"""

from collections.abc import Callable
from html import escape
from typing import NamedTuple

from tfm_lab.show.geometry import MARGIN, RADIUS, Place, geometry
from tfm_lab.show.picture import Picture
from tfm_lab.show.style import BLUE, GREY, INK, ORANGE, PAPER
from tfm_lab.show.views import NodeView, Role, TreeView, tidy_layout, visible
from tfm_lab.tree import DraftTree

BLOCK = 16


class Closure(NamedTuple):
    """A block with what it needs.

    Attributes:
        path: ancestors of the block's first node, root first.
        block: the nodes of the block.
    """

    path: tuple[int, ...]
    block: tuple[int, ...]


def closure_blocks(tree: DraftTree) -> list[Closure]:
    """The blocks of a tree in depth-first order.

    Raises:
        ValueError: if the nodes are in another order.
    """
    if tree.preorder() != tuple(range(len(tree))):
        raise ValueError("closure blocks need a tree in depth-first order: tree.reordered(tree.preorder())")
    firsts = range(0, len(tree), BLOCK)
    return [Closure(tree.path(first)[:-1], tuple(range(first, min(first + BLOCK, len(tree))))) for first in firsts]


def is_closed(tree: DraftTree, nodes: tuple[int, ...]) -> bool:
    """Whether every ancestor of these nodes is among them."""
    return all(parent in nodes for node in nodes if (parent := int(tree.parents[node])) >= 0)


def closure_picture(tree: DraftTree, number: int, decode: Callable[[int], str]) -> Picture:
    """One block and its root path on the tree.

    Args:
        tree: in depth-first order.
        number: of the block, from 0.
        decode: text of a token.
    """
    closures = closure_blocks(tree)
    path, block = closures[number]
    rows = len(path) + len(block)
    title = f"block {number + 1} of {len(closures)}: nodes {block[0]} to {block[-1]}"
    description = (
        f"A draft tree of {len(tree)} nodes; {title}. With the {len(path)} nodes on the path to its first node it "
        f"makes {rows} rows, which hold every ancestor of every node of the block."
    )
    view = _view(tree, title, description, decode)
    drawing = geometry(view)
    width, height = max(drawing.width, 520.0), drawing.height + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{INK}" '
        'style="max-width:100%;height:auto">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description)}</desc>",
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>',
        f'<text x="{MARGIN:.0f}" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    places = [Place(p.x, p.y + 22, p.label_end) for p in drawing.places]
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            room = 8.0 if parent in block else 0.0  # bold labels are wider
            parts.append(_edge(places[parent], places[node], room, is_inside=node in block or node in path))
    for node, place in enumerate(places):
        label = escape(view.nodes[node].label)
        weight = ' font-weight="bold"' if node in block else ""
        parts += [
            _mark(place.x, place.y, node in path, node in block),
            f'<text x="{place.x + RADIUS + 3:.1f}" y="{place.y + 4:.1f}"{weight}>{label}</text>',
        ]
    legend = ((True, False, "root path of its first node"), (False, True, "in the block"), (False, False, "not needed"))
    x = MARGIN + RADIUS
    for in_path, in_block, text in legend:
        parts.append(_mark(x, height - MARGIN - 4, in_path, in_block))
        parts.append(f'<text x="{x + 10:.1f}" y="{height - MARGIN:.1f}">{text}</text>')
        x += 40 + 6.4 * len(text)
    return Picture("\n".join([*parts, "</svg>"]), description)


def _view(tree: DraftTree, title: str, description: str, decode: Callable[[int], str]) -> TreeView:
    positions = tidy_layout(tree.to_networkx())
    labels = [visible(decode(token)) for token in tree.tokens.tolist()]
    nodes = tuple(
        NodeView(labels[node], Role.PLACED, *positions[node], int(tree.parents[node]), "") for node in range(len(tree))
    )
    depths = tree.depths.tolist()
    lengths = [max(len(labels[n]) for n in range(len(tree)) if depths[n] == depth) for depth in range(max(depths) + 1)]
    return TreeView(title, description, nodes, 1 + int(max(node.y for node in nodes)), tuple(lengths))


def _edge(parent: Place, child: Place, room: float, *, is_inside: bool) -> str:
    start, end = min(parent.label_end + room, child.x - 12), child.x - RADIUS
    bend = (start + end) / 2
    curve = f"M{start:.0f} {parent.y:.0f}C{bend:.0f} {parent.y:.0f} {bend:.0f} {child.y:.0f} {end:.0f} {child.y:.0f}"
    look = f'stroke="{INK}" stroke-width="1.6"' if is_inside else f'stroke="{GREY}" stroke-opacity="0.5"'
    return f'<path d="{curve}" fill="none" {look}/>'


def _mark(x: float, y: float, in_path: bool, in_block: bool) -> str:
    """A blue diamond on the path, an orange square in the block, a hollow grey circle elsewhere."""
    r = RADIUS
    if in_path:
        d = r + 1.5
        return f'<path d="M{x:.1f} {y - d:.1f}l{d} {d} -{d} {d} -{d} -{d}z" fill="{BLUE}"/>'
    if in_block:
        return f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:g}" height="{2 * r:g}" fill="{ORANGE}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r - 1:g}" fill="none" stroke="{GREY}" stroke-dasharray="2 2"/>'
