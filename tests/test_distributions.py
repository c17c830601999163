"""Temperature, top-k and top-p against definitions written out in plain Python; distances and residuals by hand."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from tfm_lab.distributions import SamplingConfig, TargetRows, first_argmax, residual, total_variation

LOGITS = torch.tensor([0.5, 0.25, 0.15, 0.1], dtype=torch.float64).log()


def plain_probabilities(logits: list[float], config: SamplingConfig) -> list[float]:
    """The definition: divide, exponentiate, keep the best k, keep the shortest head that reaches p, normalise."""
    best = max(logits)
    if config.temperature == 0.0:
        return [float(index == logits.index(best)) for index in range(len(logits))]
    weights = [math.exp((logit - best) / config.temperature) for logit in logits]
    ranking = sorted(range(len(logits)), key=lambda index: (-weights[index], index))
    if config.top_k:
        ranking = ranking[: config.top_k]
    mass = math.fsum(weights[index] for index in ranking)
    kept, reached = [], 0.0
    for index in ranking:
        if reached < config.top_p * mass or config.top_p == 1.0:
            kept.append(index)
        reached += weights[index]
    total = math.fsum(weights[index] for index in kept)
    return [weights[index] / total if index in kept else 0.0 for index in range(len(logits))]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    logits=st.lists(st.integers(-12, 12).map(lambda step: step / 4), min_size=1, max_size=8),
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.5]),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([0.13, 0.47, 0.831, 0.977, 1.0]),
)
def test_the_distribution_follows_its_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float
) -> None:
    config = SamplingConfig(temperature, top_k, top_p)
    expected = torch.tensor(plain_probabilities(logits, config), dtype=torch.float64)
    torch.testing.assert_close(config.probabilities(torch.tensor(logits)), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SamplingConfig(), [0.5, 0.25, 0.15, 0.1]),
        (SamplingConfig(temperature=0.5), [0.25 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345, 0.01 / 0.345]),
        (SamplingConfig(temperature=0.0), [1.0, 0.0, 0.0, 0.0]),
        (SamplingConfig(top_k=2), [2 / 3, 1 / 3, 0.0, 0.0]),
        (SamplingConfig(top_k=9), [0.5, 0.25, 0.15, 0.1]),
        (SamplingConfig(top_p=0.4), [1.0, 0.0, 0.0, 0.0]),
        (SamplingConfig(top_p=0.6), [2 / 3, 1 / 3, 0.0, 0.0]),
        (SamplingConfig(top_p=0.8), [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0.0]),
        (SamplingConfig(top_k=3, top_p=0.8), [2 / 3, 1 / 3, 0.0, 0.0]),
    ],
)
def test_hand_computed_distributions(config: SamplingConfig, expected: list[float]) -> None:
    """In the last case top-p sees (.556, .278, .167): the renormalised top 3, of which two reach .8."""
    torch.testing.assert_close(config.probabilities(LOGITS), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.5, 2), (0.75, 3), (0.7500001, 4), (1.0, 4)])
def test_top_p_stops_as_soon_as_the_mass_is_reached(top_p: float, kept: int) -> None:
    probabilities = SamplingConfig(top_p=top_p).probabilities(torch.zeros(4))
    assert probabilities.tolist() == pytest.approx([1 / kept] * kept + [0.0] * (4 - kept))


@pytest.mark.parametrize("config", [SamplingConfig(0.0), SamplingConfig(top_k=1), SamplingConfig(top_p=0.1)])
def test_the_lowest_index_wins_a_tie(config: SamplingConfig) -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0, 2.0])
    assert config.probabilities(logits).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert first_argmax(logits).item() == 1
    assert first_argmax(logits).shape == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_any_floating_dtype_gives_float64_that_sums_to_one(dtype: torch.dtype) -> None:
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    probabilities = SamplingConfig(temperature=0.6, top_k=300, top_p=0.9).probabilities(logits)
    assert probabilities.dtype == torch.float64
    assert not probabilities.requires_grad
    assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-12)


def test_the_logits_stay_as_they_are() -> None:
    logits = LOGITS.clone()
    for config in (SamplingConfig(), SamplingConfig(0.0), SamplingConfig(0.5, 2, 0.7)):
        config.probabilities(logits)
    assert torch.equal(logits, LOGITS)


def test_minus_infinity_is_probability_zero() -> None:
    logits = torch.tensor([0.0, -math.inf, 0.0])
    assert SamplingConfig().probabilities(logits).tolist() == [0.5, 0.0, 0.5]
    assert SamplingConfig(0.0).probabilities(logits).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[0.0, math.nan], [0.0, math.inf], [-math.inf, -math.inf]])
def test_logits_without_a_distribution_are_refused(temperature: float, row: list[float]) -> None:
    with pytest.raises(ValueError, match="the target's logits describe no distribution"):
        SamplingConfig(temperature).probabilities(torch.tensor(row))


@pytest.mark.parametrize("temperature", [1e-320, 1e-12])
def test_a_tiny_temperature_is_the_argmax_and_not_nan(temperature: float) -> None:
    assert SamplingConfig(temperature).probabilities(torch.tensor([500.0, 499.0])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature must be zero or a positive number, got -0.1"),
        ({"temperature": math.inf}, "temperature must be zero or a positive number, got inf"),
        ({"temperature": math.nan}, "temperature must be zero or a positive number, got nan"),
        ({"top_k": -1}, r"top_k must be zero \(keep all\) or a positive count, got -1"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\], got 0.0"),
        ({"top_p": 1.01}, r"top_p must lie in \(0, 1\], got 1.01"),
        ({"top_p": math.nan}, r"top_p must lie in \(0, 1\], got nan"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingConfig(**arguments)  # pyright: ignore[reportArgumentType]


def test_greedy_means_temperature_zero() -> None:
    assert SamplingConfig(0.0).is_greedy
    assert not SamplingConfig(1e-9).is_greedy
    assert not SamplingConfig(top_k=1).is_greedy


# TargetRows.


def test_rows_are_evaluated_only_where_someone_looks() -> None:
    logits = torch.zeros(3, 4)
    logits[2] = math.nan
    rows = TargetRows(logits, SamplingConfig())
    assert (rows.nodes, rows.vocab_size) == (3, 4)
    assert rows.probabilities(1).tolist() == [0.25] * 4
    assert rows.probabilities(1) is rows.probabilities(1)
    with pytest.raises(ValueError, match="describe no distribution"):
        rows.probabilities(2)


def test_rows_apply_the_sampling_settings() -> None:
    config = SamplingConfig(0.7, 3, 0.9)
    rows = TargetRows(LOGITS.repeat(2, 1), config)
    assert rows.sampling == config
    assert torch.equal(rows.probabilities(1), config.probabilities(LOGITS))


# Distances.


def test_total_variation_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.15, 0.05]), torch.tensor([0.1, 0.6, 0.2, 0.1])
    assert float(total_variation(p, q)) == pytest.approx(0.4)
    assert total_variation(torch.stack([p, q]), torch.stack([p, p])).tolist() == pytest.approx([0.0, 0.4])
    assert float(total_variation(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))) == 1.0


def test_residual_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.6, 0.1])
    torch.testing.assert_close(residual(p, q), torch.tensor([0.8, 0.0, 0.2]))


def test_accepting_or_drawing_from_the_residual_restores_p() -> None:
    """min(p, q) + TV(p, q) * residual(p, q) = p, the identity behind speculative sampling."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        p, q = torch.rand(2, 6, generator=generator, dtype=torch.float64).softmax(-1)
        torch.testing.assert_close(torch.minimum(p, q) + total_variation(p, q) * residual(p, q), p)


@pytest.mark.parametrize("p", [[0.25, 0.75], [0.0, 1.0]])
def test_a_residual_without_mass_is_p_itself(p: list[float]) -> None:
    assert residual(torch.tensor(p), torch.tensor(p)).tolist() == p
