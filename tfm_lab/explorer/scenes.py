"""From state to picture: the tree view, the path behind every node of it, and what can be said in words."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tfm_lab.explorer.records import Exploration, NodeFacts, Round, TokenPath
from tfm_lab.explorer.reducers import (
    ExplorerState,
    Mode,
    Shown,
    current,
    growth_of,
    is_verified,
    leading,
    selectable,
)
from tfm_lab.explorer.settings import METHODS
from tfm_lab.explorer.survey import paths_of, united
from tfm_lab.explorer.what_if import choices, score
from tfm_lab.lab import TITLES
from tfm_lab.show.views import (
    NodeView,
    Role,
    TreeView,
    assembled,
    counted,
    growth_view,
    stacked,
    step_view,
    tidy_layout,
)

LONGEST_NAME = 60


class Scene(NamedTuple):
    """A picture, and for every node of it the path that a click on it selects."""

    view: TreeView
    paths: tuple[TokenPath, ...]


@functools.lru_cache(maxsize=8)
def scene(state: ExplorerState, shown: Shown) -> Scene | None:
    """What is on the screen; ``None`` before the first decode. Drawing it and telling it ask for the same one."""
    here = current(state, shown)
    if here is None or shown is None:
        return None
    if state.mode is Mode.WHAT_IF:
        return _by_hand(state, shown, here)
    if state.mode is Mode.SINGLE:
        return _one(state, shown, here, shown.settings.method)
    panels = [_one(state, shown, here, method) for method in METHODS]
    missing = [TITLES[method] for method, panel in zip(METHODS, panels, strict=True) if state.path not in panel.paths]
    absent = f" The selected path is not in the tree of {' and '.join(missing)}." if missing else ""
    told = " ".join(f"{panel.view.title}. {panel.view.description}" for panel in panels)
    view = stacked([panel.view for panel in panels], "three trees in one context", told + absent)
    return Scene(view, tuple(path for panel in panels for path in panel.paths))


def name(path: TokenPath, shown: Exploration) -> str:
    """The text of a path, its beginning cut off if it is long; the root is called so."""
    if not path:
        return "the root"
    text = "".join(shown.decode(token) for token in path).replace("\n", "⏎")
    return text if len(text) <= LONGEST_NAME else "…" + text[1 - LONGEST_NAME :]


def node_options(state: ExplorerState, shown: Shown) -> list[tuple[str, TokenPath]]:
    """The nodes that can be selected, for a list: text and the Weaver's probability of the path."""
    here = current(state, shown)
    if here is None or shown is None:
        return []
    signs = _signs(state, here)
    return [
        (f"{signs.get(path, '')}{name(path, shown)}  ({_share(here.facts[path])})", path)
        for path in selectable(state, shown)
    ]


def describe(state: ExplorerState, shown: Shown) -> str:
    """The whole screen in words: where we are, the picture, the selected node, and the score of a tree by hand."""
    here, picture = current(state, shown), scene(state, shown)
    if shown is None:
        return "Nothing is decoded yet."
    if here is None or picture is None:
        return "The text ended before the first target call: ask for more tokens."
    calls = f"Target call {state.round + 1} of {len(shown.rounds)}"
    return f"{calls}, {state.mode.value}. {picture.view.description} {describe_node(state, shown)}"


def describe_node(state: ExplorerState, shown: Exploration) -> str:
    """The selected node in words: how its token is seen, and how often a draft behind it is accepted."""
    here = current(state, shown)
    assert here is not None
    facts, law = here.facts[state.path], here.facts[state.path].law
    words = f"Selected: {name(state.path, shown)!r}."
    if hides_target(state, shown):
        return f"{words} The Weaver's probability of its path is {facts.weaver_path:.4f}."
    if state.path:
        words += (
            f" Its token has probability {facts.marginal:.3f} by the drafter, {facts.weaver:.3f} by the Weaver, "
            f"{facts.target:.3f} by the target; the target's probability of the whole path is {facts.target_path:.4f}."
        )
    if law is None:
        return words + " The drafter's block ends here, so nothing is drafted behind it."
    return words + (
        f" Behind it a draft of the drafter is accepted with {1 - law.marginal_target:.1%} (TV "
        f"{law.marginal_target:.3f}), one of the Weaver with {1 - law.weaver_target:.1%} (TV {law.weaver_target:.3f})."
    )


def hides_target(state: ExplorerState, shown: Exploration) -> bool:
    """Whether the learner is still to do without the target's probabilities: while there is a node to place by hand."""
    here = current(state, shown)
    return (
        state.mode is Mode.WHAT_IF
        and here is not None
        and bool(choices(here.facts, state.placed, shown.settings.budget))
    )


def where_selected(state: ExplorerState, shown: Exploration) -> dict[str, str]:
    """For every method whether its tree has the selected path, and what became of it."""
    here = current(state, shown)
    assert here is not None
    found: dict[str, str] = {}
    for method in METHODS:
        tree = here.trees[method]
        node = tree.node(state.path)
        growth = growth_of(state, shown, method)
        if node is None:
            found[method] = "not in this tree"
        elif growth < len(tree.rounds) and node > tree.nodes_after(growth):
            found[method] = "not yet in this tree"
        elif growth < len(tree.rounds):
            found[method] = f"node {node}"
        else:
            kept = tree.step.acceptance.path[: tree.step.kept_drafts + 1]
            found[method] = f"node {node}, {'accepted' if node in kept else 'not used'}"
    return found


