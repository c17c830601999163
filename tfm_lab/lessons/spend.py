"""Spend a budget by hand: put nodes into a tree one by one, and see what the target makes of it.

``SpendState`` knows the tree and what may be added; ``SpendExplorer`` wires it to a list and buttons.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets
import traitlets

from tfm_lab.drafting import Draft, GrowthRound, TreeConfig, best_first, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.lessons.by_hand import TokenPath, expected_tokens
from tfm_lab.show.picture import Picture, tree_picture
from tfm_lab.show.stepping import stepping_buttons
from tfm_lab.show.svg import tree_svg
from tfm_lab.show.views import TreeView, growth_view
from tfm_lab.theory import MarkovWorld
from tfm_lab.theory.worlds import perfect_source
from tfm_lab.tree import DraftTree


class Choice(NamedTuple):
    """A node that may be added: its path, and the marginal of its last token."""

    path: TokenPath
    marginal: float


class SpendState(traitlets.HasTraits):
    """The paths that were bought so far, parents first."""

    paths = traitlets.Tuple()

    def __init__(self, world: MarkovWorld, tokens: Sequence[str], budget: int, depth: int) -> None:
        if len(tokens) != world.vocab:
            raise ValueError(f"the world has {world.vocab} tokens, and {len(tokens)} have a name")
        super().__init__()
        self.world, self.tokens, self.budget, self.depth = world, tuple(tokens), budget, depth
        self.marginals = world.marginals(depth)

    def choices(self) -> list[Choice]:
        """What may be added, by path; nothing once the budget is spent."""
        if len(self.paths) >= self.budget:
            return []
        parents = [path for path in ((), *self.paths) if len(path) < self.depth]
        paths = [(*path, token) for path in parents for token in range(self.world.vocab)]
        return [Choice(p, float(self.marginals[len(p) - 1, p[-1]])) for p in sorted(paths) if p not in self.paths]

    def add(self, path: TokenPath) -> None:
        """Buy a node.

        Raises:
            ValueError: if it may not be added.
        """
        if path not in [choice.path for choice in self.choices()]:
            raise ValueError(
                f"the node {self.name(path)} cannot be added: its parent is missing, or the budget is spent"
            )
        self.paths = (*self.paths, path)

    def undo(self) -> None:
        """Give back the node that was bought last."""
        self.paths = self.paths[:-1]

    def spend_best_first(self) -> None:
        """Throw the tree away and let best-first spend the budget on the marginals."""
        self.paths = _paths(self._grow(best_first))

    def worth(self) -> float:
        """Expected tokens per step of the present tree, by the target."""
        return expected_tokens(self.paths, self.world.conditional)

    def worth_of_best(self) -> float:
        """Expected tokens per step of the tree that best-first grows on the marginals with the whole budget."""
        return expected_tokens(_paths(self._grow(best_first)), self.world.conditional)

    def worth_with_path(self) -> float:
        """The same for a drafter that knows its path: no tree of this size is worth more."""
        return expected_tokens(_paths(self._grow(woven)), self.world.conditional)

    def name(self, path: TokenPath) -> str:
        """The tokens of a path, joined by arrows."""
        return " → ".join(self.tokens[token] for token in path)

    def describe(self) -> str:
        """The score in words."""
        return (
            f"{len(self.paths)} of {self.budget} nodes spent: {self.worth():.3f} expected tokens per step. "
            f"Best-first on the marginals reaches {self.worth_of_best():.3f} with all of them, "
            f"a drafter that knows its path {self.worth_with_path():.3f}."
        )

    def view(self) -> TreeView:
        """The tree, with the node that came last marked."""
        index: dict[TokenPath, int] = {(): 0}
        for path in self.paths:
            index[path] = len(index)
        log_probs = [float(self.marginals[len(p) - 1, p[-1]].log()) for p in self.paths]
        tree = DraftTree.from_parents(
            [self.world.context, *(path[-1] for path in self.paths)],
            [-1, *(index[path[:-1]] for path in self.paths)],
            [0.0, *log_probs],
        )
        rounds = [GrowthRound((), (), (node,)) for node in range(1, len(tree))] or [GrowthRound((), (), ())]
        return growth_view(tree, rounds, len(rounds) - 1, lambda token: self.tokens[token], "your tree")

    def _grow(self, builder: Any) -> Draft:
        config = TreeConfig(budget=self.budget, max_depth=self.depth, children=self.world.vocab, width=1)
        return builder(self.world.context, perfect_source(self.world, self.depth), config, SeededDraws(0))


def _paths(draft: Draft) -> tuple[TokenPath, ...]:
    return tuple(draft.tree.path_tokens(node)[1:] for node in range(1, len(draft.tree)))


def spend_picture(state: SpendState) -> Picture:
    """The tree alone, without buttons."""
    return Picture(tree_picture(state.view()).svg, state.describe())


class SpendExplorer(widgets.VBox):
    """A list of nodes to buy, buttons, the tree and its score; elsewhere the SVG of the tree."""

    def __init__(self, state: SpendState) -> None:
        self.state = state
        self._choices = widgets.Select(rows=10, description="buy", layout=widgets.Layout(width="330px"))
        steps = stepping_buttons(self._choices, "node to buy")
        self._add = widgets.Button(description="add node")
        self._undo = widgets.Button(description="undo")
        self._best = widgets.Button(description="best-first")
        self._picture, self._words = widgets.HTML(), widgets.HTML()
        self._add.on_click(lambda _: self._buy())
        self._undo.on_click(lambda _: state.undo())
        self._best.on_click(lambda _: state.spend_best_first())
        state.observe(lambda _: self._refresh(), "paths")
        buttons = widgets.Box([*steps, self._add, self._undo, self._best], layout=widgets.Layout(flex_flow="row wrap"))
        side = widgets.Box(
            [widgets.VBox([self._choices, buttons]), self._picture], layout=widgets.Layout(flex_flow="row wrap")
        )
        super().__init__([side, self._words])
        self._refresh()

    def _buy(self) -> None:
        if self._choices.value is not None:
            self.state.add(self._choices.value)

    def _refresh(self) -> None:
        choices = self.state.choices()
        self._choices.options = [(f"{self.state.name(c.path)}  (q = {c.marginal:.2f})", c.path) for c in choices]
        self._add.disabled, self._undo.disabled = not choices, not self.state.paths
        self._picture.value = tree_svg(self.state.view(), standalone=False)
        self._words.value = f'<div role="status">{escape(self.state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = spend_picture(self.state)
        return dict(data or {}) | {"image/svg+xml": still.svg, "text/plain": still.description}, metadata
