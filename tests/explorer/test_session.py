"""The session: one decode at a time in its own thread, kept by its settings, cancelled on request, errors in words."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from explorer.small import SETTINGS, exploration

from tfm_lab.explorer import ExplorerSession, Settings, reducers
from tfm_lab.explorer import session as module
from tfm_lab.explorer.exploring import Progress
from tfm_lab.explorer.records import Exploration

SECONDS = 30


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings that were really decoded; a decode is quick and gives the same trees under other settings."""
    done: list[Settings] = []

    def quick(settings: Settings, models: object, tell: Callable, is_cancelled: Callable) -> Exploration:
        done.append(settings)
        tell(Progress(1, settings.new_tokens))
        return replace(exploration(), settings=settings)

    monkeypatch.setattr(module, "explore", quick)
    return done


def test_a_decode_is_kept_by_its_settings(decodes: list[Settings]) -> None:
    session = ExplorerSession(SETTINGS, load_models=lambda name: None)
    session.decode(wait=True)
    first = session.shown
    assert (session.is_busy, session.progress, len(decodes)) == (False, None, 1)
    assert session.message == f"Decoded 6 tokens in {first.trace.target_calls} calls."
    session.decode(wait=True)
    assert len(decodes) == 1
    session.change(seed=2)
    assert session.shown is first
    assert session.message == "The settings have changed: press Decode to see their trees."
    session.decode(wait=True)
    assert [settings.seed for settings in decodes] == [1, 2]
    session.change(seed=1)
    assert session.shown is first, "what was decoded before is shown at once"
    assert "(kept)" in session.message
    assert len(decodes) == 2


