"""Why marginals have a ceiling, computed: acceptance of the best factorised drafters against that of conditionals.

A draft from q is accepted with probability sum_v min(q(v), p(v)) = 1 - TV(p, q) (2211.17192, Theorem 3.5). A
factorised drafter has one q for all paths X to a depth; its acceptance there is a(q) = E_X sum_v min(q(v), p(v | X)),
no matter how it was trained (2607.06763, section 3.5).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.theory.worlds import World


class BestFactorised(NamedTuple):
    """The factorised drafter that no other beats.

    Attributes:
        q: its distribution, float64.
        acceptance: a(q).
        threshold: lambda: wherever q(v) > 0, q(v) is a (1 - lambda)-quantile of p(v | X).
    """

    q: Float[Tensor, " vocab"]
    acceptance: float
    threshold: float


class DepthCeiling(NamedTuple):
    """Expected acceptance at one depth, by what the drafter knows.

    Attributes:
        depth: 1 is the next token.
        marginal: drafting from the true marginal m: 1 - E_X TV(m, p(. | X)).
        point_mass: always drafting argmax m: max_v m(v).
        best: the best factorised drafter.
        conditional: drafting from p(. | X) itself: 1, the Weaver's ideal.
    """

    depth: int
    marginal: float
    point_mass: float
    best: float
    conditional: float = 1.0


def acceptance_of(
    q: Float[Tensor, " vocab"], weights: Float[Tensor, " states"], conditionals: Float[Tensor, "states vocab"]
) -> float:
    """a(q) = E_X sum_v min(q(v), p(v | X)): expected acceptance of one draft from a q that does not see X.

    Args:
        q: the drafter's distribution.
        weights: probability of each conditional, with sum 1.
        conditionals: p(. | X), one row per X.
    """
    return float(weights @ torch.minimum(q, conditionals).sum(1))


def best_factorised(weights: Float[Tensor, " states"], conditionals: Float[Tensor, "states vocab"]) -> BestFactorised:
    """The q that maximises a(q), exactly.

    a is concave and splits by token: raising q(v) at level l gains at the rate P_X(p(v | X) > l), which only falls as l
    grows. So the unit of probability goes to the largest rates first; the rate at which it runs out is lambda, and q(v)
    is then a (1 - lambda)-quantile of p(v | X), not its mean (the quantile rule).

    Args:
        weights, conditionals: as for :func:`acceptance_of`.
    """
    levels, order = conditionals.sort(dim=0)
    heights = levels.diff(dim=0, prepend=torch.zeros_like(levels[:1]))
    rates = weights[order].flip(0).cumsum(0).flip(0)  # P(p >= this level), the chance that raising up to it gains
    tokens = torch.arange(levels.shape[1]).expand_as(levels)
    rates, ranking = rates.flatten().sort(descending=True, stable=True)
    heights, tokens = heights.flatten()[ranking], tokens.flatten()[ranking]
    before = heights.cumsum(0) - heights
    taken = torch.minimum(heights, (1.0 - before).clamp_min(0.0))
    q = torch.zeros(levels.shape[1], dtype=levels.dtype).index_add_(0, tokens, taken)
    last = int((taken > 0).nonzero()[-1])
    return BestFactorised(q, float((taken * rates).sum()), float(rates[last]))


def ceilings(world: World, depth: int) -> list[DepthCeiling]:
    """Acceptance of ideal drafters at depths 1 to ``depth`` of a world.

    Raises:
        ValueError: if the depth is not at least 1.
    """
    if depth < 1:
        raise ValueError(f"the depth must be at least 1, got {depth}")
    marginals = world.marginals(depth)
    found: list[DepthCeiling] = []
    for place in range(1, depth + 1):
        weights, conditionals = world.conditionals(place)
        m = marginals[place - 1]
        best = best_factorised(weights, conditionals).acceptance
        found.append(DepthCeiling(place, acceptance_of(m, weights, conditionals), float(m.max()), best))
    return found


def crossover_depth(found: list[DepthCeiling]) -> int | None:
    """First depth at which always drafting the likeliest token beats drafting from the marginal; ``None`` if none does.

    With settled conditionals (one-hot rows) the marginal is accepted with sum_v m(v)^2, never more than max_v m(v), the
    point mass's share.
    """
    return next((ceiling.depth for ceiling in found if ceiling.point_mass > ceiling.marginal), None)


def pool_ceiling(p: Float[Tensor, "*rows vocab"], pool: Int[Tensor, "*rows size"]) -> Float[Tensor, "*rows"]:
    """p(C | X): no drafter that proposes from the pool C alone is accepted more often, since min(p, q) <= p on C.

    Args:
        p: the target's distribution.
        pool: token ids, each at most once per row.
    """
    return p.gather(-1, pool).sum(-1)
