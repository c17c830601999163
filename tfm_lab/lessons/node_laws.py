"""What drafter, Weaver and target say after every node of a real draft tree, with the pool size left open.

The Weaver's read-out z(path) does not depend on the pool. So one session with a large pool serves every smaller one:
cut its row to the K best tokens of the drafter, and normalise what is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.distributions import total_variation
from tfm_lab.drafting import ConditionalSession, OpenNode
from tfm_lab.lab import OpenStep
from tfm_lab.models import WeaverSession
from tfm_lab.theory import pool_ceiling
from tfm_lab.tree import DraftTree


class NodeFit(NamedTuple):
    """How well the next token after one node is drafted; all are probabilities that a draft is accepted.

    Attributes:
        marginal: 1 - TV of the drafter's marginal and the target's conditional.
        weaver: the same for the Weaver on its pool.
        ceiling: p(C | path): what the best drafter on this pool is accepted.
    """

    marginal: float
    weaver: float
    ceiling: float


@dataclass(frozen=True, slots=True, eq=False)
class NodeLaws:
    """Laws of the next token after each node of a tree, in float64.

    Attributes:
        tree: the nodes.
        target: p(. | path).
        marginals: the drafter's, one row per depth: row d speaks about the children of nodes of depth d.
        ranked: the largest pool of each depth, best token of the drafter first; the pool of size K is the first K.
        conditionals: log q(. | path) of the Weaver on the largest pool.
    """

    tree: DraftTree
    target: Float[Tensor, "nodes vocab"]
    marginals: Float[Tensor, "depth vocab"]
    ranked: Int[Tensor, "depth pool"]
    conditionals: Float[Tensor, "nodes pool"]

    def depth(self, node: int) -> int:
        return int(self.tree.depths[node])

    def same_depth(self, node: int) -> list[int]:
        """All nodes of this node's depth, itself included."""
        return (self.tree.depths == self.tree.depths[node]).nonzero()[:, 0].tolist()

    def marginal(self, node: int) -> Float[Tensor, " vocab"]:
        """What the drafter says about the next token: the same for all nodes of a depth."""
        return self.marginals[self.depth(node)]

    def pool(self, node: int, size: int) -> Int[Tensor, " pool"]:
        """The candidates for the next token; all tokens if there are no more than ``size``.

        Raises:
            ValueError: if they were not all kept.
        """
        kept, vocab = self.ranked.shape[1], self.target.shape[1]
        if kept < min(size, vocab):
            raise ValueError(f"pools of up to {kept} candidates were kept, not of {size}")
        return self.ranked[self.depth(node), :size]

    def weaver(self, node: int, size: int) -> Float[Tensor, " vocab"]:
        """What the Weaver says about the next token with a pool of ``size``; 0 outside the pool."""
        tokens, on_pool = self.pool(node, size), torch.softmax(self.conditionals[node, :size], dim=0)
        return torch.zeros_like(self.target[node]).index_put_((tokens,), on_pool)

    def fit(self, node: int, size: int) -> NodeFit:
        """How often drafts for the next token are accepted, with a pool of ``size``."""
        p = self.target[node]
        return NodeFit(
            1.0 - float(total_variation(self.marginal(node), p)),
            1.0 - float(total_variation(self.weaver(node, size), p)),
            float(pool_ceiling(p, self.pool(node, size))),
        )


def node_laws(models: Bundle, step: OpenStep, tree: DraftTree, largest_pool: int = 1024) -> NodeLaws:
    """Ask all three models about every node of ``tree``.

    Args:
        models: a bundle with a Weaver.
        step: where the decode was halted; ``tree`` grows from its root.
        largest_pool: candidates to keep; the whole vocabulary if that is smaller.

    Raises:
        ValueError: if the bundle has no Weaver, the step no marginals, or the tree a node too deep to have children.
    """
    marginals = step.source.marginals
    if models.weaver is None or marginals is None:
        raise ValueError("conditionals need a drafter and a Weaver; use the hybrid bundle")
    session = WeaverSession(models.weaver, models.target, marginals, step.hidden, largest_pool)
    if tree.max_depth >= session.max_depth:
        raise ValueError(
            f"nothing is drafted after a node of depth {tree.max_depth}: grow the tree with "
            f"TreeConfig(max_depth={session.max_depth - 1})"
        )
    rows = expand_all(session, tree)
    return NodeLaws(
        tree,
        torch.softmax(models.target.verify_tree(step.state, tree).logits.double(), dim=1),
        torch.softmax(marginals.logits.double(), dim=1),
        marginals.pool(largest_pool).tokens,
        rows.double(),
    )


def mean_fit(laws: Sequence[NodeLaws], size: int, depth: int | None = None) -> NodeFit:
    """Mean over the nodes of several trees, every node counted once; only those of one depth if it is given.

    Raises:
        ValueError: if there are no such nodes.
    """
    fits = [
        one.fit(node, size)
        for one in laws
        for node in range(len(one.tree))
        if depth is None or one.depth(node) == depth
    ]
    if not fits:
        raise ValueError(f"no tree has a node of depth {depth}")
    return NodeFit(*(sum(column) / len(fits) for column in zip(*fits, strict=True)))


def likeliest_siblings(tree: DraftTree) -> tuple[int, int]:
    """Of all pairs of siblings the one whose less likely path the draft holds for most likely; the likelier one first.

    Raises:
        ValueError: if no node has a sibling.
    """
    scores = tree.path_log_probs().tolist()
    pairs = [sorted(children, key=lambda node: -scores[node])[:2] for children in tree.children() if len(children) > 1]
    if not pairs:
        raise ValueError("this tree is a chain: take a larger budget to see siblings")
    first, second = max(pairs, key=lambda pair: scores[pair[1]])
    return first, second


def expand_all(session: ConditionalSession, tree: DraftTree) -> Float[Tensor, "nodes pool"]:
    """Log-probabilities of a fresh session for every node, a call per depth."""
    tokens, parents, depths = tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist()
    rows: dict[int, Tensor] = {}
    for depth in range(tree.max_depth + 1):
        nodes = [node for node in range(len(tree)) if depths[node] == depth]
        proposals = session.expand([OpenNode(node, parents[node], tokens[node], depth) for node in nodes])
        rows |= {node: proposal.log_probs for node, proposal in zip(nodes, proposals, strict=True)}
    return torch.stack([rows[node] for node in range(len(tree))])
