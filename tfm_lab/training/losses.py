"""Training objectives of drafter and Weaver."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfm_lab.models.layers import at_least_float32


def position_weights(drafts: int, gamma: float, device: torch.device | str = "cpu") -> Float[Tensor, " drafts"]:
    """w_k = exp(-(k - 1) / gamma) for draft positions k = 1..drafts: an early miss costs the whole rest of the block.

    Source: DFlash, arXiv 2602.06036, eq. 4 (gamma 7 for a block of 16).
    """
    return torch.exp(-torch.arange(drafts, device=device, dtype=torch.float32) / gamma)


def block_cross_entropy(
    logits: Float[Tensor, "*blocks drafts vocab"], labels: Int[Tensor, "*blocks drafts"], gamma: float
) -> Float[Tensor, ""]:
    """Cross-entropy of whole blocks, weighted by position and normalised by the sum of weights."""
    drafts = labels.shape[-1]
    losses = F.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), reduction="none").view(-1, drafts)
    return _weighted_mean(losses, gamma)


def block_law_cross_entropy(
    logits: Float[Tensor, "*blocks drafts vocab"], mean_logits: Float[Tensor, "*blocks drafts"], gamma: float
) -> Float[Tensor, ""]:
    """As :func:`block_cross_entropy` with a whole law p at every place: log sum exp(logits) - sum(p * logits).

    Args:
        mean_logits: sum(p * logits), however it came about.
    """
    losses = at_least_float32(logits).logsumexp(-1) - mean_logits
    return _weighted_mean(losses.flatten(0, -2), gamma)


def _weighted_mean(losses: Float[Tensor, "blocks drafts"], gamma: float) -> Float[Tensor, ""]:
    weights = position_weights(losses.shape[1], gamma, losses.device)
    return (losses * weights).sum(1).mean() / weights.sum()


class PoolComparison:
    """Target and Weaver compared on the candidate pool, for every position.

    Attributes:
        pool_mass: p(C | path), target probability that the pool covers; no pool drafter can be accepted more often.
        acceptance: sum over the pool of min(p, q) = 1 - TV(p, q), the expected acceptance of a draft from q.
        divergence: KL(p restricted to the pool and renormalised || q), in nats.
        surprise: -log q of the text's own next token, in nats; 0 where the pool does not hold it.

    Args:
        target_probabilities: p on the pool (not renormalised).
        log_q: the Weaver's log-probabilities on the pool.
        is_next: which pool entry is the text's own next token (all False where the pool does not hold it).
    """

    def __init__(
        self,
        target_probabilities: Float[Tensor, "*rows pool"],
        log_q: Float[Tensor, "*rows pool"],
        is_next: Bool[Tensor, "*rows pool"],
    ) -> None:
        self.surprise = -torch.where(is_next, log_q, 0.0).sum(-1)
        self.pool_mass = target_probabilities.sum(-1)
        self.acceptance = torch.minimum(target_probabilities, log_q.exp()).sum(-1)
        renormalised = target_probabilities / self.pool_mass.clamp_min(1e-9).unsqueeze(-1)
        self.divergence = (torch.xlogy(renormalised, renormalised) - renormalised * log_q).sum(-1)


def lk_loss(comparison: PoolComparison, eta: float, level: Float[Tensor, " depth"] | None = None) -> Float[Tensor, ""]:
    """Adaptive mixture of KL and TV: lambda KL + (1 - lambda) TV with lambda = exp(-eta * acceptance).

    The last axis is depth; lambda is one number per depth, the batch mean, without gradient. While acceptance is low
    the well-behaved KL dominates; as it rises the loss turns into TV, the very quantity that decides acceptance.

    Args:
        level: mean acceptance by depth where it is known over more than this comparison (all processes of a training).

    Source: LK losses, arXiv 2602.23881 (eta = 3 is the published default).
    """
    acceptance = comparison.acceptance.flatten(0, -2)
    divergence = comparison.divergence.flatten(0, -2)
    share = torch.exp(-eta * (acceptance.detach().mean(0) if level is None else level))
    return (share * divergence + (1.0 - share) * (1.0 - acceptance)).mean()


WEAVER_LOSSES: dict[str, Callable[[PoolComparison, float, Tensor | None], Tensor]] = {
    "lk": lk_loss,
    "kl": lambda comparison, eta, level: comparison.divergence.mean(),
    "tv": lambda comparison, eta, level: 1.0 - comparison.acceptance.mean(),
    "ce": lambda comparison, eta, level: comparison.surprise.mean(),
}
"""What a Weaver can be trained on: the adaptive mixture, either of its parts, or the text alone. Only lk reads eta and
the level."""
