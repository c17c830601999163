"""Next-token distributions: temperature, top-k and top-p, and the distances that acceptance depends on.

All probabilities are float64. ``TargetRows`` is what an acceptance rule sees of the target: one distribution per tree
node, computed only for the nodes that the rule looks at.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the target's logits become the distribution to sample from.

    Attributes:
        temperature: divides the logits; 0 means the argmax with probability one.
        top_k: keep the ``top_k`` most probable tokens; 0 keeps all.
        top_p: then keep the smallest set of most probable tokens whose mass reaches ``top_p``; 1 keeps all.
        shared_noise: sample with noise that drafters foresee (:mod:`tfm_lab.noise`). The law of the text is the same.

    Raises:
        ValueError: if a value is out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    shared_noise: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be zero or a positive number, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be zero (keep all) or a positive count, got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.shared_noise and self.is_greedy:
            raise ValueError("shared noise needs a temperature above 0: at 0 there is nothing to draw")

    @property
    def is_greedy(self) -> bool:
        """True when the distribution is a point mass on the argmax."""
        return self.temperature == 0.0

    def probabilities(self, logits: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
        """The distribution in float64 on the CPU, for one row of logits of any floating dtype and device.

        Raises:
            ValueError: if the logits describe no distribution (NaN, a positive infinity, or only negative ones).
        """
        scores = logits.detach().to("cpu", torch.float64)
        largest = scores.max()
        if not bool(torch.isfinite(largest)):
            raise ValueError(
                "the target's logits describe no distribution (NaN or infinite): check checkpoint and dtype"
            )
        if self.is_greedy:
            return torch.zeros_like(scores).index_fill_(0, first_argmax(scores), 1.0)
        probabilities = torch.softmax((scores - largest) / self.temperature, dim=-1)
        if 0 < self.top_k < probabilities.numel():
            order = torch.sort(probabilities, descending=True, stable=True).indices
            probabilities[order[self.top_k :]] = 0.0
        if self.top_p < 1.0:
            ranked, order = torch.sort(probabilities / probabilities.sum(), descending=True, stable=True)
            probabilities[order[ranked.cumsum(0) - ranked >= self.top_p]] = 0.0
        return probabilities / probabilities.sum()


class TargetRows:
    """The target's next-token distribution at every node of a draft tree, evaluated lazily.

    Args:
        logits: target logits, one row per node (row 0 is the root), any floating dtype and device.
        sampling: temperature, top-k and top-p to apply to each row.
    """

    def __init__(self, logits: Float[Tensor, "nodes vocab"], sampling: SamplingConfig) -> None:
        self._logits = logits
        self.sampling = sampling
        self._cache: dict[int, Tensor] = {}

    @property
    def vocab_size(self) -> int:
        return self._logits.shape[-1]

    @property
    def nodes(self) -> int:
        return self._logits.shape[0]

    def probabilities(self, node: int) -> Float[Tensor, " vocab"]:
        """Distribution (float64, CPU) of the token that follows the path ending in ``node``."""
        if node not in self._cache:
            self._cache[node] = self.sampling.probabilities(self._logits[node])
        return self._cache[node]


def first_argmax(scores: Float[Tensor, " vocab"]) -> Tensor:
    """Index (0-d int64) of the largest score; the lowest index wins a tie, on every device."""
    return (scores == scores.max()).nonzero()[0, 0]


def total_variation(p: Float[Tensor, "*rows vocab"], q: Float[Tensor, "*rows vocab"]) -> Float[Tensor, "*rows"]:
    """TV(p, q) = 1/2 sum_v |p(v) - q(v)|; a draft from q is accepted with probability 1 - TV (2607.06763, 3.5)."""
    return 0.5 * (p - q).abs().sum(-1)


def residual(p: Float[Tensor, " vocab"], q: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """Normalised max(p - q, 0): what to sample from after a draft of ``q`` has been rejected (2302.01318, eq. 4).

    When p and q agree a rejection cannot happen except by rounding; then ``p`` itself is returned, never NaN.
    """
    excess = (p - q).clamp_min(0.0)
    mass = excess.sum()
    return excess / mass if bool(mass > 0) else p
