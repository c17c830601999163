"""The tree of B nodes that a target accepts most of: its B most probable paths, found exactly.

Under membership verification (``target_sample``) a node is accepted when the target's own draws spell its path, so the
expected number of accepted drafts is the sum of the target's probabilities of all nodes' paths. A path is at most as
probable as its prefixes. So the B most probable paths are a tree, and no other tree of B nodes has a larger sum.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab.drafting.growth import pairs, stable_topk
from tfm_lab.models.layers import at_least_float32
from tfm_lab.models.state import TargetState
from tfm_lab.models.target import TargetModel
from tfm_lab.tree import DraftTree

TOGETHER = 8
"""Most paths asked about in one target call. More of them take fewer calls, but more turn out not to matter."""

Path = tuple[int, ...]
"""Tokens below the root, which is left out."""

Children = Sequence[tuple[int, float]]
"""Next tokens with their log-probabilities, best first; none of probability 0."""


class Reached(NamedTuple):
    """A path and its log-probability under the target."""

    path: Path
    log_prob: float


def best_paths(
    ask: Callable[[Sequence[Path]], Sequence[Children]],
    budget: int,
    depth: int,
    known: Mapping[Path, Children] | None = None,
) -> list[Reached]:
    """The ``budget`` most probable paths of at most ``depth`` tokens, best first; fewer only if there are no more.

    Grows the tree with what is known so far, asks about its nodes whose children are unknown, and begins again until
    there are none. Then the tree is exact: every path that was not looked at extends one that did not get in.

    Args:
        ask: gives the children of each path, at least the ``budget`` best.
        known: children of some paths, so that nobody has to ask for them.
    """
    children = dict(known or {})
    if () not in children and depth > 0:
        children[()] = ask([()])[0]
    while True:
        found = _grow(children, budget, depth)
        missing = [path for path, _ in found if len(path) < depth and path not in children][:TOGETHER]
        if not missing:
            return found
        children |= zip(missing, ask(missing), strict=True)


def _grow(children: Mapping[Path, Children], budget: int, depth: int) -> list[Reached]:
    """The best paths among those whose parents' children are known."""
    found: list[Reached] = []
    frontier: list[tuple[float, Path, int]] = []

    def offer(reached: Reached, rank: int) -> None:
        listed = children.get(reached.path, ()) if len(reached.path) < depth else ()
        if rank < len(listed):
            parents[reached.path] = reached
            heapq.heappush(frontier, (-reached.log_prob - listed[rank][1], reached.path, rank))

    parents: dict[Path, Reached] = {}
    offer(Reached((), 0.0), 0)
    while frontier and len(found) < budget:
        score, before, rank = heapq.heappop(frontier)
        found.append(Reached((*before, children[before][rank][0]), -score))
        offer(parents[before], rank + 1)
        offer(found[-1], 0)
    return found


class TargetPaths:
    """A target at one place of a text: what it says after any path below it.

    Args:
        target: the model.
        state: after the text, its last token left out.
        root: that last token.
        most: children listed per path.
    """

    def __init__(self, target: TargetModel, state: TargetState, root: int, most: int) -> None:
        self._target, self._state, self._root, self._most = target, state, root, most

    def ask(self, paths: Sequence[Path]) -> list[Children]:
        """The best children of each path, from one target call."""
        tree, nodes = tree_of(self._root, paths)
        return self.children(self.log_probs(tree)[nodes])

    def log_probs(self, tree: DraftTree) -> Tensor:
        """Log-probabilities of the next token after every node of a tree [nodes, vocab], float32 or wider."""
        return at_least_float32(self._target.verify_tree(self._state, tree).logits).log_softmax(-1)

    def children(self, log_probs: Tensor) -> list[Children]:
        """The best entries of each row."""
        best = stable_topk(log_probs, self._most)
        return list(pairs(best.indices, best.values.double()))


def tree_of(root: int, paths: Sequence[Path]) -> tuple[DraftTree, list[int]]:
    """The smallest tree that holds all these paths, and the node that ends each of them."""
    inner = sorted(
        {path[:end] for path in paths for end in range(1, len(path) + 1)}, key=lambda path: (len(path), path)
    )
    node_of = {path: node for node, path in enumerate([(), *inner])}
    tree = DraftTree.from_parents([root, *(path[-1] for path in inner)], [-1, *(node_of[path[:-1]] for path in inner)])
    return tree, [node_of[path] for path in paths]


def path_probabilities(tree: DraftTree, log_probs: Tensor) -> Tensor:
    """The target's probability of each node's path [nodes], float64 on the CPU; 1 at the root.

    Args:
        log_probs: of the next token after every node [nodes, vocab].
    """
    own = log_probs[tree.parents[1:], tree.tokens[1:]].double().cpu()
    return replace(tree, log_probs=torch.cat([own.new_zeros(1), own])).path_log_probs().exp()
