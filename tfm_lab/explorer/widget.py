"""The explorer's widget: controls, tree, bars, tables and words around an :class:`ExplorerSession`. Wiring only."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import ipywidgets as widgets

from tfm_lab.explorer import reducers
from tfm_lab.explorer.controls import SCROLLED, WRAPPED, button, mode_switch, setting_controls, show_value, stepper
from tfm_lab.explorer.law_picture import law_svg
from tfm_lab.explorer.reducers import Mode, current, leading
from tfm_lab.explorer.scenes import Scene, describe, hides_target, name, node_options, scene
from tfm_lab.explorer.session import ExplorerSession
from tfm_lab.explorer.settings import targets
from tfm_lab.explorer.tables import caption_html, nodes_table, side_html
from tfm_lab.show.live import TreeFigure, close_all, has_live_front_end, page_colours, replace_open
from tfm_lab.show.svg import tree_svg

HIDDEN = "The target's truth is hidden until the budget is spent or no candidate is left."


class TreeExplorer(widgets.VBox):
    """Step through the target calls of a decode and through the growth of each tree. Elsewhere its SVG is shown.

    Args:
        session: what is explored; several explorers may share one.
        backend: ``svg`` (works everywhere), ``plotly`` (hover, click; needs a front end with anywidget), or ``auto``.
        key: explorers with the same key replace each other, so that running a cell again leaves none behind.

    Raises:
        ValueError: for an unknown backend.
    """

    def __init__(
        self, session: ExplorerSession | None = None, *, backend: str = "auto", key: str | None = None
    ) -> None:
        if backend not in ("auto", "svg", "plotly"):
            raise ValueError(f"backend must be 'auto', 'svg' or 'plotly', got {backend!r}")
        self.session = session or ExplorerSession()
        self._uses_plotly = backend == "plotly" or (backend == "auto" and has_live_front_end())
        self._figure: TreeFigure | None = None
        self._is_dismissed = False
        self._refreshing_thread: int | None = None
        self._settings = setting_controls(self.session.state.wanted, targets())
        self._decode = button("Decode", "decode with these settings")
        self._cancel = button("Cancel", "stop after the present target call; what was decoded is shown")
        self._bar = widgets.IntProgress(0, 0, 1, description="tokens", layout={"width": "300px"})
        self._message = widgets.HTML()
        self._mode = mode_switch()
        self._round = stepper("target call", "which target call of the decode")
        self._growth = stepper("growth", "rounds of growth; the last place is the verified tree")
        self._steps = {
            "call back": button("◀ call", "previous target call"),
            "call on": button("call ▶", "next target call"),
            "growth back": button("◀ growth", "previous round of growth"),
            "growth on": button("growth ▶", "next round of growth"),
        }
        self._moves = {
            "parent": button("◀ parent", "select the parent"),
            "child": button("child ▶", "select the first child"),
            "previous": button("▲ above", "select the node of this depth before"),
            "next": button("below ▼", "select the next node of this depth"),
        }
        self._node = widgets.Select(
            rows=8, description="or", layout={"width": "500px", "max_width": "100%"},
            style={"description_width": "50px"},
        )  # fmt: skip
        self._number = stepper("node", "the selected node, by its place in the list")
        self._place = button("place the node", "put the selected candidate into your tree", wide=True)
        self._take_back = button("take back", "take back the node placed last")
        self._clear = button("clear", "take back all nodes")
        self._best = button("best-first", "let best-first growth spend the whole budget")
        self._table = widgets.Checkbox(False, description="show as table", indent=False)
        self._caption, self._side, self._bars = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._nodes, self._words, self._picture = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._drawing = widgets.Box([self._picture], layout=SCROLLED)
        self._by_hand = widgets.Box([self._place, self._take_back, self._clear, self._best], layout=WRAPPED)
        super().__init__(self._arranged())
        self.add_class("tfm-explorer")
        self._wire()
        self._refresh()
        self._refresh_work()
        if key is not None:
            replace_open(key, self)

    def dismiss(self) -> None:
        """Stop watching the session and close every widget; a second time nothing happens.

        A running decode goes on if another explorer or a cell waits for it, else it stops.
        """
        if self._is_dismissed:
            return
        self._is_dismissed = True
        self.session.unobserve(self._on_view, ["state", "shown"])
        self.session.unobserve(self._on_work, ["progress", "is_busy", "message"])
        self.session.leave(self)
        close_all(self)
        close_all(self._picture)
        if self._figure is not None:
            close_all(self._figure.widget)

    def _arranged(self) -> list[widgets.Widget]:
        settings = self._settings
        sliders = [settings[name] for name in ("budget", "width", "temperature", "pool", "seed", "new_tokens")]
        work = widgets.Box([self._decode, self._cancel, self._message, self._bar], layout=WRAPPED)
        calls = [self._steps["call back"], self._round, self._steps["call on"]]
        growth = [self._steps["growth back"], self._growth, self._steps["growth on"]]
        nodes = widgets.VBox(
            [self._number, self._node, widgets.Box(list(self._moves.values()), layout=WRAPPED), self._by_hand]
        )
        return [
            page_colours(),
            settings["prompt"],
            settings["is_chat"],
            widgets.Box([settings["method"], settings["target"]], layout=WRAPPED),
            widgets.Box(sliders, layout=WRAPPED),
            work,
            self._mode,
            widgets.Box(calls, layout=WRAPPED),
            widgets.Box(growth, layout=WRAPPED),
            self._caption,
            widgets.Box([self._drawing, self._side], layout=WRAPPED),
            widgets.Box([nodes, widgets.Box([self._bars], layout=SCROLLED)], layout=WRAPPED),
            self._table,
            widgets.Box([self._nodes], layout=SCROLLED),
            self._words,
        ]

    def _wire(self) -> None:
        session = self.session
        for setting, control in self._settings.items():
            control.observe(self._told(lambda value, setting=setting: session.change(**{setting: value})), "value")
        self._decode.on_click(lambda _: session.decode())
        self._cancel.on_click(lambda _: session.cancel())
        self._round.observe(self._told(lambda value: session.dispatch(reducers.show_round, value - 1)), "value")
        self._growth.observe(self._told(lambda value: session.dispatch(reducers.show_growth, value - 1)), "value")
        self._mode.observe(self._told(lambda value: session.dispatch(reducers.choose_mode, value)), "value")
        self._table.observe(self._told(lambda value: session.dispatch(reducers.set_table, value)), "value")
        self._node.observe(self._told(self._chosen), "value")
        self._number.observe(self._told(lambda value: self._chosen(self._node.options[value - 1][1])), "value")
        for text, direction in (("call back", -1), ("call on", 1)):
            self._steps[text].on_click(
                lambda _, by=direction: session.dispatch(reducers.show_round, session.state.round + by)
            )
        for text, direction in (("growth back", -1), ("growth on", 1)):
            self._steps[text].on_click(
                lambda _, by=direction: session.dispatch(reducers.show_growth, session.state.growth + by)
            )
        for direction, move in self._moves.items():
            move.on_click(lambda _, direction=direction: session.dispatch(reducers.move, direction))
        self._place.on_click(lambda _: session.dispatch(reducers.place, session.state.path))
        self._take_back.on_click(lambda _: session.dispatch(reducers.take_back))
        self._clear.on_click(lambda _: session.dispatch(reducers.clear))
        self._best.on_click(lambda _: session.dispatch(reducers.place_best_first))
        session.observe(self._on_view, ["state", "shown"])
        session.observe(self._on_work, ["progress", "is_busy", "message"])
        session.attend(self)

    def _told(self, act: Any) -> Any:
        """An observer that is deaf to the explorer's own moves of its controls.

        A decode that has come in moves them in its own thread; what the learner does meanwhile counts.
        """
        return lambda change: None if self._refreshing_thread == threading.get_ident() else act(change["new"])

    def _chosen(self, path: Any) -> None:
        if path is not None:
            self.session.dispatch(reducers.select, path)

    def _clicked(self, trace: Any, points: Any, keys: Any) -> None:
        picture = scene(self.session.state, self.session.shown)
        if picture is None or not points.point_inds:
            return
        path = picture.paths[points.point_inds[0]]
        by_hand = self.session.state.mode is Mode.WHAT_IF
        self.session.dispatch(reducers.select, path)
        if by_hand:
            self.session.dispatch(reducers.place, path)

    def _on_view(self, change: Any) -> None:
        self._refresh()

    def _on_work(self, change: Any) -> None:
        self._refresh_work()

    def _refresh_work(self) -> None:
        session = self.session
        self._decode.disabled, self._cancel.disabled = session.is_busy, not session.is_busy
        self._bar.layout.visibility = "visible" if session.is_busy else "hidden"
        if session.progress is not None:
            self._bar.max, self._bar.value = session.progress.total, session.progress.done
        self._message.value = f'<div role="status">{escape(session.message)}</div>'

    @contextmanager
    def _refreshing(self) -> Iterator[None]:
        was, self._refreshing_thread = self._refreshing_thread, threading.get_ident()
        try:
            yield
        finally:
            self._refreshing_thread = was

    def _refresh(self) -> None:
        state, shown = self.session.state, self.session.shown
        picture, here = scene(state, shown), current(state, shown)
        with self._refreshing():
            if picture is not None:
                self._draw(picture)  # before the rest: it is what the eye waits for
            for setting, control in self._settings.items():
                show_value(control, getattr(state.wanted, setting))
            self._move_controls()
            self._words.value = f'<div role="status">{escape(describe(state, shown))}</div>'
            self._by_hand.layout.display = "flex" if state.mode is Mode.WHAT_IF else "none"
            if shown is None or here is None or picture is None:
                self._clear_pictures()
                return
            self._caption.value, self._side.value = caption_html(state, shown), side_html(state, shown)
            self._nodes.value = nodes_table(state, shown) if state.as_table else ""
            self._bars.value = (
                f"<p>{HIDDEN}</p>"
                if hides_target(state, shown)
                else law_svg(here.facts[state.path].law, name(state.path, shown), standalone=False)
            )

    def _clear_pictures(self) -> None:
        self._drawing.children = [self._picture]
        for part in (self._caption, self._side, self._bars, self._nodes, self._picture):
            part.value = ""

    def _move_controls(self) -> None:
        state, shown = self.session.state, self.session.shown
        tree, rounds = leading(state, shown), 1 if shown is None else max(1, len(shown.rounds))
        places = 1 if tree is None else len(tree.rounds) + 1
        for slider, most, value in ((self._round, rounds, state.round), (self._growth, places, state.growth)):
            slider.max, slider.value = most, value + 1
        self._steps["call back"].disabled, self._steps["call on"].disabled = state.round == 0, state.round + 1 == rounds
        self._steps["growth back"].disabled = state.growth == 0
        self._steps["growth on"].disabled = state.growth + 1 == places
        self._mode.value, self._table.value = state.mode, state.as_table
        options = node_options(state, shown)
        if list(self._node.options) != options:
            self._node.options = options
        self._node.value = state.path if options else None
        paths = [path for _, path in options]
        self._number.max = max(1, len(paths))
        self._number.value = 1 + paths.index(state.path) if paths else 1

    def _draw(self, picture: Scene) -> None:
        if not self._uses_plotly:
            self._picture.value = tree_svg(picture.view, standalone=False)
        elif self._figure is None:
            self._figure = TreeFigure(picture.view)
            self._figure.widget.data[-1].on_click(self._clicked)
            self._drawing.children = [self._figure.widget]
        else:
            self._figure.show(picture.view)
            self._drawing.children = [self._figure.widget]

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        state, shown = self.session.state, self.session.shown
        picture = scene(state, shown)
        still = {"text/plain": describe(state, shown)}
        if picture is not None:
            still["image/svg+xml"] = tree_svg(picture.view)
        return dict(data or {}) | still, metadata
