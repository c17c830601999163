"""Many trees at once, as tensors: for evaluation at scale, where one tree at a time leaves a GPU idle.

Second implementations of :func:`chain`, :func:`best_first` and :func:`woven`: the same trees, one per text, grown in
lockstep without a Python loop over texts or nodes.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfm_lab.drafting.growth import stable_topk
from tfm_lab.drafting.types import TreeConfig

IMPOSSIBLE = -torch.inf


class TreeBatch(NamedTuple):
    """One draft tree per text, parents before children.

    Attributes:
        tokens: column 0 holds the roots.
        parents: -1 for roots and for unused columns.
        sizes: nodes of each tree, root included; columns from there on are unused.
    """

    tokens: Int[Tensor, "texts nodes"]
    parents: Int[Tensor, "texts nodes"]
    sizes: Int[Tensor, " texts"]

    def walk(self, ahead: Int[Tensor, "texts depth"]) -> "Walk":
        """Follow the target's own next tokens ``ahead`` from the root down, as far as they are in the tree."""
        used = torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.sizes.unsqueeze(1)
        node = torch.zeros_like(self.sizes)
        is_alive = torch.ones_like(self.sizes, dtype=torch.bool)
        accepted = torch.zeros_like(self.sizes)
        for depth in range(ahead.shape[1]):
            matches = used & (self.parents == node.unsqueeze(1)) & (self.tokens == ahead[:, depth : depth + 1])
            is_alive = is_alive & matches.any(dim=1)
            node = torch.where(is_alive, matches.int().argmax(dim=1), node)
            accepted = accepted + is_alive
        return Walk(accepted, (used & (self.parents == node.unsqueeze(1))).any(dim=1))


class Walk(NamedTuple):
    """What membership verification accepts in each tree.

    Attributes:
        accepted: drafts on the accepted path.
        could_go_on: whether the path ends above the tree's leaves.
    """

    accepted: Int[Tensor, " texts"]
    could_go_on: Bool[Tensor, " texts"]


class NodeBatch(NamedTuple):
    """Nodes about to be expanded, equally many per text; those that are not ``active`` fill the rows up."""

    node: Int[Tensor, "texts width"]
    parent: Int[Tensor, "texts width"]
    token: Int[Tensor, "texts width"]
    depth: Int[Tensor, "texts width"]
    active: Bool[Tensor, "texts width"]


class Lineage:
    """Which earlier nodes a node may see, when every call of a drafter appends its nodes as further columns.

    Args:
        texts: number of trees.
        budget: most nodes that a tree will have.
    """

    def __init__(self, texts: int, budget: int, device: torch.device) -> None:
        self._seen = torch.zeros(texts, budget + 2, 0, dtype=torch.bool, device=device)

    def extend(self, nodes: NodeBatch) -> Bool[Tensor, "texts width columns"]:
        """Columns of each node's ancestors and of itself; the last ``width`` columns are those of this call."""
        width = nodes.node.shape[1]
        parent = nodes.parent.clamp_min(0).unsqueeze(2).expand(-1, -1, self._seen.shape[2])
        own = torch.eye(width, dtype=torch.bool, device=self._seen.device).expand(len(parent), -1, -1)
        rows = torch.cat([self._seen.gather(1, parent), own], dim=2)
        self._seen = F.pad(self._seen, (0, width)).scatter(1, nodes.node.unsqueeze(2).expand_as(rows), rows)
        return rows


class ConditionalBatch(Protocol):
    """An autoregressive drafter at work on one tree per text."""

    @property
    def max_depth(self) -> int: ...

    def expand(self, nodes: NodeBatch) -> tuple[Int[Tensor, "texts width pool"], Float[Tensor, "texts width pool"]]:
        """Tokens and their log-probabilities for the children of every node."""
        ...


def chain_batch(
    roots: Int[Tensor, " texts"],
    logits: Float[Tensor, "texts depth vocab"],
    config: TreeConfig,
    deepest: Int[Tensor, " texts"],
) -> TreeBatch:
    """One path per text: the most probable token of each marginal.

    Args:
        deepest: longest path of each text, on top of the config's.
    """
    depth = min(config.budget, config.max_depth, logits.shape[1])
    tokens = torch.cat([roots.unsqueeze(1), logits[:, :depth].argmax(-1)], dim=1)
    sizes = 1 + deepest.clamp(0, depth)
    parents = torch.arange(-1, depth, device=roots.device).expand_as(tokens)
    return TreeBatch(tokens, torch.where(parents + 1 < sizes.unsqueeze(1), parents, -1), sizes)


