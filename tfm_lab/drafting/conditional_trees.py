"""Trees from an autoregressive drafter: every expansion asks for q(. | path), so a child depends on its whole path."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from operator import gt

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.drafting.growth import Growth, pairs, rank_tokens, stable_topk
from tfm_lab.drafting.types import (
    Candidate,
    ConditionalSession,
    Draft,
    DraftSource,
    GrowthRound,
    Marginals,
    OpenNode,
    Proposal,
    TreeConfig,
    TreeKind,
)
from tfm_lab.draws import Draws


def woven(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """The TfM tree: best-first growth by cumulative log-probability, ``expand_width`` nodes at a time (2607.06763).

    The root is expanded on its own. Every round then takes the best frontier entries, makes them nodes in descending
    order of score, and expands them in one drafter call; the last round expands nothing. A tree of B nodes thus needs
    ceil(B / w) sequential calls, fewer when the depth or the vocabulary runs out. That takes a width of at most
    ``children``: a wider round finds too few candidates at first, and the budget is then filled by further calls.
    A node's next best child enters the frontier when the one before it becomes a node, so the frontier stays small
    however many children are allowed. Ties go to the older parent, then to the better rank.

    Args:
        root: last committed token.
        source: only ``open_session`` is used.
        config: budget, max_depth, children and width.
        draws: not used: the tree is fixed.

    Returns:
        A draft whose ``rounds`` hold one record per round.

    Raises:
        ValueError: if the source has no autoregressive drafter.
    """
    growth = Growth(root)
    rounds: list[GrowthRound] = []
    calls = 0
    if config.budget == 0:
        return Draft(growth.tree(), TreeKind.FIXED)
    session = open_session(source, "woven")
    deepest = min(config.max_depth, session.max_depth)
    ranked: dict[int, list[tuple[int, float]]] = {}
    frontier: list[tuple[float, int, int]] = []

    def offer(parent: int, rank: int) -> list[Candidate]:
        if rank >= len(ranked[parent]):
            return []
        token, log_prob = ranked[parent][rank]
        score = growth.path_log_probs[parent] + log_prob
        heapq.heappush(frontier, (-score, parent, rank))
        return [Candidate(parent, token, score)]

    to_expand = (0,) if deepest > 0 else ()
    while len(growth) < config.budget and (to_expand or frontier):
        offered: list[Candidate] = []
        if to_expand:
            calls += 1
            proposals = session.expand(growth.open_nodes(to_expand))
            most = min(config.children, config.budget - len(growth))
            ranked.update(zip(to_expand, _top_children(proposals, most), strict=True))
            for parent in to_expand:
                offered += offer(parent, 0)
        added: list[int] = []
        while frontier and len(added) < config.expand_width and len(growth) < config.budget:
            _, parent, rank = heapq.heappop(frontier)
            added.append(growth.add(parent, *ranked[parent][rank]))
            offered += offer(parent, rank + 1)
        rounds.append(GrowthRound(to_expand, tuple(offered), tuple(added)))
        to_expand = tuple(node for node in added if growth.depths[node] < deepest)
    return Draft(growth.tree(), TreeKind.FIXED, rounds=tuple(rounds), drafter_calls=calls)


def conditional_chain(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """One path from an autoregressive drafter: at every node its most probable token, one call per token.

    Args and errors as :func:`woven`, of which this is the narrowest case.
    """
    return woven(root, source, as_chain(config), draws)


def as_chain(config: TreeConfig) -> TreeConfig:
    """The config under which :func:`woven` grows a single path."""
    return replace(config, budget=min(config.budget, config.max_depth), children=1, width=1)


def dyspec_slots(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """DySpec: a sampled tree, grown one slot at a time (2410.11744).

    A slot is a place for one more child of a node. Its value, the probability under q that acceptance gets that far,
    is known before its token is drawn; the best slot is filled next (ties go to the older node) and the token drawn for
    it is kept whatever it is. That keeps the tree lossless under the rejection rules: siblings are draws without
    replacement from q. Pruning by the drawn tokens' own scores would not be. The drafter is called on a node when its
    first slot is filled, one node per call.

    Args:
        root: last committed token.
        source: only ``open_session`` is used.
        config: budget and max_depth.
        draws: one categorical draw per node.

    Returns:
        A draft with the proposal of every expanded node, normalised over its listed tokens in float64: exactly the law
        that the children were drawn from. ``rounds`` hold one record per node.

    Raises:
        ValueError: if the source has no autoregressive drafter.
    """
    growth = Growth(root)
    if config.budget == 0:
        return Draft(growth.tree(), TreeKind.SAMPLED)
    rounds: list[GrowthRound] = []
    proposals: dict[int, Proposal] = {}
    residuals: dict[int, Float[Tensor, " pool"]] = {}
    session = open_session(source, "dyspec_slots")
    deepest = min(config.max_depth, session.max_depth)
    slots = [(-1.0, 0)] if deepest > 0 else []
    while slots and len(growth) < config.budget:
        negative_value, node = heapq.heappop(slots)
        expanded = () if node in proposals else (node,)
        if expanded:
            (proposal,) = session.expand(growth.open_nodes(expanded))
            proposals[node] = normalised(proposal)
            residuals[node] = proposals[node].log_probs.exp()
        residual = residuals[node]
        index = draws.categorical(residual)
        child = growth.add(node, int(proposals[node].tokens[index]), float(proposals[node].log_probs[index]))
        drawn = float(residual[index])
        residual[index] = 0.0
        left = float(residual.sum())
        if left > 0.0:
            heapq.heappush(slots, (negative_value * left / (drawn + left), node))
        if growth.depths[child] < deepest:
            heapq.heappush(slots, (negative_value * drawn / (drawn + left), child))
        rounds.append(GrowthRound(expanded, offered=(), added=(child,)))
    return Draft(growth.tree(), TreeKind.SAMPLED, proposals, tuple(rounds), drafter_calls=len(proposals))


class MarginalSession:
    """A factorised drafter in the place of an autoregressive one: q(. | path) is the marginal of the child's depth.

    Args:
        marginals: output of the factorised drafter.
        pool_size: tokens listed per proposal. Their log-probabilities are those of the whole vocabulary, so they are
            comparable along a path and may sum to less than one.
    """

    def __init__(self, marginals: Marginals, pool_size: int = 512) -> None:
        log_probs, tokens = rank_tokens(marginals.logits, pool_size)
        self._proposals = [Proposal(*row) for row in zip(tokens, log_probs, strict=True)]

    @property
    def max_depth(self) -> int:
        return len(self._proposals)

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        """The marginals at the children's depth, the same for all nodes of one depth."""
        return [self._proposals[node.depth] for node in nodes]


