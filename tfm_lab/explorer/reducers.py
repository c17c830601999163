"""The explorer's state and the pure functions that change it.

Every reducer takes the state and the exploration it speaks about (``None`` before the first decode) and returns a new
state. What cannot be done leaves the state as it is, so any sequence of presses is safe.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tfm_lab.explorer.records import Exploration, GrownTree, Round, TokenPath
from tfm_lab.explorer.settings import METHODS, Settings
from tfm_lab.explorer.what_if import best_first, choices


class Mode(Enum):
    """What is on the screen."""

    SINGLE = "one method"
    SIDE = "side by side"
    WHAT_IF = "what if"


@dataclass(frozen=True, slots=True)
class ExplorerState:
    """Where the learner is.

    Attributes:
        wanted: the settings of the controls; what is shown may still be the decode before.
        round: the target call that is looked at, from 0.
        growth: rounds of growth that are seen, from 0; as many as the tree has rounds means the verified tree.
        path: the selected node, by its tokens below the root; () is the root.
        placed: nodes placed by hand, parents first.
    """

    wanted: Settings
    mode: Mode = Mode.SINGLE
    round: int = 0
    growth: int = 0
    path: TokenPath = ()
    placed: tuple[TokenPath, ...] = ()
    as_table: bool = False


Shown = Exploration | None
Reducer = Callable[..., ExplorerState]


def current(state: ExplorerState, shown: Shown) -> Round | None:
    """The target call that is looked at, ``None`` if there is nothing to look at."""
    return shown.rounds[state.round] if shown is not None and shown.rounds else None


def leading(state: ExplorerState, shown: Shown) -> GrownTree | None:
    """The tree of the method whose decode is followed."""
    here = current(state, shown)
    return None if here is None or shown is None else here.trees[shown.settings.method]


def is_verified(state: ExplorerState, shown: Shown) -> bool:
    """Whether the finished tree is looked at, with what the target made of it."""
    tree = leading(state, shown)
    return tree is not None and state.growth >= len(tree.rounds)


def growth_of(state: ExplorerState, shown: Shown, method: str) -> int:
    """Which growth round of a method is seen: equally many nodes as the leading tree has spent, or fewer."""
    here, tree = current(state, shown), leading(state, shown)
    assert here is not None
    assert tree is not None
    other = here.trees[method]
    if is_verified(state, shown):
        return len(other.rounds)
    return state.growth if other is tree else other.growth_with(tree.nodes_after(state.growth))


def seen_paths(state: ExplorerState, shown: Shown, method: str) -> tuple[TokenPath, ...]:
    """Paths of the nodes of a method's tree that are on the screen, root first."""
    here = current(state, shown)
    assert here is not None
    tree = here.trees[method]
    growth = growth_of(state, shown, method)
    return tree.paths if growth >= len(tree.rounds) else tree.paths[: 1 + tree.nodes_after(growth)]


def selectable(state: ExplorerState, shown: Shown) -> tuple[TokenPath, ...]:
    """Nodes that can be selected now: those on the screen."""
    here = current(state, shown)
    if here is None or shown is None:
        return ()
    if state.mode is Mode.WHAT_IF:
        return ((), *state.placed, *choices(here.facts, state.placed, shown.settings.budget))
    methods = METHODS if state.mode is Mode.SIDE else (shown.settings.method,)
    return tuple(dict.fromkeys(path for name in methods for path in seen_paths(state, shown, name)))


def want(state: ExplorerState, shown: Shown, **changes: Any) -> ExplorerState:
    """Other settings. What is shown changes when their decode is there, see :func:`arrive`."""
    return replace(state, wanted=replace(state.wanted, **changes))


def arrive(state: ExplorerState, shown: Shown) -> ExplorerState:
    """A decode has come in: show its first call, with the tree verified and the root selected."""
    tree = leading(replace(state, round=0), shown)
    return replace(state, round=0, growth=0 if tree is None else len(tree.rounds), path=(), placed=())


def show_round(state: ExplorerState, shown: Shown, index: int) -> ExplorerState:
    """Another target call; past either end the nearest one. A verified tree stays verified."""
    if shown is None or not shown.rounds:
        return state
    index = max(0, min(index, len(shown.rounds) - 1))
    if index == state.round:
        return state
    tree = shown.rounds[index].trees[shown.settings.method]
    growth = len(tree.rounds) if is_verified(state, shown) else 0
    return replace(state, round=index, growth=growth, path=(), placed=())


def show_growth(state: ExplorerState, shown: Shown, growth: int) -> ExplorerState:
    """Another round of growth; the one behind the last is the verified tree."""
    tree = leading(state, shown)
    if tree is None:
        return state
    return _kept(replace(state, growth=max(0, min(growth, len(tree.rounds)))), shown)


def choose_mode(state: ExplorerState, shown: Shown, mode: Mode) -> ExplorerState:
    """One method, three side by side, or the budget by hand."""
    return _kept(replace(state, mode=mode), shown)


def set_table(state: ExplorerState, shown: Shown, as_table: bool) -> ExplorerState:
    """Show the nodes as a table, too."""
    return replace(state, as_table=as_table)


def select(state: ExplorerState, shown: Shown, path: TokenPath) -> ExplorerState:
    """Select the node with this path, in every tree that has it."""
    return replace(state, path=path) if path in selectable(state, shown) else state


def move(state: ExplorerState, shown: Shown, direction: str) -> ExplorerState:
    """Go to the ``parent``, the first ``child``, or the ``next`` or ``previous`` node of the same depth.

    Raises:
        ValueError: for any other direction.
    """
    if direction not in ("parent", "child", "next", "previous"):
        raise ValueError(f"go to parent, child, next or previous, not {direction!r}")
    paths = selectable(state, shown)
    if state.path not in paths:
        return state
    if direction == "parent":
        return select(state, shown, state.path[:-1])
    if direction == "child":
        children = [path for path in paths if path and path[:-1] == state.path]
        return select(state, shown, children[0]) if children else state
    level = [path for path in paths if len(path) == len(state.path)]
    here = level.index(state.path) + (1 if direction == "next" else -1)
    return select(state, shown, level[here % len(level)])


def place(state: ExplorerState, shown: Shown, path: TokenPath) -> ExplorerState:
    """Put a candidate into the tree by hand, and select it."""
    here = current(state, shown)
    if here is None or shown is None or state.mode is not Mode.WHAT_IF:
        return state
    if path not in choices(here.facts, state.placed, shown.settings.budget):
        return state
    return replace(state, placed=(*state.placed, path), path=path)


def take_back(state: ExplorerState, shown: Shown) -> ExplorerState:
    """Take back the node that was placed last."""
    return _kept(replace(state, placed=state.placed[:-1]), shown)


def clear(state: ExplorerState, shown: Shown) -> ExplorerState:
    """Take back all nodes."""
    return _kept(replace(state, placed=()), shown)


def place_best_first(state: ExplorerState, shown: Shown) -> ExplorerState:
    """Let best-first growth spend the whole budget, by what the Weaver knows."""
    here = current(state, shown)
    if here is None or shown is None or state.mode is not Mode.WHAT_IF:
        return state
    placed = best_first(here.facts, shown.settings.budget, lambda node: node.weaver_path)
    return _kept(replace(state, placed=placed), shown)


def _kept(state: ExplorerState, shown: Shown) -> ExplorerState:
    """The state with the selection moved up to the nearest ancestor that is on the screen."""
    paths = set(selectable(state, shown))
    path = state.path
    while path and path not in paths:
        path = path[:-1]
    return replace(state, path=path)
