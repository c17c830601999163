"""Shared noise: the numbers themselves, the law of what they draw, and that no draft ever changes the text."""

import math

import pytest
import torch
from models.oracle import random_tokens
from models.small import autoregressive_for, drafter_for, tiny_target, weaver_for

from tfm_lab.decoding import DecodeConfig, DecodeSession, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting import Draft, DraftSource, TreeConfig, TreeKind, woven
from tfm_lab.drafting.foresight import foresee
from tfm_lab.draws import SeededDraws
from tfm_lab.exact import ROOT, Table
from tfm_lab.methods import AUTOREGRESSIVE_METHODS, METHODS, make_speculator
from tfm_lab.noise import SharedNoise, gumbel_rows, noise_key
from tfm_lab.verification import RULES, target_sample

ALL = METHODS | AUTOREGRESSIVE_METHODS
FIXED = [name for name, method in ALL.items() if method.kind is TreeKind.FIXED]
SHARED = SamplingConfig(1.0, shared_noise=True)
TREE = TreeConfig(budget=12, max_depth=7, children=4, width=3, pool_size=20)
WORD = 2**64


def mixed(x: int) -> int:
    """SplitMix64's finaliser on plain integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def test_the_numbers_are_those_of_the_generator_written_with_plain_integers() -> None:
    keys, places = [3, -(2**62) - 5, noise_key(7, [1, 2])], [0, 41, 100_000]
    rows = gumbel_rows(torch.tensor(keys), torch.tensor(places), 5)
    for row, key, place in zip(rows.tolist(), keys, places, strict=True):
        start = mixed((mixed(key % WORD) + place * 0x2545F4914F6CDD1D) % WORD)
        for token, value in enumerate(row, start=1):
            bits = mixed((start + token * 0x9E3779B97F4A7C15) % WORD)
            assert value == pytest.approx(-math.log(-math.log(((bits >> 11) + 0.5) / 2**53)), rel=1e-12)


def test_a_row_does_not_depend_on_its_batch() -> None:
    keys, places = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6], [7, 8]])
    rows = gumbel_rows(keys, places, 9)
    assert rows.shape == (2, 2, 9)
    assert torch.equal(rows[1, 0], gumbel_rows(torch.tensor(3), torch.tensor(7), 9))
    assert torch.equal(rows[..., :4], gumbel_rows(keys, places, 4))


def test_the_noise_is_standard_gumbel_and_uncorrelated() -> None:
    """Mean, variance and four correlations within 4.5 standard errors of 200,000 numbers."""
    noise = gumbel_rows(torch.arange(100).repeat_interleave(20).view(100, 20), torch.arange(20).repeat(100, 1), 100)
    count = noise.numel()
    assert abs(noise.mean() - 0.5772156649) < 4.5 * math.pi / math.sqrt(6 * count)
    standard = (noise - noise.mean()) / noise.std()
    assert abs(noise.var() - math.pi**2 / 6) < 4.5 * math.pi**2 / 6 * math.sqrt(4.4 / count)
    for other in (standard.roll(1, 0), standard.roll(1, 1), standard.roll(1, 2), standard.roll((1, 1), (0, 1))):
        assert abs((standard * other).mean()) < 4.5 / math.sqrt(count)


def test_the_key_depends_on_seed_and_prompt() -> None:
    keys = {noise_key(seed, prompt) for seed in (0, 1, -1) for prompt in ([], [1, 2], [12], [2, 1])}
    assert len(keys) == 12
    assert noise_key(1, [3]) == noise_key(1, (3,))


def test_draws_follow_the_weights() -> None:
    """Chi-squared with 3 degrees of freedom below its 0.1 % point."""
    weights, counts = torch.tensor([1.0, 0.0, 5.0, 2.0, 2.0]), torch.zeros(5)
    draws = SharedNoise(5)
    for _ in range(4000):
        counts[draws.categorical(weights)] += 1
    expected = 400 * weights
    assert counts[1] == 0
    assert float(((counts - expected) ** 2 / expected)[weights > 0].sum()) < 16.3


def test_what_is_ahead_is_what_the_draws_use() -> None:
    draws, weights = SharedNoise(noise_key(0, [1])), torch.rand(30, dtype=torch.float64)
    foreseen = draws.copy().ahead(100, 30)
    twin = draws.copy()
    drawn = [draws.categorical(weights) for _ in range(100)]
    assert drawn == (weights.log() + foreseen).argmax(1).tolist()
    assert [twin.categorical(weights) for _ in range(100)] == drawn
    assert torch.equal(SharedNoise(noise_key(0, [1]), 40).ahead(3, 30), foreseen[40:43])


def test_chance_is_refused_beyond_the_draw_of_tokens() -> None:
    draws = SharedNoise(0)
    assert draws.bernoulli(1.0)
    assert not draws.bernoulli(0.0)
    with pytest.raises(ValueError, match="use the rule target_sample"):
        draws.bernoulli(0.5)


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-plain"])
@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_the_text_is_that_of_plain_sampling_with_the_same_noise(name: str, method: str, temperature: float) -> None:
    target = tiny_target(name)
    sampling = SamplingConfig(temperature, top_k=40, top_p=0.95, shared_noise=True)
    speculator = make_speculator(
        method, drafter_for(target), weaver_for(target), sampling, autoregressive=autoregressive_for(target)
    )
    texts = set()
    for seed in range(3):
        config = DecodeConfig(20, sampling, TREE, seed=seed)
        prompt = random_tokens(9, seed)
        plain = autoregressive_decode(target, prompt, config)
        trace = speculative_decode(target, speculator, prompt, config)
        assert trace.tokens == plain.tokens
        assert trace.sampling.shared_noise
        texts.add(trace.tokens)
    assert len(texts) == 3


def test_seed_and_prompt_change_the_text_and_a_short_draft_does_not() -> None:
    target = tiny_target()
    speculator = make_speculator("ddtree", drafter_for(target), None, SHARED)
    prompt = random_tokens(9)

    def text(seed: int, budget: int) -> tuple[int, ...]:
        return speculative_decode(
            target, speculator, prompt, DecodeConfig(15, SHARED, TreeConfig(budget=budget), seed=seed)
        ).tokens

    assert text(1, 0) == text(1, 3) == text(1, 30) != text(2, 3)
    own = DecodeConfig(15, SamplingConfig(1.0), TREE, seed=1)
    assert text(1, 3) != autoregressive_decode(target, prompt, own).tokens


def test_the_joint_law_of_text_is_the_targets() -> None:
    """Two tokens under 1,500 keys; chi-squared with 8 degrees of freedom below its 0.1 % point. Drafts foresee all."""
    generator = torch.Generator().manual_seed(3)
    p = Table.fill(3, 3, lambda prefix: torch.rand(3, generator=generator) + 0.05)
    q = Table.fill(3, 3, lambda prefix: torch.rand(3, generator=generator) + 0.05)
    counts = torch.zeros(3, 3)
    accepted = 0
    for key in range(1500):
        draws = SharedNoise(noise_key(key, []))
        source = foresee(q.source(2), draws.ahead(2, 3), 1.0)
        tree = woven(ROOT, source, TreeConfig(budget=3, max_depth=2), SeededDraws(0)).tree
        paths = [tree.path_tokens(node)[1:] for node in range(len(tree))]
        logits = torch.stack([p.rows[path] for path in paths])
        verdict = target_sample(Draft(tree, TreeKind.FIXED), TargetRows(logits, SHARED), draws)
        accepted += len(verdict.path) - 1
        emitted = list(verdict.emitted(tree))
        while len(emitted) < 2:
            emitted.append(draws.categorical(p.rows[tuple(emitted)].exp()))
        counts[tuple(emitted[:2])] += 1
    expected = 1500 * torch.stack([p.rows[()].softmax(0)[a] * p.rows[(a,)].softmax(0) for a in range(3)])
    assert accepted > 1000
    assert float(((counts - expected) ** 2 / expected).sum()) < 26.1


def test_a_drafter_that_knows_the_target_is_always_right() -> None:
    """With q = p the foreseen argmax is the target's pick: every chain is accepted whole."""
    p = Table.fill(4, 4, lambda prefix: torch.rand(4) + 0.1)
    for key in range(200):
        draws = SharedNoise(key)
        source = foresee(p.source(3), draws.ahead(3, 4), 1.0)
        tree = woven(ROOT, source, TreeConfig(budget=3, max_depth=3, children=1, width=1), SeededDraws(0)).tree
        paths = [tree.path_tokens(node)[1:] for node in range(len(tree))]
        rows = TargetRows(torch.stack([p.rows[path] for path in paths]), SHARED)
        assert len(target_sample(Draft(tree, TreeKind.FIXED), rows, draws).path) == 4


def test_without_noise_ahead_a_source_stays_what_it_is() -> None:
    source = Table.fill(3, 2, lambda prefix: torch.rand(3) + 0.1).source(2)
    calm = foresee(source, torch.zeros(2, 3), 1.0)
    assert source.marginals is not None
    assert calm.marginals is not None
    torch.testing.assert_close(calm.marginals.logits, source.marginals.logits, check_dtype=False)
    assert foresee(DraftSource(None), torch.zeros(2, 3), 1.0) == DraftSource(None)


def test_what_does_not_go_with_shared_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a temperature above 0"):
        SamplingConfig(0.0, shared_noise=True)
    for rule in ("rejection_swor", "traversal", "greedy"):
        for kind in TreeKind:
            with pytest.raises(ValueError, match="target_sample"):
                RULES[rule].supports(kind, SHARED)
    target = tiny_target()
    speculator = make_speculator("dyspec", drafter_for(target), weaver_for(target), SHARED, "target_sample")
    with pytest.raises(ValueError, match="use a method with fixed trees"):
        DecodeSession(target, speculator, [1], DecodeConfig(5, SHARED))
