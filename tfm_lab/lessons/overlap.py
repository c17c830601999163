"""Drag the drafter's bars: the overlap with the target is the acceptance rate, and what is emitted stays the target.

``OverlapState`` knows the drafter's weights and which step is used; ``OverlapExplorer`` wires it to sliders.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets
import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import total_variation
from tfm_lab.lessons.exercises_01 import STEPS, StepLaw, step_law
from tfm_lab.show.picture import Picture
from tfm_lab.show.style import BLUE, GREEN, INK, ORANGE, PAPER, PURPLE

SLOT, BAR, BASE, TOP, LEFT, PANEL = 46.0, 30.0, 190.0, 50.0, 24.0, 30.0


class Seen(NamedTuple):
    """What the picture shows.

    Attributes:
        p, q: target and drafter.
        law: of the step.
        acceptance: share of accepted drafts.
        bias: total variation distance between the emitted token and p.
    """

    p: Tensor
    q: Tensor
    law: StepLaw
    acceptance: float
    bias: float


class OverlapState(traitlets.HasTraits):
    """The drafter and the step; ``step`` is a key of ``STEPS``, ``weights`` are the drafter's, on any scale."""

    weights = traitlets.Tuple()
    step = traitlets.Enum(list(STEPS), default_value=next(iter(STEPS)))

    def __init__(self, target: Float[Tensor, " vocab"], weights: Sequence[float]) -> None:
        if len(weights) != len(target):
            raise ValueError(f"the target has {len(target)} tokens and the drafter {len(weights)}")
        super().__init__()
        self.target = target
        self.weights = tuple(map(float, weights))

    def seen(self) -> Seen:
        """Everything about the present drafter and step, exactly."""
        q = torch.tensor(self.weights, dtype=torch.float64)
        q = q / q.sum() if bool(q.sum() > 0) else torch.full_like(q, 1 / len(q))
        law = step_law(STEPS[self.step], self.target, q)
        bias = float(total_variation(law.emitted, self.target))
        return Seen(self.target, q, law, float(law.accepted.sum()), bias)

    def describe(self) -> str:
        """The picture in words."""
        seen = self.seen()
        verdict = "lossless" if seen.bias <= 1e-12 else f"biased by TV = {seen.bias:.3f}"
        overlap = 1.0 - float(total_variation(seen.p, seen.q))
        return (
            f"Step '{self.step}': {seen.acceptance:.1%} of the drafts are accepted (overlap {overlap:.1%}); "
            f"the emitted token is {verdict}."
        )


class OverlapExplorer(widgets.VBox):
    """Sliders for the drafter, a switch for the step, and the picture; elsewhere its SVG.

    Args:
        state: what to show.
        tokens: names of the tokens.
    """

    def __init__(self, state: OverlapState, tokens: Sequence[str]) -> None:
        self.state, self.tokens = state, tuple(tokens)
        narrow = widgets.Layout(width="330px")
        self._sliders = [
            widgets.FloatSlider(weight, min=0.0, max=1.0, step=0.05, description=f"q({token})", layout=narrow)
            for token, weight in zip(tokens, state.weights, strict=True)
        ]
        self._switch = widgets.ToggleButtons(options=list(STEPS), value=state.step, description="step")
        self._picture, self._words = widgets.HTML(), widgets.HTML()
        for slider in self._sliders:
            slider.observe(lambda _: self._move(), "value")
        self._switch.observe(lambda change: setattr(state, "step", change["new"]), "value")
        state.observe(lambda _: self._refresh(), ["weights", "step"])
        side = widgets.Box([widgets.VBox(self._sliders), self._picture], layout=widgets.Layout(flex_flow="row wrap"))
        super().__init__([self._switch, side, self._words])
        self._refresh()

    def _move(self) -> None:
        self.state.weights = tuple(slider.value for slider in self._sliders)

    def _refresh(self) -> None:
        with self.hold_trait_notifications():
            for slider, weight in zip(self._sliders, self.state.weights, strict=True):
                slider.value = weight
            self._switch.value = self.state.step
        self._picture.value = overlap_svg(self.state, self.tokens, standalone=False)
        self._words.value = f'<div role="status">{escape(self.state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = {"image/svg+xml": overlap_svg(self.state, self.tokens), "text/plain": self.state.describe()}
        return dict(data or {}) | still, metadata


