"""What all tree builders share: ranking with settled ties, and the lists in which a tree grows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.drafting.types import OpenNode
from tfm_lab.tree import DraftTree


class Ranked(NamedTuple):
    """The best entries of each row, best first."""

    values: Float[Tensor, "rows best"]
    indices: Int[Tensor, "rows best"]


def stable_topk(scores: Float[Tensor, "rows entries"], count: int) -> Ranked:
    """The ``count`` largest entries of each row (all of them if there are fewer); the lowest index wins a tie.

    ``torch.topk`` leaves the order of ties, and which of them is cut off, to the device; here every device agrees.
    The scores must hold no NaN.
    """
    count = min(count, scores.shape[-1])
    best = scores.topk(min(count + 1, scores.shape[-1]), dim=-1)
    if bool((best.values[:, :-1] > best.values[:, 1:]).all()):  # no tie: the order is settled
        return Ranked(best.values[:, :count], best.indices[:, :count])
    cut = best.values[:, count - 1 : count]
    chosen = scores >= cut
    if int(chosen.sum()) > count * len(scores):
        above = scores > cut
        tied = chosen & ~above
        chosen = above | (tied & (tied.cumsum(dim=-1) <= count - above.sum(dim=-1, keepdim=True)))
    indices = chosen.nonzero()[:, 1].view(len(scores), count)
    values, order = scores.gather(1, indices).sort(dim=-1, descending=True, stable=True)
    return Ranked(values, indices.gather(1, order))


def rank_tokens(logits: Float[Tensor, "depth vocab"], count: int) -> Ranked:
    """The ``count`` most probable tokens of each row and their log-probabilities under the softmax of the whole row.

    Args:
        logits: any floating dtype and device.

    Returns:
        Log-probabilities (computed in float32 or wider, given in float64) and token ids, on the device of the logits.

    Raises:
        ValueError: if a row holds a NaN or a positive infinity, or nothing but negative infinities.
    """
    logits = logits.detach()
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_normaliser = wide.logsumexp(dim=-1, keepdim=True)
    if not bool(torch.isfinite(log_normaliser).all()):
        raise ValueError("the drafter returned logits without a distribution: check the checkpoint and the dtype")
    values, tokens = stable_topk(logits, count)
    return Ranked(values.double() - log_normaliser.double(), tokens)


def pairs(tokens: Int[Tensor, "rows best"], log_probs: Float[Tensor, "rows best"]) -> list[list[tuple[int, float]]]:
    """Each row, best first, as a list of (token, log-probability) without the tokens of probability 0."""
    rows = [list(zip(*row, strict=True)) for row in zip(tokens.tolist(), log_probs.tolist(), strict=True)]
    for row in rows:
        while row and row[-1][1] == -math.inf:
            row.pop()
    return rows


class Growth:
    """A draft tree in the making: plain lists, so that adding a node costs no tensor operation."""

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self.depths = [0]
        self.log_probs = [0.0]
        self.path_log_probs = [0.0]

    def __len__(self) -> int:
        """Number of proposed nodes: the root does not count."""
        return len(self.tokens) - 1

    def add(self, parent: int, token: int, log_prob: float) -> int:
        """Append a child of ``parent`` and return its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.log_probs.append(log_prob)
        self.path_log_probs.append(self.path_log_probs[parent] + log_prob)
        return len(self)

    def open_nodes(self, nodes: Sequence[int]) -> list[OpenNode]:
        """The records by which an autoregressive drafter knows ``nodes``."""
        return [OpenNode(node, self.parents[node], self.tokens[node], self.depths[node]) for node in nodes]

    def tree(self) -> DraftTree:
        """The tree grown so far."""
        return DraftTree.from_parents(self.tokens, self.parents, self.log_probs)
