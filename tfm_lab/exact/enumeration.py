"""Replaying a function over every outcome of every random decision that it takes."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from tfm_lab.draws import Draws, check_weights

Result = TypeVar("Result")


class EnumeratingDraws:
    """Draws that follow a script, then take the first open outcome; implements :class:`tfm_lab.draws.Draws`.

    Attributes:
        taken: outcome of every decision so far, counted among those of positive probability.
        outcomes: how many outcomes each of them had.
        probability: of all these outcomes together.

    Args:
        script: outcomes of the first decisions.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = tuple(script)
        self.taken: list[int] = []
        self.outcomes: list[int] = []
        self.probability = 1.0

    def categorical(self, weights: Float[Tensor, " outcomes"]) -> int:
        """Decide among the outcomes of positive weight.

        Raises:
            ValueError: if a weight is negative or not finite, or if all are zero.
        """
        values = check_weights(weights).tolist()
        possible = [index for index, value in enumerate(values) if value > 0.0]
        total = math.fsum(values)
        return possible[self._decide([values[index] / total for index in possible])]

    def bernoulli(self, probability: float) -> bool:
        """Decide, unless the outcome is certain.

        Raises:
            ValueError: if the probability is not a number.
        """
        if math.isnan(probability):
            raise ValueError("cannot decide with a probability that is not a number")
        if probability >= 1.0:
            return True
        if probability <= 0.0:
            return False
        return self._decide([probability, 1.0 - probability]) == 0

    def _decide(self, probabilities: list[float]) -> int:
        step = len(self.taken)
        choice = self._script[step] if step < len(self._script) else 0
        self.taken.append(choice)
        self.outcomes.append(len(probabilities))
        self.probability *= probabilities[choice]
        return choice


def enumerate_outcomes(function: Callable[[Draws], Result]) -> list[tuple[float, Result]]:
    """Probability and result of ``function`` for every sequence of decisions that it can meet.

    The function must take the same decisions whenever the earlier ones came out alike; probabilities sum to 1.
    """
    results: list[tuple[float, Result]] = []
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = scripts.pop()
        draws = EnumeratingDraws(script)
        result = function(draws)
        results.append((draws.probability, result))
        for step in range(len(script), len(draws.taken)):
            scripts.extend((*draws.taken[:step], other) for other in range(1, draws.outcomes[step]))
    return results
