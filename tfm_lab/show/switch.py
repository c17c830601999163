"""Several pictures behind one switch, each made when it is first asked for."""

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from tfm_lab.show.picture import Picture


class PictureSwitch(widgets.VBox):
    """Buttons that choose a picture; elsewhere the SVG of the present one.

    Args:
        makers: by the name on the button, a function that makes the picture. The first one is shown at once.
        label: in front of the buttons.

    Raises:
        ValueError: if there are no pictures.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Picture]], label: str) -> None:
        if not makers:
            raise ValueError("a switch needs at least one picture")
        self._makers, self._made = dict(makers), dict[str, Picture]()
        self._switch = widgets.ToggleButtons(options=list(makers), description=label)
        self._drawing, self._words = widgets.HTML(), widgets.HTML()
        self._switch.observe(lambda _: self._refresh(), "value")
        super().__init__([self._switch, self._drawing, self._words])
        self._refresh()

    @property
    def picture(self) -> Picture:
        """The picture that is shown."""
        name = str(self._switch.value)
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def choose(self, name: str) -> None:
        """Show another picture.

        Raises:
            ValueError: if there is no such picture.
        """
        if name not in self._makers:
            raise ValueError(f"there is no picture {name!r}; use one of {', '.join(self._makers)}")
        self._switch.value = name

    def _refresh(self) -> None:
        self._drawing.value = self.picture.svg
        self._words.value = f'<div role="status" style="font-size:12px">{self._switch.value}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = {"image/svg+xml": self.picture.svg, "text/plain": self.picture.description}
        return dict(data or {}) | still, metadata
