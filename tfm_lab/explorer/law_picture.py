"""Three bar charts side by side: what drafter, Weaver and target say about the next token. Same tokens, same scale."""

from html import escape

from tfm_lab.explorer.records import NodeLaw
from tfm_lab.show.style import BLUE, GREEN, INK, ORANGE, PAPER

LEFT, TOP, ROW, BARS, GAP = 118.0, 58.0, 24.0, 150.0, 62.0
WIDTH = LEFT + 3 * (BARS + GAP)
CHARTS = {
    "marginal": ("drafter’s marginal", f'fill="none" stroke="{ORANGE}" stroke-width="1.8" stroke-dasharray="4 3"'),
    "weaver": ("Weaver’s conditional", f'fill="{GREEN}" fill-opacity="0.8"'),
    "target": ("target’s truth", f'fill="none" stroke="{BLUE}" stroke-width="2"'),
}


def law_words(law: NodeLaw) -> str:
    """The pairwise distances and the acceptance that they stand for."""
    return (
        f"TV(drafter, target) = {law.marginal_target:.3f}: accepted {1 - law.marginal_target:.1%}. "
        f"TV(Weaver, target) = {law.weaver_target:.3f}: accepted {1 - law.weaver_target:.1%}. "
        f"TV(drafter, Weaver) = {law.marginal_weaver:.3f}."
    )


def law_svg(law: NodeLaw | None, after: str, *, standalone: bool = True) -> str:
    """The charts as an SVG document.

    Args:
        law: ``None`` where nothing is drafted behind the node.
        after: text of the node.
        standalone: on a light background, for outputs; otherwise in the colour of the surrounding text.
    """
    ink = INK if standalone else "currentColor"
    rows = () if law is None else law.shares
    height = TOP + ROW * len(rows) + 56 if law is not None else 66
    words = law_words(law) if law is not None else "The drafter's block ends here, so nothing is drafted behind it."
    shares = "; ".join(f"{s.label}: {s.marginal:.3f}, {s.weaver:.3f}, {s.target:.3f}" for s in rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
        f'width="{WIDTH:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}">',
        f"<title>{escape(f'The next token after {after}')}</title>",
        f"<desc>{escape(f'{words} By drafter, Weaver and target: {shares}.' if rows else words)}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    parts.append(f'<text x="14" y="22" font-size="14" font-weight="bold">the next token after “{escape(after)}”</text>')
    if law is None:
        return "\n".join([*parts, f'<text x="14" y="46">{escape(words)}</text>', "</svg>"])
    for column, (field, (title, look)) in enumerate(CHARTS.items()):
        x = LEFT + column * (BARS + GAP)
        parts.append(f'<text x="{x:.0f}" y="{TOP - 12:.0f}" font-weight="bold">{title}</text>')
        base = f"M{x:.0f} {TOP - 4:.0f} V{TOP + ROW * len(rows):.0f}"
        parts.append(f'<path d="{base}" stroke="{ink}" stroke-opacity="0.4" fill="none"/>')
        for line, share in enumerate(rows):
            y, value = TOP + ROW * line, getattr(share, field)
            parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{BARS * value:.1f}" height="14" {look}/>')
            parts.append(f'<text x="{x + BARS * value + 5:.1f}" y="{y + 11:.0f}">{value:.3f}</text>')
    for line, share in enumerate(rows):
        y = TOP + ROW * line + 11
        parts.append(f'<text x="{LEFT - 8:.0f}" y="{y:.0f}" text-anchor="end">{escape(share.label)}</text>')
    below = TOP + ROW * len(rows) + 18
    for column, tv in enumerate((law.marginal_target, law.weaver_target)):
        x = LEFT + column * (BARS + GAP)
        parts.append(f'<text x="{x:.0f}" y="{below:.0f}" font-weight="bold">accepted: 1 − TV = {1 - tv:.3f}</text>')
        parts.append(f'<text x="{x:.0f}" y="{below + 18:.0f}">TV to the target = {tv:.3f}</text>')
    x = LEFT + 2 * (BARS + GAP)
    parts.append(f'<text x="{x:.0f}" y="{below:.0f}">TV of drafter and Weaver:</text>')
    parts.append(f'<text x="{x:.0f}" y="{below + 18:.0f}">{law.marginal_weaver:.3f}</text>')
    return "\n".join([*parts, "</svg>"])
