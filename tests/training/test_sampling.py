"""Many texts at a time: each one is what the target would have written alone."""

import pytest
import torch
from models.oracle import VOCABULARY, random_tokens
from models.small import tiny_target
from torch import Tensor

from tfm_lab.decoding import DecodeConfig, autoregressive_decode
from tfm_lab.training.sampling import sample_texts

PROMPTS = torch.tensor([random_tokens(9, seed) for seed in range(4)])


def write(prompts: Tensor, temperatures: list[float], tokens: int = 12, seed: int = 0) -> Tensor:
    target = tiny_target()
    generator = torch.Generator().manual_seed(seed)
    return sample_texts(target, prompts, tokens, torch.tensor(temperatures, dtype=torch.float64), generator)


def test_at_temperature_zero_it_is_plain_greedy_decoding() -> None:
    texts = write(PROMPTS, [0.0] * 4)
    for text, prompt in zip(texts.tolist(), PROMPTS.tolist(), strict=True):
        plain = autoregressive_decode(tiny_target(), prompt, DecodeConfig(12)).tokens
        assert text == [*prompt, *plain]


def test_texts_do_not_depend_on_their_neighbours() -> None:
    base = write(PROMPTS, [0.0, 1.0, 0.7, 1.0])
    others = PROMPTS.clone()
    others[0], others[3] = torch.tensor(random_tokens(9, 20)), torch.tensor(random_tokens(9, 21))
    changed = write(others, [1.3, 1.0, 0.7, 0.0])
    assert torch.equal(changed[1:3], base[1:3])
    assert not torch.equal(changed[0, 9:], base[0, 9:])


def test_each_text_has_its_own_temperature() -> None:
    """The same prompt in every row: rows at temperature 0 agree, the others part, and the hotter the sooner."""
    texts = write(PROMPTS[:1].expand(60, -1), [0.0] * 20 + [0.3] * 20 + [50.0] * 20)
    first = texts[:, 9]
    assert len({tuple(text) for text in texts[:20].tolist()}) == 1
    assert len(set(first[20:40].tolist())) < len(set(first[40:].tolist()))
    assert len(set(first[40:].tolist())) > 10


def test_first_tokens_follow_the_targets_distribution() -> None:
    count, temperature, prompt = 2000, 0.6, PROMPTS[:1, :2]
    wanted = (tiny_target().prefill(prompt[0].tolist()).logits / temperature).softmax(-1)
    first = write(prompt.expand(count, -1), [temperature] * count, tokens=1)[:, 2]
    found = torch.bincount(first, minlength=VOCABULARY) / count
    assert 0.5 * float((found - wanted).abs().sum()) < 0.5 * (VOCABULARY / count) ** 0.5


def test_the_same_seed_writes_the_same_and_another_does_not() -> None:
    assert torch.equal(write(PROMPTS, [1.0] * 4), write(PROMPTS, [1.0] * 4))
    assert not torch.equal(write(PROMPTS, [1.0] * 4), write(PROMPTS, [1.0] * 4, seed=1))


def test_texts_that_would_outgrow_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit the target's context"):
        write(torch.zeros(1, 2300, dtype=torch.int64), [0.0], tokens=10)


def test_prompts_of_different_lengths_are_continued_as_each_would_be_alone() -> None:
    lengths = torch.tensor([9, 3, 6, 1])
    target = tiny_target()
    generator = torch.Generator().manual_seed(0)
    texts = sample_texts(target, PROMPTS, 5, torch.zeros(4, dtype=torch.float64), generator, lengths)
    assert texts.shape == (4, 14)
    for text, prompt, length in zip(texts.tolist(), PROMPTS.tolist(), lengths.tolist(), strict=True):
        plain = autoregressive_decode(target, prompt[:length], DecodeConfig(14 - length)).tokens
        assert text == [*prompt[:length], *plain]
