"""Two siblings write into one memory of two by two: swap them, turn one of their keys, and see what is read.

``TwoWritesState`` knows keys, strength and order; ``TwoWritesExplorer`` wires it to sliders.
"""

import math
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets
import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from tfm_lab.lessons.memory_by_hand import update
from tfm_lab.show.matrix import MatrixPanel, draw_panel, number
from tfm_lab.show.picture import Picture
from tfm_lab.show.style import BLUE, INK, PAPER, PURPLE

TRUNK: Float[Tensor, "2 2"] = torch.tensor([[1.0, 0.5], [0.0, 0.0]], dtype=torch.float64)
"""The memory before the siblings: the trunk stored (1, 0.5) under the key (1, 0)."""

VALUES = {
    "A": torch.tensor([0.0, 1.0], dtype=torch.float64),
    "B": torch.tensor([1.0, 1.0], dtype=torch.float64),
}
ORDERS = {"A then B": "AB", "B then A": "BA", "A alone": "A", "B alone": "B"}
STEP, TOP, BARS, BAR, ROW, SCALE = 132.0, 62.0, 450.0, 9.0, 30.0, 78.0


class Write(NamedTuple):
    """One write: whose it is, its update, and the memory after it."""

    who: str
    update: Float[Tensor, " 2"]
    after: Float[Tensor, "2 2"]


class TwoWritesState(traitlets.HasTraits):
    """Angle between the siblings' keys in degrees, writing strength of both, and who writes in which order."""

    angle = traitlets.Float(60.0, min=0.0, max=180.0)
    beta = traitlets.Float(0.8, min=0.0, max=1.0)
    order = traitlets.Enum(list(ORDERS), default_value=next(iter(ORDERS)))

    def key(self, who: str) -> Float[Tensor, " 2"]:
        """A's key is (1, 0); B's is turned by the angle. A right angle is exact."""
        turn = math.radians(self.angle if who == "B" else 0.0)
        cosine = 0.0 if self.angle == 90.0 and who == "B" else math.cos(turn)
        return torch.tensor([cosine, math.sin(turn)], dtype=torch.float64)

    def writes(self, order: str) -> list[Write]:
        """The writes of an order, one after the other, from the trunk's memory; nothing fades."""
        state, done = TRUNK, list[Write]()
        for who in ORDERS[order]:
            change = update(state, self.key(who), VALUES[who], 1.0, self.beta)
            state = state + torch.outer(self.key(who), change)
            done.append(Write(who, change, state))
        return done

    def answers(self) -> dict[str, Float[Tensor, " 2"]]:
        """For every order what the memory then answers to A's key."""
        return {order: self.writes(order)[-1].after.T @ self.key("A") for order in ORDERS}

    def difference(self) -> float:
        """Largest difference between the memories after both writes in the two orders."""
        first, second = (self.writes(order)[-1].after for order in ("A then B", "B then A"))
        return float((first - second).abs().max())

    def describe(self) -> str:
        """The picture in words."""
        told = "; ".join(f"{order} {_vector(answer)}" for order, answer in self.answers().items())
        difference = self.difference()
        verdict = (
            "the order of the two writes makes no difference"
            if difference <= 1e-12
            else f"the two orders leave memories that differ by up to {number(difference)}"
        )
        return (
            f"Keys {self.angle:.0f} degrees apart, beta {self.beta:.2f}, order {self.order}. "
            f"The memory's answer to A's key: {told}. Here {verdict}."
        )


class TwoWritesExplorer(widgets.VBox):
    """Order, angle and strength over the picture; elsewhere its SVG."""

    def __init__(self, state: TwoWritesState) -> None:
        self.state = state
        wide = widgets.Layout(width="420px")
        self._order = widgets.ToggleButtons(options=list(ORDERS), value=state.order, description="order")
        self._angle = widgets.FloatSlider(
            state.angle, min=0.0, max=180.0, step=5.0, readout_format=".0f", description="angle", layout=wide
        )
        self._beta = widgets.FloatSlider(state.beta, min=0.0, max=1.0, step=0.05, description="beta", layout=wide)
        self._picture, self._words = widgets.HTML(), widgets.HTML()
        for name, control in (("order", self._order), ("angle", self._angle), ("beta", self._beta)):
            control.observe(lambda change, name=name: setattr(state, name, change["new"]), "value")
        state.observe(lambda _: self._refresh(), ["order", "angle", "beta"])
        scrolled = widgets.Box([self._picture], layout=widgets.Layout(overflow="auto", max_width="100%"))
        super().__init__([self._order, widgets.HBox([self._angle, self._beta]), scrolled, self._words])
        self._refresh()

    def _refresh(self) -> None:
        self._order.value, self._angle.value, self._beta.value = self.state.order, self.state.angle, self.state.beta
        self._picture.value = two_writes_svg(self.state, standalone=False)
        self._words.value = f'<div role="status">{escape(self.state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = {"image/svg+xml": two_writes_svg(self.state), "text/plain": self.state.describe()}
        return dict(data or {}) | still, metadata


