"""What the three trainings optimise: next tokens (target), whole blocks (drafter), conditionals on a path (Weaver)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tfm_lab.drafting import TreeConfig
from tfm_lab.models.autoregressive import AutoregressiveDrafter
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.layers import at_least_float32
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver
from tfm_lab.replay import DraftModels, Text, replay
from tfm_lab.training.data import PackedCorpus, WrittenTexts
from tfm_lab.training.distributed import mean_over_processes, shard
from tfm_lab.training.fit import Metrics
from tfm_lab.training.labels import mean_head_rows
from tfm_lab.training.losses import WEAVER_LOSSES, PoolComparison, block_cross_entropy, block_law_cross_entropy

REPORTED_DEPTHS = (1, 2, 4, 8, 15)
REPLAYED_TEXTS, REPLAYED_BUDGET = 32, 64


def mixed_precision(device: torch.device) -> AbstractContextManager[object]:
    """bfloat16 products on a GPU, float32 on the CPU; master weights are float32 in both cases."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@dataclass(frozen=True, slots=True, eq=False)
class TargetTask:
    """Next-token cross-entropy on packed text.

    Attributes:
        batch: windows per step.
        length: tokens per window.
        forward: ``model`` itself, or a compiled form of it for the training steps.
    """

    model: TargetModel
    train: PackedCorpus
    held_out: PackedCorpus
    batch: int
    length: int
    seed: int
    forward: Callable[[Tensor], Tensor]
    evaluation_batches: int = 4

    def __post_init__(self) -> None:
        if all(tokens.size <= self.length + 1 for tokens in self.held_out.tokens.values()):
            raise ValueError(
                f"no source sets aside more than {self.length + 1} tokens; build a larger corpus or train on a "
                "shorter length"
            )

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        windows = shard(self.train.batch(step, self.batch, self.length + 1, self.seed))
        return self._cross_entropy(windows, self.forward), {}

    @torch.no_grad()
    def evaluate(self) -> Metrics:
        """Held-out cross-entropy in nats per token, over all sources and each by itself."""
        metrics: Metrics = {}
        for name, tokens in sorted(self.held_out.tokens.items()):
            if tokens.size > self.length + 1:
                part = PackedCorpus({name: tokens}, {name: 1.0})
                batches = [part.batch(i, self.batch, self.length + 1, 0) for i in range(self.evaluation_batches)]
                losses = [self._cross_entropy(batch, self.model).item() for batch in batches]
                metrics[f"held_out.{name}"] = sum(losses) / len(losses)
        weights = {name: self.held_out.weights[name.removeprefix("held_out.")] for name in metrics}
        total = sum(weights.values())
        metrics["held_out"] = sum(metrics[name] * weight for name, weight in weights.items()) / total
        return metrics

    def _cross_entropy(self, tokens: Int[Tensor, "batch tokens"], forward: Callable[[Tensor], Tensor]) -> Tensor:
        tokens = tokens.to(self.model.device)
        with mixed_precision(self.model.device):
            logits = forward(tokens[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


@dataclass(frozen=True, slots=True, eq=False)
class BlockData:
    """Draws blocks from texts that the target wrote.

    Attributes:
        batch: texts per step.
        anchors: blocks per text, at random places.
        block: tokens per block, anchor included.
        replayed_tokens: new tokens of each held-out text on which acceptance is measured as a decode would have it.
    """

    target: TargetModel
    train: WrittenTexts
    held_out: WrittenTexts
    batch: int
    anchors: int
    seed: int
    block: int = 16
    replayed_tokens: int = 96

    def texts(self, step: int, *, held_out: bool = False) -> tuple[Tensor, Tensor]:
        """Texts and anchors of one step, in training this process's share. Tokens after an anchor are the target's."""
        source = self.held_out if held_out else self.train
        tokens, written_from = source.batch(step, self.batch, 0 if held_out else self.seed)
        generator = torch.Generator().manual_seed(2 * step + int(held_out) + 1_000_003 * self.seed)
        anchors = self._anchors(tokens, written_from, generator)
        if not held_out:
            tokens, anchors = shard(tokens), shard(anchors)
        return tokens.to(self.target.device), anchors.to(self.target.device)

    def temperatures(self, step: int, *, held_out: bool = False) -> Float[Tensor, " batch"]:
        """At which the texts of one step were written, in training those of this process's share.

        Raises:
            ValueError: if the texts do not know.
        """
        source = self.held_out if held_out else self.train
        if source.temperatures is None:
            raise ValueError(
                "these texts do not say at which temperatures they were written, so their laws are not known; write "
                "them anew with 'tfm-lab train text', or train with labels=text"
            )
        rows = source.rows(step, self.batch, 0 if held_out else self.seed)
        temperatures = torch.from_numpy(source.temperatures[rows])
        return (temperatures if held_out else shard(temperatures)).to(self.target.device)

    def held_out_texts(self) -> list[Text]:
        """A fixed slice of the held-out texts, to measure acceptance on as a decode would have it."""
        starts = np.maximum(self.held_out.written_from[:REPLAYED_TEXTS], 1).tolist()
        rows = zip(self.held_out.tokens[:REPLAYED_TEXTS].tolist(), starts, strict=True)
        cut = [(tokens[: start + self.replayed_tokens], start) for tokens, start in rows]
        return [Text(tuple(tokens), start, len(tokens) - start) for tokens, start in cut]

    def _anchors(self, tokens: Tensor, written_from: Tensor, generator: torch.Generator) -> Tensor:
        first = (written_from - 1).clamp_min(1)
        room = tokens.shape[1] - self.block - first
        if bool((room < 0).any()):
            raise ValueError(
                f"texts of {tokens.shape[1]} tokens leave no room for a block of {self.block}; write longer ones"
            )
        share = torch.rand(tokens.shape[0], self.anchors, generator=generator, dtype=torch.float64)
        return first[:, None] + (share * (room[:, None] + 1)).long()


def block_losses(
    target: TargetModel,
    drafter: FactorisedDrafter | AutoregressiveDrafter,
    gamma: float,
    tokens: Int[Tensor, "batch tokens"],
    anchors: Int[Tensor, "batch blocks"],
    temperatures: Float[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, "batch blocks drafts"]]:
    """Loss of a drafter on blocks of texts, and which of its most probable tokens the target wrote.

    Args:
        temperatures: at which the texts were written: labels are then the laws of their tokens, and without it the
            tokens.
    """
    depth = drafter.config.draft_depth
    with mixed_precision(target.device):
        with torch.no_grad():
            features = target.features(tokens, drafter.config.tap_layers)
            blocks = drafter.pack_blocks(tokens, anchors, target)
        hidden = drafter(features.taps, blocks)
        logits = target.logits(hidden)
        rows = None if temperatures is None else mean_head_rows(target, features.hidden, tokens, temperatures)
    labels = gather_after(tokens, anchors, depth)
    hits = (logits.detach().argmax(-1) == labels).float()
    if rows is None:
        return block_cross_entropy(logits, labels, gamma), hits
    mean_rows = _gather_rows(rows, anchors, depth).view(hidden.shape)
    return block_law_cross_entropy(logits, (at_least_float32(hidden) * mean_rows).sum(-1), gamma), hits


@dataclass(frozen=True, slots=True, eq=False)
class DrafterTask:
    """Cross-entropy of whole blocks with position weights (arXiv 2602.06036, eq. 4), for either kind of drafter.

    Attributes:
        from_laws: training compares blocks with the laws that the texts were written from, not with their tokens.
        run: :func:`block_losses` itself, or a compiled form of it for the training steps.
    """

    model: FactorisedDrafter | AutoregressiveDrafter
    data: BlockData
    gamma: float = 7.0
    from_laws: bool = False
    evaluation_batches: int = 2
    run: Callable[..., tuple[Tensor, Tensor]] = block_losses

    def __post_init__(self) -> None:
        if self.from_laws:
            self.data.temperatures(0)

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        laws = [self.data.temperatures(step)] if self.from_laws else []
        loss, hits = self.run(self.data.target, self.model, self.gamma, *self.data.texts(step), *laws)
        return loss, _by_depth("hit", hits)

    @torch.no_grad()
    def evaluate(self) -> Metrics:
        """Held-out loss, hit rate by depth, accepted length at random anchors, and as decodes would have it.

        ``held_out.loss`` is that of the texts' tokens whatever the training compares with; ``held_out.law_loss``, that
        of their laws, is there if the held-out texts know their temperatures.
        """
        sums: dict[str, float] = {}
        for index in range(self.evaluation_batches):
            texts = self.data.texts(index, held_out=True)
            loss, hits = block_losses(self.data.target, self.model, self.gamma, *texts)
            figures = _by_depth("held_out.hit", hits) | {"held_out.loss": loss}
            figures["held_out.chain_mal"] = 1.0 + hits.cumprod(-1).sum(-1).mean()
            if self.data.held_out.temperatures is not None:
                laws = self.data.temperatures(index, held_out=True)
                figures["held_out.law_loss"] = block_losses(self.data.target, self.model, self.gamma, *texts, laws)[0]
            for name, figure in figures.items():
                sums[name] = sums.get(name, 0.0) + figure.item() / self.evaluation_batches
        if isinstance(self.model, AutoregressiveDrafter):
            models, methods = DraftModels(self.data.target, autoregressive=self.model), ("ard-chain", "ard-tree")
        else:
            models, methods = DraftModels(self.data.target, self.model), ("chain", "ddtree")
        return sums | _decoded(models, methods, self.data)


class PoolScores(NamedTuple):
    """Target, drafter and Weaver on the candidate pools along realised paths.

    Attributes:
        target_probabilities: not renormalised.
        drafter_logits: of the bare marginals.
        residual: what the Weaver adds to them.
        is_next: which entry is the text's own next token.
    """

    target_probabilities: Float[Tensor, "paths depth pool"]
    drafter_logits: Float[Tensor, "paths depth pool"]
    residual: Float[Tensor, "paths depth pool"]
    is_next: Bool[Tensor, "paths depth pool"]

    def compare(self, *, with_weaver: bool = True) -> PoolComparison:
        """The target against the Weaver, or against the bare marginals."""
        logits = self.drafter_logits.float()
        log_q = torch.log_softmax(logits + self.residual.float() if with_weaver else logits, dim=-1)
        return PoolComparison(self.target_probabilities, log_q, self.is_next)


def pool_scores(
    target: TargetModel,
    drafter: FactorisedDrafter,
    weaver: Weaver,
    tokens: Int[Tensor, "batch tokens"],
    anchors: Int[Tensor, "batch blocks"],
    temperatures: Float[Tensor, " batch"] | None = None,
) -> PoolScores:
    """What target, drafter and Weaver say on the pools below every anchor, teacher-forced along the text.

    Args:
        temperatures: at which the texts were written, which the Weaver is told and the target's laws are then those of
            (at 0: the text's own token). Without it all laws are those of temperature 1.
    """
    depth, rows = weaver.config.max_depth, anchors.numel()
    of_paths = None if temperatures is None else temperatures.repeat_interleave(anchors.shape[1])
    with mixed_precision(target.device):
        with torch.no_grad():
            features = target.features(tokens, drafter.config.tap_layers)
            blocks = drafter.pack_blocks(tokens, anchors, target)
            drafter_hidden = drafter(features.taps, blocks).reshape(rows, depth, -1)
            drafter_logits, pool = target.logits(drafter_hidden).topk(weaver.config.pool_size, dim=-1)
            is_next = pool == gather_after(tokens, anchors, depth).reshape(rows, depth, 1)
            path = gather_after(tokens, anchors - 1, depth).reshape(rows, depth)
            path_hidden = _gather_rows(features.hidden, anchors, depth).reshape(rows, depth, -1)
            before = features.hidden.gather(1, (anchors - 1).unsqueeze(-1).expand(-1, -1, path_hidden.shape[-1]))
            target_probabilities = _on_pool(at_least_float32(target.logits(path_hidden)), pool, is_next, of_paths)
            embedded = target.model.embed_tokens(path)
        read_outs = weaver(before.flatten(0, 1), drafter_hidden, embedded, of_paths)
        residual = target.logits(read_outs.contiguous()).gather(-1, pool)
    return PoolScores(target_probabilities, drafter_logits, residual, is_next)


def _on_pool(
    logits: Float[Tensor, "paths depth vocab"],
    pool: Int[Tensor, "paths depth pool"],
    is_next: Bool[Tensor, "paths depth pool"],
    temperatures: Float[Tensor, " paths"] | None,
) -> Float[Tensor, "paths depth pool"]:
    """The target's probabilities of the candidates."""
    if temperatures is None:
        return logits.softmax(-1).gather(-1, pool)
    is_sampled = (temperatures > 0.0)[:, None, None]
    scaled = logits / torch.where(is_sampled, temperatures[:, None, None], 1.0)
    return torch.where(is_sampled, scaled.softmax(-1).gather(-1, pool), is_next.to(logits.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class WeaverTask:
    """Conditionals on the candidate pool along the realised path; drafter and target frozen (arXiv 2607.06763).

    Attributes:
        eta: of the LK loss.
        objective: one of ``WEAVER_LOSSES``.
        run: :func:`pool_scores` itself, or a compiled form of it for the training steps.
    """

    model: Weaver
    drafter: FactorisedDrafter
    data: BlockData
    eta: float = 3.0
    objective: str = "lk"
    evaluation_batches: int = 2
    run: Callable[..., PoolScores] = pool_scores

    def __post_init__(self) -> None:
        if self.model.config.sees_temperature:
            self.data.temperatures(0)
            self.data.temperatures(0, held_out=True)

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        woven = self.run(self.data.target, self.drafter, self.model, *self._batch(step)).compare()
        level = mean_over_processes(woven.acceptance.flatten(0, -2).mean(0))
        return WEAVER_LOSSES[self.objective](woven, self.eta, level), _by_depth("acceptance", woven.acceptance.detach())

    @torch.no_grad()
    def evaluate(self) -> Metrics:
        """Held-out loss, pool mass, expected acceptance by depth of Weaver and bare marginals, and decodes' MAL."""
        sums: dict[str, float] = {}
        for index in range(self.evaluation_batches):
            batch = self._batch(index, held_out=True)
            scores = pool_scores(self.data.target, self.drafter, self.model, *batch)
            woven, marginal = scores.compare(), scores.compare(with_weaver=False)
            figures = _by_depth("held_out.weaver", woven.acceptance)
            figures |= _by_depth("held_out.marginal", marginal.acceptance)
            figures |= _by_depth("held_out.pool", woven.pool_mass)
            figures["held_out.loss"] = WEAVER_LOSSES[self.objective](woven, self.eta, None)
            for name, figure in figures.items():
                sums[name] = sums.get(name, 0.0) + figure.item() / self.evaluation_batches
        models = DraftModels(self.data.target, self.drafter, self.model)
        return sums | _decoded(models, ("chain", "ddtree", "tfm"), self.data, self.model.config.pool_size)

    def _batch(self, step: int, *, held_out: bool = False) -> tuple[Tensor, ...]:
        """Texts and anchors; the texts' temperatures as well for a Weaver that sees them."""
        batch = self.data.texts(step, held_out=held_out)
        if not self.model.config.sees_temperature:
            return batch
        return (*batch, self.data.temperatures(step, held_out=held_out))


def gather_after(
    tokens: Int[Tensor, "batch tokens"], anchors: Int[Tensor, "batch blocks"], count: int
) -> Int[Tensor, "batch blocks count"]:
    """The ``count`` tokens after each anchor."""
    index = anchors.unsqueeze(-1) + 1 + torch.arange(count, device=tokens.device)
    return tokens.gather(1, index.flatten(1)).view(index.shape)


def _decoded(models: DraftModels, methods: Sequence[str], data: BlockData, pool_size: int = 512) -> Metrics:
    """Mean accepted length of fixed trees on the held-out slice, text by text as in decoding.

    Where the texts know their temperatures, a Weaver is told them, and greedy texts have a figure of their own.
    """
    texts, config = data.held_out_texts(), TreeConfig(budget=REPLAYED_BUDGET, pool_size=pool_size)
    known = data.held_out.temperatures
    groups = [(None, texts)] if known is None else _by_temperature(texts, known[: len(texts)].tolist())
    metrics: Metrics = {}
    for method in methods:
        name, committed = f"held_out.decoded_mal.{method}", []
        for temperature, group in groups:
            told = models if temperature is None else models.at_temperature(temperature)
            steps = [step.committed for text in replay(told, group, method, config) for step in text]
            committed += steps
            if temperature == 0.0:
                metrics[f"{name}@T0"] = sum(steps) / len(steps)
        metrics[name] = sum(committed) / len(committed)
    return metrics


def _by_temperature(texts: Sequence[Text], temperatures: Sequence[float]) -> list[tuple[float | None, list[Text]]]:
    pairs = list(zip(temperatures, texts, strict=True))
    return [(wanted, [text for found, text in pairs if found == wanted]) for wanted in sorted(set(temperatures))]


def _gather_rows(hidden: Float[Tensor, "batch tokens channels"], anchors: Tensor, count: int) -> Tensor:
    """Hidden states at each anchor and the ``count - 1`` positions after it."""
    index = (anchors.unsqueeze(-1) + torch.arange(count, device=hidden.device)).flatten(1)
    return hidden.gather(1, index.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def _by_depth(name: str, values: Float[Tensor, "*rows depth"]) -> dict[str, Tensor]:
    means = values.flatten(0, -2).mean(0)
    return {f"{name}@{depth}": means[depth - 1] for depth in REPORTED_DEPTHS if depth <= means.numel()}
