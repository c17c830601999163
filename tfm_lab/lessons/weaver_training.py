"""Trainings of notebook 05, small enough for a minute, through the package's own training code.

What is added here is only what a lesson needs: how many tokens a step would gain, computed at every stop on the way,
and a switch that leaks the answer. ``Leaking`` is WRONG ON PURPOSE.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfm_lab.drafting import TreeConfig
from tfm_lab.drafting.batched import TreeBatch, best_first_batch, chain_batch, woven_batch
from tfm_lab.lessons.tiny_world import (
    BLOCK,
    LENGTH,
    drafter_shape,
    path_chances,
    target_of,
    tiny_world,
    weaver_shape,
    written_texts,
)
from tfm_lab.models import FactorisedDrafter, TargetModel, Weaver
from tfm_lab.models.weaver_batch import WeaverBatch
from tfm_lab.theory import MarkovWorld
from tfm_lab.training.fit import FitConfig, Metrics, Progress, fit
from tfm_lab.training.initialise import new_drafter, new_weaver
from tfm_lab.training.tasks import BlockData, DrafterTask, PoolScores, WeaverTask, gather_after, pool_scores

TEXTS, CONTEXTS, BATCH, ANCHORS = 1024, 64, 8, 4
HALT, DEPTH, BUDGET = LENGTH - BLOCK, BLOCK - 1, 32
RATE, STOPS = 5e-3, 10
TREE = TreeConfig(budget=BUDGET, max_depth=DEPTH, children=8)


class Stop(NamedTuple):
    """What is known after some steps of a training.

    Attributes:
        step: steps done; 0 is before the first.
        loss: mean over the steps since the stop before; at step 0 that of the untouched model.
        mal: expected tokens per target call of the Weaver's tree, exact below each held-out context.
        acceptance: of drafts from the Weaver along held-out text, by depth.
        echo: mean probability that the next token repeats the node's own, by the Weaver.
    """

    step: int
    loss: float
    mal: float
    acceptance: tuple[float, ...]
    echo: float


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A tiny world, its target, and texts of both kinds."""

    world: MarkovWorld
    target: TargetModel
    data: BlockData
    seed: int

    @classmethod
    def new(cls, concentration: float, seed: int, contexts: int = CONTEXTS) -> "Setting":
        """Everything that drafter and Weaver are trained on.

        Args:
            concentration: how open the future is.
            seed: of the world, the texts, the starting weights and the order of the batches.
            contexts: held-out texts.
        """
        world = tiny_world(concentration, seed)
        target = target_of(world)
        train, held_out = written_texts(world, TEXTS, 2 * seed), written_texts(world, contexts, 2 * seed + 1)
        return cls(world, target, BlockData(target, train, held_out, BATCH, ANCHORS, seed, BLOCK), seed)

    def held_out(self) -> tuple[Int[Tensor, "texts tokens"], Int[Tensor, "texts 1"]]:
        """Every held-out text, halted in its middle."""
        tokens = torch.from_numpy(self.data.held_out.tokens.astype("int64"))
        return tokens, torch.full((len(tokens), 1), HALT)

    def worth(self, trees: TreeBatch) -> float:
        """Expected tokens per target call, bonus included: 1 + the chances of all paths, mean over the contexts."""
        return float(path_chances(self.world, trees.tokens, trees.parents).sum(1).mean())


class Blocks(NamedTuple):
    """What target and drafter say below every held-out context.

    Attributes:
        roots: last tokens of the contexts.
        before: the target's hidden states that produced the roots.
        hidden, logits: of the drafter's block.
    """

    roots: Int[Tensor, " texts"]
    before: Float[Tensor, "texts channels"]
    hidden: Float[Tensor, "texts depth channels"]
    logits: Float[Tensor, "texts depth vocab"]


@torch.no_grad()
def held_out_blocks(setting: Setting, drafter: FactorisedDrafter) -> Blocks:
    """One block of the drafter below every held-out context."""
    target, (tokens, anchors) = setting.target, setting.held_out()
    features = target.features(tokens, drafter.config.tap_layers)
    hidden = drafter(features.taps, drafter.pack_blocks(tokens, anchors, target))[:, 0]
    return Blocks(tokens[:, HALT], features.hidden[:, HALT - 1], hidden, target.logits(hidden))


def marginal_lengths(setting: Setting, drafter: FactorisedDrafter) -> dict[str, float]:
    """Expected tokens per target call of the trees that need no Weaver: chain and DDTree."""
    roots, _, _, logits = held_out_blocks(setting, drafter)
    deepest = torch.full_like(roots, DEPTH)
    builders = {"chain": chain_batch, "ddtree": best_first_batch}
    return {name: setting.worth(build(roots, logits, TREE, deepest)) for name, build in builders.items()}


def woven_length(setting: Setting, drafter: FactorisedDrafter, weaver: Weaver) -> float:
    """Expected tokens per target call of the TfM tree."""
    roots, before, hidden, logits = held_out_blocks(setting, drafter)
    session = WeaverBatch(weaver, setting.target, logits, hidden, before, weaver.config.pool_size, BUDGET)
    return setting.worth(woven_batch(roots, session, TREE, torch.full_like(roots, DEPTH)))


