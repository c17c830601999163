"""The session behind an explorer: the state, the decode that is shown, and a thread that makes the next one.

Reducers change the state; ``decode`` fills the cache. Views watch the traits and never touch the models.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import traitlets

from tfm_lab.bundle import Bundle
from tfm_lab.explorer.exploring import Progress, explore
from tfm_lab.explorer.records import Exploration
from tfm_lab.explorer.reducers import ExplorerState, Reducer, arrive, want
from tfm_lab.explorer.settings import Settings, load
from tfm_lab.show.views import counted

KEPT = 24
CHANGED = "The settings have changed: press Decode to see their trees."


class ExplorerSession(traitlets.HasTraits):
    """What an explorer shows. One decode runs at a time, in a thread of its own.

    Traits: ``state``; ``shown``, the exploration on the screen or ``None``; ``progress`` of a running decode;
    ``is_busy``; ``message``, one sentence about the last decode or what is wrong with the settings.

    Args:
        settings: what is decoded first.
        load_models: gives the bundle of a target; called in the thread.
    """

    state: Any = traitlets.Instance(ExplorerState)
    shown: Any = traitlets.Instance(Exploration, allow_none=True)
    progress: Any = traitlets.Instance(Progress, allow_none=True)
    is_busy = traitlets.Bool(False)
    message = traitlets.Unicode("Press Decode to begin.")

    def __init__(self, settings: Settings | None = None, load_models: Callable[[str], Bundle] = load) -> None:
        super().__init__(state=ExplorerState(settings or Settings()))
        self._load = load_models
        self._kept: OrderedDict[Settings, Exploration] = OrderedDict()
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._waiting: set[object] = set()
        self._lock = threading.RLock()

    def attend(self, watcher: object) -> None:
        """Count ``watcher`` among those who wait for the decodes of this session, until it leaves."""
        with self._lock:
            self._waiting.add(watcher)

    def leave(self, watcher: object) -> None:
        """Withdraw the interest of ``watcher``; a running decode is cancelled if nobody else waits for it."""
        with self._lock:
            self._waiting.discard(watcher)
            if self.is_busy and not self._waiting:
                self.cancel()

    def dispatch(self, reducer: Reducer, *arguments: Any, **options: Any) -> None:
        """Change the state by a reducer. If the settings wanted by now were decoded before, they are shown at once."""
        with self._lock:
            before = self.state
            self.state = reducer(before, self.shown, *arguments, **options)
            if self.state.wanted != before.wanted:
                self._show_if_kept()

    def change(self, **settings: Any) -> None:
        """Other settings; a value out of range leaves them and is told in ``message``."""
        try:
            self.dispatch(want, **settings)
        except ValueError as error:
            self.message = str(error)

    def decode(self, *, wait: bool = False) -> None:
        """Decode with the wanted settings, unless that was done before or a decode is running.

        Args:
            wait: do it here and now, not in a thread, after a decode that is running; for cells whose output is to be
                complete.
        """
        if wait:
            with self._attending():
                self.join()
                self._begin(here=True)
        else:
            self._begin(here=False)

    def _begin(self, *, here: bool) -> None:
        """Decode in this thread or in one of its own, unless that was done before or a decode is running."""
        with self._lock:
            if self.is_busy or self._show_if_kept():
                return
            self._cancelled.clear()
            self.is_busy, self.message = True, "Decoding."
            settings = self.state.wanted
            self._thread = threading.Thread(target=self._work, args=(settings,), daemon=True)
        if here:
            self._work(settings)
        else:
            self._thread.start()

    def cancel(self) -> None:
        """Stop the running decode after the step it is in; the steps so far are shown and not kept."""
        self._cancelled.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the running decode."""
        if self._thread is not None and self._thread.is_alive():
            with self._attending():
                self._thread.join(seconds)

    @contextmanager
    def _attending(self) -> Iterator[None]:
        """Who waits here and now counts among those who wait."""
        caller = object()
        self.attend(caller)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(caller)

    def _work(self, settings: Settings) -> None:
        try:
            models = self._load(settings.target)
            found = explore(settings, models, self._tell, self._cancelled.is_set)
        except ValueError as error:
            self._finish(None, str(error))
        except Exception as error:
            self._finish(None, f"The decode failed: {type(error).__name__}: {error}")
        except BaseException:
            self._finish(None, "The decode was interrupted.")
            raise
        else:
            if not self._cancelled.is_set():
                self._keep(found)
                self._finish(found, f"Decoded {_extent(found)}.")
            elif found.rounds:
                calls = counted(found.trace.target_calls, "target call")
                self._finish(found, f"Cancelled after {calls}; what there is is shown.")
            else:
                self._finish(None, "Cancelled before the first target call.")

    def _tell(self, progress: Progress) -> None:
        if self._cancelled.is_set():
            return
        self.progress = progress

    def _keep(self, found: Exploration) -> None:
        with self._lock:
            self._kept[found.settings] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)

    def _finish(self, found: Exploration | None, message: str) -> None:
        """Show what came, unless the decode of the settings that are wanted by now is on the screen already."""
        with self._lock:
            wanted = self.state.wanted
            if found is not None and found.settings != wanted:
                if self.shown is not None and self.shown.settings == wanted:
                    found, message = None, self.message
                else:
                    message = f"{message} {CHANGED}"
            if found is not None:
                self._show(found)
            self.progress, self.is_busy, self.message = None, False, message

    def _show(self, found: Exploration) -> None:
        with self.hold_trait_notifications():
            self.shown = found
            self.state = arrive(self.state, found)

    def _show_if_kept(self) -> bool:
        """Show the wanted settings if their decode is in the cache."""
        found = self._kept.get(self.state.wanted)
        if found is None:
            if not self.is_busy:
                self.message = CHANGED
            return False
        self._kept.move_to_end(found.settings)
        if found is not self.shown:
            self._show(found)
        self.message = f"Decoded {_extent(found)} (kept)."
        return True


def _extent(found: Exploration) -> str:
    return f"{counted(len(found.trace.tokens), 'token')} in {counted(found.trace.target_calls, 'call')}"
