"""Text that a target writes itself, many texts at a time: the training data of drafter and Weaver."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.models.target import TargetModel
from tfm_lab.noise import gumbel_rows


@torch.no_grad()
def sample_texts(
    target: TargetModel,
    prompts: Int[Tensor, "batch prompt"],
    new_tokens: int,
    temperatures: Float[Tensor, " batch"],
    generator: torch.Generator,
    lengths: Int[Tensor, " batch"] | None = None,
    noise_keys: Int[Tensor, " batch"] | None = None,
) -> Int[Tensor, "batch tokens"]:
    """Continue prompts until every text is ``new_tokens`` longer than the longest prompt, without stopping early.

    Args:
        target: the model that writes.
        prompts: token ids on the target's device, filled up behind shorter prompts.
        new_tokens: tokens after the longest prompt.
        temperatures: one per text; 0 is greedy.
        generator: on the target's device.
        lengths: tokens of each prompt, at least one; by default all are equally long.
        noise_keys: sample every text with its own shared noise (:mod:`tfm_lab.noise`) in place of the generator.

    Returns:
        Prompts and continuations, int64; each continuation starts right behind its own prompt.
    """
    sharpness = torch.where(temperatures > 0, 1.0 / temperatures.clamp_min(1e-6), torch.zeros(()).to(temperatures))
    is_greedy = (temperatures == 0).unsqueeze(1)
    longest = prompts.shape[1]
    shortest = longest if lengths is None else int(lengths.min())
    features, state = target.extend(prompts[:, :shortest], target.empty_state(prompts.shape[0]))
    texts, last = [prompts[:, :shortest]], features.hidden[:, -1]
    for place in range(shortest, longest + new_tokens):
        logits = target.logits(last).float()
        if noise_keys is None:
            noise = -torch.empty_like(logits).exponential_(generator=generator).log_()
        else:
            begins = longest if lengths is None else lengths
            noise = gumbel_rows(noise_keys, place - begins * torch.ones_like(noise_keys), logits.shape[1])
        scores = torch.where(is_greedy, logits, logits * sharpness.unsqueeze(1) + noise)
        token = scores.argmax(dim=1, keepdim=True)
        if lengths is not None and place < longest:
            token = torch.where((place < lengths).unsqueeze(1), prompts[:, place : place + 1], token)
        texts.append(token)
        if place + 1 < longest + new_tokens:
            features, state = target.extend(token, state)
            last = features.hidden[:, -1]
    return torch.cat(texts, dim=1)
