"""Acceptance along text that is already there: many texts at once, without decoding any of them again.

A fixed tree is verified by membership: the target's own next tokens decide how far the accepted path goes, and nothing
that was drafted changes them. So the steps of a decode follow from its text alone. Replaying the text of a greedy or
``target_sample`` decode gives the very steps of that decode, and a text that the target wrote in any other way (many at
a time, say) gives the steps that decoding it would have taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from tfm_lab.drafting import TreeConfig
from tfm_lab.drafting.batched import ConditionalBatch, TreeBatch, best_first_batch, chain_batch, woven_batch
from tfm_lab.drafting.conditional_trees import as_chain
from tfm_lab.models.autoregressive import AutoregressiveBatch, AutoregressiveDrafter
from tfm_lab.models.context_drafter import KeyValues
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver
from tfm_lab.models.weaver_batch import WeaverBatch

REPLAYED = ("chain", "ddtree", "tfm", "ard-chain", "ard-tree")
"""Methods whose trees are fixed. Sampled trees are verified by rules that change the text, so they must be decoded."""

Grow = Callable[[Int[Tensor, " active"], Int[Tensor, " active"], Int[Tensor, " active"]], TreeBatch]


@dataclass(frozen=True, slots=True)
class DraftModels:
    """Everything that may draft for one target; all on one device, in one dtype."""

    target: TargetModel
    drafter: FactorisedDrafter | None = None
    weaver: Weaver | None = None
    autoregressive: AutoregressiveDrafter | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A text of the target.

    Attributes:
        tokens: prompt and continuation.
        prompt: number of prompt tokens, at least one.
        limit: new tokens that the decode was allowed; trees never reach past it. The text is shorter if it stopped.

    Raises:
        ValueError: if these do not fit together.
    """

    tokens: tuple[int, ...]
    prompt: int
    limit: int

    def __post_init__(self) -> None:
        if not 0 < self.prompt <= len(self.tokens) <= self.prompt + self.limit:
            raise ValueError(
                f"a text of {len(self.tokens)} tokens with a prompt of {self.prompt} does not fit a limit of "
                f"{self.limit} new tokens"
            )


class ReplayedStep(NamedTuple):
    """One target call.

    Attributes:
        accepted: drafts on the accepted path, as far as the text goes.
        committed: tokens that the text grew by, bonus included.
        could_go_on: whether the tree had a node below the accepted path.
    """

    accepted: int
    committed: int
    could_go_on: bool


@torch.no_grad()
def replay(
    models: DraftModels, texts: Sequence[Text], method: str, config: TreeConfig, batch: int = 64
) -> list[list[ReplayedStep]]:
    """The steps of every text under one method.

    Args:
        batch: texts at a time.

    Raises:
        ValueError: if the method does not grow fixed trees or its models are missing.
    """
    if method not in REPLAYED:
        raise ValueError(f"method {method!r} cannot be replayed; decode it, or replay {', '.join(REPLAYED)}")
    steps: list[list[ReplayedStep]] = []
    for start in range(0, len(texts), batch):
        part = texts[start : start + batch]
        longest = max(len(text.tokens) for text in part)
        rows = [[*text.tokens, *[0] * (longest - len(text.tokens))] for text in part]
        tokens = torch.tensor(rows, device=models.target.device)
        steps += _walk_texts(part, tokens, _grower(models, tokens, method, config), models.target.config.max_positions)
    return steps


def _walk_texts(texts: Sequence[Text], tokens: Tensor, grow: Grow, room: int) -> list[list[ReplayedStep]]:
    device = tokens.device
    lengths, place, limit = (
        torch.tensor(values, device=device)
        for values in zip(*((len(t.tokens), t.prompt, t.prompt + t.limit) for t in texts), strict=True)
    )
    limit = limit.clamp_max(room)
    steps: list[list[ReplayedStep]] = [[] for _ in texts]
    while len(active := (place + 1 < lengths).nonzero().squeeze(1)):
        root = place[active]
        trees = grow(active, root, limit[active] - root - 2)
        behind = root.unsqueeze(1) + 1 + torch.arange(int(trees.sizes.max()) - 1, device=device)
        ahead = tokens[active].gather(1, behind.clamp_max(tokens.shape[1] - 1))
        walk = trees.walk(torch.where(behind < lengths[active].unsqueeze(1), ahead, -1))
        committed = torch.minimum(walk.accepted + 1, lengths[active] - root - 1)
        place[active] += committed
        columns = (active.tolist(), walk.accepted.tolist(), committed.tolist(), walk.could_go_on.tolist())
        for text, *step in zip(*columns, strict=True):
            steps[text].append(ReplayedStep(*step))
    return steps


def _grower(models: DraftModels, tokens: Int[Tensor, "texts tokens"], method: str, config: TreeConfig) -> Grow:
    """A function that grows the trees of some texts: (which texts, places of the roots, longest paths)."""
    target = models.target
    if method.startswith("ard"):
        drafter = models.autoregressive
        if drafter is None:
            raise ValueError(f"method {method!r} needs an autoregressive drafter, and these models have none")
        seen = drafter.read(target.features(tokens, drafter.config.tap_layers).taps)
        shape = as_chain(config) if method == "ard-chain" else config

        def from_tokens(active: Tensor, root: Tensor, deepest: Tensor) -> TreeBatch:
            session = AutoregressiveBatch(drafter, target, _of(seen, active), root, config.pool_size, shape.budget)
            return woven_batch(tokens[active, root], session, shape, deepest)

        return from_tokens
    factorised, weaver = models.drafter, models.weaver
    if factorised is None:
        raise ValueError(f"method {method!r} needs a factorised drafter, and these models have none")
    if method == "tfm" and weaver is None:
        raise ValueError("method 'tfm' needs a Weaver; load one, or replay chain or ddtree")
    features = target.features(tokens, factorised.config.tap_layers)
    context = factorised.read(features.taps)

    def from_blocks(active: Tensor, root: Tensor, deepest: Tensor) -> TreeBatch:
        blocks = factorised.pack_blocks(tokens[active], root.unsqueeze(1), target)
        hidden = factorised.draft(_of(context, active), blocks)[:, 0]
        logits, roots = target.logits(hidden), tokens[active, root]
        if method == "chain":
            return chain_batch(roots, logits, config, deepest)
        if method == "ddtree":
            return best_first_batch(roots, logits, config, deepest)
        assert weaver is not None
        before = features.hidden[active, root - 1]
        session: ConditionalBatch = WeaverBatch(weaver, target, logits, hidden, before, config.pool_size, config.budget)
        return woven_batch(roots, session, config, deepest)

    return from_blocks


def _of(context: Sequence[KeyValues], active: Int[Tensor, " active"]) -> list[KeyValues]:
    """Keys and values of some of the texts."""
    if len(active) == len(context[0][0]):
        return list(context)
    return [(keys[active], values[active]) for keys, values in context]
