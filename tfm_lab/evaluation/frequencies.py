"""Whether tokens come as often as plain sampling would write them: a chi-squared test that knows the exact law.

For every emitted token the target gives the law of plain sampling after the very text before it. Counted by classes of
tokens, what was emitted minus what was to be expected is a sum of martingale differences: it has mean 0 and a known
covariance V, the sum of diag(P) - P P^T over all tokens, whatever the texts depend on. So tokens of one text may be
counted together, and

    X = S^T V^+ S,    S = emitted - expected,

is chi-squared with rank(V) degrees of freedom in the limit of many tokens (Pearson's statistic, where all laws P are
alike; V^+ is the pseudo-inverse). A sampled reference would add its own noise; here the reference is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

LEVEL = 1e-7
"""Chance of a false alarm of one test in the limit of many tokens. Up to ten tests together stay at 1e-6."""

LEAST = 25.0
"""Expected tokens of a class below which the limit law is not trusted; such classes are pooled."""

FAVOURITE = 0
"""Class of the token that the target likes best at its place."""


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """The vocabulary in a few dozen classes: the target's favourite, wherever it is, and all others by frequency.

    Attributes:
        of_token: class of each token where it is not the favourite, from 1.
        count: number of classes.
    """

    of_token: Int[Tensor, " vocab"]
    count: int

    @classmethod
    def by_frequency(cls, laws: Float[Tensor, "places vocab"], count: int) -> "Classes":
        """Classes of about equal mass, frequent tokens first.

        Args:
            laws: of the next token at some places, chosen before anything is emitted.
            count: number of classes, the favourite's included; fewer where single tokens fill more than their share.

        Raises:
            ValueError: if ``count`` is less than 3.
        """
        if count < 3:
            raise ValueError(f"a test needs at least 3 classes of tokens, got {count}")
        mass = laws.double().clone()
        mass.scatter_(1, mass.argmax(1, keepdim=True), 0.0)
        mass = mass.mean(0)
        ranked, order = mass.sort(descending=True, stable=True)
        share = (ranked.cumsum(0) - ranked) / ranked.sum()
        wanted = (share * (count - 1)).long().clamp_max(count - 2)
        _, compact = wanted.unique(return_inverse=True)
        of_token = torch.empty_like(order).scatter_(0, order, 1 + compact)
        return cls(of_token, 2 + int(compact.max()))

    def of(self, token: int, favourite: int) -> int:
        """Class of a token at a place."""
        return FAVOURITE if token == favourite else int(self.of_token[token])

    def law(self, laws: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows classes"]:
        """Probability of each class at every row."""
        best = laws.argmax(1, keepdim=True)
        likeliest = laws.gather(1, best)
        of_class = laws.new_zeros(len(laws), self.count).index_add_(1, self.of_token, laws)
        of_class.scatter_add_(1, self.of_token[best], -likeliest)
        of_class[:, FAVOURITE] += likeliest[:, 0]
        return of_class


class ChiSquared:
    """The test; add tokens, then look at it.

    Args:
        classes: how many.
        least: classes in which fewer tokens are expected are judged together.
    """

    def __init__(self, classes: int, least: float = LEAST) -> None:
        self._least = least
        self.emitted = torch.zeros(classes, dtype=torch.float64)
        self.expected = torch.zeros(classes, dtype=torch.float64)
        self._covariance = torch.zeros(classes, classes, dtype=torch.float64)

    def add(self, counts: Float[Tensor, "rows classes"], laws: Float[Tensor, "rows classes"]) -> None:
        """Count tokens that were emitted at places with these laws.

        Args:
            counts: tokens of each class at every row.
            laws: probability of each class at every row, one row per place.
        """
        tokens = counts.sum(1, keepdim=True)
        self.emitted += counts.sum(0)
        self.expected += (tokens * laws).sum(0)
        self._covariance += torch.diag((tokens * laws).sum(0)) - laws.T @ (tokens * laws)

    def merge(self, other: "ChiSquared") -> None:
        """Add all that another test counted."""
        self.emitted += other.emitted
        self.expected += other.expected
        self._covariance += other._covariance

    @property
    def tokens(self) -> int:
        return int(self.emitted.sum())

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return int((self._spectrum()[0] > 0.0).sum())

    @property
    def statistic(self) -> float:
        values, vectors = self._spectrum()
        along = vectors.T @ (self._pools() @ (self.emitted - self.expected))
        is_free = values > 0.0
        return float((along[is_free].square() / values[is_free]).sum())

    @property
    def least_expected(self) -> float:
        """Expected tokens of the rarest class, after pooling."""
        return float((self._pools() @ self.expected).min())

    @property
    def p_value(self) -> float:
        """Chance of a statistic at least this large if the tokens follow their laws."""
        half = torch.tensor([self.freedom / 2.0, self.statistic / 2.0], dtype=torch.float64)
        return float(torch.special.gammaincc(half[0], half[1])) if self.freedom else 1.0

    @property
    def is_alarm(self) -> bool:
        return self.p_value < LEVEL

    @property
    def distance(self) -> float:
        """Total variation distance between the emitted and the expected shares of the classes."""
        return float((self.emitted - self.expected).abs().sum()) / (2.0 * max(1, self.tokens))

    def _pools(self) -> Float[Tensor, "pools classes"]:
        """Which classes are judged together: the frequent ones alone, the others with each other.

        If too few tokens are expected in all the others together, the rarest of the frequent ones joins them.
        """
        order = self.expected.argsort().tolist()
        rare = [index for index in order if self.expected[index] < self._least]
        frequent = order[len(rare) :]
        if rare and frequent and float(self.expected[rare].sum()) < self._least:
            rare.append(frequent.pop(0))
        members = [*([index] for index in sorted(frequent)), *([rare] if rare else [])]
        pools = torch.zeros(len(members), len(order), dtype=torch.float64)
        for row, classes in enumerate(members):
            pools[row, classes] = 1.0
        return pools

    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of the covariance of the pools; what is rounding counts as 0."""
        pools = self._pools()
        values, vectors = torch.linalg.eigh(pools @ self._covariance @ pools.T)
        return torch.where(values > 1e-9 * self.expected.sum(), values, 0.0), vectors


def count_tokens(
    classes: Classes, laws: Float[Tensor, "rows vocab"], emitted: Sequence[tuple[int, int]]
) -> tuple[Float[Tensor, "rows classes"], Float[Tensor, "rows classes"]]:
    """What :meth:`ChiSquared.add` takes.

    Args:
        laws: of the next token at some places, one row each.
        emitted: (row, token) of every emitted token.
    """
    counts = torch.zeros(len(laws), classes.count, dtype=torch.float64)
    favourites = laws.argmax(1).tolist()
    for row, token in emitted:
        counts[row, classes.of(token, favourites[row])] += 1.0
    return counts, classes.law(laws)
