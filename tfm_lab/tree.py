"""The draft tree: tokens that a drafter proposes, hanging from the last committed token.

Node 0 is the root: the last committed token, which the target has not processed yet. It is not a proposal and does not
count towards a budget. Every other node is a proposed token; its path from the root is one possible continuation.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import networkx as nx
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class DraftTree:
    """A rooted tree of proposed tokens, stored as parallel arrays on the CPU.

    Attributes:
        tokens: token id of each node (int64).
        parents: index of each node's parent; -1 at the root. ``parents[i] < i``: the order is topological.
        depths: number of edges from the root; 0 at the root.
        log_probs: log q(token | path to the parent), natural logarithm, under the drafter; 0 at the root.

    Siblings carry distinct tokens, and their index order is the order in which they were proposed.

    Raises:
        ValueError: naming the first node that breaks one of these rules.

    Example:
        >>> tree = DraftTree.from_parents(tokens=[7, 3, 5, 3], parents=[-1, 0, 0, 2])
        >>> tree.depths.tolist(), tree.path(3)
        ([0, 1, 1, 2], (0, 2, 3))
    """

    tokens: Int[Tensor, " nodes"]
    parents: Int[Tensor, " nodes"]
    depths: Int[Tensor, " nodes"]
    log_probs: Float[Tensor, " nodes"]

    def __post_init__(self) -> None:
        _check(self.tokens.tolist(), self.parents.tolist(), self.depths.tolist(), self.log_probs.tolist())

    @classmethod
    def from_parents(
        cls, tokens: Sequence[int], parents: Sequence[int], log_probs: Sequence[float] | None = None
    ) -> "DraftTree":
        """Build a tree from plain sequences; depths follow from the parents, missing log-probabilities are 0."""
        depths: list[int] = []
        for node, parent in enumerate(parents):
            depths.append(depths[parent] + 1 if node and 0 <= parent < node else 0)
        return cls(
            torch.tensor(tokens, dtype=torch.int64),
            torch.tensor(parents, dtype=torch.int64),
            torch.tensor(depths, dtype=torch.int64),
            torch.tensor([0.0] * len(tokens) if log_probs is None else log_probs, dtype=torch.float64),
        )

    @classmethod
    def root_only(cls, token: int) -> "DraftTree":
        """The tree of budget 0: verifying it is one plain decoding step."""
        return cls.from_parents([token], [-1])

    def __len__(self) -> int:
        """Number of nodes, root included."""
        return self.tokens.numel()

    @property
    def budget(self) -> int:
        """Number of proposed tokens: all nodes but the root."""
        return len(self) - 1

    @property
    def max_depth(self) -> int:
        """Number of proposed tokens on the longest path."""
        return int(self.depths.max())

    def ancestors(self) -> Bool[Tensor, "nodes nodes"]:
        """Ancestor mask, inclusive: ``[i, j]`` is true when j lies on the path from the root to i, or is i."""
        mask = torch.eye(len(self), dtype=torch.bool)
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            mask[node] |= mask[parent]
        return mask

    def path(self, node: int) -> tuple[int, ...]:
        """Node indices from the root to ``node``, both included.

        Raises:
            ValueError: if there is no such node.
        """
        if not 0 <= node < len(self):
            raise ValueError(
                f"node {node} is not in a tree of {len(self)} nodes; use an index from 0 to {len(self) - 1}"
            )
        parents = self.parents.tolist()
        reverse = [node]
        while reverse[-1] != 0:
            reverse.append(parents[reverse[-1]])
        return tuple(reversed(reverse))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Tokens from the root to ``node``, both included."""
        tokens = self.tokens.tolist()
        return tuple(tokens[index] for index in self.path(node))

    def children(self) -> tuple[tuple[int, ...], ...]:
        """For each node its children's indices, in the order in which they were proposed."""
        children: list[list[int]] = [[] for _ in range(len(self))]
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            children[parent].append(node)
        return tuple(tuple(indices) for indices in children)

    def leaves(self) -> tuple[int, ...]:
        """Indices of the nodes without children, in index order."""
        return tuple(node for node, children in enumerate(self.children()) if not children)

    def path_log_probs(self) -> Float[Tensor, " nodes"]:
        """Log-probability of each node's whole path under the drafter (sum of ``log_probs`` along it)."""
        totals = self.log_probs.tolist()
        for node, parent in enumerate(self.parents.tolist()[1:], start=1):
            totals[node] += totals[parent]
        return torch.tensor(totals, dtype=self.log_probs.dtype)

    def preorder(self) -> tuple[int, ...]:
        """Node indices in depth-first pre-order, children in proposal order: each subtree is one run of positions."""
        children = self.children()
        order: list[int] = []
        stack = [0]
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(reversed(children[node]))
        return tuple(order)

    def reordered(self, order: Sequence[int]) -> "DraftTree":
        """The same tree with node ``order[i]`` at index i.

        Raises:
            ValueError: if ``order`` is not a permutation in which every parent precedes its children.
        """
        if sorted(order) != list(range(len(self))):
            raise ValueError(f"the order must name each of the {len(self)} nodes once")
        place = {node: index for index, node in enumerate(order)}
        index = torch.tensor(order, dtype=torch.int64)
        parents = [place.get(parent, -1) for parent in self.parents[index].tolist()]
        return DraftTree(
            self.tokens[index], torch.tensor(parents, dtype=torch.int64), self.depths[index], self.log_probs[index]
        )

    def first_nodes(self, count: int) -> "DraftTree":
        """The root and the first ``count`` proposed nodes; parents come first, so that is a tree too."""
        keep = slice(0, max(0, count) + 1)
        return DraftTree(self.tokens[keep], self.parents[keep], self.depths[keep], self.log_probs[keep])

    def to_networkx(self, decode: Callable[[int], str] = str) -> "nx.DiGraph[int]":
        """The tree as a directed graph, edges from parent to child.

        Args:
            decode: turns a token id into the node attribute ``label``.

        Returns:
            A graph whose nodes carry ``token``, ``label``, ``depth``, ``log_prob`` and ``path_log_prob``.
        """
        graph: nx.DiGraph[int] = nx.DiGraph()
        rows = zip(
            self.tokens.tolist(),
            self.depths.tolist(),
            self.log_probs.tolist(),
            self.path_log_probs().tolist(),
            strict=True,
        )
        for node, (token, depth, log_prob, path_log_prob) in enumerate(rows):
            graph.add_node(
                node, token=token, label=decode(token), depth=depth, log_prob=log_prob, path_log_prob=path_log_prob
            )
        graph.add_edges_from((parent, node) for node, parent in enumerate(self.parents.tolist()) if node)
        return graph


