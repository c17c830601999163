"""Acceptance along text that is already there: many texts at once, without decoding any of them again.

A fixed tree is verified by membership: the target's own next tokens decide how far the accepted path goes, and nothing
that was drafted changes them. So the steps of a decode follow from its text alone. Replaying the text of a greedy or
``target_sample`` decode gives the very steps of that decode, and a text that the target wrote in any other way (many at
a time, say) gives the steps that decoding it would have taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.drafting import TreeConfig
from tfm_lab.drafting.batched import ConditionalBatch, TreeBatch, best_first_batch, chain_batch, woven_batch
from tfm_lab.drafting.conditional_trees import as_chain
from tfm_lab.drafting.foresight import ForeseeingBatch, foresee_logits
from tfm_lab.models.autoregressive import AutoregressiveBatch, AutoregressiveDrafter
from tfm_lab.models.context_drafter import KeyValues
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver
from tfm_lab.models.weaver_batch import WeaverBatch
from tfm_lab.noise import gumbel_rows

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

    def at_temperature(self, temperature: float) -> "DraftModels":
        """These, with the Weaver told that the target samples at ``temperature`` (0: greedy)."""
        return self if self.weaver is None else replace(self, weaver=self.weaver.for_temperature(temperature))


@dataclass(frozen=True, slots=True)
class Text:
    """A text of the target.

    Attributes:
        tokens: prompt and continuation.
        prompt: number of prompt tokens, at least one.
        limit: new tokens that the decode was allowed; trees never reach past it. The text is shorter if it stopped.
        noise_key: of the shared noise that the text was sampled with, ``None`` if there was none.

    Raises:
        ValueError: if these do not fit together.
    """

    tokens: tuple[int, ...]
    prompt: int
    limit: int
    noise_key: int | None = None

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
    models: DraftModels,
    texts: Sequence[Text],
    method: str,
    config: TreeConfig,
    batch: int = 64,
    *,
    foreseen_temperature: float | None = None,
) -> list[list[ReplayedStep]]:
    """The steps of every text under one method.

    Args:
        batch: texts at a time.
        foreseen_temperature: draft as under shared noise at this temperature, at which the texts were sampled.

    Raises:
        ValueError: if the method does not grow fixed trees, its models are missing, or noise is to be foreseen and a
            text has none.
    """
    if foreseen_temperature is not None and any(text.noise_key is None for text in texts):
        raise ValueError("a text without shared noise holds nothing to foresee: sample the texts with shared noise")
    if method not in REPLAYED:
        raise ValueError(f"method {method!r} cannot be replayed; decode it, or replay {', '.join(REPLAYED)}")
    steps: list[list[ReplayedStep]] = []
    for start in range(0, len(texts), batch):
        part = texts[start : start + batch]
        longest = max(len(text.tokens) for text in part)
        rows = [[*text.tokens, *[0] * (longest - len(text.tokens))] for text in part]
        tokens = torch.tensor(rows, device=models.target.device)
        foresight = None
        if foreseen_temperature is not None:
            foresight = _Foresight.of(part, foreseen_temperature, models.target)
        grow = _grower(models, tokens, method, config, foresight)
        steps += _walk_texts(part, tokens, grow, models.target.config.max_positions)
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


@dataclass(frozen=True, slots=True, eq=False)
class _Foresight:
    """The shared noise of some texts."""

    keys: Int[Tensor, " texts"]
    prompts: Int[Tensor, " texts"]
    temperature: float
    vocab_size: int

    @classmethod
    def of(cls, texts: Sequence[Text], temperature: float, target: TargetModel) -> "_Foresight":
        keys = torch.tensor([text.noise_key for text in texts], device=target.device)
        prompts = torch.tensor([text.prompt for text in texts], device=target.device)
        return cls(keys, prompts, temperature, target.config.vocab_size)

    def noise(self, active: Tensor, root: Tensor, depth: int) -> Float[Tensor, "active depth vocab"]:
        """Noise of the ``depth`` places behind the roots, which sit at ``root``."""
        first = root + 1 - self.prompts[active]
        places = first.unsqueeze(1) + torch.arange(depth, device=root.device)
        keys = self.keys[active].unsqueeze(1).expand_as(places)
        return gumbel_rows(keys, places, self.vocab_size).float()


def _grower(
    models: DraftModels,
    tokens: Int[Tensor, "texts tokens"],
    method: str,
    config: TreeConfig,
    foresight: _Foresight | None,
) -> Grow:
    """A function that grows the trees of some texts: (which texts, places of the roots, longest paths)."""
    target = models.target
    if method.startswith("ard"):
        drafter = models.autoregressive
        if drafter is None:
            raise ValueError(f"method {method!r} needs an autoregressive drafter, and these models have none")
        seen = drafter.read(target.features(tokens, drafter.config.tap_layers).taps)
        shape = as_chain(config) if method == "ard-chain" else config

        def from_tokens(active: Tensor, root: Tensor, deepest: Tensor) -> TreeBatch:
            context = _of(seen, active)
            session: ConditionalBatch = AutoregressiveBatch(
                drafter, target, context, root, config.pool_size, shape.budget
            )
            if foresight is not None:
                noise = foresight.noise(active, root, drafter.config.draft_depth)
                session = ForeseeingBatch(session, noise, foresight.temperature)
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
        ranking, noise = logits, None
        if foresight is not None:
            noise = foresight.noise(active, root, hidden.shape[1])
            ranking = foresee_logits(logits, noise, foresight.temperature)
        if method == "chain":
            return chain_batch(roots, ranking, config, deepest)
        if method == "ddtree":
            return best_first_batch(roots, ranking, config, deepest)
        assert weaver is not None
        before = features.hidden[active, root - 1]
        session: ConditionalBatch = WeaverBatch(
            weaver, target, logits, hidden, before, config.pool_size, config.budget, ranking
        )
        if foresight is not None and noise is not None:
            session = ForeseeingBatch(session, noise, foresight.temperature)
        return woven_batch(roots, session, config, deepest)

    return from_blocks


def _of(context: Sequence[KeyValues], active: Int[Tensor, " active"]) -> list[KeyValues]:
    """Keys and values of some of the texts."""
    if len(active) == len(context[0][0]):
        return list(context)
    return [(keys[active], values[active]) for keys, values in context]
