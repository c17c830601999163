"""An attention mask over prefix and nodes as a picture: filled where a row may look, a dot where it may not."""

from collections.abc import Sequence
from html import escape

from jaxtyping import Bool
from torch import Tensor

from tfm_lab.show.picture import Picture
from tfm_lab.show.style import BLUE, GREEN, INK, PAPER, PURPLE

CELL, LETTER, HEAD = 19.0, 7.0, 62.0


def path_mask_picture(mask: Bool[Tensor, "nodes keys"], names: Sequence[str]) -> Picture:
    """Rows look, columns are looked at: the prefix (blue), ancestors (green), the node itself (a purple diamond).

    Args:
        mask: prefix columns first.
        names: of the nodes.

    Raises:
        ValueError: if there is not one name for each row.
    """
    nodes, keys = mask.shape
    if len(names) != nodes:
        raise ValueError(f"the mask has {nodes} rows, and {len(names)} of them have a name")
    prefix = keys - nodes
    seen = [[names[j - prefix] for j in range(prefix, keys) if bool(mask[i, j])] for i in range(nodes)]
    counts = [int(row[:prefix].sum()) for row in mask]
    told = "; ".join(
        f"{name} sees {count} of {prefix} prefix tokens and {', '.join(others) or 'no node'}"
        for name, count, others in zip(names, counts, seen, strict=True)
    )
    description = f"Attention mask of {nodes} nodes over {prefix} prefix tokens and the nodes. {told}."
    left = 14 + LETTER * max(map(len, names)) + 12
    gap = 10.0
    width, height = max(left + CELL * keys + gap + 14, 420.0), HEAD + CELL * nodes + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{INK}">',
        "<title>Who looks at whom in the Weaver</title>",
        f"<desc>{escape(description)}</desc>",
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>',
        '<text x="14" y="22" font-size="14" font-weight="bold">Row: a node; column: what it attends to</text>',
        f'<text x="{left:.0f}" y="{HEAD - 20:.0f}">prefix: target, then drafter by depth</text>',
        f'<text x="{left + CELL * prefix + gap:.0f}" y="{HEAD - 20:.0f}">nodes</text>',
    ]
    spots = [left + CELL * j + (gap if j >= prefix else 0.0) for j in range(keys)]
    for j, x in enumerate(spots):
        number = j if j < prefix else j - prefix
        parts.append(f'<text x="{x + CELL / 2:.1f}" y="{HEAD - 5:.0f}" text-anchor="middle">{number}</text>')
    for i, name in enumerate(names):
        parts.append(f'<text x="14" y="{HEAD + CELL * i + 14:.0f}">{escape(name)}</text>')
    return Picture("\n".join([*parts, *_marks(mask, prefix, spots), "</svg>"]), description)


def _marks(mask: Tensor, prefix: int, spots: Sequence[float]) -> list[str]:
    """One path per kind of mark."""
    squares, ancestors, selves, dots = [], [], [], []
    side, r = CELL - 4, CELL / 2 - 2
    for i, row in enumerate(mask.tolist()):
        for j, is_seen in enumerate(row):
            x, y = spots[j], HEAD + CELL * i
            square = f"M{x + 2:.0f} {y + 2:.0f}h{side:.0f}v{side:.0f}h-{side:.0f}z"
            if not is_seen:
                dots.append(f"M{x + CELL / 2 - 1:.0f} {y + CELL / 2 - 1:.0f}h2v2h-2z")
            elif j < prefix:
                squares.append(square)
            elif j - prefix == i:
                selves.append(f"M{x + CELL / 2:.1f} {y + CELL / 2 - r:.1f}l{r} {r} -{r} {r} -{r} -{r}z")
            else:
                ancestors.append(square)
    kinds = (squares, f'fill="{BLUE}" fill-opacity="0.45"'), (ancestors, f'fill="{GREEN}"')
    kinds = *kinds, (selves, f'fill="{PURPLE}"'), (dots, f'fill="{INK}"')
    return [f'<path d="{"".join(paths)}" {look}/>' for paths, look in kinds if paths]
