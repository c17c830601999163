"""Predict, then reveal: sliders for guesses that a later cell puts beside the truth."""

from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as widgets

from tfm_lab.show.style import INK, PAPER


class Guesses(widgets.VBox):
    """One slider per quantity.

    Args:
        question: what is to be guessed.
        names: key and title of each quantity.
        lowest, highest: range of all sliders; they start at the highest value.
        step: from one value of a slider to the next; whole numbers by default.
    """

    def __init__(self, question: str, names: Mapping[str, str], lowest: float, highest: float, step: float = 1) -> None:
        layout = widgets.Layout(width="480px")
        label = {"description_width": f"{9 * max(map(len, names.values()), default=0)}px"}
        self.question = question
        self._start = highest
        make = widgets.IntSlider if step == 1 else widgets.FloatSlider
        self._sliders = {
            key: make(
                highest,
                min=lowest,
                max=max(highest, lowest + 1),
                step=step,
                description=title,
                layout=layout,
                style=label,
            )
            for key, title in names.items()
        }
        super().__init__([widgets.Label(question), *self._sliders.values()])

    @property
    def values(self) -> dict[str, float] | None:
        """The guesses by key; ``None`` as long as no slider has been moved."""
        guesses = {key: slider.value for key, slider in self._sliders.items()}
        return guesses if any(guess != self._start for guess in guesses.values()) else None

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return dict(data or {}) | {"image/svg+xml": self._svg(), "text/plain": self._words()}, metadata

    def _words(self) -> str:
        titles = ", ".join(slider.description for slider in self._sliders.values())
        return f"{self.question} ({titles}; the sliders need a running kernel)"

    def _svg(self) -> str:
        lines = [self.question, *(f"{s.description}: ?" for s in self._sliders.values())]
        height = 20 + 22 * len(lines)
        texts = "".join(f'<text x="14" y="{28 + 22 * i}">{escape(line)}</text>' for i, line in enumerate(lines))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 640 {height}" width="640" '
            f'height="{height}" font-family="sans-serif" font-size="13" fill="{INK}"><title>Your guess</title>'
            f'<desc>{escape(self._words())}</desc><rect width="100%" height="100%" rx="6" fill="{PAPER}"/>{texts}</svg>'
        )
