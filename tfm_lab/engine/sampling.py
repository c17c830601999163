"""The target's token behind every node, on the device: its argmax, or a draw from a given uniform number."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.distributions import SamplingConfig


def wanted_tokens(
    logits: Float[Tensor, "batch nodes vocab"], sampling: SamplingConfig, uniforms: Float[Tensor, "batch nodes"]
) -> Int[Tensor, "batch nodes"]:
    """Greedy, or the inverse of the cumulative distribution in float64, as ``SeededDraws.categorical`` draws.

    Nodes of one depth share a number: on the path that is accepted, every emitted token has one of its own, and it is
    the one that plain sampling would have used.

    Args:
        uniforms: for every node that of its place in the text; not used when greedy.
    """
    if sampling.is_greedy:
        return logits.argmax(-1)
    scores = logits.double()
    probabilities = torch.softmax((scores - scores.amax(-1, keepdim=True)) / sampling.temperature, dim=-1)
    probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    cumulative = probabilities.cumsum(-1)
    drawn = torch.searchsorted(cumulative, uniforms[..., None] * cumulative[..., -1:], right=True)[..., 0]
    index = torch.arange(logits.shape[-1], device=logits.device)
    last = torch.where(probabilities > 0, index, 0).amax(-1)
    return torch.minimum(drawn, last)
