"""Bar and line charts as deterministic SVG: what a plotly figure looks like where plotly cannot run."""

import math
from collections.abc import Mapping, Sequence
from html import escape

from tfm_lab.show.scale import decades, ticks
from tfm_lab.show.style import INK, METHOD_COLOURS, PAPER, text_on_paper

WIDTH, LEFT, RIGHT, TOP = 640.0, 150.0, 60.0, 40.0
DASHES = ("", "6 4", "2 3", "8 3 2 3")
LABEL_ROW, NARROWEST = 14.0, 300.0


def bars_svg(values: Mapping[str, float], title: str, x_title: str, colours: Mapping[str, str] = METHOD_COLOURS) -> str:
    """Horizontal bars from zero, each with its name and value."""
    largest = max((abs(value) for value in values.values()), default=0.0) or 1.0
    height = TOP + 30 * len(values) + 34
    parts = _open(title, x_title, height, "; ".join(f"{name}: {value:g}" for name, value in values.items()))
    for index, (name, value) in enumerate(values.items()):
        y = TOP + 30 * index
        length = (WIDTH - LEFT - RIGHT) * abs(value) / largest
        parts.append(f'<text x="{LEFT - 8:.0f}" y="{y + 15:.0f}" text-anchor="end">{escape(name)}</text>')
        colour = colours.get(name, INK)
        parts.append(f'<rect x="{LEFT:.0f}" y="{y:.0f}" width="{length:.1f}" height="20" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + length + 6:.1f}" y="{y + 15:.0f}">{value:g}</text>')
    parts.append(f'<text x="{LEFT:.0f}" y="{height - 10:.0f}">{escape(x_title)}</text></svg>')
    return "\n".join(parts)


def lines_svg(
    curves: Mapping[str, Mapping[float, float]],
    title: str,
    x_title: str,
    y_title: str,
    colours: Mapping[str, str] = METHOD_COLOURS,
    *,
    logarithmic: bool = False,
) -> str:
    """Lines with markers; x is spaced evenly over the values that occur, y starts at zero.

    Args:
        logarithmic: equal ratios of y, which must be positive, are equally far apart. The picture is higher then, and
            names stand in a column of their own, as wide as they need, each with a thin line to the end of its curve.

    Raises:
        ValueError: if a value is not positive on a logarithmic axis.
    """
    xs, ys = (sorted({point[axis] for points in curves.values() for point in points.items()}) for axis in (0, 1))
    logarithmic = logarithmic and bool(ys)
    if logarithmic and ys[0] <= 0.0:
        raise ValueError(f"a logarithmic axis takes positive values, got {ys[0]:g}")
    marks = decades(ys[0], ys[-1]) if logarithmic else ticks(ys[-1] if ys else 0.0)
    left, bottom, height = 60.0, 280.0 + 160.0 * logarithmic, 330.0 + 160.0 * logarithmic
    names = max(150.0, 24.0 + 7 * max(map(len, curves), default=0))
    width = max(WIDTH, left + NARROWEST + names) if logarithmic else WIDTH
    right = width - names
    place = {x: left + (right - left) * (i / max(1, len(xs) - 1)) for i, x in enumerate(xs)}
    told = "; ".join(f"{n}: {', '.join(f'{x:g} {y:.3g}' for x, y in p.items())}" for n, p in curves.items())
    parts = _open(title, x_title, height, f"{y_title} by {x_title}. {told}", width)

    def level(y: float) -> float:
        share = math.log(y / marks[0]) / math.log(marks[-1] / marks[0]) if logarithmic else y / marks[-1]
        return bottom - (bottom - TOP) * share

    for mark in marks:
        y = level(mark)
        parts.append(f'<path d="M{left:.0f} {y:.1f} H{right:.0f}" stroke="{INK}" stroke-opacity="0.15"/>')
        label = f"{mark:,.6g}" if logarithmic else f"{mark:.3g}"
        parts.append(f'<text x="{left - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for x, position in place.items():
        parts.append(f'<text x="{position:.1f}" y="{bottom + 18:.0f}" text-anchor="middle">{x:g}</text>')
    ends: dict[str, tuple[float, float]] = {}
    for index, (name, points) in enumerate(curves.items()):
        spots = [(place[x], level(y)) for x, y in points.items()]
        parts += _line(spots, colours.get(name, INK), DASHES[index % len(DASHES)])
        ends[name] = spots[-1] if spots else (left, bottom)
    labels = _apart({name: (right, y) for name, (_, y) in ends.items()} if logarithmic else ends)
    for name, (x, y) in labels.items():
        colour = text_on_paper(colours.get(name, INK))
        if logarithmic:
            leader = f"M{ends[name][0] + 4:.1f} {ends[name][1]:.1f} L{x + 8:.1f} {y:.1f}"
            parts.append(f'<path d="{leader}" stroke="{colour}" stroke-opacity="0.5"/>')
        parts.append(f'<text x="{x + 10:.1f}" y="{y + 4:.1f}" fill="{colour}">{escape(name)}</text>')
    parts.append(f'<text x="{left:.0f}" y="{height - 10:.0f}">{escape(f"{y_title} by {x_title}")}</text></svg>')
    return "\n".join(parts)


def _open(title: str, x_title: str, height: float, description: str, width: float = WIDTH) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(f'{x_title}. {description}')}</desc>",
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>',
        f'<text x="14" y="22" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]


def _apart(ends: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Places of the labels: at the ends of their lines, pushed down where two would overlap."""
    placed: dict[str, tuple[float, float]] = {}
    for name, (x, y) in sorted(ends.items(), key=lambda item: item[1][1]):
        rows = [lower for other, lower in placed.values() if abs(other - x) < 1.0]
        placed[name] = (x, max([y, *(row + LABEL_ROW for row in rows)]))
    return placed


def _line(spots: Sequence[tuple[float, float]], colour: str, dash: str) -> list[str]:
    path = " L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    broken = f' stroke-dasharray="{dash}"' if dash else ""
    parts = [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{broken}/>'] if spots else []
    return parts + [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in spots]
