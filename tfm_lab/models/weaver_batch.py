"""A Weaver at work on one tree per text, all texts in one call: for evaluation at scale."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.drafting.batched import Lineage, NodeBatch
from tfm_lab.models.layers import at_least_float32
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver


class WeaverBatch:
    """Conditionals for many trees in lockstep; implements :class:`tfm_lab.drafting.batched.ConditionalBatch`.

    Args:
        weaver: the adapter.
        target: supplies embedding and head.
        drafter_logits, drafter_hidden: the drafter's block of every text.
        target_hidden: final-norm hidden state that produced each root.
        pool_size: candidates per depth (K).
        budget: most nodes that a tree will have.
        ranking: what to choose the candidates by, in place of the drafter's logits.
    """

    @torch.no_grad()
    def __init__(
        self,
        weaver: Weaver,
        target: TargetModel,
        drafter_logits: Float[Tensor, "texts drafts vocab"],
        drafter_hidden: Float[Tensor, "texts drafts channels"],
        target_hidden: Float[Tensor, "texts channels"],
        pool_size: int,
        budget: int,
        ranking: Float[Tensor, "texts drafts vocab"] | None = None,
    ) -> None:
        self._weaver, self._target = weaver, target
        ranked = drafter_logits if ranking is None else ranking
        self._pool = ranked.topk(min(pool_size, ranked.shape[-1]), dim=-1).indices
        self._pool_logits = drafter_logits.gather(2, self._pool)
        prefix = weaver.prefix_tokens(target_hidden, drafter_hidden)
        length = prefix.shape[1]
        positions = torch.arange(length, device=prefix.device)
        causal = torch.ones(1, length, length, dtype=torch.bool, device=prefix.device).tril()
        self._cache: Sequence[tuple[Tensor, Tensor]]
        _, self._cache = weaver.run(prefix, weaver.rotary(positions, prefix.dtype), causal)
        self._prefix = causal.new_ones(len(prefix), 1, length)
        self._lineage = Lineage(len(prefix), budget, prefix.device)

    @property
    def max_depth(self) -> int:
        return min(self._weaver.config.max_depth, self._pool.shape[1])

    @torch.no_grad()
    def expand(self, nodes: NodeBatch) -> tuple[Int[Tensor, "texts width pool"], Float[Tensor, "texts width pool"]]:
        """Tokens and log-probabilities of the pool for the children of every node; inactive rows are noise."""
        weaver, depth = self._weaver, nodes.depth.clamp_max(self.max_depth - 1)
        x = weaver.node_tokens(self._target.model.embed_tokens(nodes.token), depth)
        visible = torch.cat([self._prefix.expand(-1, x.shape[1], -1), self._lineage.extend(nodes)], dim=2)
        read_outs, self._cache = weaver.run(x, weaver.rotary(depth + 1, x.dtype), visible, self._cache)
        tokens = _rows(self._pool, depth)
        residual = self._target.logits(read_outs).gather(-1, tokens)
        logits = _rows(self._pool_logits, depth) + residual
        return tokens, torch.log_softmax(at_least_float32(logits), dim=-1)


def _rows(table: Tensor, index: Int[Tensor, "texts width"]) -> Tensor:
    """Rows ``index`` of each text's own table [texts, rows, entries]."""
    return table.gather(1, index.unsqueeze(2).expand(-1, -1, table.shape[2]))
