"""Randomness as an argument: every random decision of drafting and acceptance goes through a ``Draws`` object.

Two implementations matter. ``SeededDraws`` turns a seed into decisions, one uniform number per decision that is
really open, so that the same seed gives the same decode. An enumerating implementation (see the tests) replays a rule
over every possible outcome and so yields the exact law of what the rule emits.
"""

import hashlib
import math
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor


class Draws(Protocol):
    """A source of random decisions."""

    def categorical(self, weights: Float[Tensor, " outcomes"]) -> int:
        """Index drawn with probability proportional to ``weights`` (non-negative, not all zero)."""
        ...

    def bernoulli(self, probability: float) -> bool:
        """True with the given probability; nothing is drawn when the outcome is certain."""
        ...


class SeededDraws:
    """Reproducible decisions from a seed.

    Args:
        seed: any integer.
        stream: name of an independent stream of the same seed. Drafting and acceptance use different streams, so that
            how much the drafter draws never changes what the target would have sampled.
    """

    def __init__(self, seed: int, stream: str = "target") -> None:
        digest = hashlib.sha256(f"{seed}/{stream}".encode()).digest()
        self._generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))

    def copy(self) -> "SeededDraws":
        """A source that draws what this one would draw next, without moving it on."""
        twin = object.__new__(SeededDraws)
        twin._generator = self._generator.clone_state()
        return twin

    def uniform(self) -> float:
        """The next number in [0, 1)."""
        return torch.rand((), generator=self._generator, dtype=torch.float64).item()

    def categorical(self, weights: Float[Tensor, " outcomes"]) -> int:
        """Inverse-CDF draw in float64 from one uniform number.

        Raises:
            ValueError: if a weight is negative or not finite, or if all are zero.
        """
        cumulative = check_weights(weights).cumsum(0)
        drawn = torch.searchsorted(cumulative, self.uniform() * cumulative[-1], right=True).item()
        # Rounding can push the draw past the last positive weight; fall back to that one, never to a zero.
        return min(int(drawn), int(weights.nonzero()[-1]))

    def bernoulli(self, probability: float) -> bool:
        """One uniform number decides; certain outcomes draw none.

        Raises:
            ValueError: if the probability is not a number.
        """
        if math.isnan(probability):
            raise ValueError("cannot draw with a probability that is not a number")
        if probability >= 1.0:
            return True
        if probability <= 0.0:
            return False
        return self.uniform() < probability


def check_weights(weights: Float[Tensor, " outcomes"]) -> Float[Tensor, " outcomes"]:
    """Weights in float64 on the CPU, after a check that they describe a distribution.

    Raises:
        ValueError: if a weight is negative or not finite, or if all are zero.
    """
    weights = weights.detach().to("cpu", torch.float64)
    smallest, total = (weights.min().item(), weights.sum().item()) if weights.numel() else (0.0, 0.0)
    if not smallest >= 0.0 or not 0.0 < total < math.inf:
        raise ValueError("cannot draw from these weights: they must be finite, non-negative and not all zero")
    return weights
