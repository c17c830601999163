"""Deterministic SVG of a tree view: the same view gives the same bytes, readable without colour and without a mouse."""

from html import escape

from tfm_lab.show.geometry import MARGIN, RADIUS, ROW, Place, geometry
from tfm_lab.show.style import INK, PAPER, STYLES, NodeStyle
from tfm_lab.show.views import NodeView, Role, TreeView


def tree_svg(view: TreeView, *, standalone: bool = True) -> str:
    """The view as an SVG document.

    Args:
        view: what to draw.
        standalone: on a light background of its own, for files and notebook outputs; otherwise in the colour of the
            surrounding text on nothing, for use inside a page.
    """
    drawing = geometry(view)
    width = max(drawing.width, sum(map(_legend_step, view.roles())) + MARGIN)
    height = drawing.height + 24
    ink = INK if standalone else "currentColor"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}">',
        f"<title>{escape(view.title or 'Draft tree')}</title>",
        f"<desc>{escape(view.description)}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    placed = list(zip(view.nodes, drawing.places, strict=True))
    for node, place in placed:
        if node.parent >= 0:
            parts.append(_edge(drawing.places[node.parent], place, STYLES[node.role], ink))
    parts += [_node(node, place.x, place.y, ink) for node, place in placed]
    for heading in view.headings:
        y = MARGIN + ROW * (heading.row + 0.5) + 4
        parts.append(f'<text x="{MARGIN:g}" y="{y:.1f}" font-weight="bold">{escape(heading.text)}</text>')
    parts += _legend(view.roles(), height, ink)
    parts.append("</svg>")
    return "\n".join(parts)


def _edge(parent: Place, child: Place, style: NodeStyle, ink: str) -> str:
    """A curve from behind the parent's label to the child."""
    start, end = min(parent.label_end, child.x - 12), child.x - RADIUS
    bend = (start + end) / 2
    dash = ' stroke-dasharray="3 3"' if style.dashed else ""
    stroke = style.colour if style.strong else ink
    opacity = "" if style.strong else ' stroke-opacity="0.5"'
    curve = f"M{start:.1f} {parent.y:.1f} C{bend:.1f} {parent.y:.1f} {bend:.1f} {child.y:.1f} {end:.1f} {child.y:.1f}"
    width = 2.4 if style.strong else 1.0
    return f'<path d="{curve}" fill="none" stroke="{stroke}" stroke-width="{width:g}"{opacity}{dash}/>'


def _node(node: NodeView, x: float, y: float, ink: str) -> str:
    style = STYLES[node.role]
    weight = ' font-weight="bold"' if style.strong else ""
    label = (
        f'<text x="{x + RADIUS + (6 if node.picked else 3):.1f}" y="{y + 4:.1f}"{weight}>{escape(node.label)}</text>'
    )
    hover = escape(f"{node.label}: {node.role.value}, {node.detail}")
    ring = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none" stroke="{ink}" stroke-width="2"/>' if node.picked else ""
    )
    return f"<g><title>{hover}</title>{_mark(x, y, style, ink)}{ring}{label}</g>"


def _mark(x: float, y: float, style: NodeStyle, ink: str) -> str:
    fill = style.colour if style.filled else "none"
    stroke = style.colour if style.strong else ink
    dash = ' stroke-dasharray="2 2"' if style.dashed else ""
    paint = f'fill="{fill}" stroke="{stroke}" stroke-width="1.4"{dash}'
    r = RADIUS
    if style.shape == "square":
        return f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:g}" height="{2 * r:g}" {paint}/>'
    if style.shape == "diamond":
        r += 1.5
        corners = f"M{x:.1f} {y - r:.1f} L{x + r:.1f} {y:.1f} L{x:.1f} {y + r:.1f} L{x - r:.1f} {y:.1f} Z"
        return f'<path d="{corners}" {paint}/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" {paint}/>'


def _legend(roles: list[Role], height: float, ink: str) -> list[str]:
    parts: list[str] = []
    x, y = MARGIN + RADIUS, height - MARGIN
    for role in roles:
        parts.append(_mark(x, y - 4, STYLES[role], ink))
        parts.append(f'<text x="{x + 10:.1f}" y="{y:.1f}">{escape(role.value)}</text>')
        x += _legend_step(role)
    return parts


def _legend_step(role: Role) -> float:
    return 34 + 6.2 * len(role.value)
