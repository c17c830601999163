"""The Weaver's parts as short as on paper: solutions of notebook 04.

``tfm_lab.models.weaver`` has the same for batches, caches and half precision; tests hold these functions against it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfm_lab.lessons.by_hand import ancestor_mask


class WeaverShape(NamedTuple):
    """Sizes that decide what a call reads.

    Attributes:
        target_width: of the target's hidden states, embeddings and head rows.
        width: inside the Weaver.
        mlp_width: inside its MLP.
        vocab: rows of the target's head.
    """

    target_width: int
    width: int
    mlp_width: int
    vocab: int


PUBLISHED = WeaverShape(target_width=5120, width=2048, mlp_width=2048, vocab=248320)
"""The Weaver for Qwen3.6-27B, by its model card (one block), and the rows of that target's head by its config."""


def pool_log_probs(
    drafter_logits: Float[Tensor, " vocab"], tokens: Int[Tensor, " pool"], correction: Float[Tensor, " pool"]
) -> Float[Tensor, " pool"]:
    """log q(v | path) for the tokens of a pool: the drafter's logit plus the Weaver's correction (2607.06763).

    Args:
        drafter_logits: the drafter's row for this depth, over the whole vocabulary.
        tokens: the pool; -1 marks a place without a candidate, whose log-probability is minus infinity.
        correction: <head(v), z(path)> for each place of the pool.
    """
    is_padding = tokens < 0
    logits = drafter_logits[tokens.clamp_min(0)] + correction
    return torch.log_softmax(logits.masked_fill(is_padding, -math.inf), dim=0)


def path_mask(parents: Sequence[int], prefix: int) -> Bool[Tensor, "nodes keys"]:
    """What each node of a tree attends to: the whole prefix, its ancestors, and itself.

    Args:
        parents: of each node, -1 at the root; parents come first.
        prefix: number of prefix tokens, whose columns stand before those of the nodes.
    """
    everything = torch.ones(len(parents), prefix, dtype=torch.bool)
    return torch.cat([everything, ancestor_mask(parents)], dim=1)


def call_bytes(target_width: int, width: int, mlp_width: int, rows: int, number: int) -> int:
    """Bytes of weights that one Weaver call reads, whatever the number of nodes in it. Small vectors are left out.

    Args:
        target_width, width, mlp_width: see :class:`WeaverShape`.
        rows: of the target's head that are read: the pool, or the whole vocabulary.
        number: bytes of one number.
    """
    in_and_out = 2 * target_width * width  # token_in, lm_head_query_in
    block = 4 * width * width + 2 * width * mlp_width  # q, k, v, o; fc1, fc2
    return number * (in_and_out + block + rows * target_width)
