"""Theory against brute force: marginals by summing over paths, the best factorised drafter by search."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tfm_lab.distributions import total_variation
from tfm_lab.drafting import TreeConfig, best_first, chain, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.theory import (
    HiddenWorld,
    MarkovWorld,
    World,
    acceptance_of,
    best_factorised,
    ceilings,
    crossover_depth,
    pool_ceiling,
)
from tfm_lab.theory.worlds import perfect_source

WORLDS: dict[str, World] = {
    "markov": MarkovWorld.dirichlet(4, 0.3, seed=2),
    "spread": MarkovWorld.dirichlet(3, 5.0, seed=3),
    "hidden": HiddenWorld.dirichlet(3, 4, 0.1, seed=4),
}


def by_paths(world: World, depth: int) -> dict[tuple[int, ...], float]:
    """Probability of every path to a depth."""
    chances = {(): 1.0}
    for _ in range(depth):
        chances = {
            (*path, token): chance * float(world.conditional(path)[token])
            for path, chance in chances.items()
            if chance > 0.0
            for token in range(world.vocab)
        }
    return chances


@pytest.mark.parametrize("name", WORLDS)
def test_marginals_and_conditionals_are_sums_over_paths(name: str) -> None:
    world = WORLDS[name]
    for depth in (1, 2, 3, 4):
        marginal = torch.zeros(world.vocab, dtype=torch.float64)
        for path, chance in by_paths(world, depth).items():
            marginal[path[-1]] += chance
        torch.testing.assert_close(world.marginals(depth)[-1], marginal, rtol=0, atol=1e-13)
        weights, rows = world.conditionals(depth)
        assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
        torch.testing.assert_close(weights @ rows, marginal, rtol=0, atol=1e-13)
        spread = sum(
            chance * float(total_variation(marginal, world.conditional(path)))
            for path, chance in by_paths(world, depth - 1).items()
            if chance > 0.0
        )
        assert acceptance_of(marginal, weights, rows) == pytest.approx(1.0 - spread, abs=1e-12)


@pytest.mark.parametrize(
    "rows", [MarkovWorld.dirichlet(6, 0.2).transitions, torch.full((3, 3), 1 / 3, dtype=torch.float64)]
)
def test_a_step_leaves_the_stationary_weights_alone(rows: Tensor) -> None:
    weights = MarkovWorld(rows).stationary()
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(weights @ rows, weights, rtol=0, atol=1e-12)


def test_a_hidden_state_remembers_more_than_the_last_token() -> None:
    world = WORLDS["hidden"]
    rows = [world.conditional((first, 2)) for first in range(4)]
    assert float(total_variation(rows[0], rows[1])) > 0.01
    with pytest.raises(ValueError, match="has probability 0"):
        HiddenWorld(torch.eye(2).double(), torch.eye(2).double(), torch.tensor([1.0, 0.0]).double()).conditional((1,))


@pytest.mark.parametrize("seed", [0, 1, 2, 7])
def test_the_ceiling_falls_and_then_flattens(seed: int) -> None:
    """c = 0.05 and 32 tokens, all contexts by their frequency: about 1, .5, .3, .2, .2, whatever the world."""
    world = MarkovWorld.dirichlet(32, 0.05, seed=seed)
    found = torch.tensor(
        [[c.marginal for c in ceilings(world.at(context), 6)] for context in range(32)], dtype=torch.float64
    )
    means = (world.stationary() @ found).tolist()
    assert means[:5] == pytest.approx([1.0, 0.48, 0.30, 0.23, 0.20], abs=0.06)
    assert means[0] - means[1] > 5 * (means[3] - means[4])


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A few conditionals with weights: zeros, ties and one-hot rows among them."""
    states, vocab = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    entries = st.lists(st.integers(0, 3), min_size=vocab, max_size=vocab).filter(any)
    rows = torch.tensor([draw(entries) for _ in range(states)], dtype=torch.float64)
    weights = torch.tensor([draw(st.integers(1, 3)) for _ in range(states)], dtype=torch.float64)
    return weights / weights.sum(), rows / rows.sum(1, keepdim=True)


