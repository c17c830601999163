"""What the three trainings optimise: next tokens (target), whole blocks (drafter), conditionals on a path (Weaver)."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver
from tfm_lab.training.data import PackedCorpus, WrittenTexts
from tfm_lab.training.fit import Metrics
from tfm_lab.training.losses import PoolComparison, block_cross_entropy, lk_loss

REPORTED_DEPTHS = (1, 2, 4, 8, 15)


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
        return self._cross_entropy(self.train.batch(step, self.batch, self.length + 1, self.seed), self.forward), {}

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
    """

    target: TargetModel
    train: WrittenTexts
    held_out: WrittenTexts
    batch: int
    anchors: int
    seed: int
    block: int = 16

    def texts(self, step: int, *, held_out: bool = False) -> tuple[Tensor, Tensor]:
        """Texts and anchors of one step. The tokens after an anchor are the target's own."""
        source = self.held_out if held_out else self.train
        tokens, written_from = source.batch(step, self.batch, 0 if held_out else self.seed)
        generator = torch.Generator().manual_seed(2 * step + int(held_out) + 1_000_003 * self.seed)
        return tokens.to(self.target.device), self._anchors(tokens, written_from, generator).to(self.target.device)

    def _anchors(self, tokens: Tensor, written_from: Tensor, generator: torch.Generator) -> Tensor:
        first = (written_from - 1).clamp_min(1)
        room = tokens.shape[1] - self.block - first
        if bool((room < 0).any()):
            raise ValueError(
                f"texts of {tokens.shape[1]} tokens leave no room for a block of {self.block}; write longer ones"
            )
        share = torch.rand(tokens.shape[0], self.anchors, generator=generator, dtype=torch.float64)
        return first[:, None] + (share * (room[:, None] + 1)).long()


@dataclass(frozen=True, slots=True, eq=False)
class DrafterTask:
    """Cross-entropy of DFlash blocks with position weights (arXiv 2602.06036, eq. 4)."""

    model: FactorisedDrafter
    data: BlockData
    gamma: float = 7.0
    evaluation_batches: int = 2

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        logits, labels = self._logits(*self.data.texts(step))
        hits = (logits.detach().argmax(-1) == labels).float()
        return block_cross_entropy(logits, labels, self.gamma), _by_depth("hit", hits)

    @torch.no_grad()
    def evaluate(self) -> Metrics:
        """Held-out loss, hit rate by depth and accepted drafts of the argmax chain."""
        sums: dict[str, float] = {}
        for index in range(self.evaluation_batches):
            logits, labels = self._logits(*self.data.texts(index, held_out=True))
            hits = (logits.argmax(-1) == labels).float()
            figures = _by_depth("held_out.hit", hits)
            figures["held_out.loss"] = block_cross_entropy(logits, labels, self.gamma)
            figures["held_out.chain_mal"] = 1.0 + hits.cumprod(-1).sum(-1).mean()
            for name, figure in figures.items():
                sums[name] = sums.get(name, 0.0) + figure.item() / self.evaluation_batches
        return sums

    def _logits(self, tokens: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        target, drafter = self.data.target, self.model
        with mixed_precision(target.device):
            with torch.no_grad():
                taps = target.features(tokens, drafter.config.tap_layers).taps
                blocks = drafter.pack_blocks(tokens, anchors, target)
            logits = target.logits(drafter(taps, blocks))
        return logits, gather_after(tokens, anchors, drafter.config.draft_depth)


@dataclass(frozen=True, slots=True, eq=False)
class WeaverTask:
    """LK loss on the candidate pool along the realised path; drafter and target frozen (arXiv 2607.06763)."""

    model: Weaver
    drafter: FactorisedDrafter
    data: BlockData
    eta: float = 3.0
    evaluation_batches: int = 2

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        woven, _ = self._compare(*self.data.texts(step))
        return lk_loss(woven, self.eta), _by_depth("acceptance", woven.acceptance.detach())

    @torch.no_grad()
    def evaluate(self) -> Metrics:
        """Held-out loss, pool mass, and expected acceptance by depth of the Weaver and of the bare marginals."""
        sums: dict[str, float] = {}
        for index in range(self.evaluation_batches):
            woven, marginal = self._compare(*self.data.texts(index, held_out=True))
            figures = _by_depth("held_out.weaver", woven.acceptance)
            figures |= _by_depth("held_out.marginal", marginal.acceptance)
            figures |= _by_depth("held_out.pool", woven.pool_mass)
            figures["held_out.loss"] = lk_loss(woven, self.eta)
            for name, figure in figures.items():
                sums[name] = sums.get(name, 0.0) + figure.item() / self.evaluation_batches
        return sums

    def _compare(self, tokens: Tensor, anchors: Tensor) -> tuple[PoolComparison, PoolComparison]:
        target, depth = self.data.target, self.model.config.max_depth
        rows = anchors.numel()
        with mixed_precision(target.device):
            with torch.no_grad():
                features = target.features(tokens, self.drafter.config.tap_layers)
                blocks = self.drafter.pack_blocks(tokens, anchors, target)
                drafter_hidden = self.drafter(features.taps, blocks).reshape(rows, depth, -1)
                pool_logits, pool = target.logits(drafter_hidden).float().topk(self.model.config.pool_size, dim=-1)
                path = gather_after(tokens, anchors - 1, depth).reshape(rows, depth)
                path_hidden = _gather_rows(features.hidden, anchors, depth).reshape(rows, depth, -1)
                before = features.hidden.gather(1, (anchors - 1).unsqueeze(-1).expand(-1, -1, path_hidden.shape[-1]))
                target_probabilities = target.logits(path_hidden).float().softmax(-1).gather(-1, pool)
                embedded = target.model.embed_tokens(path)
            read_outs = self.model(before.flatten(0, 1), drafter_hidden, embedded)
            residual = target.logits(read_outs).gather(-1, pool)
        woven = torch.log_softmax(pool_logits + residual.float(), dim=-1)
        marginal = torch.log_softmax(pool_logits, dim=-1)
        return PoolComparison(target_probabilities, woven), PoolComparison(target_probabilities, marginal)


def gather_after(
    tokens: Int[Tensor, "batch tokens"], anchors: Int[Tensor, "batch blocks"], count: int
) -> Int[Tensor, "batch blocks count"]:
    """The ``count`` tokens after each anchor."""
    index = anchors.unsqueeze(-1) + 1 + torch.arange(count, device=tokens.device)
    return tokens.gather(1, index.flatten(1)).view(index.shape)


def _gather_rows(hidden: Float[Tensor, "batch tokens channels"], anchors: Tensor, count: int) -> Tensor:
    """Hidden states at each anchor and the ``count - 1`` positions after it."""
    index = (anchors.unsqueeze(-1) + torch.arange(count, device=hidden.device)).flatten(1)
    return hidden.gather(1, index.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def _by_depth(name: str, values: Float[Tensor, "*rows depth"]) -> dict[str, Tensor]:
    means = values.flatten(0, -2).mean(0)
    return {f"{name}@{depth}": means[depth - 1] for depth in REPORTED_DEPTHS if depth <= means.numel()}
