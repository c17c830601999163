"""Trainings side by side: what falls is the loss, what counts is the length of the accepted text.

``CurvesState`` keeps the stops of every training and what is chosen among them; ``LiveCurves`` shows them while they
come, ``CurvesExplorer`` when they are there. The picture is in ``training_curves_picture``. Nothing is trained here.
"""

from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets
import traitlets

from tfm_lab.lessons.training_curves_picture import CurvesView, curves_svg
from tfm_lab.lessons.weaver_training import Stop
from tfm_lab.show.picture import Picture
from tfm_lab.show.style import INK, PAPER

LOSSES = {"lk": "LK mixture", "kl": "KL", "tv": "TV", "ce": "CE"}
SWITCH = {"honest path": False, "answer leaks": True}


class Drafted(NamedTuple):
    """What the frozen drafter reaches by itself.

    Attributes:
        chain, ddtree: expected tokens per target call.
        acceptance, coverage: by depth, of drafts from its marginals and of the pool that it chooses.
    """

    chain: float
    ddtree: float
    acceptance: tuple[float, ...]
    coverage: tuple[float, ...]


class CurvesState(traitlets.HasTraits):
    """The chosen loss, whether the answer leaks, and the place of the stop along the training."""

    objective = traitlets.Enum(tuple(LOSSES), default_value="lk")
    leaks = traitlets.Bool(False)
    place = traitlets.Int(0, min=0)
    changes = traitlets.Int(0)

    def __init__(self, drafted: Drafted) -> None:
        super().__init__()
        self.drafted = drafted
        self.runs: dict[tuple[str, bool], list[Stop]] = {}

    def begin(self, objective: str, leaks: bool) -> None:
        """Choose a training that starts anew."""
        self.runs[objective, leaks] = []
        self.objective, self.leaks = objective, leaks

    def add(self, stop: Stop) -> None:
        """Add a stop to the chosen training, and go to it."""
        run = self.runs[self.objective, self.leaks]
        run.append(stop)
        self.place = len(run) - 1
        self.changes += 1

    @property
    def run(self) -> list[Stop]:
        """Stops of the chosen training.

        Raises:
            ValueError: if it has not been trained.
        """
        run = self.runs.get((self.objective, self.leaks), [])
        if not run:
            raise ValueError(f"there is no training with {LOSSES[self.objective]} yet: run the cells above first")
        return run

    @property
    def stop(self) -> Stop:
        """The chosen stop; the last one if the place lies beyond it."""
        return self.run[min(self.place, len(self.run) - 1)]

    def name(self) -> str:
        """The chosen training in words."""
        return f"{LOSSES[self.objective]}, {next(name for name, leaks in SWITCH.items() if leaks is self.leaks)}"

    def describe(self) -> str:
        """The picture in words."""
        stop, drafted = self.stop, self.drafted
        verdict = "longer" if stop.mal > drafted.ddtree else "shorter"
        return (
            f"{self.name()}, step {stop.step} of {self.run[-1].step}: the training loss is {stop.loss:.3f}, and the "
            f"Weaver's tree gives {stop.mal:.3f} tokens per target call, {verdict} than DDTree's {drafted.ddtree:.3f} "
            f"(chain {drafted.chain:.3f}). After a token the Weaver expects the same token again with "
            f"{stop.echo:.1%}."
        )

    def view(self) -> CurvesView:
        """What the picture shows."""
        others = {
            LOSSES[objective]: run
            for (objective, leaks), run in self.runs.items()
            if leaks is self.leaks and objective != self.objective and run
        }
        drafted = self.drafted
        return CurvesView(
            self.name(), self.run, self.run.index(self.stop), others, drafted.chain, drafted.ddtree,
            drafted.acceptance, drafted.coverage, self.describe(),
        )  # fmt: skip


class LiveCurves(widgets.VBox):
    """The curves of the training that runs; elsewhere a line that says where the finished ones are.

    Args:
        state: where the stops come in.
        leaks: which trainings to follow.
    """

    WORDS = "The curves grow here while the trainings run. The finished ones stand below."

    def __init__(self, state: CurvesState, *, leaks: bool) -> None:
        self._picture, self._words = widgets.HTML(), widgets.HTML(f'<div role="status">{self.WORDS}</div>')
        self._state, self._leaks = state, leaks
        state.observe(lambda _: self._refresh(), "changes")
        super().__init__([_scrolled(self._picture), self._words])

    def _refresh(self) -> None:
        if self._state.leaks is not self._leaks:
            return
        self._picture.value = curves_svg(self._state.view(), standalone=False)
        self._words.value = f'<div role="status">{escape(self._state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 640 44" width="640" height="44" '
            f'font-family="sans-serif" font-size="13" fill="{INK}"><title>Live curves</title><desc>{self.WORDS}</desc>'
            f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/><text x="14" y="27">{self.WORDS}</text></svg>'
        )
        return dict(data or {}) | {"image/svg+xml": svg, "text/plain": self.WORDS}, metadata


class CurvesExplorer(widgets.VBox):
    """Buttons for loss and leak, a slider over the stops, picture and words; elsewhere the SVG."""

    def __init__(self, state: CurvesState) -> None:
        self.state = state
        chosen = next(name for name, leaks in SWITCH.items() if leaks is state.leaks)
        options = [(name, key) for key, name in LOSSES.items()]
        self._loss = widgets.ToggleButtons(options=options, value=state.objective, description="loss")
        self._leak = widgets.ToggleButtons(options=list(SWITCH), value=chosen, description="path")
        steps = [(str(stop.step), place) for place, stop in enumerate(state.run)]
        self._place = widgets.SelectionSlider(
            options=steps, value=min(state.place, len(steps) - 1), description="after step",
            layout=widgets.Layout(width="420px"),
        )  # fmt: skip
        for buttons in (self._loss, self._leak):
            buttons.style.button_width = "110px"
        self._picture, self._words = widgets.HTML(), widgets.HTML()
        self._loss.observe(lambda change: setattr(state, "objective", change["new"]), "value")
        self._leak.observe(lambda change: setattr(state, "leaks", SWITCH[change["new"]]), "value")
        self._place.observe(lambda change: setattr(state, "place", change["new"]), "value")
        state.observe(lambda _: self._refresh(), ["objective", "leaks", "place"])
        super().__init__([self._loss, self._leak, self._place, _scrolled(self._picture), self._words])
        self._refresh()

    def _refresh(self) -> None:
        state = self.state
        self._loss.value, self._place.value = state.objective, min(state.place, len(state.run) - 1)
        self._leak.value = next(name for name, leaks in SWITCH.items() if leaks is state.leaks)
        self._picture.value = curves_svg(state.view(), standalone=False)
        self._words.value = f'<div role="status">{escape(state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = {"image/svg+xml": curves_svg(self.state.view()), "text/plain": self.state.describe()}
        return dict(data or {}) | still, metadata


def curves_picture(state: CurvesState) -> Picture:
    """The picture of the chosen training alone, without controls."""
    return Picture(curves_svg(state.view()), state.describe())


def _scrolled(child: widgets.Widget) -> widgets.Box:
    return widgets.Box([child], layout=widgets.Layout(overflow="auto", max_width="100%"))
