"""Exact MAL on a toy world: a Markov target, its exact marginals, and its conditionals as a perfect Weaver.

The expected figures come from an independent program.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tfm_lab.drafting import (
    DraftSource,
    Marginals,
    MarginalSession,
    OpenNode,
    Proposal,
    TreeBuilder,
    TreeConfig,
    chain,
    woven,
)
from tfm_lab.draws import SeededDraws

STATES, DEPTH = 32, 8


class PerfectWeaver:
    max_depth = DEPTH

    def __init__(self, target: np.ndarray) -> None:
        self._log_probs = torch.tensor(target).log()

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        return [Proposal(torch.arange(STATES), self._log_probs[node.token]) for node in nodes]


def expected_mal(concentration: float, builder: TreeBuilder, config: TreeConfig, pool: int | None = None) -> float:
    """Exact mean accepted length under membership, over the 12 most likely contexts.

    With ``pool`` the autoregressive drafter is replaced by the marginals.
    """
    target = np.random.default_rng(1).dirichlet(np.ones(STATES) * concentration, size=STATES)
    values, vectors = np.linalg.eig(target.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    stationary /= stationary.sum()
    contexts = np.argsort(-stationary)[:12]
    total = 0.0
    for context in contexts.tolist():
        powers = np.stack([np.linalg.matrix_power(target, depth + 1)[context] for depth in range(DEPTH)])
        rows = Marginals(torch.tensor(powers).log(), torch.zeros(DEPTH, 1))
        session = PerfectWeaver(target) if pool is None else MarginalSession(rows, pool)
        tree = builder(context, DraftSource(rows, lambda session=session: session), config, SeededDraws(0)).tree
        tokens, masses = tree.tokens.tolist(), [1.0]
        for node, parent in enumerate(tree.parents.tolist()[1:], start=1):
            masses.append(masses[parent] * target[tokens[parent], tokens[node]])
        total += stationary[context] / stationary[contexts].sum() * sum(masses)
    return total


@pytest.mark.parametrize(
    ("concentration", "plain", "factorised", "perfect"),
    [(0.05, 2.00, (3.01, 3.24), (3.75, 4.32)), (0.10, 1.71, (2.72, 2.97), (3.18, 3.58)),
     (0.50, 1.25, (1.96, 2.06), (2.11, 2.29))],
)  # fmt: skip
def test_mal_on_the_toy_world(
    concentration: float, plain: float, factorised: tuple[float, float], perfect: tuple[float, float]
) -> None:
    """Figures of an independent program, eight children per expansion, budgets 32 and 64."""
    assert expected_mal(concentration, chain, TreeConfig(budget=32, max_depth=DEPTH)) == pytest.approx(plain, abs=0.005)
    for budget, on_marginals, on_conditionals in zip((32, 64), factorised, perfect, strict=True):
        config = TreeConfig(budget=budget, max_depth=DEPTH, width=1, children=8)
        assert expected_mal(concentration, woven, config, pool=STATES) == pytest.approx(on_marginals, abs=0.005)
        assert expected_mal(concentration, woven, config) == pytest.approx(on_conditionals, abs=0.005)


def test_mal_of_wider_rounds_on_the_toy_world() -> None:
    widths = {1: 3.5836, 2: 3.5836, 4: 3.5836, 8: 3.5809, 16: 3.5755, 32: 3.4073}
    for width, mal in widths.items():
        config = TreeConfig(budget=64, max_depth=DEPTH, width=width, children=8)
        assert expected_mal(0.1, woven, config) == pytest.approx(mal, abs=5e-5), width