def open_session(source: DraftSource, builder: str) -> ConditionalSession:
    """The source's autoregressive drafter; a ValueError that names the builder if it has none."""
    if source.open_session is None:
        raise ValueError(
            f"{builder} needs an autoregressive drafter, and this source has none: give it one as open_session "
            "(MarginalSession turns marginals into one), or grow the tree with best_first"
        )
    return source.open_session()


def _top_children(proposals: Sequence[Proposal], count: int) -> list[list[tuple[int, float]]]:
    """For each proposal its ``count`` best (token, log-probability), best first; the earlier in the pool wins a tie."""
    log_probs = torch.stack([proposal.log_probs.detach() for proposal in proposals])
    tokens = torch.stack([proposal.tokens for proposal in proposals])
    best = log_probs.topk(min(count + 1, log_probs.shape[-1]), dim=-1)
    values = best.values.tolist()
    is_settled = len(values[0]) > count and all(all(map(gt, row, [*row[1:], -math.inf])) for row in values)
    if is_settled:  # neither ties nor NaN nor impossible tokens
        listed = tokens.gather(1, best.indices).tolist()
        return [list(zip(*row, strict=True))[:count] for row in zip(listed, values, strict=True)]
    _refuse_nan(log_probs)
    ranked = stable_topk(log_probs, count)
    return pairs(tokens.gather(1, ranked.indices), ranked.values)


def normalised(proposal: Proposal) -> Proposal:
    """The law over the listed tokens alone, on the CPU in float64; a ValueError if it is not a number."""
    log_probs = proposal.log_probs.detach().to("cpu", torch.float64)
    normalised = log_probs - log_probs.logsumexp(0)
    _refuse_nan(normalised)
    return Proposal(proposal.tokens.cpu(), normalised)


def _refuse_nan(log_probs: Tensor) -> None:
    if math.isnan(log_probs.max()):  # a maximum with a NaN is NaN
        raise ValueError("the drafter returned NaN log-probabilities: check the checkpoint and the dtype")
