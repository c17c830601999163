"""What checks share: fresh probability rows, draws that end, and the first case that fails."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.draws import Draws

MOST_DECISIONS = 10


Case = TypeVar("Case", bound=tuple[Any, ...])
"""A named tuple whose first field is its name."""


class LimitedDraws:
    """Draws that give up, so that an answer which draws again and again does not hang its check.

    Args:
        draws: where decisions come from.
        most: decisions that may be taken.
    """

    def __init__(self, draws: Draws, most: int = MOST_DECISIONS) -> None:
        self._draws, self._left, self._most = draws, most, most

    def categorical(self, weights: Float[Tensor, " outcomes"]) -> int:
        """As the draws that it holds.

        Raises:
            ValueError: after too many decisions, or for weights that are none.
        """
        self._count()
        return self._draws.categorical(weights)

    def bernoulli(self, probability: float) -> bool:
        """As the draws that it holds.

        Raises:
            ValueError: after too many decisions, or for what is no probability.
        """
        self._count()
        return self._draws.bernoulli(probability)

    def _count(self) -> None:
        if self._left == 0:
            raise ValueError(
                f"more than {self._most} random decisions in one step: does it draw until it likes the result?"
            )
        self._left -= 1


def named_rows(*rows: Sequence[float]) -> tuple[Tensor, ...]:
    """Probabilities as float64 tensors."""
    return tuple(torch.tensor(row, dtype=torch.float64) for row in rows)


def failing(cases: Iterable[Case], complaint: Callable[[Case], str]) -> str:
    """The first complaint, with the name of its case; empty if there is none."""
    for case in cases:
        if found := complaint(case):
            return f"{case[0]}: {found}"
    return ""
