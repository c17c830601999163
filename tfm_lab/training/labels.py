"""What a drafter's block is compared with: the tokens of a text, or the laws that they were drawn from.

A token is one draw from the target's law p of that place, softmax(logits / temperature). Cross-entropy with the whole
law has the same mean over all texts that are drawn so (rounding, and texts that are dropped for repeating themselves,
aside) and less noise: what one text happens to say cannot be learned by heart. It costs one product per place of a
text, whatever number of blocks covers the place: logits are W h, so the mean logit under p is the drafter's h times
the mean row W^T p of the head.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.models.layers import at_least_float32
from tfm_lab.models.target import TargetModel

TEXT, LAW = "text", "law"
LABELS = (TEXT, LAW)

ENTRIES_AT_ONCE = 2**28
"""Places times vocabulary that are held at a time: about 5 GiB in mixed precision."""


@torch.no_grad()
def mean_head_rows(
    target: TargetModel,
    hidden: Float[Tensor, "batch tokens channels"],
    tokens: Int[Tensor, "batch tokens"],
    temperatures: Float[Tensor, " batch"],
) -> Float[Tensor, "batch tokens channels"]:
    """Row t of a text: the mean row of the output head under the law that token t + 1 was drawn from.

    Products take the dtype that the target's logits have (that of autocast, where it is on). The law's weights are
    rounded to it before they are summed, so that the rounded law still adds up to one.

    Args:
        hidden: of the target, after its final norm.
        tokens: the texts. At temperature 0 the law is the text's own next token (of no meaning at the last place).
        temperatures: at which the texts were written.

    Returns:
        float32, or float64 for a target in float64.
    """
    places = max(1, ENTRIES_AT_ONCE // target.config.vocab_size)
    columns = (hidden.flatten(0, 1), tokens.roll(-1, dims=1).flatten(), temperatures.repeat_interleave(tokens.shape[1]))
    parts = zip(*(column.split(places) for column in columns), strict=True)
    return torch.cat([_mean_rows(target, *part) for part in parts]).view(hidden.shape)


def _mean_rows(
    target: TargetModel,
    hidden: Float[Tensor, "places channels"],
    next_tokens: Int[Tensor, " places"],
    temperatures: Float[Tensor, " places"],
) -> Float[Tensor, "places channels"]:
    logits = target.logits(hidden)
    head, wide = target.head_weight.to(logits.dtype), at_least_float32(logits)
    is_sampled = (temperatures > 0.0).unsqueeze(1)
    scaled = wide / torch.where(is_sampled, temperatures.unsqueeze(1), 1.0)
    weights = (scaled - scaled.amax(1, keepdim=True)).exp().to(head.dtype)
    rows = (weights @ head).to(wide.dtype) / weights.sum(1, keepdim=True, dtype=wide.dtype)
    return torch.where(is_sampled, rows, head[next_tokens].to(wide.dtype))