def overlap_picture(state: OverlapState, tokens: Sequence[str]) -> Picture:
    """The picture alone, without sliders."""
    return Picture(overlap_svg(state, tokens), state.describe())


def overlap_svg(state: OverlapState, tokens: Sequence[str], *, standalone: bool = True) -> str:
    """Left p and q over each other, what is accepted filled; right what is emitted, with p around it.

    Args:
        standalone: on a light background, for outputs; otherwise in the colour of the surrounding text.
    """
    seen, ink = state.seen(), INK if standalone else "currentColor"
    emitted = seen.law.emitted
    panel = max(LEFT + SLOT * len(tokens) + PANEL, 300.0)
    width, height = 2 * panel + 10, BASE + 72
    scale = (BASE - TOP) / max(float(torch.stack([seen.p, seen.q, emitted]).max()), 1e-9)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}">',
        "<title>Overlap of target and drafter, and what is emitted</title>",
        f"<desc>{escape(state.describe())}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    fixed = "lossless" if seen.bias <= 1e-12 else f"TV to the target {seen.bias:.3f}"
    titles = (f"accepted: {seen.acceptance:.1%} of the drafts", f"emitted: {fixed}")
    for index, title in enumerate(titles):
        parts.append(f'<text x="{LEFT + index * panel:.0f}" y="24" font-size="14" font-weight="bold">{title}</text>')
    rows = zip(tokens, seen.p.tolist(), seen.q.tolist(), seen.law.accepted.tolist(), emitted.tolist(), strict=True)
    for place, (token, p, q, accepted, out) in enumerate(rows):
        left = LEFT + SLOT * place
        parts.append(_bar(left, accepted * scale, f'fill="{GREEN}" fill-opacity="0.55"'))
        parts.append(
            _bar(left, q * scale, f'fill="none" stroke="{ORANGE}" stroke-width="2" stroke-dasharray="5 3"', BAR - 8)
        )
        parts.append(_bar(left, p * scale, f'fill="none" stroke="{BLUE}" stroke-width="2"'))
        parts.append(_bar(left + panel, out * scale, f'fill="{PURPLE}" fill-opacity="0.45"'))
        parts.append(_bar(left + panel, p * scale, f'fill="none" stroke="{BLUE}" stroke-width="2"'))
        for x in (left, left + panel):
            parts.append(f'<text x="{x + BAR / 2:.0f}" y="{BASE + 16:.0f}" text-anchor="middle">{escape(token)}</text>')
    return "\n".join([*parts, *_legend(panel, ink), "</svg>"])


def _bar(x: float, height: float, look: str, width: float = BAR) -> str:
    left, top = x + (BAR - width) / 2, BASE - height
    return f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.0f}" height="{height:.1f}" {look}/>'


def _legend(panel: float, ink: str) -> list[str]:
    keys = (
        (LEFT, f'fill="none" stroke="{BLUE}" stroke-width="2"', "target p"),
        (LEFT + 86, f'fill="none" stroke="{ORANGE}" stroke-width="2" stroke-dasharray="5 3"', "drafter q"),
        (LEFT + 178, f'fill="{GREEN}" fill-opacity="0.55"', "accepted"),
        (LEFT + panel, f'fill="none" stroke="{BLUE}" stroke-width="2"', "target p"),
        (LEFT + panel + 86, f'fill="{PURPLE}" fill-opacity="0.45"', "emitted"),
    )
    y = BASE + 40
    line = f'<path d="M{LEFT - 6:.0f} {BASE:.0f} H{2 * panel:.0f}" stroke="{ink}" stroke-opacity="0.4"/>'
    boxes = [f'<rect x="{x:.0f}" y="{y:.0f}" width="12" height="12" {look}/>' for x, look, _ in keys]
    return [line, *boxes, *(f'<text x="{x + 18:.0f}" y="{y + 10:.0f}">{name}</text>' for x, _, name in keys)]
