"""The picture of a plan: what a step of each method is made of, and where a tree pays."""

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

from tfm_lab.planning import Outcome
from tfm_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER, PURPLE

PARTS = {
    "floor": (GREY, ""),
    "rows": (BLUE, "rows"),
    "verification": (ORANGE, "Gated DeltaNet"),
    "draft": (PURPLE, "draft"),
    "weave": (GREEN, "weave"),
    "rest": (INK, "rest"),
}
"""Part of a step -> its colour and title; the floor's is in the view, and the rest has the colour of the text."""
LEFT, BARS, ROW, CELL, LINE, WIDTH = 112.0, 300.0, 34.0, 62.0, 30.0, 760.0


class PlannerView(NamedTuple):
    """What is shown.

    Attributes:
        best: the best plan of each method at the chosen batch size, by title.
        cells: budget -> column -> TfM's best outcome.
        others: column -> the speed-up of the better of chain and plain decoding.
        column: the chosen one.
        floor: what the first part of a bar is: ``weights``, or all that a fitted step takes before it has rows.
        across: what the columns are: ``batch size`` or ``context``.
        widths: of TfM's trees in words.
        setting: the chosen column in words.
        words: the advice.
    """

    best: Mapping[str, Outcome]
    cells: Mapping[int, Mapping[int, Outcome]]
    others: Mapping[int, float]
    column: int
    floor: str
    across: str
    widths: str
    setting: str
    words: str


def planner_svg(view: PlannerView, *, standalone: bool = True) -> str:
    """Above a bar per method, cut into the parts of its step; below TfM's speed-up by budget and batch size or context.

    Args:
        standalone: on a light background, for outputs; otherwise in the colour of the surrounding text.
    """
    ink = INK if standalone else "currentColor"
    top = 66 + ROW * len(view.best)
    height = top + 62 + LINE * max(len(view.cells), 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
        f'width="{WIDTH:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}">',
        "<title>Where a step goes, and where a tree pays</title>",
        f"<desc>{escape(f'{view.words} {_told(view)}')}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    return "\n".join([*parts, *_bars(view, ink), *_map(view, top, ink), "</svg>"])


def _bars(view: PlannerView, ink: str) -> list[str]:
    longest = max(item.step.total for item in view.best.values())
    parts = [_bold(14, 24, f"one step at {view.setting}, best plan of each method")]
    listed = {part: (ink if part == "rest" else colour, title or view.floor) for part, (colour, title) in PARTS.items()}
    for place, (name, item) in enumerate(view.best.items()):
        y, x = 40 + ROW * place, LEFT
        parts.append(f'<text x="{LEFT - 8:.0f}" y="{y + 15:.0f}" text-anchor="end">{name}</text>')
        for part, (colour, title) in listed.items():
            seconds = getattr(item.step, part)
            length = BARS * seconds / longest
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.0f}" width="{length:.1f}" height="20" fill="{colour}" fill-opacity="0.75">'
                f"<title>{title}: {1e3 * seconds:.2f} ms</title></rect>"
            )
            x += length
        plan = item.plan
        size = f"B {plan.budget}, " if plan.budget else ""
        size += f"w {plan.width}, " if plan.width else ""
        words = f"{size}{1e3 * item.step.total:.1f} ms, MAL {item.mal:.2f}: {item.speedup:.2f}x"
        parts.append(f'<text x="{LEFT + BARS + 10:.0f}" y="{y + 15:.0f}">{words}</text>')
    x, y = LEFT, 40 + ROW * len(view.best)
    for part, (colour, title) in listed.items():
        if not any(getattr(item.step, part) for item in view.best.values()):
            continue
        parts.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="11" height="11" fill="{colour}" fill-opacity="0.75"/>'
            f'<text x="{x + 16:.0f}" y="{y + 10:.0f}">{title}</text>'
        )
        x += 34 + 6.6 * len(title)
    return parts


def _map(view: PlannerView, top: float, ink: str) -> list[str]:
    if not view.cells:
        return [f'<text x="14" y="{top + 24:.0f}">this curve has no points for TfM</text>']
    parts = [_bold(14, top + 18, f"TfM over plain decoding, {view.widths}, by budget B and {view.across}")]
    columns = list(next(iter(view.cells.values())))
    for place, column in enumerate(columns):
        x, weight = LEFT + CELL * (place + 0.5), ' font-weight="bold"' if column == view.column else ""
        parts.append(f'<text x="{x:.0f}" y="{top + 38:.0f}" text-anchor="middle"{weight}>{column}</text>')
    for line, (budget, row) in enumerate(view.cells.items()):
        y = top + 44 + LINE * line
        parts.append(f'<text x="{LEFT - 8:.0f}" y="{y + 18:.0f}" text-anchor="end">B = {budget}</text>')
        for place, (column, item) in enumerate(row.items()):
            parts += _cell(view, LEFT + CELL * place, y, column, item, ink)
    right = LEFT + CELL * len(columns) + 8
    for line, text in enumerate(("bold: best in its column", "hollow: chain or plain", "decoding is faster")):
        parts.append(f'<text x="{right:.0f}" y="{top + 60 + 17 * line:.0f}">{text}</text>')
    return parts


def _cell(view: PlannerView, x: float, y: float, column: int, item: Outcome, ink: str) -> list[str]:
    pays = item.speedup > view.others[column]
    best = max(row[column].speedup for row in view.cells.values()) == item.speedup
    look = f'fill="{GREEN}" fill-opacity="0.3"' if pays else f'fill="none" stroke="{ORANGE}" stroke-dasharray="3 3"'
    weight = ' font-weight="bold"' if best else ""
    return [
        f'<rect x="{x + 2:.0f}" y="{y:.0f}" width="{CELL - 4:.0f}" height="{LINE - 4:.0f}" {look}/>',
        f'<text x="{x + CELL / 2:.0f}" y="{y + 18:.0f}" text-anchor="middle" fill="{ink}"{weight}>'
        f"{item.speedup:.2f}</text>",
    ]


def _told(view: PlannerView) -> str:
    rows = (
        f"B = {budget}: " + ", ".join(f"{view.across} {column} {item.speedup:.2f}" for column, item in row.items())
        for budget, row in view.cells.items()
    )
    return f"TfM over plain decoding: {'; '.join(rows)}." if view.cells else ""


def _bold(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="14" font-weight="bold">{escape(text)}</text>'
