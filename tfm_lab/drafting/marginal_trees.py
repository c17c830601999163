"""Trees from a factorised drafter alone: its marginals say the same about a depth whatever was proposed above it.

Both trees are fixed: a function of the marginals, with nothing drawn. A tree may hold fewer nodes than the budget when
the depth or the vocabulary runs out; a token to which the drafter gives probability 0 is never proposed.
"""

import heapq

from tfm_lab.drafting.growth import Growth, pairs, rank_tokens
from tfm_lab.drafting.types import Candidate, Draft, DraftSource, GrowthRound, TreeConfig, TreeKind
from tfm_lab.draws import Draws


def chain(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """One path: the most probable token of each marginal, as DFlash drafts (2602.06036).

    Args:
        root: last committed token.
        source: only the marginals are used.
        config: the path has min(budget, max_depth, rows of marginals) nodes.
        draws: not used.

    Raises:
        ValueError: if the source has no marginals.
    """
    growth = Growth(root)
    for parent, ranked in enumerate(_rank(source, min(config.budget, config.max_depth), 1)):
        growth.add(parent, *ranked[0])
    return Draft(growth.tree(), TreeKind.FIXED)


def best_first(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """DDTree: the ``budget`` most probable prefixes under the product of the marginals (2604.12989).

    No tree of that size has a larger sum of path probabilities, which is the expected number of accepted tokens if the
    target were the product of the marginals. Each pop of the heap offers at most two new candidates: the next sibling
    and the first child. Ties go to the older parent, then to the better rank, then to the lower token id.

    Args:
        root: last committed token.
        source: only the marginals are used.
        config: budget and max_depth.
        draws: not used.

    Returns:
        A draft whose ``rounds`` hold one record per node.

    Raises:
        ValueError: if the source has no marginals.
    """
    growth = Growth(root)
    rounds: list[GrowthRound] = []
    ranked = _rank(source, config.max_depth, config.budget) if config.budget else []
    frontier: list[tuple[float, int, int]] = []

    def offer(parent: int, rank: int) -> list[Candidate]:
        depth = growth.depths[parent]
        if depth >= len(ranked) or rank >= len(ranked[depth]):
            return []
        token, log_prob = ranked[depth][rank]
        score = growth.path_log_probs[parent] + log_prob
        heapq.heappush(frontier, (-score, parent, rank))
        return [Candidate(parent, token, score)]

    offered = offer(0, 0)
    while frontier and len(growth) < config.budget:
        _, parent, rank = heapq.heappop(frontier)
        node = growth.add(parent, *ranked[growth.depths[parent]][rank])
        rounds.append(GrowthRound(expanded=(), offered=tuple(offered), added=(node,)))
        offered = offer(parent, rank + 1) + offer(node, 0)
    return Draft(growth.tree(), TreeKind.FIXED, rounds=tuple(rounds))


def _rank(source: DraftSource, depth: int, count: int) -> list[list[tuple[int, float]]]:
    """For each of the first ``depth`` rows the ``count`` best (token, log-probability), best first."""
    if source.marginals is None:
        raise ValueError("this tree is grown from marginals, and the source has none: give it a factorised drafter")
    log_probs, tokens = rank_tokens(source.marginals.logits[:depth], count)
    return pairs(tokens, log_probs)