@torch.no_grad()
def held_out_scores(setting: Setting, drafter: FactorisedDrafter, weaver: Weaver) -> PoolScores:
    """Target, drafter and Weaver on the pools along the held-out texts, without any leak."""
    return pool_scores(setting.target, drafter, weaver, *setting.held_out())


def by_depth(values: Float[Tensor, "rows depth"]) -> tuple[float, ...]:
    """Mean over the rows."""
    return tuple(values.mean(0).tolist())


class Leaking(Weaver):
    """A Weaver that is shown the token it must predict. WRONG ON PURPOSE: the path is read one place too late.

    Args:
        weaver: the Weaver, whose weights these are.
        shifted: embeddings of the tokens that each node is to predict.
    """

    def __init__(self, weaver: Weaver, shifted: Float[Tensor, "paths depth channels"]) -> None:
        nn.Module.__init__(self)  # no weights of its own
        self.config, self.weaver, self._shifted = weaver.config, weaver, shifted

    def forward(
        self, target_hidden: Tensor, drafter_hidden: Tensor, path_embedded: Tensor, temperatures: Tensor | None = None
    ) -> Tensor:
        """Read-outs along the paths, from the shifted tokens in place of ``path_embedded``."""
        return self.weaver(target_hidden, drafter_hidden, self._shifted, temperatures)


def leaky_pool_scores(
    target: TargetModel, drafter: FactorisedDrafter, weaver: Weaver, tokens: Tensor, anchors: Tensor
) -> PoolScores:
    """:func:`pool_scores` off by one. WRONG ON PURPOSE: ``anchors`` stands where ``anchors - 1`` belongs."""
    answers = gather_after(tokens, anchors, weaver.config.max_depth).reshape(anchors.numel(), -1)
    return pool_scores(target, drafter, Leaking(weaver, target.model.embed_tokens(answers)), tokens, anchors)


SCORES: Mapping[bool, Callable[..., PoolScores]] = {False: pool_scores, True: leaky_pool_scores}
"""By whether the answer leaks."""


@dataclass(slots=True, eq=False)
class Watched:
    """A task that reports the mean loss since it was last asked, and measures nothing else by itself."""

    task: DrafterTask | WeaverTask
    _losses: list[float] = field(default_factory=list)

    @property
    def model(self) -> nn.Module:
        return self.task.model

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        loss, _ = self.task.loss(step)
        self._losses.append(loss.item())
        return loss, {}

    def evaluate(self) -> Metrics:
        mean = sum(self._losses) / len(self._losses)
        self._losses.clear()
        return {"mean_loss": mean}


def train_drafter(setting: Setting, steps: int) -> FactorisedDrafter:
    """A block drafter, trained on whole blocks with cross-entropy and then frozen."""
    drafter = new_drafter(drafter_shape(), setting.target, setting.seed)
    _fit(Watched(DrafterTask(drafter, setting.data)), steps, steps, setting.seed, lambda metrics: None)
    return drafter.requires_grad_(False).eval()


def train_weaver(
    setting: Setting,
    drafter: FactorisedDrafter,
    objective: str,
    *,
    leaks: bool,
    steps: int,
    pool_size: int,
    on_stop: Callable[[Stop], None] = lambda stop: None,
) -> Weaver:
    """A Weaver trained with one loss; drafter and target stay as they are.

    Args:
        objective: one of ``WEAVER_LOSSES``.
        leaks: train on paths that are off by one.
        on_stop: called before the first step and up to ``STOPS`` times on the way, the last step included.
    """
    weaver = new_weaver(weaver_shape(pool_size), setting.target, setting.seed)
    task = WeaverTask(weaver, drafter, setting.data, objective=objective, run=SCORES[leaks])
    with torch.no_grad():
        on_stop(_stop(setting, drafter, weaver, 0, task.loss(0)[0].item()))

    def take(metrics: Metrics) -> None:
        on_stop(_stop(setting, drafter, weaver, int(metrics["step"]), metrics["mean_loss"]))

    _fit(Watched(task), steps, -(-steps // STOPS), setting.seed, take)
    return weaver.requires_grad_(False).eval()


def _stop(setting: Setting, drafter: FactorisedDrafter, weaver: Weaver, step: int, loss: float) -> Stop:
    scores = held_out_scores(setting, drafter, weaver)
    tokens, anchors = setting.held_out()
    own = gather_after(tokens, anchors - 1, DEPTH).transpose(1, 2)
    pools = held_out_blocks(setting, drafter).logits.topk(weaver.config.pool_size, dim=-1).indices
    chances = (scores.drafter_logits + scores.residual).softmax(-1)
    echo = (chances * (pools == own)).sum(-1)[:, 1:].mean()
    length = woven_length(setting, drafter, weaver)
    return Stop(step, loss, length, by_depth(scores.compare().acceptance), float(echo))


def _fit(task: Watched, steps: int, every: int, seed: int, on_stop: Callable[[Metrics], None]) -> None:
    config = FitConfig(steps, RATE, evaluate_every=every, checkpoint_every=steps, seed=seed)

    def on_step(at: Progress) -> None:
        if at.metrics:
            on_stop(at.metrics | {"step": at.step})

    with tempfile.TemporaryDirectory() as folder:
        fit(task, config, Path(folder), on_step=on_step)
