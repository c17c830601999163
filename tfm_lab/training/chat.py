"""Everyday conversations for a small target to learn from, written by a larger instruction-tuned model."""

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from tfm_lab.models.target import TargetModel
from tfm_lab.training.corpus import ASSISTANT, END, USER
from tfm_lab.training.sampling import sample_texts

HEROES = (
    "cat|dog|fox|little girl|little boy|old sailor|young farmer|robot|dragon|teacher|baker|musician|bear|mouse|princess|"
    "gardener|fisherman|rabbit|painter|brave knight|owl|turtle|grandmother|shepherd|inventor|penguin|horse|lost puppy|"
    "kind giant|wise king"
)
EVENTS = (
    "finds a lost key|makes a new friend|learns to swim|gets lost in the forest|plants a garden|builds a boat|"
    "saves the village|discovers a secret door|helps a stranger|loses a favourite toy|visits the city|climbs a mountain|"
    "learns to share|finds a treasure map|is afraid of the dark|bakes a cake|sees snow for the first time|"
    "wins a race|meets a talking bird|travels to the moon|fixes an old clock|forgets a birthday|hears a strange noise|"
    "learns to play the violin|crosses a river"
)
THINGS = (
    "the sun|the moon|rain|a rainbow|gravity|a volcano|an earthquake|photosynthesis|electricity|a magnet|sound|light|"
    "the water cycle|a computer|the internet|a database|an algorithm|a battery|an engine|a bridge|a telescope|"
    "a microscope|the heart|the brain|bones|sleep|a vitamin|a virus|bacteria|DNA|evolution|a planet|a star|a galaxy|"
    "a black hole|the ocean|a desert|a rainforest|a river|a glacier|money|a bank|a budget|a loan|a tax|democracy|a law|"
    "a contract|history|a map|a calendar|a clock|language|an alphabet|music|a melody|a poem|a novel|a painting|"
    "a photograph|bread|cheese|coffee|sugar|salt|a garden|a farm|a bee|a bird|a whale|a tree|a flower|a seed|soil|"
    "friendship|courage|patience|a habit|memory|fear|a dream|climate|the wind|a cloud|thunder|glass|steel|paper|plastic"
)
ACTIVITIES = (
    "learning a new language|sleeping better|saving money|writing a letter|preparing for an exam|cooking for friends|"
    "starting a garden|running a first race|reading more books|giving a speech|making new friends|keeping a diary|"
    "learning to code|staying healthy in winter|planning a trip|cleaning the kitchen|training a puppy|drinking more water|"
    "working from home|managing time|a job interview|learning the piano|taking good photographs|reducing stress|"
    "moving to a new city|eating more vegetables|writing a short story|teaching a child to read|fixing a bicycle|"
    "growing tomatoes|walking every day|choosing a gift|organising a desk|making a good cup of tea|"
    "remembering names|finishing a project|protecting the environment|using less plastic|being a good listener"
)
PLACES = (
    "a quiet beach|a busy market|a mountain village|an old library|a train station|a small island|a winter forest|"
    "a school|a bakery in the morning|a city at night|a farm in summer|a museum|a lighthouse|a river bank|a castle|"
    "a garden in spring|a kitchen|a harbour|a desert|a playground"
)
TEMPLATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Tell me a short story about a {} who {}.", (HEROES, EVENTS)),
    ("Write a story for children: a {} {}.", (HEROES, EVENTS)),
    ("Tell me about a {} in {}.", (HEROES, PLACES)),
    ("Explain in simple words what {} is.", (THINGS,)),
    ("Why is {} important?", (THINGS,)),
    ("Give me three tips for {}.", (ACTIVITIES,)),
    ("How do I get started with {}?", (ACTIVITIES,)),
    ("Describe {}.", (PLACES,)),
)
PREAMBLE = "<|im_start|>system\nYou are a helpful AI assistant who answers in simple words.<|im_end|>\n"


class Exchange(NamedTuple):
    """One question and its answer."""

    prompt: str
    response: str


def choose_prompts(count: int, seed: int) -> list[str]:
    """``count`` questions, all templates equally often; a template repeats one only after it has asked all others."""
    generator = random.Random(seed)
    decks: list[Iterator[str]] = []
    for template, slots in TEMPLATES:
        questions = [template.format(*words) for words in itertools.product(*(slot.split("|") for slot in slots))]
        generator.shuffle(questions)
        decks.append(itertools.cycle(questions))
    return [next(decks[index % len(decks)]) for index in range(count)]


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
    end = tokenizer.token_to_id("<|im_end|>")
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


def _to_last_sentence(text: str) -> str:
    end = max(text.rfind(mark) for mark in (".", "!", "?"))
    return text[: end + 1].strip()
