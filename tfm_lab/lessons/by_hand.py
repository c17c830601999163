"""Solutions of exercises where the package has the same thing in another form; tests hold them against the package."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfm_lab.distributions import residual
from tfm_lab.drafting import DraftSource, Marginals, TreeConfig, best_first
from tfm_lab.draws import Draws, SeededDraws
from tfm_lab.tree import DraftTree

TokenPath = tuple[int, ...]


def accept_prob(p: Float[Tensor, " vocab"], q: Float[Tensor, " vocab"], token: int) -> float:
    """Probability of accepting a draft of ``token`` from q: min(1, p(token) / q(token)) (2302.01318)."""
    return min(1.0, float(p[token] / q[token]))


def spec_step(p: Float[Tensor, " vocab"], q: Float[Tensor, " vocab"], draws: Draws) -> tuple[int, bool]:
    """One token by speculative sampling: the token, and whether it is the accepted draft."""
    draft = draws.categorical(q)
    if draws.bernoulli(accept_prob(p, q, draft)):
        return draft, True
    return draws.categorical(residual(p, q)), False


def ancestor_mask(parents: Sequence[int]) -> Bool[Tensor, "nodes nodes"]:
    """Row i marks the nodes on the path from the root to i, i included; ``parents[0]`` is -1."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node in range(1, len(parents)):
        mask[node] |= mask[parents[node]]
    return mask


def membership_walk(tree: DraftTree, rows: Float[Tensor, "nodes vocab"], draws: Draws) -> tuple[tuple[int, ...], int]:
    """Accepted path (root first) and bonus token: draw the target's token, descend while a child carries it.

    Args:
        tree: the draft.
        rows: the target's distribution after each node.
        draws: one categorical draw per emitted token.
    """
    tokens, children = tree.tokens.tolist(), tree.children()
    path = [0]
    while True:
        token = draws.categorical(rows[path[-1]])
        following = [child for child in children[path[-1]] if tokens[child] == token]
        if not following:
            return tuple(path), token
        path.append(following[0])


def best_first_paths(rows: Sequence[Sequence[float]], budget: int) -> list[TokenPath]:
    """The ``budget`` most probable prefixes under the product of the rows, in the order in which best-first adds them.

    Args:
        rows: for each depth the drafter's marginal, a probability per token.
        budget: paths to return, fewer if there are not so many of positive probability.
    """
    logits = torch.tensor(rows, dtype=torch.float64).log()
    config = TreeConfig(budget=budget, max_depth=len(rows))
    tree = best_first(0, DraftSource(Marginals(logits, torch.zeros(len(rows), 1))), config, SeededDraws(0)).tree
    return [tree.path_tokens(node)[1:] for node in range(1, len(tree))]


def expected_tokens(paths: Iterable[TokenPath], conditional: Callable[[TokenPath], Tensor]) -> float:
    """Expected tokens of a step under membership: 1 + the sum of p(path) over the nodes of a tree.

    Args:
        paths: one path per node, the root left out.
        conditional: the target's distribution after a path.
    """
    return 1.0 + sum(
        math.prod(float(conditional(path[:place])[token]) for place, token in enumerate(path)) for path in paths
    )


def brute_force(rows: Sequence[Sequence[float]], budget: int) -> float:
    """Largest sum of path probabilities that any tree of ``budget`` nodes has, by trying all of them."""
    trees: set[frozenset[TokenPath]] = {frozenset()}
    for _ in range(budget):
        grown = {tree | {path} for tree in trees for path in _extensions(tree, rows)}
        trees = grown or trees
    return max(sum(math.prod(rows[d][token] for d, token in enumerate(path)) for path in tree) for tree in trees)


def _extensions(tree: frozenset[TokenPath], rows: Sequence[Sequence[float]]) -> set[TokenPath]:
    """Paths that can be added to a tree: one token longer than a path in it, and not in it."""
    parents = [path for path in ((), *tree) if len(path) < len(rows)]
    return {(*path, token) for path in parents for token in range(len(rows[len(path)]))} - tree
