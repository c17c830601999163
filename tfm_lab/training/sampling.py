"""Text that a target writes itself, many texts at a time: the training data of drafter and Weaver."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.models.target import TargetModel


@torch.no_grad()
def sample_texts(
    target: TargetModel,
    prompts: Int[Tensor, "batch prompt"],
    new_tokens: int,
    temperatures: Float[Tensor, " batch"],
    generator: torch.Generator,
) -> Int[Tensor, "batch tokens"]:
    """Continue equally long prompts by ``new_tokens`` tokens each, without stopping early.

    Args:
        target: the model that writes.
        prompts: token ids on the target's device.
        new_tokens: length of each continuation.
        temperatures: one per text; 0 is greedy.
        generator: on the target's device.

    Returns:
        Prompts and continuations, int64.
    """
    sharpness = torch.where(temperatures > 0, 1.0 / temperatures.clamp_min(1e-6), torch.zeros(()).to(temperatures))
    is_greedy = (temperatures == 0).unsqueeze(1)
    features, state = target.extend(prompts, target.empty_state(prompts.shape[0]))
    texts, last = [prompts], features.hidden[:, -1]
    for index in range(new_tokens):
        logits = target.logits(last).float()
        noise = torch.empty_like(logits).exponential_(generator=generator).log_()
        scores = torch.where(is_greedy, logits, logits * sharpness.unsqueeze(1) - noise)
        token = scores.argmax(dim=1, keepdim=True)
        texts.append(token)
        if index + 1 < new_tokens:
            features, state = target.extend(token, state)
            last = features.hidden[:, -1]
    return torch.cat(texts, dim=1)
