"""A player: step through frames (trees, text, figures) with slider, buttons or keys, switching between tracks.

State and view are apart. ``PlayerState`` knows which track and frame are shown and changes only through its methods;
``Player`` wires it to core ipywidgets and, where plotly's widgets work, to one FigureWidget that is updated in place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets
import traitlets

from tfm_lab.show.live import TreeFigure, close_all, has_live_front_end, page_colours, replace_open
from tfm_lab.show.svg import tree_svg
from tfm_lab.show.views import TreeView

SPACED = 'style="border-collapse:separate;border-spacing:14px 0;text-align:left"'


@dataclass(frozen=True, slots=True)
class Frame:
    """One moment.

    Attributes:
        view: the tree to draw.
        caption: HTML above the tree (text so far, counters).
        side: HTML beside it (a table, a frontier), may be empty.
    """

    view: TreeView
    caption: str
    side: str = ""


class PlayerState(traitlets.HasTraits):
    """Which frame of which track is shown. ``index`` always lies inside the track."""

    track = traitlets.Unicode()
    index = traitlets.Int(0)

    def __init__(self, tracks: Mapping[str, Sequence[Frame]]) -> None:
        if not tracks or any(not frames for frames in tracks.values()):
            raise ValueError("a player needs at least one track, and every track at least one frame")
        super().__init__()
        self.tracks = {name: tuple(frames) for name, frames in tracks.items()}
        self.track = next(iter(self.tracks))

    @property
    def frames(self) -> tuple[Frame, ...]:
        return self.tracks[self.track]

    @property
    def frame(self) -> Frame:
        return self.frames[self.index]

    def go(self, index: int) -> None:
        """Show a frame; past either end the nearest one."""
        self.index = max(0, min(index, len(self.frames) - 1))

    def choose(self, track: str) -> None:
        """Switch to another track, keeping the place as far as that track is long.

        Raises:
            ValueError: if there is no such track.
        """
        if track not in self.tracks:
            raise ValueError(f"there is no track {track!r}; use one of {', '.join(self.tracks)}")
        with self.hold_trait_notifications():
            self.index = min(self.index, len(self.tracks[track]) - 1)
            self.track = track

    def describe(self) -> str:
        """Where we are and what is seen, in words."""
        return f"{self.track}, {self.index + 1} of {len(self.frames)}. {self.frame.view.description}"


class Player(widgets.VBox):
    """Step through frames. Live in JupyterLab and Notebook; elsewhere its SVG of the current frame is shown.

    Args:
        tracks: frames by the name of their track; with one track there is no switch.
        backend: ``svg`` (works everywhere), ``plotly`` (hovering; needs a front end with anywidget), or ``auto``.
        key: players with the same key replace each other, so that running a cell again leaves none behind.

    Raises:
        ValueError: for an empty track or an unknown backend.
    """

    def __init__(self, tracks: Mapping[str, Sequence[Frame]], *, backend: str = "auto", key: str | None = None) -> None:
        if backend not in ("auto", "svg", "plotly"):
            raise ValueError(f"backend must be 'auto', 'svg' or 'plotly', got {backend!r}")
        self.state = PlayerState(tracks)
        uses_plotly = backend == "plotly" or (backend == "auto" and has_live_front_end())
        self._figure = TreeFigure(self.state.frame.view) if uses_plotly else None
        self._picture = widgets.HTML()
        self._caption = widgets.HTML()
        self._side = widgets.HTML()
        self._table = widgets.HTML()
        self._words = widgets.HTML()
        self._switch = widgets.ToggleButtons(options=list(self.state.tracks), description="method")
        self._slider = widgets.IntSlider(description="step", min=1, readout=True, layout=widgets.Layout(width="420px"))
        self._back = widgets.Button(description="◀ back", tooltip="previous step")
        self._next = widgets.Button(description="next ▶", tooltip="next step")
        self._as_table = widgets.Checkbox(description="show as table", indent=False)
        self._wire()
        controls: list[widgets.Widget] = [widgets.HBox([self._back, self._next, self._slider, self._as_table])]
        if len(self.state.tracks) > 1:
            controls.insert(0, self._switch)
        drawing = self._figure.widget if self._figure is not None else self._picture
        scrolled = widgets.Box([drawing], layout=widgets.Layout(overflow="auto", max_width="100%"))
        beside = widgets.Box([scrolled, self._side], layout=widgets.Layout(flex_flow="row wrap", width="100%"))
        super().__init__([page_colours(), *controls, self._caption, beside, self._table, self._words])
        self._refresh()
        if key is not None:
            replace_open(key, self)

    def dismiss(self) -> None:
        """Close the player and every widget in it."""
        close_all(self)

    def _wire(self) -> None:
        self._back.on_click(lambda _: self.state.go(self.state.index - 1))
        self._next.on_click(lambda _: self.state.go(self.state.index + 1))
        self._slider.observe(lambda change: self.state.go(change["new"] - 1), "value")
        self._switch.observe(lambda change: self.state.choose(change["new"]), "value")
        self._as_table.observe(lambda _: self._refresh(), "value")
        self.state.observe(lambda _: self._refresh(), ["track", "index"])

    def _refresh(self) -> None:
        state = self.state
        self._slider.max = len(state.frames)
        self._slider.value = state.index + 1
        self._switch.value = state.track
        self._back.disabled, self._next.disabled = state.index == 0, state.index == len(state.frames) - 1
        self._caption.value, self._side.value = state.frame.caption, state.frame.side
        self._table.value = view_table(state.frame.view) if self._as_table.value else ""
        self._words.value = f'<div role="status">{escape(state.describe())}</div>'
        if self._figure is None:
            self._picture.value = tree_svg(state.frame.view, standalone=False)
        else:
            self._figure.show(state.frame.view)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data = dict(data or {}) | {
            "image/svg+xml": tree_svg(self.state.frame.view),
            "text/plain": self.state.describe(),
        }
        return data, metadata


def view_table(view: TreeView) -> str:
    """The nodes of a view as an HTML table."""
    rows = "".join(
        f"<tr><td>{index}</td><td>{escape(node.label)}</td><td>{'' if node.parent < 0 else node.parent}</td>"
        f"<td>{node.x:g}</td><td>{escape(node.role.value)}</td><td>{escape(node.detail)}</td></tr>"
        for index, node in enumerate(view.nodes)
    )
    heads = "".join(f'<th scope="col">{h}</th>' for h in ("node", "token", "parent", "depth", "part", "probability"))
    caption = f"<caption>{escape(view.description)}</caption>"
    return f"<table {SPACED}>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
