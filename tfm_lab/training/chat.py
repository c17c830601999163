"""Everyday conversations for a small target to learn from, written by a larger instruction-tuned model."""

import itertools
import json
import random
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from tfm_lab.models.target import TargetModel
from tfm_lab.training.corpus import ASSISTANT, END, USER
from tfm_lab.training.sampling import sample_texts
from tfm_lab.training.tokenizer import TURN_END, token_id

QUESTIONS = Path(__file__).parent.parent / "data" / "questions.toml"
PREAMBLE = "<|im_start|>system\nYou are a helpful AI assistant who answers in simple words.<|im_end|>\n"


class Exchange(NamedTuple):
    """One question and its answer."""

    prompt: str
    response: str


def unasked_questions(asked: set[str]) -> list[str]:
    """Questions that the templates can ask and that are not in ``asked``."""
    decks = _decks()
    every = choose_prompts(len(decks) * sum(map(len, decks)), 0)
    return [question for question in dict.fromkeys(every) if question not in asked]


def choose_prompts(count: int, seed: int) -> list[str]:
    """``count`` questions, all templates equally often; a template repeats one only after it has asked all others."""
    generator = random.Random(seed)
    decks = _decks()
    for deck in decks:
        generator.shuffle(deck)
    turns = [itertools.cycle(deck) for deck in decks]
    return [next(turns[index % len(turns)]) for index in range(count)]


def write_chat(
    teacher: TargetModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    generator: torch.Generator,
    *,
    temperature: float = 0.7,
    answer_tokens: int = 220,
    batch: int = 64,
    on_batch: Callable[[int], None] | None = None,
) -> Iterator[Exchange]:
    """Let ``teacher`` answer ``prompts``; answers that do not end within ``answer_tokens`` are cut at a sentence.

    Args:
        teacher: an instruction-tuned model that uses the ``<|im_start|>`` chat format.
        tokenizer: the teacher's.
        generator: on the teacher's device.
        on_batch: called with the number of prompts answered so far.
    """
    by_length: dict[int, list[tuple[str, list[int]]]] = defaultdict(list)
    for prompt in prompts:
        ids = tokenizer.encode(f"{PREAMBLE}{USER}{prompt}{END}{ASSISTANT}", add_special_tokens=False).ids
        by_length[len(ids)].append((prompt, ids))
    end = token_id(tokenizer, TURN_END)
    done = 0
    for length in sorted(by_length):
        bucket = by_length[length]
        for start in range(0, len(bucket), batch):
            part = bucket[start : start + batch]
            ids = torch.tensor([ids for _, ids in part], device=teacher.device)
            temperatures = torch.full((len(part),), temperature, device=teacher.device)
            written = sample_texts(teacher, ids, answer_tokens, temperatures, generator)[:, length:].tolist()
            for (prompt, _), answer in zip(part, written, strict=True):
                is_complete = end in answer
                kept = answer[: answer.index(end)] if is_complete else answer
                response = tokenizer.decode(kept)
                response = response.strip() if is_complete else _to_last_sentence(response)
                if len(response) >= 40:
                    yield Exchange(prompt, response)
            done += len(part)
            if on_batch is not None:
                on_batch(done)


def save_chat(path: Path, exchanges: Sequence[Exchange]) -> None:
    """Write conversations as JSON lines, all or nothing."""
    scratch = path.with_name(f".{path.name}.part")
    scratch.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(exchange._asdict(), ensure_ascii=False) for exchange in exchanges)
    scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    scratch.replace(path)


def _decks() -> list[list[str]]:
    """All questions of each template."""
    table = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
    return [
        [
            template["text"].format(*words)
            for words in itertools.product(*(table["words"][s] for s in template["slots"]))
        ]
        for template in table["templates"]
    ]


def _to_last_sentence(text: str) -> str:
    end = max(text.rfind(mark) for mark in (".", "!", "?"))
    return text[: end + 1].strip()
