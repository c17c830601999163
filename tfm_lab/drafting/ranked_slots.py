"""Sampled trees whose shape is known beforehand: as many draws at a node as their ranks are worth.

A tree for a rejection rule holds draws, and what a draw is worth before it is made depends on how the drafter does, not
on the token that comes out. Sequoia (arXiv 2402.12374) takes one number per rank: how often the first, second, third
draw (and so on) at a node is accepted once those before it were rejected. A place is then worth the product of these
along its path, and the best B places are the tree, the same at every step. So all nodes of a depth are expanded in one
drafter call. DySpec's slots instead count on the probability of the token that was drawn, which says little about
whether the target accepts it: where the drafter's law is flat, it fills the tree with draws at the root.
"""

import heapq
from collections.abc import Sequence
from functools import lru_cache

from tfm_lab.drafting.conditional_trees import normalised, open_session
from tfm_lab.drafting.growth import Growth
from tfm_lab.drafting.types import Draft, DraftSource, GrowthRound, Proposal, TreeConfig, TreeKind
from tfm_lab.draws import Draws

ACCEPTED = (0.56, 0.23, 0.13, 0.08, 0.07, 0.05, 0.04, 0.04, 0.04, 0.03, 0.02)
"""How often a draw of each rank is accepted once those before it were not; the last number stands for all later ranks.

Measured at temperature 1 with SmolLM2's Weaver under ``rejection_swor``, on 1,700 nodes of texts after 15 prompts of
three kinds that no recorded evaluation of this method uses. Other numbers would make other trees, none of them wrong.
"""


def ranked_slots(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """A sampled tree of the best places by rank, grown one depth per drafter call.

    Siblings are draws without replacement from q, in the order of their ranks, and every draw is kept: lossless under
    the rejection rules. Arguments, result and errors are those of :func:`dyspec_slots`, but ``rounds`` hold one record
    per depth. The tree is smaller than the budget only where a node has fewer possible children than places, which are
    planned for as many as the root has.
    """
    growth = Growth(root)
    if config.budget == 0:
        return Draft(growth.tree(), TreeKind.SAMPLED)
    session = open_session(source, "ranked_slots")
    deepest = min(config.max_depth, session.max_depth)
    children: tuple[tuple[int, ...], ...] = ()
    rounds: list[GrowthRound] = []
    proposals: dict[int, Proposal] = {}
    level = {0: 0} if deepest > 0 else {}  # node: place
    while level:
        nodes, below, added = tuple(level), dict[int, int](), list[int]()
        proposals.update(zip(nodes, map(normalised, session.expand(growth.open_nodes(nodes))), strict=True))
        if not children:
            possible = int((proposals[0].log_probs.exp() > 0.0).sum())
            children = children_of_places(ACCEPTED, config.budget, deepest, possible)
        for node, place in level.items():
            proposal, residual = proposals[node], proposals[node].log_probs.exp()
            for lower in children[place][: int((residual > 0.0).sum())]:
                index = draws.categorical(residual)
                residual[index] = 0.0
                child = growth.add(node, int(proposal.tokens[index]), float(proposal.log_probs[index]))
                below[child] = lower
                added.append(child)
        rounds.append(GrowthRound(nodes, offered=(), added=tuple(added)))
        level = {node: place for node, place in below.items() if children[place]}
    return Draft(growth.tree(), TreeKind.SAMPLED, proposals, tuple(rounds), drafter_calls=len(rounds))


@lru_cache(maxsize=64)
def children_of_places(accepted: Sequence[float], budget: int, deepest: int, most: int) -> tuple[tuple[int, ...], ...]:
    """The places below each of the ``budget`` best places and the root (place 0), in the order of their ranks.

    Args:
        accepted: probability of each rank, the last for all later ones; a tuple.
        budget: places besides the root.
        deepest: of the places.
        most: children of a place.
    """
    children: list[list[int]] = [[]]
    slots = [(-accepted[0], 1.0, 0, 0)] if deepest > 0 else []  # value, chance that it is tried, parent, its depth
    while slots and len(children) <= budget:
        value, tried, parent, depth = heapq.heappop(slots)
        place, rank = len(children), len(children[parent])
        children[parent].append(place)
        children.append([])
        if rank + 1 < most:
            left = tried * (1.0 - accepted[min(rank, len(accepted) - 1)])
            heapq.heappush(slots, (-left * accepted[min(rank + 1, len(accepted) - 1)], left, parent, depth))
        if depth + 1 < deepest:
            heapq.heappush(slots, (value * accepted[0], -value, place, depth + 1))
    return tuple(map(tuple, children))
