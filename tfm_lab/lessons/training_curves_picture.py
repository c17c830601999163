"""The picture of a training: its loss, the length of what is accepted, and acceptance by depth at one stop."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from tfm_lab.lessons.weaver_training import Stop
from tfm_lab.show.scale import ticks
from tfm_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER, PURPLE

WIDTH, HEIGHT = 780.0, 428.0
DASHES = ("2 3", "8 3 2 3", "1 5")
COVERAGE = f'fill="{GREY}" fill-opacity="0.25" stroke="{GREY}"'
DRAFTER = f'fill="none" stroke="{ORANGE}" stroke-width="1.6" stroke-dasharray="4 3"'
WEAVER = f'fill="{GREEN}" fill-opacity="0.75"'


class CurvesView(NamedTuple):
    """What is shown.

    Attributes:
        title: names the training.
        stops: of the chosen training.
        place: which of them is marked.
        others: trainings with other losses, whose lengths stand in the background.
        chain, ddtree: expected tokens per target call without a Weaver.
        drafter, coverage: acceptance of the marginals, and mass of the pool, by depth.
        words: the picture in words.
    """

    title: str
    stops: Sequence[Stop]
    place: int
    others: Mapping[str, Sequence[Stop]]
    chain: float
    ddtree: float
    drafter: Sequence[float]
    coverage: Sequence[float]
    words: str


class End(NamedTuple):
    """Where a curve ends, and how it looks; an empty dash is the chosen training."""

    y: float
    colour: str
    dash: str


class Plot(NamedTuple):
    """A rectangle with a scale: ``x`` from 0 to ``last``, ``y`` from 0 to ``top``."""

    left: float
    right: float
    upper: float
    lower: float
    last: float
    top: float

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * value / self.last

    def y(self, value: float) -> float:
        return self.lower - (self.lower - self.upper) * value / self.top


def curves_svg(view: CurvesView, *, standalone: bool = True) -> str:
    """Left above the loss, below the tokens per target call; right the acceptance by depth at the marked stop.

    Args:
        standalone: on a light background, for outputs; otherwise in the colour of the surrounding text.
    """
    ink = INK if standalone else "currentColor"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" '
        f'width="{WIDTH:.0f}" height="{HEIGHT:.0f}" font-family="sans-serif" font-size="12" fill="{ink}" '
        f'color="{ink}">',
        "<title>Loss and accepted length along a training</title>",
        f"<desc>{escape(f'{view.words} {_told(view)}')}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    parts.append(f'<text x="14" y="24" font-size="14" font-weight="bold">{escape(view.title)}</text>')
    return "\n".join([*parts, *_losses(view, ink), *_lengths(view, ink), *_depths(view, ink), "</svg>"])


def _losses(view: CurvesView, ink: str) -> list[str]:
    marks = ticks(max(stop.loss for stop in view.stops))
    plot = Plot(46, 330, 58, 178, _last(view), marks[-1])
    spots = [(plot.x(stop.step), plot.y(stop.loss)) for stop in view.stops]
    return [
        *_frame(plot, marks, ink, "training loss"),
        *_curve(spots, PURPLE, ""),
        *_marked(plot, view, spots[view.place], PURPLE, f"{view.stops[view.place].loss:.3f}"),
    ]


def _lengths(view: CurvesView, ink: str) -> list[str]:
    runs = (view.stops, *view.others.values())
    marks = ticks(max(view.chain, view.ddtree, *(stop.mal for run in runs for stop in run)))
    plot = Plot(46, 330, 222, 378, _last(view), marks[-1])
    parts = _frame(plot, marks, ink, "expected tokens per target call")
    ends: dict[str, End] = {}
    for name, value, colour in (("chain", view.chain, BLUE), ("DDTree", view.ddtree, ORANGE)):
        y = plot.y(value)
        parts.append(
            f'<path d="M{plot.left:.0f} {y:.1f}H{plot.right:.0f}" stroke="{colour}" stroke-dasharray="6 4" '
            f'stroke-width="1.5"/>'
        )
        ends[name] = End(y, colour, "6 4")
    for (name, run), dash in zip(view.others.items(), DASHES, strict=False):
        spots = [(plot.x(stop.step), plot.y(stop.mal)) for stop in run]
        parts += _curve(spots, GREY, dash)
        ends[name] = End(spots[-1][1], GREY, dash)
    spots = [(plot.x(stop.step), plot.y(stop.mal)) for stop in view.stops]
    parts += _curve(spots, GREEN, "")
    ends["this one"] = End(spots[-1][1], GREEN, "")
    parts += _marked(plot, view, spots[view.place], GREEN, f"{view.stops[view.place].mal:.3f}")
    for x in sorted({stop.step for stop in view.stops}):
        if x in (0, view.stops[-1].step, view.stops[view.place].step):
            parts.append(f'<text x="{plot.x(x):.1f}" y="{plot.lower + 17:.0f}" text-anchor="middle">{x}</text>')
    parts.append(f'<text x="{plot.left:.0f}" y="{plot.lower + 36:.0f}">training step</text>')
    return parts + _names(plot.right + 8, ends)


def _depths(view: CurvesView, ink: str) -> list[str]:
    left, upper, lower = 470.0, 58.0, 378.0
    stop, depths = view.stops[view.place], len(view.coverage)
    plot = Plot(left, WIDTH - 20, upper, lower, float(depths), 1.0)
    parts = _frame(plot, [0.0, 0.25, 0.5, 0.75, 1.0], ink, f"acceptance by depth, after step {stop.step}")
    wide = (plot.right - plot.left) / depths
    for depth, values in enumerate(zip(view.coverage, view.drafter, stop.acceptance, strict=True)):
        x = plot.left + wide * depth
        for value, look, start, width in zip(
            values, (COVERAGE, DRAFTER, WEAVER), (0.08, 0.14, 0.52), (0.84, 0.32, 0.32), strict=True
        ):
            y = plot.y(value)
            parts.append(
                f'<rect x="{x + wide * start:.1f}" y="{y:.1f}" width="{wide * width:.1f}" '
                f'height="{plot.lower - y:.1f}" {look}/>'
            )
        parts.append(f'<text x="{x + wide / 2:.1f}" y="{lower + 17:.0f}" text-anchor="middle">{depth + 1}</text>')
    for x, name, look in zip(
        (left, left + 120, left + 200), ("pool coverage", "drafter", "Weaver"), (COVERAGE, DRAFTER, WEAVER), strict=True
    ):
        parts.append(f'<rect x="{x:.0f}" y="{lower + 27:.0f}" width="14" height="10" {look}/>')
        parts.append(f'<text x="{x + 20:.0f}" y="{lower + 36:.0f}">{name}</text>')
    return parts


def _last(view: CurvesView) -> float:
    return float(max(1, *(stop.step for run in (view.stops, *view.others.values()) for stop in run)))


def _frame(plot: Plot, marks: Sequence[float], ink: str, title: str) -> list[str]:
    parts = [f'<text x="{plot.left:.0f}" y="{plot.upper - 10:.0f}" font-weight="bold">{escape(title)}</text>']
    for mark in marks:
        y = plot.y(mark)
        parts.append(f'<path d="M{plot.left:.0f} {y:.1f}H{plot.right:.0f}" stroke="{ink}" stroke-opacity="0.15"/>')
        parts.append(f'<text x="{plot.left - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{mark:.3g}</text>')
    return parts


def _curve(spots: Sequence[tuple[float, float]], colour: str, dash: str) -> list[str]:
    way = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    width = 1.4 if dash else 2.2
    return [f'<path d="M{way}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>']


def _marked(plot: Plot, view: CurvesView, spot: tuple[float, float], colour: str, label: str) -> list[str]:
    """The stop as a vertical line with its value, which stays inside of the plot."""
    x, y = spot
    side = ("end", -8) if x > (plot.left + plot.right) / 2 else ("start", 8)
    up = y - 8 if y - 8 > plot.upper + 12 else y + 18
    return [
        f'<path d="M{x:.1f} {plot.upper:.0f}V{plot.lower:.0f}" stroke="{GREY}" stroke-width="1"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>',
        f'<text x="{x + side[1]:.1f}" y="{up:.1f}" text-anchor="{side[0]}" font-weight="bold">{label}</text>',
    ]


def _names(x: float, ends: Mapping[str, End]) -> list[str]:
    """A piece of each curve with its name, beside the end of the curve, moved apart where they would meet."""
    parts, lowest = [], 0.0
    for name, end in sorted(ends.items(), key=lambda item: item[1].y):
        lowest = max(end.y, lowest + 14.0)
        parts += _curve([(x, lowest), (x + 20, lowest)], end.colour, end.dash)
        weight = "" if end.dash else ' font-weight="bold"'
        parts.append(f'<text x="{x + 26:.0f}" y="{lowest + 4:.1f}"{weight}>{escape(name)}</text>')
    return parts


def _told(view: CurvesView) -> str:
    curve = ", ".join(f"step {s.step} loss {s.loss:.3f} tokens {s.mal:.3f}" for s in view.stops)
    depths = zip(view.coverage, view.drafter, view.stops[view.place].acceptance, strict=True)
    bars = ", ".join(f"depth {d} pool {c:.2f} drafter {m:.2f} Weaver {w:.2f}" for d, (c, m, w) in enumerate(depths, 1))
    return f"Along the training: {curve}. By depth: {bars}."
