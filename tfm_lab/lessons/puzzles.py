"""The puzzles of notebook 09: what each kernel is given, what it must leave, and what it cost.

``Puzzle`` is one of them, ``Head`` is what they work on: one head of a Gated DeltaNet layer and a draft tree.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.bench.kernel_trees import best_first
from tfm_lab.lessons.interpreting import Launch, launch
from tfm_lab.tree import DraftTree

TILE = 16
CLOSE = 1e-5
"""Largest difference to torch's float64, in units of the largest entry or of 1, whichever is more."""

FORGETFUL, STEEP, REPEATED = "a leaf that forgets everything", "a chain that forgets fast", "a token repeated 16 times"
"""Heads on which exponentials overflow or terms cancel."""


class Head(NamedTuple):
    """One head of a layer with a draft tree before it, everything in float32.

    Attributes:
        query, key, value: [nodes, dim].
        log_decay, beta: [nodes].
        state: [dim, dim].
    """

    name: str
    tree: DraftTree
    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor
    state: Tensor

    @property
    def nodes(self) -> int:
        return len(self.tree)

    @property
    def dim(self) -> int:
        return self.key.shape[1]

    @property
    def tiles(self) -> int:
        return math.ceil(self.nodes / TILE)

    @property
    def path_sum(self) -> Tensor:
        """[nodes]: log decay from the root to each node, both included."""
        return (self.tree.ancestors().double() @ self.log_decay.double()).float()

    @property
    def ancestors(self) -> Tensor:
        """[nodes, nodes] uint8: 1 where column j is an ancestor of row i, or i itself."""
        return self.tree.ancestors().to(torch.uint8)

    def decay(self) -> Tensor:
        """[nodes, nodes] float64: exp of the log decay between the nodes, 0 off the ancestors."""
        g = self.path_sum.double()
        return (g[:, None] - g[None, :]).masked_fill(~self.tree.ancestors(), -math.inf).exp()

    def verified(self) -> gdn.TreeVerification:
        """Outputs and updates of all nodes by the readable reference, in float64."""
        return self.verified_rows(torch.arange(self.nodes))

    def verified_rows(self, rows: Tensor) -> gdn.TreeVerification:
        """The same for some nodes alone, in float64: right if these are closed under ancestors.

        Args:
            rows: [rows] int64, the root first.
        """
        query, key, value, log_decay, beta = (
            part[rows].double()[None] for part in (self.query, self.key, self.value, self.log_decay, self.beta)
        )
        ancestors = self.tree.ancestors()[rows][:, rows]
        return gdn.tree_verify(query, key, value, log_decay, beta, self.state.double()[None], ancestors)


def random_head(tree: DraftTree, seed: int, name: str = "", dim: int = 16, decay: float = 0.3) -> Head:
    """A head with random rows, normalised as in a model.

    Args:
        decay: mean log decay, as a positive number.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    nodes = len(tree)
    query, key = gdn.normalised_query_and_key(normal(1, nodes, dim), normal(1, nodes, dim))
    value, log_decay, beta = normal(nodes, dim), -decay * normal(nodes).square(), torch.sigmoid(2 * normal(nodes))
    parts = (query[0], key[0], value, log_decay, beta, 0.3 * normal(dim, dim))
    return Head(name, tree, *(part.float() for part in parts))


def _tree(parents: list[int]) -> DraftTree:
    return DraftTree.from_parents(list(range(len(parents))), parents)


def heads() -> list[Head]:
    """What the kernels are checked on, from the simplest to the hardest."""
    forgetful = random_head(best_first(20, 0), 3, FORGETFUL)
    forgetful.log_decay[forgetful.tree.leaves()[0]] = -200.0
    steep = random_head(_tree(list(range(-1, 23))), 4, STEEP)
    steep.log_decay[:] = -6.0
    repeated = random_head(_tree(list(range(-1, 15))), 5, REPEATED, decay=0.0)
    repeated.key[:] = repeated.key[:1].clone()
    repeated.beta[:] = 0.95
    return [
        random_head(_tree([-1]), 0, "the root alone"),
        random_head(_tree([-1, 0, 0]), 1, "two siblings"),
        random_head(best_first(11, 2), 2, "a tree of 11 nodes", dim=32),
        random_head(best_first(37, 1), 6, "a tree of 37 nodes"),
        forgetful,
        steep,
        repeated,
    ]


Arguments = dict[str, Tensor | int]


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One kernel to write.

    Attributes:
        arguments: what a kernel is given for a head, in the order of its parameters; outputs hold NaN.
        grid: programs of the launch.
        right: what the outputs must hold, in float64.
        fits: whether the puzzle can be posed for a head.
    """

    arguments: Callable[[Head], Arguments]
    grid: Callable[[Head], tuple[int, ...]]
    right: Callable[[Head], dict[str, Tensor]]
    fits: Callable[[Head], bool] = lambda head: True

    def heads(self) -> list[Head]:
        """The heads that it is checked on."""
        return [head for head in heads() if self.fits(head)]

    def run(self, kernel: Any, head: Head) -> Launch:
        """Launch a kernel. Raises what :func:`tfm_lab.lessons.interpreting.launch` raises."""
        return launch(kernel, self.arguments(head), self.grid(head))

    def error(self, ran: Launch, head: Head) -> float:
        """Largest difference of an output to what it must be, over the largest entry (1 if that is less)."""
        return max(relative_error(ran.tensors[name], right) for name, right in self.right(head).items())


