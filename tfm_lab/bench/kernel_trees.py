"""Draft trees of named shapes for benchmarks, in depth-first order. ``nodes`` counts the root."""

import heapq
from collections.abc import Callable
from random import Random

from tfm_lab.tree import DraftTree

MAX_DEPTH = 15
"""Proposed tokens on the longest path, chains aside: a drafter of block 16 proposes no more."""


def random_tree(nodes: int, seed: int) -> DraftTree:
    """Every new node hangs from an earlier one, drawn with weight 0.85 ** depth."""
    draws, parents, depths = Random(seed), [-1], [0]
    while len(parents) < nodes:
        weights = [0.85**depth if depth < MAX_DEPTH else 0.0 for depth in depths]
        parent = draws.choices(range(len(parents)), weights)[0]
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return _preordered(parents)


def best_first(nodes: int, seed: int) -> DraftTree:
    """The most probable nodes where a node's children have probabilities p, p (1 - p), ...; p is drawn per node."""
    draws, parents, depths = Random(seed), [-1], [0]
    waiting: list[tuple[float, int, float]] = []

    def open_node(node: int, probability: float) -> None:
        if depths[node] < MAX_DEPTH:
            share = draws.uniform(0.3, 0.9)
            heapq.heappush(waiting, (-probability * share, node, share))

    open_node(0, 1.0)
    while len(parents) < nodes:
        probability, parent, share = heapq.heappop(waiting)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        heapq.heappush(waiting, (probability * (1.0 - share), parent, share))
        open_node(len(parents) - 1, -probability)
    return _preordered(parents)


def comb(nodes: int, seed: int) -> DraftTree:
    """A spine of 15 proposed nodes; the others are leaves beside it."""
    draws, spine = Random(seed), min(MAX_DEPTH, nodes - 1)
    return _preordered([*range(-1, spine), *(draws.randrange(spine) for _ in range(nodes - 1 - spine))])


def chain(nodes: int, seed: int) -> DraftTree:
    """One path through all nodes: the deepest tree of this size."""
    return _preordered(list(range(-1, nodes - 1)))


def star(nodes: int, seed: int) -> DraftTree:
    """All proposed nodes hang from the root."""
    return _preordered([-1] + [0] * (nodes - 1))


TREES: dict[str, Callable[[int, int], DraftTree]] = {
    "random": random_tree,
    "best-first": best_first,
    "comb": comb,
    "star": star,
    "chain": chain,
}
"""Name -> builder; a builder takes the number of nodes and a seed."""


def _preordered(parents: list[int]) -> DraftTree:
    tree = DraftTree.from_parents(list(range(len(parents))), parents)
    return tree.reordered(tree.preorder())