def _one(state: ExplorerState, shown: Exploration, here: Round, method: str) -> Scene:
    tree, growth = here.trees[method], growth_of(state, shown, method)
    if growth < len(tree.rounds):
        title = f"{TITLES[method]}, round {growth + 1} of {len(tree.rounds)}"
        view = growth_view(tree.step.tree, tree.rounds, growth, shown.decode, title)
        paths = tree.paths[: len(view.nodes)]
    else:
        gained = counted(len(tree.step.committed), "token")
        title = f"{TITLES[method]}, verified: {gained} gained, {tree.expected:.2f} expected"
        view = step_view(tree.step, shown.decode, title)
        kept = tree.step.acceptance.path[tree.step.kept_drafts]
        paths = (*tree.paths, tree.paths[kept])[: len(view.nodes)]
    nodes = [
        replace(node, picked=path == state.path and node.role is not Role.BONUS, detail=_detail(node, here.facts[path]))
        for node, path in zip(view.nodes, paths, strict=True)
    ]
    return Scene(replace(view, nodes=tuple(nodes)), paths)


def _detail(node: NodeView, facts: NodeFacts) -> str:
    if node.parent < 0 or node.role is Role.BONUS:
        return node.detail
    return (
        f"drafter {facts.marginal:.3f}, Weaver {facts.weaver:.3f}, target {facts.target:.3f}; "
        f"path: Weaver {facts.weaver_path:.4f}, target {facts.target_path:.4f}"
    )


def _by_hand(state: ExplorerState, shown: Exploration, here: Round) -> Scene:
    """What was placed and what may be placed next, with room for all candidates."""
    budget = shown.settings.budget
    waiting = choices(here.facts, state.placed, budget)
    roles = dict.fromkeys(state.placed, Role.PLACED) | dict.fromkeys(waiting, Role.WAITING) | {(): Role.ROOT}
    everything = united(0, here.facts)
    positions = tidy_layout(everything.to_networkx())
    order = paths_of(everything)
    index = {path: place for place, path in enumerate(path for path in order if path in roles)}
    room = [_hand_node(path, here, roles.get(path, Role.WAITING), positions[i], -1) for i, path in enumerate(order)]
    nodes = [
        replace(node, parent=index[path[:-1]] if path else -1, picked=path == state.path)
        for path, node in zip(order, room, strict=True)
        if path in roles
    ]
    yours, rule, most = score(here.facts, state.placed)
    words = (
        f"{len(state.placed)} of {budget} nodes placed by hand: {yours:.3f} expected tokens. With as many nodes, "
        f"best-first on what the Weaver knows reaches {rule:.3f}, and no tree of these candidates is worth more than "
        f"{most:.3f}. "
        f"{counted(len(waiting), 'candidate')} may be placed next."
    )
    return Scene(assembled("your tree", words, nodes, room), tuple(index))


def _hand_node(path: TokenPath, here: Round, role: Role, place: tuple[float, float], parent: int) -> NodeView:
    facts = here.facts[path]
    detail = f"path: Weaver {facts.weaver_path:.4f}" if path else "the last committed token"
    return NodeView(facts.label, role, *place, parent, detail)


def _signs(state: ExplorerState, here: Round) -> dict[TokenPath, str]:
    if state.mode is Mode.WHAT_IF:
        return dict.fromkeys(state.placed, "✓ ")
    return {}


def _share(facts: NodeFacts) -> str:
    return f"path {facts.weaver_path:.4f}"


def counts(state: ExplorerState, shown: Exploration) -> list[tuple[str, str]]:
    """Names and values of the live counters: rounds, target calls, MAL."""
    tree, steps = leading(state, shown), shown.trace.steps[: state.round + 1]
    gained = sum(len(step.committed) for step in steps)
    calls = tree.step.drafter_calls if tree is not None else 0
    return [
        ("method", TITLES[shown.settings.method]),
        ("growth", _growth(state, shown)),
        ("Weaver calls of this tree", str(calls)),
        ("target calls so far", f"{len(steps)} of {shown.trace.target_calls}"),
        ("MAL so far", f"{gained / len(steps):.2f}"),
        ("MAL of the whole decode", f"{shown.trace.mean_accepted_length:.2f}"),
    ]


def _growth(state: ExplorerState, shown: Exploration) -> str:
    tree = leading(state, shown)
    if tree is None:
        return "none"
    if is_verified(state, shown):
        return f"verified after {counted(len(tree.rounds), 'round')}"
    return f"round {state.growth + 1} of {len(tree.rounds)}"


def mean_gain(shown: Exploration, method: str) -> float:
    """Tokens that a method gains in the contexts of this decode, on average."""
    gains: Sequence[int] = [len(one.trees[method].step.committed) for one in shown.rounds]
    return sum(gains) / len(gains)
