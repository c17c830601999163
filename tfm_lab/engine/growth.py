"""Draft trees grown on the device in fixed shapes: the trees of ``best_first`` and ``woven`` without a heap.

Ties between scores go to whatever ``topk`` prefers on the device; the readable builders settle them. Any tree is
lossless, so only the shape can differ, and only where two scores are equal to the last bit.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from tfm_kernels.weave_round import GrowingTrees
from torch import Tensor

from tfm_lab.engine.tree_arrays import PADDING, TreeArrays, closure

IMPOSSIBLE = -torch.inf

LEVEL = 1e-12
"""Log-probability that an edge costs on top of its own; far below what float32 resolves."""


class Rounds(NamedTuple):
    """How many nodes each round of a woven tree adds: ``width`` but for the last.

    Attributes:
        starts: first node of every round.
        widths: nodes of every round.
    """

    starts: tuple[int, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, budget: int, width: int) -> "Rounds":
        """The rounds of a tree of ``budget`` nodes below the root."""
        starts = tuple(range(1, budget + 1, width))
        return cls(starts, tuple(min(width, budget + 1 - start) for start in starts))


class BestFirst:
    """DDTree: the ``budget`` most probable prefixes under the product of the marginals (2604.12989).

    Level by level: the prefixes of a length are extended by every token. Prefixes and tokens are sorted, so the pair
    (i, j) has (i + 1)(j + 1) - 1 pairs that are at least as good, and only pairs with a product up to the budget can be
    among the best: about B ln B of the B squared.

    Args:
        budget: nodes below the root.
        depth: longest path.
    """

    def __init__(self, budget: int, depth: int, device: torch.device) -> None:
        self._budget, self._depth = budget, depth
        pairs = [(i, j) for i in range(budget) for j in range(budget) if (i + 1) * (j + 1) <= budget]
        self._prefix, self._token = torch.tensor(pairs, device=device).T
        self._index = torch.arange(depth * budget, device=device)

    def grow(self, roots: Int[Tensor, " batch"], logits: Float[Tensor, "batch depth vocab"]) -> TreeArrays:
        """One tree per request, shorter prefixes first.

        Args:
            logits: of at least ``depth`` places and ``budget`` tokens.
        """
        budget, depth, batch = self._budget, self._depth, len(roots)
        wide = logits[:, :depth].to(torch.promote_types(logits.dtype, torch.float32))
        best = wide.topk(budget, dim=-1)
        # Every level costs a little, so that a child of probability 1 does not tie with its parent.
        log_probs = best.values.double() - wide.logsumexp(-1, keepdim=True).double() - LEVEL
        scores, before = [log_probs[:, 0]], [torch.zeros_like(best.indices[:, 0])]
        tokens = [best.indices[:, 0]]
        for level in range(1, depth):
            extended = scores[-1][:, self._prefix] + log_probs[:, level, self._token]
            kept = extended.topk(budget, dim=-1)
            scores.append(kept.values)
            before.append(self._prefix[kept.indices])
            tokens.append(best.indices[:, level].gather(1, self._token[kept.indices]))
        chosen = torch.cat(scores, dim=1).topk(budget, dim=-1, sorted=False).indices
        chosen = torch.sort(chosen, dim=1).values
        node_of = torch.zeros(batch, depth * budget, dtype=torch.long, device=roots.device)
        node_of = node_of.scatter(1, chosen, torch.arange(1, budget + 1, device=roots.device).expand_as(chosen))
        level = chosen // budget
        above = (level - 1).clamp_min(0) * budget + torch.cat(before, dim=1).gather(1, chosen)
        parent = torch.where(level > 0, node_of.gather(1, above), 0)
        parents = torch.cat([torch.full_like(parent[:, :1], -1), parent], dim=1)
        return TreeArrays(
            torch.cat([roots[:, None], torch.cat(tokens, dim=1).gather(1, chosen)], dim=1),
            parents,
            torch.cat([torch.zeros_like(parent[:, :1]), level + 1], dim=1),
            closure(parents, depth),
        )


class WovenGrowth:
    """The frontier and the nodes of woven trees in the making (2607.06763), in memory that every step overwrites.

    Node i of a tree is row i; its children wait in columns ``i * children`` and following of the frontier.

    Args:
        batch: trees.
        budget: nodes below the root.
        children: most children of a node.
        deepest: longest path.
    """

    def __init__(self, batch: int, budget: int, children: int, deepest: int, device: torch.device) -> None:
        nodes = budget + 1
        self.children, self.deepest = children, deepest
        self.tokens = torch.zeros(batch, nodes, dtype=torch.long, device=device)
        self.parents, self.depths = torch.full_like(self.tokens, PADDING), torch.zeros_like(self.tokens)
        self.scores = torch.zeros(batch, nodes, dtype=torch.float64, device=device)
        self.ancestors = torch.zeros(batch, nodes, nodes, dtype=torch.bool, device=device)
        self._frontier = torch.zeros(batch, nodes * children, dtype=torch.float64, device=device)
        self._offered = torch.zeros(batch, nodes * children, dtype=torch.long, device=device)
        self._first = torch.zeros(nodes, dtype=torch.bool, device=device)
        self._first[0] = True
        self._ranks = torch.arange(children, device=device)

    def begin(self, roots: Int[Tensor, " batch"]) -> None:
        """Back to the roots alone."""
        self.tokens.zero_()
        self.tokens[:, 0] = roots
        self.parents.fill_(PADDING)
        self.parents[:, 0] = -1
        self.depths.zero_()
        self.scores.zero_()
        self._frontier.fill_(IMPOSSIBLE)
        self.ancestors.zero_()
        self.ancestors.diagonal(dim1=1, dim2=2).fill_(True)

    def offer(
        self,
        nodes: Int[Tensor, " width"],
        tokens: Int[Tensor, "batch width pool"],
        log_probs: Float[Tensor, "batch width pool"],
    ) -> None:
        """The best children of ``nodes`` join the frontier."""
        best = log_probs.topk(self.children, dim=-1)
        is_open = (self.parents[:, nodes] > PADDING) & (self.depths[:, nodes] < self.deepest)
        score = self.scores[:, nodes, None] + best.values.double()
        places = (nodes[:, None] * self.children + self._ranks).flatten()
        self._frontier[:, places] = score.masked_fill(~is_open[:, :, None], IMPOSSIBLE).flatten(1)
        self._offered[:, places] = tokens.gather(2, best.indices).flatten(1)

    def add(self, nodes: Int[Tensor, " width"]) -> None:
        """The best of the frontier become ``nodes``, best first; rows are padding where it holds too few."""
        best = self._frontier.topk(len(nodes), dim=-1)
        is_node, parent = best.values > IMPOSSIBLE, best.indices // self.children
        self._frontier.scatter_(1, best.indices, IMPOSSIBLE)
        self.tokens[:, nodes] = self._offered.gather(1, best.indices)
        self.parents[:, nodes] = torch.where(is_node, parent, PADDING)
        self.depths[:, nodes] = self.depths.gather(1, parent) + 1
        self.scores[:, nodes] = best.values
        lineage = self.ancestors.gather(1, parent[:, :, None].expand(-1, -1, self.ancestors.shape[2]))
        own = self.ancestors[:, nodes]
        self.ancestors[:, nodes] = torch.where(is_node[:, :, None], lineage | own, own)

    @property
    def memory(self) -> GrowingTrees:
        """Everything that a round changes, for the kernels."""
        arrays = self.tokens, self.parents, self.depths, self.scores, self.ancestors
        return GrowingTrees(*arrays, self._frontier, self._offered)

    @property
    def tree(self) -> TreeArrays:
        """What has grown; views of memory that the next step overwrites."""
        return TreeArrays(self.tokens, self.parents, self.depths, self.ancestors)
