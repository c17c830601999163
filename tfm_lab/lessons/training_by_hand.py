"""The training of a Weaver as short as on paper: solutions of notebook 05.

``tfm_lab.training`` has the same for batches of texts and several processes; tests hold these functions against it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def lk_loss(p: Float[Tensor, "rows depth pool"], log_q: Float[Tensor, "rows depth pool"], eta: float) -> Tensor:
    """Mean of lambda KL + (1 - lambda) TV with lambda = exp(-eta * mean acceptance), one per depth (2602.23881).

    Args:
        p: the target's probabilities of the pool's tokens, all positive; what they lack to 1 lies outside the pool.
        log_q: the Weaver's log-probabilities, normalised over the pool.
        eta: how fast TV takes over as the acceptance rises.
    """
    acceptance = torch.minimum(p, log_q.exp()).sum(-1)
    share = torch.exp(-eta * acceptance.mean(0).detach())
    inside = p / p.sum(-1, keepdim=True)
    divergence = (inside * (inside.log() - log_q)).sum(-1)
    return (share * divergence + (1.0 - share) * (1.0 - acceptance)).mean()


def forcing(text: Sequence[int], anchor: int, depth: int) -> tuple[list[int], list[int]]:
    """Along a text: the token at which each depth is asked, and the token that it is asked for.

    Args:
        anchor: place of the root in the text.
        depth: number of nodes on the path, root included.
    """
    reads = list(text[anchor : anchor + depth])
    answers = list(text[anchor + 1 : anchor + 1 + depth])
    return reads, answers


def pool_coverage(
    p: Float[Tensor, "rows depth vocab"], logits: Float[Tensor, "rows depth vocab"], size: int
) -> Float[Tensor, " depth"]:
    """Mean target probability of the ``size`` best tokens of the drafter, by depth.

    Args:
        p: the target's distribution after each path.
        logits: the drafter's, for the same places.
    """
    pool = logits.topk(size, dim=-1).indices
    return p.gather(-1, pool).sum(-1).mean(0)
