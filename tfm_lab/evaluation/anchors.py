"""Places in texts that the target wrote itself: the same for every method that is to be compared there."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from tfm_lab.models.target import TargetModel
from tfm_lab.training.sampling import sample_texts

TOGETHER = 32
"""Texts written at a time."""


class Anchored(NamedTuple):
    """A text up to and including its anchor, the root of the trees to come.

    Attributes:
        prompt: index of its prompt.
        tokens: prompt and what the target wrote.
    """

    prompt: int
    tokens: list[int]


def check_prompts(target: TargetModel, prompts: Sequence[Sequence[int]], more: int) -> None:
    """Raise a ValueError unless there are prompts of at least two tokens, with room for ``more`` behind each."""
    if not prompts or min(len(prompt) for prompt in prompts) < 2:
        raise ValueError("anchors need prompts of at least 2 tokens; leave shorter ones out")
    longest, room = max(len(prompt) for prompt in prompts), target.config.max_positions
    if longest + more > room:
        raise ValueError(f"a prompt of {longest} tokens leaves no room for {more} more in a context of {room}")


def to_anchors(
    target: TargetModel, prompts: Sequence[Sequence[int]], written: int, generator: torch.Generator
) -> Iterator[Anchored]:
    """Continue every prompt at temperature 1, up to a random one of the first ``written`` tokens before a stop token.

    Where the very first token is a stop token, the anchor is the last token of the prompt. Short prompts come first.

    Args:
        generator: on the target's device.
    """
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for start in range(0, len(order), TOGETHER):
        part = order[start : start + TOGETHER]
        lengths = [len(prompts[index]) for index in part]
        rows = [[*prompts[index], *[0] * (lengths[-1] - len(prompts[index]))] for index in part]
        texts = sample_texts(
            target,
            torch.tensor(rows, device=target.device),
            written,
            torch.ones(len(rows), device=target.device),
            generator,
            torch.tensor(lengths, device=target.device),
        ).tolist()
        shares = torch.rand(len(rows), generator=generator, device=target.device).tolist()
        for index, text, length, share in zip(part, texts, lengths, shares, strict=True):
            new = text[length : length + written]
            end = next((place for place, token in enumerate(new) if token in target.config.stop_tokens), len(new))
            yield Anchored(index, text[: length + (1 + int(share * end) if end else 0)])