def best_first_batch(
    roots: Int[Tensor, " texts"],
    logits: Float[Tensor, "texts depth vocab"],
    config: TreeConfig,
    deepest: Int[Tensor, " texts"],
) -> TreeBatch:
    """DDTree: the ``budget`` most probable prefixes of each text (2604.12989).

    A prefix is at least as probable as what extends it. So it is enough to keep the ``budget`` best prefixes of each
    length, and the best of all those are closed under taking prefixes.

    Args:
        deepest: longest path of each text, on top of the config's.
    """
    texts, budget = len(roots), config.budget
    depth = min(budget, config.max_depth, logits.shape[1])
    if depth == 0:
        return _only(roots)
    wide = logits[:, :depth].to(torch.promote_types(logits.dtype, torch.float32))
    count = min(budget, wide.shape[-1])
    best = stable_topk(wide.flatten(0, 1), count)
    log_probs = (best.values.double() - wide.flatten(0, 1).logsumexp(-1, keepdim=True).double()).view(texts, depth, -1)
    ranked_tokens = best.indices.view(texts, depth, -1)
    beam = torch.zeros(texts, 1, dtype=torch.float64, device=roots.device)
    scores, tokens, before = [], [], []
    for level in range(depth):
        open_beam = beam.masked_fill((level >= deepest).unsqueeze(1), IMPOSSIBLE)
        extended = (open_beam.unsqueeze(2) + log_probs[:, level].unsqueeze(1)).flatten(1)
        beam, place = stable_topk(extended, min(budget, extended.shape[1]))
        scores.append(beam)
        tokens.append(ranked_tokens[:, level].gather(1, place % count))
        before.append(place // count)
    return _select(roots, scores, tokens, before, budget)


def woven_batch(
    roots: Int[Tensor, " texts"], session: ConditionalBatch, config: TreeConfig, deepest: Int[Tensor, " texts"]
) -> TreeBatch:
    """The TfM tree of each text, ``expand_width`` nodes at a time (2607.06763).

    Args:
        deepest: longest path of each text, on top of the config's and the session's.
    """
    texts, budget, device = len(roots), config.budget, roots.device
    if budget == 0:
        return _only(roots)
    children, width = min(config.children, budget), config.expand_width
    deepest = deepest.clamp(max=min(config.max_depth, session.max_depth))
    spare = budget + 1  # a column that takes what is not a node
    tokens = torch.zeros(texts, budget + 2, dtype=torch.long, device=device)
    tokens[:, 0] = roots
    parents, depths = torch.full_like(tokens, -1), torch.zeros_like(tokens)
    path_log_probs = torch.zeros(texts, budget + 2, dtype=torch.float64, device=device)
    frontier = torch.full((texts, (budget + 2) * children), IMPOSSIBLE, dtype=torch.float64, device=device)
    offered = torch.zeros(texts, (budget + 2) * children, dtype=torch.long, device=device)
    sizes = torch.ones(texts, dtype=torch.long, device=device)
    fresh, is_open = torch.zeros(texts, 1, dtype=torch.long, device=device), (deepest > 0).unsqueeze(1)
    while bool(((sizes <= budget) & (is_open.any(1) | (frontier > IMPOSSIBLE).any(1))).any()):
        parent_of, token_of, depth_of = (values.gather(1, fresh) for values in (parents, tokens, depths))
        listed, log_probs = session.expand(NodeBatch(fresh, parent_of, token_of, depth_of, is_open))
        best = stable_topk(log_probs.flatten(0, 1).double(), min(children, log_probs.shape[-1]))
        ranks = torch.arange(best.values.shape[1], device=device)
        score = path_log_probs.gather(1, fresh).unsqueeze(2) + best.values.view(texts, fresh.shape[1], -1)
        slots = torch.where(is_open, fresh, spare).unsqueeze(2) * children + ranks
        frontier.scatter_(1, slots.flatten(1), score.flatten(1))
        offered.scatter_(1, slots.flatten(1), listed.gather(2, best.indices.view_as(score)).flatten(1))
        frontier[:, spare * children :] = IMPOSSIBLE
        values, chosen = stable_topk(frontier, min(width, frontier.shape[1]))
        place = sizes.unsqueeze(1) + torch.arange(chosen.shape[1], device=device)
        is_node = (values > IMPOSSIBLE) & (place <= budget)
        place = torch.where(is_node, place, spare)
        parent = chosen // children
        tokens.scatter_(1, place, offered.gather(1, chosen))
        parents.scatter_(1, place, parent)
        depths.scatter_(1, place, depths.gather(1, parent) + 1)
        path_log_probs.scatter_(1, place, values)
        frontier.scatter_(1, chosen, torch.where(is_node, IMPOSSIBLE, values))
        sizes = sizes + is_node.sum(1)
        fresh, is_open = place, is_node & (depths.gather(1, place) < deepest.unsqueeze(1))
    return TreeBatch(tokens[:, :spare], parents[:, :spare], sizes)


def _only(roots: Tensor) -> TreeBatch:
    return TreeBatch(roots.unsqueeze(1), torch.full_like(roots, -1).unsqueeze(1), torch.ones_like(roots))


def _select(roots: Tensor, scores: list[Tensor], tokens: list[Tensor], before: list[Tensor], budget: int) -> TreeBatch:
    """The ``budget`` best of all levels' prefixes as trees, shallow nodes first."""
    all_scores = torch.cat(scores, dim=1)
    values, kept = stable_topk(all_scores, min(budget, all_scores.shape[1]))
    is_node = torch.zeros_like(all_scores, dtype=torch.bool).scatter_(1, kept, values > IMPOSSIBLE)
    node_of = torch.where(is_node, is_node.cumsum(1), 0)  # the root is node 0
    starts = [0]
    for level in scores:
        starts.append(starts[-1] + level.shape[1])
    parent_place = torch.cat([place + starts[max(level - 1, 0)] for level, place in enumerate(before)], dim=1)
    parent = node_of.gather(1, parent_place)
    parent[:, : starts[1]] = 0
    width = values.shape[1] + 2
    place = torch.where(is_node, node_of, width - 1)
    all_tokens = roots.new_zeros(len(roots), width).scatter_(1, place, torch.cat(tokens, dim=1))
    parents = roots.new_full((len(roots), width), -1).scatter_(1, place, parent)
    all_tokens[:, 0] = roots
    return TreeBatch(all_tokens[:, : width - 1], parents[:, : width - 1], 1 + is_node.sum(1))
