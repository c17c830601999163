"""The player: its state keeps its promises under any input, its widgets follow, and nothing is left behind."""

from typing import Any
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ipywidgets.widgets.widget import _instances
from show.samples import ROUNDS, TREE, decode

from tfm_lab.show import Frame, Guesses, Player, growth_view
from tfm_lab.show.live import PAGE_COLOURS, PatientFigure, TreeFigure
from tfm_lab.show.player import PlayerState, view_table
from tfm_lab.show.plots import tree_spec

FRAMES = [Frame(growth_view(TREE, ROUNDS, last, decode), f"round {last}", f"side {last}") for last in range(3)]
TRACKS = {"long": FRAMES, "short": FRAMES[:1]}


@given(st.lists(st.one_of(st.integers(-5, 9), st.sampled_from(["long", "short"])), max_size=20))
def test_index_stays_inside_the_track_whatever_is_pressed(presses: list[int | str]) -> None:
    state = PlayerState(TRACKS)
    for press in presses:
        if isinstance(press, int):
            state.go(press)
        else:
            state.choose(press)
        assert 0 <= state.index < len(state.frames)
        assert state.frame in state.frames
        assert state.describe().startswith(f"{state.track}, {state.index + 1} of {len(state.frames)}.")


def test_empty_and_unknown_tracks_are_refused() -> None:
    for tracks in ({}, {"empty": []}):
        with pytest.raises(ValueError, match="at least one"):
            PlayerState(tracks)
    with pytest.raises(ValueError, match="there is no track 'other'"):
        PlayerState(TRACKS).choose("other")
    with pytest.raises(ValueError, match="backend must be"):
        Player(TRACKS, backend="canvas")


@pytest.mark.parametrize("backend", ["svg", "plotly"])
def test_slider_buttons_and_switch_move_picture_text_and_table(backend: str) -> None:
    player = Player(TRACKS, backend=backend)
    assert player._caption.value == "round 0"
    player._next.click()
    assert (player.state.index, player._slider.value, player._caption.value) == (1, 2, "round 1")
    player._slider.value = 3
    assert (player.state.index, player._side.value, player._next.disabled) == (2, "side 2", True)
    player._as_table.value = True
    assert player._table.value.count("<tr>") == 1 + len(FRAMES[2].view.nodes)
    player._switch.value = "short"
    assert (player.state.index, player._slider.max, player._back.disabled) == (0, 1, True)
    if backend == "svg":
        assert player._picture.value.startswith("<svg")
    else:
        assert len(player._figure.widget.data[-1].x) == len(FRAMES[0].view.nodes)
    player.dismiss()


def test_a_figure_is_announced_with_all_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that is late still draws the tree, in the colours of the page, and without a large program to start."""
    announced: list[dict[str, Any]] = []

    def noted(figure: PatientFigure) -> None:
        announced.append(figure.get_state())

    monkeypatch.setattr(go.FigureWidget, "open", noted)
    view = FRAMES[0].view
    TreeFigure(view)
    (state,) = announced
    assert len(state["_widget_data"][-1]["x"]) == len(view.nodes)
    assert state["_widget_layout"]["width"] == tree_spec(view)["layout"]["width"]
    assert f".{state['_dom_classes'][0]} " in PAGE_COLOURS
    assert len(state["_esm"]) < 2000 < len(state["_plotly_program"])


def test_a_browser_that_is_late_finds_the_tree_that_is_shown() -> None:
    first, _, last = (frame.view for frame in FRAMES)
    figure = TreeFigure(first)
    figure.show(last)
    state = figure.widget.get_state()
    assert len(state["_widget_data"][-1]["x"]) == len(last.nodes) != len(first.nodes)
    assert state["_widget_layout"]["width"] == tree_spec(last)["layout"]["width"]


def test_without_a_front_end_there_are_picture_and_words() -> None:
    player = Player({"only": FRAMES}, backend="svg")
    data, _ = player._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert ElementTree.fromstring(data["image/svg+xml"]).tag.endswith("svg")
    assert data["text/plain"] == player.state.describe()
    player.dismiss()


def test_running_a_cell_again_leaves_no_widgets_behind() -> None:
    Player(TRACKS, backend="svg", key="test.again")
    count = len(_instances)
    last = None
    for _ in range(5):
        last = Player(TRACKS, backend="svg", key="test.again")
    assert len(_instances) == count
    assert last is not None
    last.dismiss()


def test_the_table_names_every_node_and_escapes_token_text() -> None:
    table = view_table(FRAMES[2].view)
    assert table.count('scope="col"') == 6
    assert "&lt;b&gt;" in table
    assert "<b>" not in table


def test_guesses_count_only_when_a_slider_was_moved() -> None:
    guesses = Guesses("How many?", {"chain": "DFlash chain", "tfm": "TfM"}, 1, 31)
    assert guesses.values is None
    guesses._sliders["tfm"].value = 5
    assert guesses.values == {"chain": 31, "tfm": 5}
    data, _ = guesses._repr_mimebundle_()
    assert ElementTree.fromstring(data["image/svg+xml"]).tag.endswith("svg")
    assert "How many?" in data["text/plain"]


def test_a_guess_may_have_decimals() -> None:
    guesses = Guesses("How long?", {"tree": "tokens"}, 1.0, 4.0, step=0.01)
    guesses._sliders["tree"].value = 2.86
    assert guesses.values == {"tree": 2.86}
