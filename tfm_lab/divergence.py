"""Where a greedy decode first leaves plain decoding, and whether rounding or the algorithm is to blame.

Speculative decoding is lossless, floating point is not: a tree's rows are computed in another order than one token's,
and where the target's two best tokens are nearly tied the argmax can fall either way. So a difference alone proves
nothing. The evidence that does is gathered at the first differing token: both rows of logits, how far apart the two
tokens are in them, how much rounding of this dtype can move them, and the same two rows in float64, where nothing but
an error of the algorithm can keep them apart.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.decoding import DecodeConfig, Speculator, autoregressive_decode, speculative_decode
from tfm_lab.models.target import TargetModel
from tfm_lab.trace import DecodeTrace

EXACT = 1e-8
"""Largest difference of float64 rows, relative to their largest logit, that counts as none."""

SHOWN = 5


class Ranked(NamedTuple):
    """One of the best tokens of a row."""

    token: int
    logit: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which two greedy texts differ.

    Attributes:
        place: index of the token among the new ones.
        step: index of the step of the speculative decode that emitted it.
        node: node of that step's tree after which it comes.
        plain_token, tree_token: what either decode chose.
        plain_best, tree_best: the best tokens of the two rows, best first.
        margin: how far the two tokens are apart, in the row where they are closer.
        bound: how far rounding can be expected to move a logit: eps * sqrt(2 * layers) * largest absolute logit.
        disagreement: largest difference between the two rows in float64, over their largest absolute logit.
        dtype: of the decodes.
    """

    place: int
    step: int
    node: int
    plain_token: int
    tree_token: int
    plain_best: tuple[Ranked, ...]
    tree_best: tuple[Ranked, ...]
    margin: float
    bound: float
    disagreement: float
    dtype: str

    @property
    def verdict(self) -> Literal["numerics", "algorithm"]:
        """``numerics`` if float64 knows no difference and rounding can bridge the margin; ``algorithm`` otherwise."""
        is_rounding = self.disagreement <= EXACT and self.margin <= 2.0 * self.bound
        return "numerics" if is_rounding else "algorithm"


def first_divergence(
    target: TargetModel,
    speculator: Speculator,
    prompt: Sequence[int],
    config: DecodeConfig,
    plain: DecodeTrace | None = None,
) -> Divergence | None:
    """Decode twice, plainly and with trees, and look at the first difference; ``None`` if there is none.

    Args:
        config: greedy; its sampling temperature must be 0.
        plain: the plain decode of this prompt under this config, if it is there already.

    Raises:
        ValueError: if the config is not greedy, or the decode cannot be done.
    """
    if not config.sampling.is_greedy:
        raise ValueError("texts can only be compared greedily: use temperature 0 (sampled texts need the exact laws)")
    if plain is None:
        plain = autoregressive_decode(target, prompt, config).uninterrupted()
    trace = speculative_decode(target, speculator, prompt, config).uninterrupted()
    place = next((i for i, (a, b) in enumerate(zip(plain.tokens, trace.tokens, strict=False)) if a != b), None)
    if place is None:
        if len(plain.tokens) != len(trace.tokens):
            raise AssertionError("two texts of one limit, alike as far as both go, must end together")
        return None
    step, node = _origin(trace, place)
    rows = _rows(target, trace, place, step, node)
    exact = _rows(_in_float64(target), trace, place, step, node)
    scale = float(torch.stack(exact).abs().max())
    tokens = plain.tokens[place], trace.tokens[place]
    largest = float(torch.stack(rows).abs().max())
    return Divergence(
        place,
        step,
        node,
        tokens[0],
        tokens[1],
        _best(rows[0]),
        _best(rows[1]),
        min(abs(float(row[tokens[0]] - row[tokens[1]])) for row in rows),
        torch.finfo(target.dtype).eps * math.sqrt(2 * target.config.layers) * largest,
        float((exact[0] - exact[1]).abs().max()) / scale,
        str(target.dtype).removeprefix("torch."),
    )


def _origin(trace: DecodeTrace, place: int) -> tuple[int, int]:
    """Step and node after which the token at ``place`` of the new tokens was emitted (the first comes with no tree)."""
    before = 1
    for index, step in enumerate(trace.steps):
        if place < before + len(step.committed):
            return index, step.acceptance.path[place - before]
        before += len(step.committed)
    raise ValueError("the texts differ in the very first token, before any tree: plain prefill is not deterministic")


def _rows(target: TargetModel, trace: DecodeTrace, place: int, step: int, node: int) -> tuple[Tensor, Tensor]:
    """Logits of the token at ``place``: read plainly token by token, and as the tree's node gave them. In float64.

    Both follow the decodes: a prefill of the prompt, then one token (or one tree) at a time.
    """
    state = target.prefill(trace.prompt).state
    logits = None
    for token in trace.tokens[:place]:
        features, state = target.extend(torch.tensor([[token]], device=target.device), state)
        logits = target.logits(features.hidden[0, -1])
    state = target.prefill(trace.prompt).state
    for done in trace.steps[:step]:
        outputs = target.verify_tree(state, done.tree)
        state = target.commit(state, outputs.pending, done.acceptance.path[: len(done.committed)])
    outputs = target.verify_tree(state, trace.steps[step].tree)
    assert logits is not None
    return logits.double().cpu(), outputs.logits[node].double().cpu()


def _in_float64(target: TargetModel) -> TargetModel:
    return target if target.dtype == torch.float64 else copy.deepcopy(target).double()


def _best(row: Float[Tensor, " vocab"]) -> tuple[Ranked, ...]:
    values, tokens = row.topk(min(SHOWN, row.numel()))
    return tuple(Ranked(token, value) for token, value in zip(tokens.tolist(), values.tolist(), strict=True))