def _check(tokens: list[int], parents: list[int], depths: list[int], log_probs: list[float]) -> None:
    """Raise a ValueError naming the first node that breaks an invariant of ``DraftTree``."""
    lengths = {len(tokens), len(parents), len(depths), len(log_probs)}
    if len(lengths) != 1:
        raise ValueError(
            f"tokens, parents, depths and log_probs must have one entry per node, got {len(tokens)}, {len(parents)}, "
            f"{len(depths)} and {len(log_probs)}"
        )
    if not tokens:
        raise ValueError("a draft tree needs at least its root, the last committed token")
    if parents[0] != -1 or depths[0] != 0 or log_probs[0] != 0.0:
        raise ValueError("node 0 is the root: its parent must be -1, its depth 0 and its log-probability 0")
    seen: set[tuple[int, int]] = set()
    for node, (token, parent, depth, log_prob) in _numbered(tokens, parents, depths, log_probs):
        if token < 0:
            raise ValueError(f"node {node} has token {token}; token ids start at 0")
        if node == 0:
            continue
        if not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}; a parent must come before its children")
        if depth != depths[parent] + 1:
            raise ValueError(f"node {node} has depth {depth}; one more than its parent's is {depths[parent] + 1}")
        if not log_prob <= 1e-6:
            raise ValueError(f"node {node} has log-probability {log_prob}; it must be a number that is at most 0")
        if (parent, token) in seen:
            raise ValueError(f"node {node} repeats token {token} below node {parent}; siblings must differ")
        seen.add((parent, token))


def _numbered(
    tokens: Iterable[int], parents: Iterable[int], depths: Iterable[int], log_probs: Iterable[float]
) -> Iterable[tuple[int, tuple[int, int, int, float]]]:
    return enumerate(zip(tokens, parents, depths, log_probs, strict=True))
