"""Growth of a tree as short as on paper: solutions of notebook 06.

``tfm_lab.drafting.woven`` has the same with log-probabilities, ties, pools and limits; tests hold these against it.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.drafting import Draft, TreeConfig, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.lessons.by_hand import TokenPath, expected_tokens
from tfm_lab.theory import World
from tfm_lab.theory.worlds import perfect_source

Ask = Callable[[list[TokenPath]], Sequence[Sequence[float]]]
"""One drafter call: for each path the probabilities of the next token."""


def grow(ask: Ask, budget: int, width: int, depth: int) -> list[TokenPath]:
    """The paths of a tree in the order in which they are added: the likeliest first, ``width`` of them per call.

    Args:
        ask: one drafter call for a list of paths; ``()`` is the root.
        budget: paths to add.
        width: paths that are added between two calls.
        depth: longest path.
    """
    found: list[TokenPath] = []
    frontier: list[tuple[float, TokenPath]] = []
    fresh: list[tuple[float, TokenPath]] = [(1.0, ())]
    while len(found) < budget and (fresh or frontier):
        if fresh:
            rows = ask([path for _, path in fresh])
            for (chance, path), row in zip(fresh, rows, strict=True):
                for token, probability in enumerate(row):
                    if probability > 0.0:
                        heapq.heappush(frontier, (-chance * probability, (*path, token)))
        fresh = []
        for _ in range(min(width, budget - len(found), len(frontier))):
            negative, path = heapq.heappop(frontier)
            found.append(path)
            if len(path) < depth:
                fresh.append((-negative, path))
    return found


def first_orphan(paths: Sequence[TokenPath]) -> int:
    """Place of the first path that does not stand after its parent, -1 if there is none; the root is always there."""
    seen: set[TokenPath] = {()}
    for place, path in enumerate(paths):
        if path[:-1] not in seen:
            return place
        seen.add(path)
    return -1


@dataclass(frozen=True, slots=True, eq=False)
class PlacesWorld:
    """A world in which every place has its own law, whatever came before; a :class:`tfm_lab.theory.World`."""

    rows: Float[Tensor, "places vocab"]

    @property
    def vocab(self) -> int:
        return self.rows.shape[1]

    def conditional(self, path: TokenPath) -> Float[Tensor, " vocab"]:
        return self.rows[len(path)]

    def marginals(self, depth: int) -> Float[Tensor, "depth vocab"]:
        return self.rows[:depth]

    def conditionals(self, depth: int) -> tuple[Float[Tensor, " states"], Float[Tensor, "states vocab"]]:
        return torch.ones(1, dtype=self.rows.dtype), self.rows[depth - 1 : depth]


class ImpossibleRowsError(ValueError):
    """What was given is no list of distributions."""


def places_world(rows: Sequence[Sequence[float]], most_places: int = 16, most_tokens: int = 16) -> PlacesWorld:
    """The world of some rows; shorter rows are filled up with zeros.

    Raises:
        ImpossibleRowsError: if a row is no distribution, or there are too many rows or tokens.
    """
    lists = [[float(value) for value in row] for row in rows]
    longest = max(map(len, lists), default=0)
    if not 1 <= len(lists) <= most_places or not 1 <= longest <= most_tokens:
        raise ImpossibleRowsError(f"give 1 to {most_places} rows of at most {most_tokens} probabilities")
    for place, row in enumerate(lists):
        if min(row, default=-1.0) < 0.0 or not math.isclose(sum(row), 1.0, abs_tol=1e-9):
            raise ImpossibleRowsError(f"row {place} is no distribution: it sums to {sum(row):g}")
    return PlacesWorld(torch.tensor([[*row, *[0.0] * (longest - len(row))] for row in lists], dtype=torch.float64))


def grown(world: World, budget: int, width: int, depth: int) -> Draft:
    """The package's tree for a drafter that knows the world."""
    config = TreeConfig(budget=budget, max_depth=depth, children=max(budget, world.vocab), width=width)
    return woven(0, perfect_source(world, depth), config, SeededDraws(0))


def grown_paths(draft: Draft) -> list[TokenPath]:
    """One path per node, in the order in which they were added, the root left out."""
    return [draft.tree.path_tokens(node)[1:] for node in range(1, len(draft.tree))]


def length_by_width(rows: Sequence[Sequence[float]], budget: int, width: int) -> float:
    """Exact expected tokens per call of the tree grown ``width`` nodes at a time, where target and drafter are equal.

    Raises:
        ImpossibleRowsError: as :func:`places_world`.
    """
    world = places_world(rows)
    return expected_tokens(grown_paths(grown(world, budget, width, len(world.rows))), world.conditional)
