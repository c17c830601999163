"""A target's own texts: where they start from, and the writing itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfm_lab.bundle import TargetOnly
from tfm_lab.models.target import TargetModel
from tfm_lab.training.corpus import Document
from tfm_lab.training.data import PackedCorpus, WrittenTexts
from tfm_lab.training.prompts import CHAT, think_up_questions, tokens_of
from tfm_lab.training.recipe import TextRecipe
from tfm_lab.training.sampling import sample_texts

Note = Callable[[str], None]
Openings = Iterator[tuple[Tensor, Tensor]]
"""Batches of prompts, filled up behind the shorter ones, and the length of each; without end."""


def corpus_openings(corpus: PackedCorpus, text: TextRecipe, count: int) -> Openings:
    """Windows of a corpus."""
    step, size = 0, min(text.batch, count)
    while True:
        yield corpus.batch(step, size, text.prompt_tokens, text.seed), torch.full((size,), text.prompt_tokens)
        step += 1


def encode_prompts(
    models: TargetOnly, collected: Sequence[Document], text: TextRecipe, count: int, seed: int, note: Note
) -> dict[str, list[list[int]]]:
    """Token ids of the prompts of every kind that the recipe names; those of kind chat are thought up now.

    Raises:
        ValueError: if a kind has no prompt that is short enough.
    """
    kinds: dict[str, list[list[int]]] = {}
    for kind in text.prompts:
        prompts = [prompt for prompt in collected if prompt.source == kind]
        if kind == CHAT:
            generator = torch.Generator(models.target.device).manual_seed(seed)
            wanted = -(-count // len(text.prompts))
            questions = think_up_questions(models, wanted, generator, most=text.batch)
            prompts = [Document(CHAT, question, question) for question in questions]
        encoded = [tokens_of(models, prompt) for prompt in prompts]
        kinds[kind] = [tokens for tokens in encoded if 0 < len(tokens) <= text.prompt_tokens]
        note(f"{len(kinds[kind])} prompts of kind {kind}, {len(encoded) - len(kinds[kind])} left out as too long")
        if not kinds[kind]:
            raise ValueError(f"there are no prompts of kind {kind!r} of at most {text.prompt_tokens} tokens")
    return kinds


def prompt_openings(kinds: Mapping[str, Sequence[list[int]]], text: TextRecipe, count: int, seed: int) -> Openings:
    """Prompts of all kinds in equal numbers; those of one batch are about equally long, batches come in any order."""
    share, epoch = -(-count // len(kinds)), 0
    while True:
        generator = np.random.Generator(np.random.Philox(key=[seed, epoch]))
        drawn: list[list[int]] = []
        for prompts in kinds.values():
            order = generator.permutation(-(-share // len(prompts)) * len(prompts))[:share] % len(prompts)
            drawn += [prompts[index] for index in order]
        drawn.sort(key=len)
        batches = np.array_split(np.arange(len(drawn)), -(-len(drawn) // text.batch))
        for batch in generator.permutation(len(batches)):
            rows = [drawn[index] for index in batches[batch]]
            filled = torch.tensor([[*row, *[0] * (len(rows[-1]) - len(row))] for row in rows])
            yield filled, torch.tensor([len(row) for row in rows])
        epoch += 1


def continue_prompts(target: TargetModel, openings: Openings, text: TextRecipe, count: int, note: Note) -> WrittenTexts:
    """Texts of ``text.length`` tokens each, those that only repeat themselves left out.

    Raises:
        ValueError: if a whole batch only repeats itself.
    """
    device = target.device
    generator = torch.Generator(device).manual_seed(text.seed)
    dtype = np.uint16 if target.config.vocab_size <= 2**16 else np.uint32
    kept: list[tuple[NDArray[np.unsignedinteger[Any]], int, float]] = []
    written = 0
    for prompts, lengths in openings:
        turn = torch.arange(len(prompts)) % len(text.temperatures)
        temperatures = torch.tensor(text.temperatures)[turn].to(device)
        new_tokens = text.length - prompts.shape[1]
        texts = sample_texts(target, prompts.to(device), new_tokens, temperatures, generator, lengths.to(device))
        if device.type == "cuda":
            torch.cuda.empty_cache()  # caches of every length stay behind, and batches are not equally long
        rows = zip(texts.cpu().numpy().astype(dtype), lengths.tolist(), temperatures.tolist(), strict=True)
        varied = [entry for entry in rows if _is_varied(entry[0][entry[1] :], text.least_distinct)]
        if not varied:
            raise ValueError("the target only repeats itself; train it longer or lower least_distinct")
        kept += varied
        written += len(prompts)
        note(f"wrote {written} texts, kept {len(kept)}")
        if len(kept) >= count:
            tokens, starts, heats = zip(*kept[:count], strict=True)
            return WrittenTexts(np.stack(tokens), np.array(starts, np.int32), np.array(heats, np.float32))
    raise AssertionError("openings never end")


def _is_varied(tokens: NDArray[np.unsignedinteger[Any]], least: float) -> bool:
    return len(np.unique(tokens)) >= least * len(tokens)
