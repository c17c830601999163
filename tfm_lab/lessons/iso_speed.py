"""Accepted length against step cost: lines of equal speed, the paper's points on them, and a point of one's own.

``IsoSpeedState`` knows the points; ``IsoSpeedExplorer`` wires it to sliders. Step costs are in plain steps of the
paper, so that the speed-up over plain decoding is the slope of a point.
"""

from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets
import traitlets

from tfm_lab.planning import break_even_mal, step_ratio
from tfm_lab.planning.published import (
    LENGTH_GAIN,
    LENGTH_GAIN_OVER_DDTREE,
    RATES,
    SPEED_GAIN,
    SPEED_GAINS_OVER_DDTREE,
    chain_length_if_verification_is_the_kernel,
    other_kernel_extra_seconds,
    plain_step_seconds,
)
from tfm_lab.show.picture import Picture
from tfm_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER, PURPLE

KERNELS = ("fused kernel", "state per node")
LEFT, RIGHT, TOP, BOTTOM, MOST_STEP, MOST_MAL = 54.0, 600.0, 44.0, 370.0, 4.0, 15.0
SPEEDS = (1, 2, 3, 4, 5)


class Point(NamedTuple):
    """A way to decode: cost of a step in plain steps, and MAL."""

    step: float
    mal: float

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.mal / self.step


class IsoSpeedState(traitlets.HasTraits):
    """One's own MAL and step cost, the chain's MAL (which the paper does not give), and the kernel of the trees."""

    mal = traitlets.Float(3.0, min=1.0, max=MOST_MAL)
    step = traitlets.Float(2.0, min=1.0, max=MOST_STEP)
    chain_mal = traitlets.Float(round(chain_length_if_verification_is_the_kernel(), 1), min=3.6, max=8.0)
    kernel = traitlets.Enum(KERNELS, default_value=KERNELS[0])

    @property
    def own(self) -> Point:
        return Point(self.step, self.mal)

    def published(self) -> dict[str, Point]:
        """Plain decoding, the chain and TfM; all of the paper's speeds hold whatever the chain's MAL is."""
        chain = Point(self.chain_mal * RATES["ar"].value / RATES["chain"].value, self.chain_mal)
        ratio = step_ratio(LENGTH_GAIN.value, SPEED_GAIN.value)
        tfm = Point(chain.step * ratio + self._extra(), chain.mal * (1.0 + LENGTH_GAIN.value))
        return {"plain": Point(1.0, 1.0), "DFlash chain": chain, "TfM": tfm}

    def ddtree(self) -> tuple[Point, Point]:
        """DDTree with as many nodes, from its slowest to its fastest data set: its speed is reported as a range."""
        tfm = self.published()["TfM"]
        mal = tfm.mal / (1.0 + LENGTH_GAIN_OVER_DDTREE.value)
        fast, slow = (
            mal / (tfm.mal / (tfm.step - self._extra()) / (1.0 + gain.value)) for gain in SPEED_GAINS_OVER_DDTREE
        )
        return Point(slow + self._extra(), mal), Point(fast + self._extra(), mal)

    def describe(self) -> str:
        """The picture in words."""
        chain, tfm = (self.published()[name] for name in ("DFlash chain", "TfM"))
        against_chain = break_even_mal(self.step, chain.step, chain.mal)
        verdict = "faster" if tfm.speedup > chain.speedup else "slower"
        return (
            f"Your step gives {self.mal:.1f} tokens and costs {self.step:.2f} plain steps: "
            f"{self.own.speedup:.2f} times plain decoding. At this cost you need a MAL of {self.step:.2f} to match "
            f"plain decoding and {against_chain:.2f} to match the chain. The paper, if its chain has a MAL of "
            f"{self.chain_mal:.1f}: chain {chain.step:.2f} plain steps, {chain.speedup:.2f} times; TfM ({self.kernel}) "
            f"{tfm.mal:.1f} tokens in {tfm.step:.2f}, {tfm.speedup:.2f} times, {verdict} than the chain."
        )

    def _extra(self) -> float:
        return other_kernel_extra_seconds() / plain_step_seconds() if self.kernel == KERNELS[1] else 0.0


class IsoSpeedExplorer(widgets.VBox):
    """Sliders and a switch over the picture; elsewhere its SVG."""

    def __init__(self, state: IsoSpeedState) -> None:
        self.state = state
        self._sliders = {
            "mal": _slider("your MAL", state.mal, 1.0, MOST_MAL, 0.1),
            "step": _slider("your step cost", state.step, 1.0, MOST_STEP, 0.05),
            "chain_mal": _slider("chain's MAL", state.chain_mal, 3.6, 8.0, 0.1),
        }
        self._kernel = widgets.ToggleButtons(options=list(KERNELS), value=state.kernel, description="trees use")
        self._picture, self._words = widgets.HTML(), widgets.HTML()
        for name, control in (*self._sliders.items(), ("kernel", self._kernel)):
            control.observe(lambda change, name=name: setattr(state, name, change["new"]), "value")
        state.observe(lambda _: self._refresh(), ["mal", "step", "chain_mal", "kernel"])
        scrolled = widgets.Box([self._picture], layout=widgets.Layout(overflow="auto", max_width="100%"))
        super().__init__([*self._sliders.values(), self._kernel, scrolled, self._words])
        self._refresh()

    def _refresh(self) -> None:
        for name, slider in self._sliders.items():
            slider.value = getattr(self.state, name)
        self._kernel.value = self.state.kernel
        self._picture.value = iso_speed_svg(self.state, standalone=False)
        self._words.value = f'<div role="status">{escape(self.state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = {"image/svg+xml": iso_speed_svg(self.state), "text/plain": self.state.describe()}
        return dict(data or {}) | still, metadata


