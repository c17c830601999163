"""Forward substitution over the ancestor matrix of a draft tree, tile by tile, beside a replay of every branch.

``solve_steps`` and ``branch_steps`` say what happens and what it costs; ``SolveState`` knows which step is shown, and
``SolveExplorer`` wires it to a switch, a slider and buttons. The costs are those of ``verify_tree`` and
``verify_branches`` in ``by_hand_kernels``, byte by byte; tests compare them with what Triton's interpreter counts.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets
import traitlets

from tfm_lab.lessons.solving_picture import solve_svg
from tfm_lab.show.picture import Picture
from tfm_lab.tree import DraftTree

TILE = 16
FUSED, BRANCHES = "one solve", "branch by branch"


class Cost(NamedTuple):
    """What a step takes.

    Attributes:
        state_reads: how often a whole state is read from memory.
        bytes: read and written.
        flops: floating-point operations of products and substitutions, whole tiles; no exponentials, no masks.
    """

    state_reads: int = 0
    bytes: int = 0
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a verification.

    Attributes:
        kind: ``start``, ``block``, ``skip`` or ``diagonal`` of a solve, or ``branch``.
        block: tile of rows and tile of columns; the same tile for ``start`` and ``diagonal``, (-1, -1) for a branch.
        nodes: rows that the step is about: those that a diagonal or a branch finishes.
        cost: of this step alone.
        text: in words.
    """

    kind: str
    block: tuple[int, int]
    nodes: tuple[int, ...]
    cost: Cost
    text: str


def solve_steps(tree: DraftTree, dim: int) -> list[Step]:
    """The steps of ``verify_tree`` for one head of ``dim`` x ``dim``, float32."""
    ancestors, count = tree.ancestors(), len(tree)
    steps: list[Step] = []
    for tile, first in enumerate(range(0, count, TILE)):
        rows = tuple(range(first, min(first + TILE, count)))
        span = f"nodes {first} to {first + len(rows) - 1}" if len(rows) > 1 else f"node {first}"
        state = 4 * dim * dim if first == 0 else 0
        cost = Cost(int(first == 0), state + 4 * len(rows) * (3 * dim + 2), 2 * 2 * TILE * dim * dim)
        once = "Load the state, once for all. " if first == 0 else ""
        steps.append(Step("start", (tile, tile), rows, cost, f"{once}Load {span}; what does the state hold for them?"))
        for other in range(tile):
            seen = ancestors[first : first + TILE, other * TILE : (other + 1) * TILE]
            looking = int(seen.any(1).sum())
            there = f"nodes {other * TILE} to {other * TILE + TILE - 1}"
            look = len(rows) * TILE
            if not looking:
                text = f"None of {span} has an ancestor among {there}: skip the block."
                steps.append(Step("skip", (tile, other), rows, Cost(0, look), text))
                continue
            cost = Cost(0, look + 4 * TILE * (2 * dim + 1), 4 * 2 * TILE * TILE * dim)
            text = f"{looking} of {span} have ancestors among {there}: subtract what those wrote."
            steps.append(Step("block", (tile, other), rows, cost, text))
        flops = 3 * 2 * TILE * TILE * dim + 2 * TILE * (TILE - 1) * dim
        cost = Cost(0, len(rows) ** 2 + 2 * 4 * len(rows) * dim, flops)
        text = f"Substitute inside the tile, node after node, and write {span}: they are done."
        steps.append(Step("diagonal", (tile, tile), rows, cost, text))
    return steps


def branch_steps(tree: DraftTree, dim: int) -> list[Step]:
    """The steps of ``verify_branches``: every root-to-leaf path as a sequence of its own, the state in memory."""
    paths = [tree.path(leaf) for leaf in tree.leaves()]
    longest = max(map(len, paths))
    steps: list[Step] = []
    for number, path in enumerate(paths, start=1):
        length = len(path)
        cost = Cost(length, length * (2 * 4 * dim * dim + 4 * 4 * dim + 8) + 4 * longest, 7 * length * dim * dim)
        text = f"Branch {number} of {len(paths)}: {length} nodes from the root to leaf {path[-1]}, one after the other."
        steps.append(Step("branch", (-1, -1), path, cost, text))
    return steps


def total(steps: Sequence[Step]) -> Cost:
    """What these steps take together."""
    return Cost(*(sum(part) for part in zip(*(step.cost for step in steps), strict=True)))


