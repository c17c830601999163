"""The widget: every action has a control that keys reach, few messages per step, nothing left behind."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from xml.etree import ElementTree

import ipywidgets as widgets
import plotly.graph_objects as go
import pytest
from explorer.small import SETTINGS, exploration
from ipywidgets.widgets.widget import _instances

from tfm_lab.explorer import ExplorerSession, Settings, TreeExplorer, node_picture, reducers, trees_picture
from tfm_lab.explorer import session as session_module
from tfm_lab.explorer.law_picture import BARS, law_svg
from tfm_lab.explorer.records import Exploration
from tfm_lab.explorer.reducers import Mode
from tfm_lab.explorer.scenes import scene
from tfm_lab.explorer.tables import nodes_table

SVG = "{http://www.w3.org/2000/svg}"
MOST_MESSAGES = 16


def ready() -> ExplorerSession:
    """A session that shows the small decode."""
    session = ExplorerSession(SETTINGS, load_models=lambda name: pytest.fail("a model was asked for"))
    session._keep(exploration())
    session.decode()
    return session


@pytest.fixture(params=["svg", "plotly"])
def explorer(request: pytest.FixtureRequest) -> Iterator[TreeExplorer]:
    made = TreeExplorer(ready(), backend=request.param)
    yield made
    made.dismiss()


def click(explorer: TreeExplorer, node: int) -> None:
    """What plotly tells Python when a node is clicked; its hook is private, so it is touched only here."""
    figure = explorer._figure.widget
    figure._js2py_pointsCallback = {
        "event_type": "plotly_click",
        "points": {"trace_indexes": [len(figure.data) - 1], "point_indexes": [node], "xs": [0], "ys": [0]},
        "device_state": None,
        "selector": None,
    }


def controls(root: widgets.Widget) -> list[widgets.Widget]:
    found = [root]
    for child in getattr(root, "children", ()):
        found += controls(child)
    return found


def test_buttons_and_sliders_do_all_that_a_mouse_can(explorer: TreeExplorer) -> None:
    """Core widgets alone: each takes focus by Tab and acts on Enter, Space or the arrow keys."""
    session = explorer.session
    explorer._steps["growth back"].click()
    assert (session.state.growth, explorer._growth.value) == (2, 3)
    explorer._growth.value = 1
    assert session.state.growth == 0
    explorer._steps["call on"].click()
    assert (session.state.round, explorer._round.value) == (1, 2)
    explorer._round.value = 1
    explorer._growth.value = explorer._growth.max
    assert explorer._steps["growth on"].disabled
    explorer._moves["child"].click()
    assert len(session.state.path) == 1
    assert explorer._node.value == session.state.path
    before = session.state.path
    explorer._moves["next"].click()
    explorer._moves["previous"].click()
    assert session.state.path == before
    explorer._moves["parent"].click()
    assert session.state.path == ()
    explorer._node.value = explorer._node.options[2][1]
    assert session.state.path == explorer._node.options[2][1]
    explorer._number.value = 2
    assert session.state.path == explorer._node.options[1][1]
    explorer._table.value = True
    assert explorer._nodes.value.count('scope="row"') == len(explorer._node.options)
    explorer._mode.value = Mode.SIDE
    assert "selected path" in explorer._side.value
    explorer._mode.value = Mode.WHAT_IF
    assert explorer._by_hand.layout.display == "flex"
    explorer._node.value = explorer._node.options[1][1]
    explorer._place.click()
    assert len(session.state.placed) == 1
    explorer._take_back.click()
    explorer._best.click()
    assert len(session.state.placed) == SETTINGS.budget
    explorer._clear.click()
    assert session.state.placed == ()
    explorer._settings["seed"].value = 7
    assert session.state.wanted.seed == 7
    assert "press Decode" in explorer._message.value
    kinds = {type(control) for control in controls(explorer)}
    assert all(kind.__module__.startswith(("ipywidgets", "plotly", "tfm_lab")) for kind in kinds)


def test_a_step_sends_few_messages_and_asks_no_model(explorer: TreeExplorer, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    send = widgets.Widget._send
    monkeypatch.setattr(
        widgets.Widget, "_send", lambda self, *rest, **more: (sent.append(self), send(self, *rest, **more))
    )
    for growth in (1, 2, 3):
        sent.clear()
        explorer._growth.value = growth
        assert 0 < len(sent) <= MOST_MESSAGES
    for action in (explorer._moves["child"].click, lambda: setattr(explorer._mode, "value", Mode.SIDE)):
        sent.clear()
        action()
        assert 0 < len(sent) <= MOST_MESSAGES


def test_a_click_selects_and_in_what_if_mode_places() -> None:
    explorer = TreeExplorer(ready(), backend="plotly")
    figure = explorer._figure.widget
    click(explorer, 3)
    assert explorer.session.state.path == exploration().rounds[0].trees["tfm"].paths[3]
    explorer._mode.value = Mode.WHAT_IF
    click(explorer, 1)
    assert len(explorer.session.state.placed) == 1
    assert explorer._figure.widget is figure, "one figure, updated in place"
    assert sum(isinstance(control, go.FigureWidget) for control in controls(explorer)) == 1
    explorer.dismiss()


@pytest.mark.parametrize("backend", ["svg", "plotly"])
def test_running_a_cell_again_leaves_no_widgets_and_no_watchers_behind(backend: str) -> None:
    session = ready()
    TreeExplorer(session, backend=backend, key="test.explorer")
    count, watchers = len(_instances), len(session._trait_notifiers["state"]["change"])
    for _ in range(3):
        last = TreeExplorer(session, backend=backend, key="test.explorer")
    assert len(_instances) == count
    assert len(session._trait_notifiers["state"]["change"]) == watchers
    last.dismiss()
    session.dispatch(reducers.move, "child")


def test_an_explorer_that_is_closed_leaves_the_decode_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    def patient(settings: Settings, models: object, tell: Callable, is_cancelled: Callable) -> Exploration:
        while not (is_cancelled() or may_end.is_set()):
            threading.Event().wait(0.01)
        return replace(exploration(), settings=settings)

    monkeypatch.setattr(session_module, "explore", patient)
    session = ExplorerSession(SETTINGS, load_models=lambda name: None)
    first, second = (TreeExplorer(session, backend="svg") for _ in range(2))
    session.decode()
    first.dismiss()
    third = TreeExplorer(session, backend="svg", key="test.waiting")
    second.dismiss()
    last = TreeExplorer(session, backend="svg", key="test.waiting")
    assert third._is_dismissed
    may_end.set()
    session.join(30)
    assert last._message.value == f'<div role="status">{session.message}</div>'
    assert session.message.startswith("Decoded 6 tokens")
    assert "<svg" in last._picture.value
    may_end.clear()
    session.change(seed=2)
    session.decode()
    last.dismiss()
    session.join(30)
    assert session.message.startswith("Cancelled after ")


def test_elsewhere_there_are_picture_and_words() -> None:
    explorer = TreeExplorer(ExplorerSession(SETTINGS), backend="svg")
    data, _ = explorer._repr_mimebundle_()
    assert data["text/plain"] == "Nothing is decoded yet."
    explorer.session._keep(exploration())
    explorer.session.decode()
    data, _ = explorer._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    root = ElementTree.fromstring(data["image/svg+xml"])
    assert root.findtext(f"{SVG}desc") in data["text/plain"]
    assert explorer._picture.value.startswith("<svg")
    assert "currentColor" in explorer._picture.value
    explorer.dismiss()
    with pytest.raises(ValueError, match="backend must be"):
        TreeExplorer(backend="canvas")


def test_progress_and_cancel_follow_the_decode() -> None:
    session = ready()
    explorer = TreeExplorer(session, backend="svg")
    assert (explorer._decode.disabled, explorer._cancel.disabled) == (False, True)
    session.is_busy = True
    assert (explorer._decode.disabled, explorer._cancel.disabled) == (True, False)
    explorer._cancel.click()
    assert session._cancelled.is_set()
    explorer.dismiss()


def test_three_charts_share_tokens_and_scale() -> None:
    law = next(f.law for f in exploration().rounds[0].facts.values() if f.law is not None)
    root = ElementTree.fromstring(law_svg(law, "<b>"))
    bars = [float(r.get("width", "")) for r in root.findall(f"{SVG}rect") if r.get("height") == "14"]
    shares = [value for column in list(zip(*law.shares, strict=True))[1:] for value in column]
    assert bars == pytest.approx([BARS * value for value in shares], abs=0.06)
    told = root.findtext(f"{SVG}desc") or ""
    for value in (law.marginal_target, law.weaver_target, law.marginal_weaver):
        assert f"{value:.3f}" in told
    assert "nothing is drafted behind it" in law_svg(None, "x")


def test_the_table_hides_the_target_while_nodes_are_placed_by_hand() -> None:
    session = ready()
    seen = nodes_table(session.state, exploration())
    parts = [node.role.value for node in scene(session.state, exploration()).view.nodes]
    for part in ("last committed token", "accepted", "drafted, not used"):
        assert seen.count(f"<td>{part}</td>") == parts.count(part)
    session.dispatch(reducers.choose_mode, Mode.WHAT_IF)
    hidden = nodes_table(session.state, exploration())
    assert "<td></td>" in hidden
    assert "<td></td>" not in seen
    assert hidden.count('scope="col"') == seen.count('scope="col"') == 8


def test_still_pictures_show_what_the_explorer_shows() -> None:
    session = ready()
    side = trees_picture(session, Mode.SIDE)
    assert "DDTree" in side.description
    assert session.state.mode is Mode.SINGLE
    assert "TV(drafter, target)" in node_picture(session).description
    for picture in (lambda s: trees_picture(s, Mode.SIDE), node_picture):
        with pytest.raises(ValueError, match="nothing is decoded yet"):
            picture(ExplorerSession(SETTINGS))


def test_a_text_that_ends_at_once_leaves_nothing_of_the_decode_before(explorer: TreeExplorer) -> None:
    shown = exploration()
    explorer.session._finish(replace(shown, rounds=(), pieces=shown.pieces[:1]), "")
    assert "ended before the first target call" in explorer._words.value
    assert (explorer._caption.value, explorer._bars.value, explorer._picture.value) == ("", "", "")
    assert list(explorer._drawing.children) == [explorer._picture]
    explorer.session._finish(shown, "")
    assert explorer._caption.value
    assert explorer._picture.value or explorer._figure.widget in explorer._drawing.children


def test_settings_that_no_control_offers_are_shown_all_the_same(explorer: TreeExplorer) -> None:
    explorer.session.change(pool=7, target="my_folder")
    assert (explorer._settings["pool"].value, explorer._settings["target"].value) == (7, "my_folder")


def test_what_the_learner_does_while_a_decode_comes_in_is_not_lost(explorer: TreeExplorer) -> None:
    drawing, may_draw = threading.Event(), threading.Event()
    draw = explorer._draw

    def slow(picture: object) -> None:
        drawing.set()
        assert may_draw.wait(30)
        draw(picture)

    explorer._draw = slow
    worker = threading.Thread(target=explorer.session._finish, args=(replace(exploration()), ""))
    worker.start()
    assert drawing.wait(30)
    threading.Timer(0.1, may_draw.set).start()
    explorer._settings["seed"].value = 77
    worker.join(30)
    assert explorer.session.state.wanted.seed == explorer._settings["seed"].value == 77
