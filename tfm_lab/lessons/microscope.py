"""The kernel microscope: X, Y and the solve of a small draft tree, tile by tile or in closure blocks.

``MicroscopeState`` computes what is known after each stage; ``KernelMicroscope`` wires it to controls. Everything is
float64 on one head, by the reference formulas of notebook 08 (2607.06763, eq. 11), cut the way a kernel cuts them.
"""

from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets
import torch
import traitlets
from jaxtyping import Float
from torch import Tensor

from tfm_lab.bench.kernel_trees import TREES
from tfm_lab.lessons.memory_by_hand import solve
from tfm_lab.lessons.memory_cases import MemoryTree, memory_tree, solve_arguments
from tfm_lab.lessons.microscope_picture import Glimpse, microscope_svg
from tfm_lab.show.picture import Picture
from tfm_lab.tree import DraftTree

TILES, BLOCKS = "tile by tile", "closure blocks"
MOST_NODES = 40


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a solve.

    Attributes:
        kind: ``subtract`` (a tile takes off what earlier tiles wrote), ``substitute`` (a tile is solved) or ``block``.
        rows: nodes that are worked on.
        reads: other nodes whose updates the stage needs.
        skipped: nodes of earlier tiles that are passed over whole, because none is an ancestor.
        text: in words.
    """

    kind: str
    rows: tuple[int, ...]
    reads: tuple[int, ...]
    skipped: tuple[int, ...]
    text: str

    @property
    def finishes(self) -> tuple[int, ...]:
        """Nodes whose updates are known afterwards."""
        return () if self.kind == "subtract" else self.rows


def tile_stages(tree: DraftTree, tile: int) -> list[Stage]:
    """Forward substitution over tiles of ``tile`` nodes, in the order of the nodes."""
    ancestors, stages = tree.ancestors(), list[Stage]()
    for first in range(0, len(tree), tile):
        rows = tuple(range(first, min(first + tile, len(tree))))
        reads, skipped = list[int](), list[int]()
        for other in range(0, first, tile):
            earlier = range(other, other + tile)
            (reads if bool(ancestors[list(rows)][:, list(earlier)].any()) else skipped).extend(earlier)
        if first:
            passed = f"; {len(skipped) // tile} of {first // tile} earlier tiles hold no ancestor and are skipped"
            text = f"{_span(rows)}: subtract what their ancestors in earlier tiles wrote{passed if skipped else ''}."
            stages.append(Stage("subtract", rows, tuple(reads), tuple(skipped), text))
        text = f"{_span(rows)}: substitute inside the tile, node after node. Their updates are done."
        stages.append(Stage("substitute", rows, (), (), text))
    return stages


def block_stages(tree: DraftTree, block: int) -> list[Stage]:
    """Blocks of nodes in depth-first order, each with the path to its first node: problems that share nothing."""
    stages = list[Stage]()
    for first in range(0, len(tree), block):
        rows = tuple(range(first, min(first + block, len(tree))))
        path = tree.path(first)[:-1]
        text = (
            f"{_span(rows)} with the {len(path)} nodes above the first one: {len(path) + len(rows)} rows that need "
            "nothing else. A GPU solves all blocks at the same time."
        )
        stages.append(Stage("block", rows, path, (), text))
    return stages


class MicroscopeState(traitlets.HasTraits):
    """A tree, how it is cut, the stage and the node that are looked at.

    Raises:
        ValueError: for a tree, size, tile, stage or node that there is not.
    """

    kind = traitlets.Enum(list(TREES), default_value="best-first")
    nodes = traitlets.Int(24)
    tile = traitlets.Enum([4, 8, 16], default_value=4)
    method = traitlets.Enum([TILES, BLOCKS], default_value=TILES)
    index = traitlets.Int(0)
    node = traitlets.Int(0)

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._seed = seed
        self._measure()
        self.observe(lambda _: self._measure(), ["kind", "nodes", "tile", "method"])

    @traitlets.validate("nodes")
    def _some_nodes(self, proposal: Any) -> int:
        if not 2 <= proposal["value"] <= MOST_NODES:
            raise ValueError(f"the microscope takes 2 to {MOST_NODES} nodes, got {proposal['value']}")
        return int(proposal["value"])

    @traitlets.validate("node")
    def _known_node(self, proposal: Any) -> int:
        if not 0 <= proposal["value"] < self.nodes:
            raise ValueError(f"the tree has nodes 0 to {self.nodes - 1}, got {proposal['value']}")
        return int(proposal["value"])

    @traitlets.validate("index")
    def _known_stage(self, proposal: Any) -> int:
        if not 0 <= proposal["value"] < len(self.stages):
            raise ValueError(f"the solve has stages 0 to {len(self.stages) - 1}, got {proposal['value']}")
        return int(proposal["value"])

    def go(self, index: int) -> None:
        """Show a stage; past either end the nearest one."""
        self.index = max(0, min(index, len(self.stages) - 1))

    @property
    def stage(self) -> Stage:
        """The present stage."""
        return self.stages[self.index]

    def done(self) -> set[int]:
        """Nodes whose updates are known after the present stage."""
        return {node for stage in self.stages[: self.index + 1] for node in stage.finishes}

    def updates(self) -> Float[Tensor, "nodes value_dim"]:
        """U after the present stage, computed stage by stage from what each may read; NaN where it is not known."""
        known = torch.full_like(self.exact, torch.nan)
        right = self._right()
        for stage in self.stages[: self.index + 1]:
            rows, reads = list(stage.rows), list(stage.reads)
            if stage.kind == "subtract":
                right[rows] -= self.X[rows][:, reads] @ known[reads]
                continue
            together = rows if stage.kind == "substitute" else reads + rows
            system = torch.eye(len(together), dtype=self.X.dtype) + self.X[together][:, together]
            solved = torch.linalg.solve_triangular(system, right[together], upper=False)
            known[rows] = solved[len(together) - len(rows) :]
        return known

    def error(self) -> float:
        """Largest difference of the known updates from one solve of the whole tree."""
        rows = sorted(self.done())
        return float((self.updates()[rows] - self.exact[rows]).abs().max()) if rows else 0.0

    def _agreement(self) -> str:
        error = self.error()
        return f"within {error:.0e} of" if error else "the same as those of"

    def describe(self) -> str:
        """Tree, stage and node in words."""
        tree = self.case.tree
        above = [str(node) for node in tree.path(self.node)[:-1]]
        reads = f"reads the writes of {', '.join(above)}" if above else "is the root and reads no other write"
        return (
            f"{self.kind[0].upper()}{self.kind[1:]} tree of {len(tree)} nodes, {self._place()}. {self.stage.text} "
            f"{len(self.done())} of {len(tree)} updates known, {self._agreement()} one solve of the whole. "
            f"Node {self.node} {reads}; its row of X has entries there and nowhere else."
        )

    def glimpse(self) -> Glimpse:
        """What the picture shows."""
        return Glimpse(
            self.case.tree, self.X, self.Y, self.updates(), self.stage.rows, self.stage.reads, self.stage.skipped,
            frozenset(self.done()), self.tile, self.node, self._place(),
        )  # fmt: skip

    def _place(self) -> str:
        return f"{self.method}, stage {self.index + 1} of {len(self.stages)}"

    def _measure(self) -> None:
        tree = TREES[self.kind](self.nodes, self._seed)
        self.case: MemoryTree = memory_tree(tree.parents.tolist(), self._seed)
        arguments = solve_arguments(self.case)
        self.X, self.Y = arguments[:2]
        self.exact, _ = solve(*arguments)
        cut = tile_stages if self.method == TILES else block_stages
        self.stages = cut(self.case.tree, self.tile)
        with self.hold_trait_notifications():
            self.index = min(self.index, len(self.stages) - 1)
            self.node = min(self.node, self.nodes - 1)

    def _right(self) -> Float[Tensor, "nodes value_dim"]:
        """The right-hand side: beta (V - a K S0)."""
        _, _, from_root, _, key, value, beta, state = solve_arguments(self.case)
        return beta[:, None] * (value - from_root[:, None] * (key @ state))


class KernelMicroscope(widgets.VBox):
    """Choices of tree and cut, stages to step through and a node to follow; elsewhere the SVG.

    Args:
        state: what to show.
    """

    def __init__(self, state: MicroscopeState) -> None:
        self.state = state
        wide = widgets.Layout(width="380px")
        self._controls: dict[str, Any] = {
            "kind": widgets.ToggleButtons(options=list(TREES), description="tree", style={"button_width": "auto"}),
            "nodes": widgets.IntSlider(
                min=2, max=MOST_NODES, description="nodes", layout=wide, continuous_update=False
            ),
            "tile": widgets.ToggleButtons(options=[4, 8, 16], description="tile"),
            "method": widgets.ToggleButtons(options=[TILES, BLOCKS], description="cut"),
            "node": widgets.IntSlider(min=0, max=state.nodes - 1, description="node", layout=wide),
        }
        self._stage = widgets.IntSlider(min=1, max=len(state.stages), description="stage", layout=wide)
        self._back = widgets.Button(description="◀ back", tooltip="previous stage")
        self._next = widgets.Button(description="next ▶", tooltip="next stage")
        self._picture, self._words = widgets.HTML(), widgets.HTML()
        self._refresh()
        for name, control in self._controls.items():
            control.observe(lambda change, name=name: setattr(state, name, change["new"]), "value")
        self._stage.observe(lambda change: state.go(change["new"] - 1), "value")
        self._back.on_click(lambda _: state.go(state.index - 1))
        self._next.on_click(lambda _: state.go(state.index + 1))
        state.observe(lambda _: self._refresh(), list(state.traits()))
        wrapped = widgets.Layout(flex_flow="row wrap")
        rows = (("kind", "nodes"), ("tile", "method"))
        super().__init__(
            [
                *(widgets.Box([self._controls[name] for name in row], layout=wrapped) for row in rows),
                widgets.Box([self._stage, self._back, self._next], layout=wrapped),
                self._controls["node"],
                widgets.Box([self._picture], layout=widgets.Layout(overflow="auto", max_width="100%")),
                self._words,
            ]
        )

    def _refresh(self) -> None:
        state = self.state
        self._stage.max, self._controls["node"].max = len(state.stages), state.nodes - 1
        for name, control in self._controls.items():
            control.value = getattr(state, name)
        self._stage.value = state.index + 1
        self._back.disabled, self._next.disabled = state.index == 0, state.index == len(state.stages) - 1
        self._picture.value = microscope_svg(state.glimpse(), state.describe(), standalone=False)
        self._words.value = f'<div role="status">{escape(state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = microscope_still(self.state)
        return dict(data or {}) | {"image/svg+xml": still.svg, "text/plain": still.description}, metadata


def microscope_still(state: MicroscopeState) -> Picture:
    """The present stage alone, without controls."""
    return Picture(microscope_svg(state.glimpse(), state.describe(), standalone=True), state.describe())


def _span(rows: tuple[int, ...]) -> str:
    first, last = min(rows), max(rows)
    return f"Nodes {first} to {last}" if first < last else f"Node {first}"