class SolveState(traitlets.HasTraits):
    """Which step of which method is shown.

    Args:
        tree: at most 128 nodes, in any order with parents first.
        dim: key and value columns of the head.

    Raises:
        ValueError: for a larger tree.
    """

    method = traitlets.Enum([FUSED, BRANCHES], default_value=FUSED)
    index = traitlets.Int(0)

    def __init__(self, tree: DraftTree, dim: int = 128) -> None:
        if len(tree) > 128:
            raise ValueError(f"the picture has room for 128 nodes, and the tree has {len(tree)}")
        super().__init__()
        self.tree, self.dim = tree, dim
        self.tracks = {FUSED: solve_steps(tree, dim), BRANCHES: branch_steps(tree, dim)}

    @property
    def steps(self) -> list[Step]:
        """All steps of the present method."""
        return self.tracks[self.method]

    @property
    def done(self) -> list[Step]:
        """The steps so far, the present one included."""
        return self.steps[: self.index + 1]

    def go(self, index: int) -> None:
        """Show a step; past either end the nearest one."""
        self.index = max(0, min(index, len(self.steps) - 1))

    def choose(self, method: str) -> None:
        """Show another method, from its first step.

        Raises:
            TraitError: if there is no such method.
        """
        with self.hold_trait_notifications():
            self.index = 0
            self.method = method

    def times(self) -> list[int]:
        """How often each node has been computed so far."""
        finishing = [step.nodes for step in self.done if step.kind in ("diagonal", "branch")]
        counts = [0] * len(self.tree)
        for node in itertools.chain(*finishing):
            counts[node] += 1
        return counts

    def counters(self) -> list[str]:
        """Costs so far, and of both methods in the end."""
        lines = [f"so far: {told(total(self.done))}"]
        return lines + [f"{method}, in the end: {told(total(steps))}" for method, steps in self.tracks.items()]

    def describe(self) -> str:
        """The step and its place in words."""
        place = f"{self.method[0].upper()}{self.method[1:]}, step {self.index + 1} of {len(self.steps)}"
        return f"{place}. {self.steps[self.index].text} So far: {told(total(self.done))}."


def told(cost: Cost) -> str:
    """A cost in words."""
    times = "once" if cost.state_reads == 1 else f"{cost.state_reads} times"
    return f"state read {times}, {cost.bytes / 2**20:.2f} MiB moved, {cost.flops / 1e6:.1f} million operations"


def solve_picture(state: SolveState) -> Picture:
    """The present step alone, without controls."""
    return Picture(_svg(state, standalone=True), state.describe())


def _svg(state: SolveState, *, standalone: bool) -> str:
    blocks = [(step.kind, step.block) for step in state.done if step.kind != "branch"]
    present = state.steps[state.index]
    branch = present.nodes if present.kind == "branch" else ()
    return solve_svg(
        state.tree.ancestors().tolist(), blocks, branch, state.times(), len(state.tree.leaves()),
        state.counters(), state.describe(),
        standalone=standalone,
    )  # fmt: skip


class SolveExplorer(widgets.VBox):
    """A switch between the methods, a slider through the steps, and the picture; elsewhere its SVG.

    Args:
        state: what to show.
    """

    def __init__(self, state: SolveState) -> None:
        self.state = state
        self._switch = widgets.ToggleButtons(options=[FUSED, BRANCHES], value=state.method, description="method")
        self._slider = widgets.IntSlider(description="step", min=1, readout=True, layout=widgets.Layout(width="420px"))
        self._back = widgets.Button(description="◀ back", tooltip="previous step")
        self._next = widgets.Button(description="next ▶", tooltip="next step")
        self._picture, self._words = widgets.HTML(), widgets.HTML()
        self._switch.observe(lambda change: state.choose(change["new"]), "value")
        self._slider.observe(lambda change: state.go(change["new"] - 1), "value")
        self._back.on_click(lambda _: state.go(state.index - 1))
        self._next.on_click(lambda _: state.go(state.index + 1))
        state.observe(lambda _: self._refresh(), ["method", "index"])
        controls = widgets.HBox([self._back, self._next, self._slider])
        super().__init__([self._switch, controls, self._picture, self._words])
        self._refresh()

    def _refresh(self) -> None:
        state = self.state
        self._slider.max = len(state.steps)
        self._slider.value = state.index + 1
        self._switch.value = state.method
        self._back.disabled, self._next.disabled = state.index == 0, state.index == len(state.steps) - 1
        self._picture.value = _svg(state, standalone=False)
        self._words.value = f'<div role="status">{escape(state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = solve_picture(self.state)
        return dict(data or {}) | {"image/svg+xml": still.svg, "text/plain": still.description}, metadata
