"""Random decisions: the seeded draws, and the enumerating draws on which the exactness tests stand."""

import math

import pytest
import torch
from support import CountingDraws

from tfm_lab.draws import Draws, SeededDraws, check_weights
from tfm_lab.exact import EnumeratingDraws, enumerate_outcomes


def categorical_text(draws: Draws, length: int = 50) -> list[int]:
    return [draws.categorical(torch.ones(10)) for _ in range(length)]


def test_a_seed_and_a_stream_name_one_sequence() -> None:
    first = categorical_text(SeededDraws(3, "target"))
    assert first == categorical_text(SeededDraws(3, "target"))
    assert first != categorical_text(SeededDraws(4, "target"))
    assert first != categorical_text(SeededDraws(3, "drafter"))


@pytest.mark.parametrize("seed", [0, -1, 2**80])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert categorical_text(SeededDraws(seed)) == categorical_text(SeededDraws(seed))


def test_drawing_leaves_torchs_own_generator_alone() -> None:
    before = torch.random.get_rng_state()
    categorical_text(SeededDraws(0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_categorical_frequencies_follow_the_weights() -> None:
    """Chi-squared with 3 degrees of freedom below its 0.1 % point; weights need not be normalised."""
    weights = torch.tensor([1.0, 0.0, 5.0, 2.0, 2.0])
    draws, counts = SeededDraws(1), torch.zeros(5)
    for _ in range(4000):
        counts[draws.categorical(weights)] += 1
    expected = 400 * weights
    assert counts[1] == 0
    assert float(((counts - expected) ** 2 / expected)[weights > 0].sum()) < 16.3


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.97])
def test_bernoulli_frequencies_follow_the_probability(probability: float) -> None:
    draws = SeededDraws(2)
    share = sum(draws.bernoulli(probability) for _ in range(4000)) / 4000
    assert abs(share - probability) < 3.3 * math.sqrt(probability * (1 - probability) / 4000)


@pytest.mark.parametrize(
    ("uniform", "drawn"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.9999, 3), (1.0 - 2**-53, 3), (1.0, 3)]
)
def test_a_weight_of_zero_is_never_drawn(uniform: float, drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even at the ends of the unit interval, where the inverse of the distribution function is ambiguous."""
    draws = SeededDraws(0)
    monkeypatch.setattr(draws, "uniform", lambda: uniform)
    assert draws.categorical(torch.tensor([0.0, 1.0, 0.0, 3.0, 0.0])) == drawn


def test_a_probability_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="not a number"):
        SeededDraws(0).bernoulli(math.nan)


def test_certain_outcomes_use_no_random_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> float:
        raise AssertionError("a number was drawn for a certain outcome")

    draws = SeededDraws(0)
    monkeypatch.setattr(draws, "uniform", refuse)
    assert [draws.bernoulli(probability) for probability in (1.0, 1.5, 0.0, -0.1)] == [True, True, False, False]


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0], [0.5, -0.1], [0.5, math.nan], [0.5, math.inf], [math.nan, math.nan]], ids=str
)
def test_weights_that_are_no_distribution_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="must be finite, non-negative and not all zero"):
        SeededDraws(0).categorical(torch.tensor(weights))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weights_are_judged_in_float64(dtype: torch.dtype) -> None:
    checked = check_weights(torch.tensor([0.5, 0.25], dtype=dtype, requires_grad=True))
    assert checked.dtype == torch.float64
    assert not checked.requires_grad
    assert checked.tolist() == [0.5, 0.25]


# The enumerating draws.


def test_enumeration_meets_every_outcome_once_with_its_probability() -> None:
    """A draw from (.5, 0, .25, .25), then a coin of .2 unless the first outcome ended it."""

    def experiment(draws: Draws) -> tuple[int, bool | None]:
        first = draws.categorical(torch.tensor([2.0, 0.0, 1.0, 1.0]))
        return first, draws.bernoulli(0.2) if first else None

    results = enumerate_outcomes(experiment)
    assert len(results) == 5
    assert {result: chance for chance, result in results} == {
        (0, None): pytest.approx(0.5),
        (2, True): pytest.approx(0.05),
        (2, False): pytest.approx(0.2),
        (3, True): pytest.approx(0.05),
        (3, False): pytest.approx(0.2),
    }


def test_enumeration_stops_at_what_is_no_distribution() -> None:
    with pytest.raises(ValueError, match="they must be finite, non-negative and not all zero"):
        EnumeratingDraws().categorical(torch.tensor([0.5, math.nan]))
    with pytest.raises(ValueError, match="a probability that is not a number"):
        EnumeratingDraws().bernoulli(math.nan)


def test_enumeration_of_nothing_random_is_one_outcome() -> None:
    assert enumerate_outcomes(lambda draws: (draws.bernoulli(1.0), draws.bernoulli(0.0))) == [(1.0, (True, False))]


def test_enumeration_agrees_with_seeded_draws() -> None:
    def experiment(draws: Draws) -> int:
        total = 0
        while draws.bernoulli(0.6) and total < 4:
            total += 1 + draws.categorical(torch.tensor([3.0, 1.0]))
        return total

    law: dict[int, float] = {}
    for chance, result in enumerate_outcomes(experiment):
        law[result] = law.get(result, 0.0) + chance
    assert math.fsum(law.values()) == pytest.approx(1.0, abs=1e-14)
    draws = SeededDraws(6)
    counts = dict.fromkeys(law, 0)
    for _ in range(2000):
        counts[experiment(draws)] += 1
    for result, chance in law.items():
        assert abs(counts[result] / 2000 - chance) < 4 * math.sqrt(chance * (1 - chance) / 2000)


def test_counting_draws_count_open_decisions() -> None:
    draws = CountingDraws(seed=3)
    assert [draws.categorical(torch.ones(10)) for _ in range(5)] == categorical_text(SeededDraws(3), 5)
    draws.bernoulli(1.0)
    draws.bernoulli(0.5)
    assert (draws.categoricals, draws.bernoullis) == (5, 1)