@settings(max_examples=60, deadline=None)
@given(mixtures())
def test_no_factorised_drafter_on_a_grid_beats_the_best_one(mixture: tuple[Tensor, Tensor]) -> None:
    weights, rows = mixture
    best = best_factorised(weights, rows)
    assert float(best.q.sum()) == pytest.approx(1.0, abs=1e-12)
    assert acceptance_of(best.q, weights, rows) == pytest.approx(best.acceptance, abs=1e-12)
    grid = [point for point in product(range(13), repeat=rows.shape[1]) if sum(point) == 12]
    tried = max(acceptance_of(torch.tensor(point, dtype=torch.float64) / 12, weights, rows) for point in grid)
    assert tried <= best.acceptance + 1e-12
    above = (weights.unsqueeze(1) * (rows > best.q + 1e-12)).sum(0)  # the quantile rule
    at_least = (weights.unsqueeze(1) * (rows >= best.q - 1e-12)).sum(0)
    assert bool((above <= best.threshold + 1e-12).all())
    assert bool((at_least[best.q > 1e-12] >= best.threshold - 1e-12).all())


def test_the_mean_is_beaten_only_slightly_and_the_point_mass_wins_in_settled_worlds() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(50, 8, generator=generator, dtype=torch.float64) ** 3
    rows /= rows.sum(1, keepdim=True)
    weights = torch.full((50,), 0.02, dtype=torch.float64)
    mean, best = acceptance_of(rows.mean(0), weights, rows), best_factorised(weights, rows).acceptance
    assert mean < best < 1.1 * mean
    settled = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 2]]
    quarter = torch.full((4,), 0.25, dtype=torch.float64)
    assert acceptance_of(settled.mean(0), quarter, settled) == pytest.approx(0.25 + 0.0625 + 0.0625)
    assert best_factorised(quarter, settled).acceptance == pytest.approx(0.5)


@pytest.mark.parametrize("name", WORLDS)
def test_ceilings_are_ordered_and_fall_below_the_conditionals(name: str) -> None:
    found = ceilings(WORLDS[name], 5)
    assert [ceiling.depth for ceiling in found] == [1, 2, 3, 4, 5]
    assert found[0].marginal == pytest.approx(1.0)
    for ceiling in found:
        assert max(ceiling.marginal, ceiling.point_mass) <= ceiling.best + 1e-12
        assert ceiling.best <= ceiling.conditional + 1e-12
    assert found[-1].best < 0.98


def test_the_point_mass_overtakes_the_marginal_where_the_future_is_settled() -> None:
    assert crossover_depth(ceilings(MarkovWorld.dirichlet(32, 0.03, seed=1), 8)) in (2, 3, 4)
    assert crossover_depth(ceilings(MarkovWorld.dirichlet(32, 50.0, seed=1), 8)) is None


def test_a_pool_caps_acceptance() -> None:
    generator = torch.Generator().manual_seed(1)
    p = torch.rand(5, 20, generator=generator, dtype=torch.float64).softmax(1)
    pool = torch.rand(5, 20, generator=generator).topk(6, dim=1).indices
    cap = pool_ceiling(p, pool)
    restricted = torch.zeros_like(p).scatter_(1, pool, p.gather(1, pool))
    for q in (restricted / restricted.sum(1, keepdim=True), torch.zeros_like(p).scatter_(1, pool, 1 / 6)):
        assert bool((torch.minimum(p, q).sum(1) <= cap + 1e-12).all())
    torch.testing.assert_close(torch.minimum(p, restricted / restricted.sum(1, keepdim=True)).sum(1), cap)


def test_perfect_drafters_grow_trees_of_the_world() -> None:
    world = WORLDS["markov"]
    source = perfect_source(world, 3)
    config = TreeConfig(budget=6, max_depth=3, children=4, width=1)
    woven_tree = woven(0, source, config, SeededDraws(0)).tree
    for node in range(1, len(woven_tree)):
        path = woven_tree.path_tokens(node)[1:]
        expected = float(world.conditional(path[:-1])[path[-1]].log())
        assert float(woven_tree.log_probs[node]) == pytest.approx(expected, abs=1e-5)
    for builder in (chain, best_first):
        tree = builder(0, source, config, SeededDraws(0)).tree
        assert int(tree.tokens[1]) == int(world.marginals(1)[0].argmax())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: MarkovWorld.dirichlet(1, 0.5), "at least 2 tokens"),
        (lambda: MarkovWorld.dirichlet(4, 0.0), "must be positive"),
        (lambda: MarkovWorld(torch.ones(2, 2).double()), "each with sum 1"),
        (lambda: MarkovWorld(torch.eye(2).double(), 2), "must be one of the 2 tokens"),
        (lambda: ceilings(WORLDS["markov"], 0), "must be at least 1"),
    ],
)
def test_bad_worlds_are_refused(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