def relative_error(got: Tensor, right: Tensor) -> float:
    """Largest difference over the largest right entry, or over 1 if that is less; NaN if something is NaN."""
    return float((got.double() - right).abs().max() / right.abs().max().clamp_min(1.0))


def _unwritten(*shape: int) -> Tensor:
    return torch.full(shape, math.nan)


def _padded(rows: Tensor, tiles: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(TILE * tiles - len(rows), rows.shape[1])])


def _system(head: Head) -> Tensor:
    """beta_i D_ij (k_i . k_j) of the first 16 nodes as Gram tile and decays leave it, with 9 on the diagonal and above,
    where a kernel must not look.
    """
    x = head.beta.double()[:, None] * head.decay() * (head.key.double() @ head.key.double().T)
    full = torch.zeros(TILE, TILE, dtype=torch.float64)
    nodes = min(head.nodes, TILE)
    full[:nodes, :nodes] = x[:nodes, :nodes]
    return (full.tril(-1) + 9.0 * torch.ones(TILE, TILE).triu()).float()


def _first_rows(rows: Tensor) -> Tensor:
    return _padded(rows[:TILE], 1)


def _substituted(head: Head) -> dict[str, Tensor]:
    system, right = _system(head).double().tril(-1), _first_rows(head.value).double()
    return {"update": torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)}


def _output_arguments(head: Head) -> Arguments:
    return {
        "query": head.query,
        "key": head.key,
        "decay": head.decay().float(),
        "from_root": head.path_sum.exp(),
        "state": head.state,
        "update": head.verified().writes.update[0].float(),
        "output": _unwritten(head.nodes, head.dim),
        "nodes": head.nodes,
        "DIM": head.dim,
    }


def _verify_arguments(head: Head) -> Arguments:
    return {
        "query": head.query,
        "key": head.key,
        "value": head.value,
        "path_sum": head.path_sum,
        "beta": head.beta,
        "state": head.state,
        "ancestors": head.ancestors,
        "output": _unwritten(head.nodes, head.dim),
        "update": _unwritten(head.nodes, head.dim),
        "nodes": head.nodes,
        "DIM": head.dim,
    }


def _verified(head: Head) -> dict[str, Tensor]:
    output, writes = head.verified()
    return {"output": output[0], "update": writes.update[0]}


PUZZLES: Mapping[str, Puzzle] = MappingProxyType(
    {
        "09.load_tile": Puzzle(
            arguments=lambda head: {
                "rows": head.value,
                "tile": _unwritten(TILE * head.tiles, head.dim),
                "nodes": head.nodes,
                "DIM": head.dim,
            },
            grid=lambda head: (head.tiles,),
            right=lambda head: {"tile": _padded(head.value.double(), head.tiles)},
        ),
        "09.gram": Puzzle(
            arguments=lambda head: {
                "key": head.key,
                "product": _unwritten(head.nodes, head.nodes),
                "nodes": head.nodes,
                "DIM": head.dim,
            },
            grid=lambda head: (head.tiles, head.tiles),
            right=lambda head: {"product": head.key.double() @ head.key.double().T},
        ),
        "09.decay_mask": Puzzle(
            arguments=lambda head: {
                "path_sum": head.path_sum,
                "ancestors": head.ancestors,
                "decay": _unwritten(head.nodes, head.nodes),
                "nodes": head.nodes,
            },
            grid=lambda head: (head.tiles, head.tiles),
            right=lambda head: {"decay": head.decay()},
        ),
        "09.substitute": Puzzle(
            arguments=lambda head: {
                "x": _system(head),
                "right": _first_rows(head.value),
                "update": _unwritten(TILE, head.dim),
                "DIM": head.dim,
            },
            grid=lambda head: (1,),
            right=_substituted,
            fits=lambda head: head.tiles == 1 or head.name == FORGETFUL,
        ),
        "09.output_tile": Puzzle(
            arguments=_output_arguments,
            grid=lambda head: (1,),
            right=lambda head: {"output": head.verified().output[0]},
            fits=lambda head: head.tiles == 1,
        ),
        "09.verify_tree": Puzzle(
            arguments=_verify_arguments,
            grid=lambda head: (1,),
            right=_verified,
            fits=lambda head: head.name != STEEP,
        ),
    }
)


def branch_arguments(head: Head) -> Arguments:
    """What :func:`tfm_lab.lessons.by_hand_kernels.verify_branches` is given; one program per leaf."""
    paths = [head.tree.path(leaf) for leaf in head.tree.leaves()]
    longest = max(map(len, paths))
    return {
        "query": head.query,
        "key": head.key,
        "value": head.value,
        "log_decay": head.log_decay,
        "beta": head.beta,
        "state": head.state,
        "paths": torch.tensor([[*path, *[-1] * (longest - len(path))] for path in paths], dtype=torch.int32),
        "scratch": _unwritten(len(paths), head.dim, head.dim),
        "output": _unwritten(head.nodes, head.dim),
        "longest": longest,
        "DIM": head.dim,
    }