def iso_speed_picture(state: IsoSpeedState) -> Picture:
    """The picture alone, without sliders."""
    return Picture(iso_speed_svg(state), state.describe())


def iso_speed_svg(state: IsoSpeedState, *, standalone: bool = True) -> str:
    """MAL upwards, step cost to the right; a line through the origin for every whole speed-up.

    Args:
        standalone: on a light background, for outputs; otherwise in the colour of the surrounding text.
    """
    ink, width, height = INK if standalone else "currentColor", RIGHT + 70, BOTTOM + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}">',
        "<title>Accepted length against step cost</title>",
        f"<desc>{escape(state.describe())}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    title = "equal speed lies on lines through the corner"
    parts.append(f'<text x="14" y="24" font-size="14" font-weight="bold">{title}</text>')
    parts += _axes(ink)
    parts += [part for speed in SPEEDS for part in _line(float(speed), ink)]
    slow, fast = state.ddtree()
    (x1, y), (x2, _) = _place(slow), _place(fast)
    parts.append(f'<path d="M{x1:.1f} {y:.1f} H{x2:.1f}" stroke="{ORANGE}" stroke-width="5" stroke-linecap="round"/>')
    halo = PAPER if standalone else "var(--jp-layout-color0, transparent)"
    parts.append(_label(max(x1, x2) + 9, y + 4, "DDTree (range)", halo))
    looks = {"plain": (GREY, "square"), "DFlash chain": (BLUE, "circle"), "TfM": (GREEN, "circle")}
    for name, point in state.published().items():
        parts += _mark(point, f"{name} {point.speedup:.2f}x", *looks[name], halo)
    parts += _mark(state.own, f"you {state.own.speedup:.2f}x", PURPLE, "diamond", halo)
    return "\n".join([*parts, "</svg>"])


def _slider(name: str, value: float, low: float, high: float, step: float) -> widgets.FloatSlider:
    layout, style = widgets.Layout(width="460px"), {"description_width": "100px"}
    return widgets.FloatSlider(value, min=low, max=high, step=step, description=name, layout=layout, style=style)


def _place(point: Point) -> tuple[float, float]:
    x = LEFT + (RIGHT - LEFT) * min(point.step, MOST_STEP) / MOST_STEP
    return x, BOTTOM - (BOTTOM - TOP) * min(point.mal, MOST_MAL) / MOST_MAL


def _axes(ink: str) -> list[str]:
    parts = [f'<path d="M{LEFT:.0f} {TOP:.0f} V{BOTTOM:.0f} H{RIGHT:.0f}" fill="none" stroke="{ink}"/>']
    for step in range(int(MOST_STEP) + 1):
        x, _ = _place(Point(step, 0))
        parts.append(f'<text x="{x:.0f}" y="{BOTTOM + 17:.0f}" text-anchor="middle">{step}</text>')
    for mal in range(0, int(MOST_MAL) + 1, 3):
        _, y = _place(Point(0, mal))
        parts.append(f'<text x="{LEFT - 8:.0f}" y="{y + 4:.0f}" text-anchor="end">{mal}</text>')
    words = "up: tokens per step (MAL); right: cost of a step, in plain steps"
    return [*parts, f'<text x="{LEFT:.0f}" y="{BOTTOM + 38:.0f}">{words}</text>']


def _line(speed: float, ink: str) -> list[str]:
    """From the corner to where it leaves the picture."""
    step = min(MOST_STEP, MOST_MAL / speed)
    x, y = _place(Point(step, step * speed))
    dy = -5 if step < MOST_STEP else 4
    return [
        f'<path d="M{LEFT:.0f} {BOTTOM:.0f} L{x:.1f} {y:.1f}" stroke="{ink}" stroke-opacity="0.35"/>',
        f'<text x="{x + (4 if step == MOST_STEP else 0):.1f}" y="{y + dy:.1f}">{speed:g}x</text>',
    ]


def _mark(point: Point, label: str, colour: str, shape: str, halo: str) -> list[str]:
    x, y = _place(point)
    if shape == "square":
        drawn = f'<rect x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12" fill="{colour}"/>'
    elif shape == "diamond":
        drawn = f'<path d="M{x:.1f} {y - 8:.1f} l8 8 l-8 8 l-8 -8 Z" fill="{colour}"/>'
    else:
        drawn = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="{colour}"/>'
    below = 18.0 if shape == "diamond" else 4.0  # one's own point is often close to a published one
    return [drawn, _label(x + 12, y + below, label, halo)]


def _label(x: float, y: float, text: str, halo: str) -> str:
    """Bold text that lines behind it do not cross: it has a rim in the colour of the ground."""
    rim = f"paint-order:stroke;stroke:{halo};stroke-width:4px;stroke-linejoin:round"
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="bold" style="{rim}">{escape(text)}</text>'