def two_writes_picture(state: TwoWritesState) -> Picture:
    """The picture alone, without sliders."""
    return Picture(two_writes_svg(state), state.describe())


def two_writes_svg(state: TwoWritesState, *, standalone: bool = True) -> str:
    """Left the memory before and after each write, right the answer to A's key for every order.

    Args:
        standalone: on a light background, for outputs; otherwise in the colour of the surrounding text.
    """
    ink, width, height = INK if standalone else "currentColor", BARS + 330, TOP + ROW * len(ORDERS) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}" '
        f'color="{ink}">',
        "<title>Two writes into one memory</title>",
        f"<desc>{escape(state.describe())}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    parts.append(f'<text x="14" y="24" font-size="14" font-weight="bold">order: {state.order}</text>')
    parts += draw_panel(MatrixPanel("S, trunk", TRUNK), 14, TOP).parts
    for place, write in enumerate(state.writes(state.order), start=1):
        x = 14 + STEP * place
        parts.append(f'<path d="M{x - 46:.0f} {TOP + 34:.0f} h34 m-6 -5 l6 5 l-6 5" fill="none" stroke="{ink}"/>')
        parts += draw_panel(MatrixPanel(f"after {write.who}", write.after), x, TOP).parts
        words = (f"k = {_vector(state.key(write.who))}", f"u = {_vector(write.update)}")
        for line, text in enumerate(words):
            parts.append(f'<text x="{x:.0f}" y="{TOP + 80 + 16 * line:.0f}">{text}</text>')
    return "\n".join([*parts, *_answers(state), "</svg>"])


def _answers(state: TwoWritesState) -> list[str]:
    parts = [f'<text x="{BARS:.0f}" y="24" font-size="14" font-weight="bold">answer to A\'s key</text>']
    answers = state.answers()
    largest = max(float(torch.stack(list(answers.values())).abs().max()), 1.0)
    for place, (order, answer) in enumerate(answers.items()):
        y, chosen = TOP - 18 + ROW * place, order == state.order
        weight = ' font-weight="bold"' if chosen else ""
        parts.append(f'<text x="{BARS:.0f}" y="{y + 14:.0f}"{weight}>{"▶ " if chosen else ""}{order}</text>')
        for line, (value, colour) in enumerate(zip(answer.tolist(), (BLUE, PURPLE), strict=True)):
            length = SCALE * abs(value) / largest
            look = f'fill="{colour}" fill-opacity="0.6"' if value >= 0 else f'fill="none" stroke="{colour}"'
            parts.append(
                f'<rect x="{BARS + 84:.0f}" y="{y + line * (BAR + 1):.0f}" width="{length:.1f}" height="{BAR:.0f}" '
                f"{look}/>"
            )
        parts.append(f'<text x="{BARS + 176:.0f}" y="{y + 14:.0f}"{weight}>{_vector(answer)}</text>')
        if order != "A alone" and _same(answer, answers["A alone"]):
            parts.append(f'<text x="{BARS + 262:.0f}" y="{y + 14:.0f}">✓ as A alone</text>')
    y = TOP + ROW * len(ORDERS)
    for line, text in enumerate(("bars: first number blue, second purple;", "hollow bars are negative numbers")):
        parts.append(f'<text x="{BARS:.0f}" y="{y + 16 * line:.0f}">{text}</text>')
    return parts


def _same(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= 1e-12)


def _vector(values: Tensor) -> str:
    return f"({', '.join(number(value) for value in values.tolist())})"