def test_few_decodes_are_kept(decodes: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    session = ExplorerSession(SETTINGS, load_models=lambda name: None)
    for seed in (1, 2, 3, 1):
        session.change(seed=seed)
        session.decode(wait=True)
    assert [settings.seed for settings in decodes] == [1, 2, 3, 1]


def test_stepping_calls_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ExplorerSession(SETTINGS, load_models=lambda name: pytest.fail("a model was asked for"))
    session.shown = exploration()
    for reducer, value in ((reducers.show_round, 1), (reducers.show_growth, 0), (reducers.move, "child")):
        session.dispatch(reducer, value)
    assert (session.state.round, session.state.growth) == (1, 0)


def test_a_running_decode_is_cancelled_and_its_steps_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()

    def endless(settings: Settings, models: object, tell: Callable, is_cancelled: Callable) -> Exploration:
        tell(Progress(3, settings.new_tokens))
        started.set()
        while not is_cancelled():
            threading.Event().wait(0.01)
        return replace(exploration(), settings=settings)

    monkeypatch.setattr(module, "explore", endless)
    session = ExplorerSession(SETTINGS, load_models=lambda name: None)
    session.decode()
    assert started.wait(SECONDS)
    assert session.is_busy
    assert session.progress == Progress(3, 6)
    session.decode()
    session.cancel()
    session.join(SECONDS)
    assert not session.is_busy
    assert session.shown is not None
    assert session.message.startswith("Cancelled after ")
    session.shown = None
    assert not session._show_if_kept(), "part of a decode is not kept"


def test_a_decode_goes_on_while_anybody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leaves withdraws an interest of its own; the last one to leave stops the decode."""
    may_end = threading.Event()

    def patient(settings: Settings, models: object, tell: Callable, is_cancelled: Callable) -> Exploration:
        while not (is_cancelled() or may_end.is_set()):
            threading.Event().wait(0.01)
        return replace(exploration(), settings=settings)

    monkeypatch.setattr(module, "explore", patient)
    session = ExplorerSession(SETTINGS, load_models=lambda name: None)
    first, second = object(), object()
    session.attend(first)
    session.attend(second)
    session.decode()
    session.leave(first)
    session.leave(first)
    may_end.set()
    session.join(SECONDS)
    assert session.message.startswith("Decoded 6 tokens")
    may_end.clear()
    session.change(seed=2)
    session.decode()
    session.leave(second)
    session.join(SECONDS)
    assert session.message.startswith("Cancelled after ")


@pytest.mark.parametrize(
    ("runs_before", "wait"),
    [
        (False, lambda session: session.decode(wait=True)),
        (True, lambda session: session.decode(wait=True)),
        (True, lambda session: session.join(SECONDS)),
    ],
)
def test_what_a_cell_waits_for_is_not_stopped_by_an_explorer_that_is_closed(
    monkeypatch: pytest.MonkeyPatch, runs_before: bool, wait: Callable[[ExplorerSession], None]
) -> None:
    may_end = threading.Event()

    def patient(settings: Settings, models: object, tell: Callable, is_cancelled: Callable) -> Exploration:
        assert may_end.wait(SECONDS)
        return replace(exploration(), settings=settings)

    def close() -> None:
        session.leave(explorer)
        may_end.set()

    monkeypatch.setattr(module, "explore", patient)
    session, explorer = ExplorerSession(SETTINGS, load_models=lambda name: None), object()
    session.attend(explorer)
    if runs_before:
        session.decode()
    threading.Timer(0.2, close).start()
    wait(session)
    assert session.message.startswith("Decoded 6 tokens")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prompt": " "}, "The prompt is empty: type a question or the beginning of a text, then press Decode."),
        ({"budget": 500}, "budget must lie between 1 and 128, got 500"),
        pytest.param({"budget": 2.5}, "budget must be a whole number, got 2.5", marks=pytest.mark.unchecked),
        ({"target": "elsewhere"}, "there is no bundle 'elsewhere'; shipped are hybrid, smollm2"),
    ],
)
def test_what_cannot_work_is_told_in_a_sentence(settings: dict, sentence: str) -> None:
    session = ExplorerSession(SETTINGS)
    session.change(**settings)
    if not session.message.startswith("budget"):
        session.decode(wait=True)
    assert session.message.startswith(sentence)
    assert not session.is_busy
    assert session.shown is None


@pytest.mark.unchecked
@pytest.mark.parametrize("name", ["budget", "width", "pool", "seed", "new_tokens"])
@pytest.mark.parametrize("value", [2.5, 2.0, True, "2", None])
def test_settings_that_are_no_whole_numbers_are_refused_at_once(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a whole number, got {value!r}$"):
        Settings(**{name: value})


@pytest.mark.unchecked
@pytest.mark.parametrize("value", [True, "1", None])
def test_a_temperature_that_is_no_number_is_refused_at_once(value: object) -> None:
    with pytest.raises(ValueError, match=f"^temperature must be a number, got {value!r}$"):
        Settings(temperature=value)  # pyright: ignore[reportArgumentType]


def test_a_decode_that_breaks_is_told_and_the_next_one_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> Exploration:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(module, "explore", broken)
    session = ExplorerSession(SETTINGS, load_models=lambda name: None)
    session.decode(wait=True)
    assert session.message == "The decode failed: RuntimeError: no memory left"
    assert not session.is_busy


def test_an_interrupted_decode_leaves_the_session_free() -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    session = ExplorerSession(SETTINGS, load_models=interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.decode(wait=True)
    assert (session.is_busy, session.message) == (False, "The decode was interrupted.")


def test_who_waits_gets_the_decode_that_was_asked_for_and_kept_ones_are_not_pushed_off_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end = threading.Event()

    def slow(settings: Settings, models: object, tell: Callable, is_cancelled: Callable) -> Exploration:
        assert settings.seed == 1 or may_end.wait(SECONDS)
        return replace(exploration(), settings=settings)

    monkeypatch.setattr(module, "explore", slow)
    session = ExplorerSession(SETTINGS, load_models=lambda name: None)
    session.decode(wait=True)
    session.change(seed=2)
    session.decode()
    session.change(seed=1)
    may_end.set()
    session.join(SECONDS)
    assert session.shown.settings.seed == session.state.wanted.seed == 1
    may_end.clear()
    session.change(seed=3)
    session.decode()
    session.change(seed=4)
    threading.Timer(0.1, may_end.set).start()
    session.decode(wait=True)
    assert session.shown.settings.seed == 4
    session.change(seed=3)
    assert session.shown.settings.seed == 3, "the one that was running is kept too"
