"""An autoregressive drafter with the full-vocabulary head: the classical alternative to a factorised drafter.

It looks at the target through the same taps and layers as a DFlash drafter, but its rows are the drafted tokens
themselves, each seeing only those before it on its path. So it gives conditionals without a Weaver, at the price of one
projection onto the whole vocabulary per sequential call.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.drafting.batched import Lineage, NodeBatch
from tfm_lab.drafting.types import OpenNode, Proposal
from tfm_lab.models.context_drafter import ContextDrafter, DraftBlocks, DraftContext, KeyValues
from tfm_lab.models.layers import at_least_float32
from tfm_lab.models.target import TargetModel


class AutoregressiveDrafter(ContextDrafter):
    """Row d of a block holds the token of depth d and gives the distribution of depth d + 1."""

    def forward(
        self, taps: Float[Tensor, "batch tokens features"], blocks: DraftBlocks
    ) -> Float[Tensor, "batch blocks drafts channels"]:
        """Hidden states of all rows of all blocks, teacher-forced. Differentiable."""
        rows, _ = self.run(blocks.embedded, self.rotary(blocks.positions), self.read(taps), blocks.visible)
        return rows.unflatten(1, (-1, self.config.draft_depth))

    def pack_blocks(
        self, tokens: Int[Tensor, "batch tokens"], anchors: Int[Tensor, "batch blocks"], target: TargetModel
    ) -> DraftBlocks:
        """Blocks that start at the ``anchors``: each sees the context before its anchor and itself, causally."""
        rows = self.config.draft_depth
        places = (anchors.unsqueeze(-1) + torch.arange(rows, device=tokens.device)).flatten(1)
        within = torch.ones(rows, rows, dtype=torch.bool, device=tokens.device).tril()
        return self.pack(target.model.embed_tokens(tokens.gather(1, places)), anchors, within, tokens.shape[1])


class AutoregressiveSession:
    """An autoregressive drafter at work on one tree; implements :class:`tfm_lab.drafting.types.ConditionalSession`.

    Args:
        drafter: the model.
        target: supplies embedding and head.
        context: the committed positions; node of depth d sits at position ``context.length + d``.
        pool_size: most probable tokens listed per proposal, with their full-vocabulary probabilities.
    """

    def __init__(
        self, drafter: AutoregressiveDrafter, target: TargetModel, context: DraftContext, pool_size: int
    ) -> None:
        self._drafter, self._target, self._length, self._pool_size = drafter, target, context.length, pool_size
        self._seen: Sequence[KeyValues] = [buffer.rows(context.length) for buffer in context.layers]
        self._columns = context.length
        self._ancestry: dict[int, list[int]] = {-1: []}

    @property
    def max_depth(self) -> int:
        return self._drafter.config.draft_depth

    @torch.no_grad()
    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        """Conditionals of several nodes in one call; a node sees the context, its ancestors and itself.

        Raises:
            ValueError: if a parent was not expanded before, or a node is too deep to have children.
        """
        for node in nodes:
            if node.parent not in self._ancestry or not 0 <= node.depth < self.max_depth:
                raise ValueError(f"node {node.index} cannot be expanded: its parent was not, or it is too deep")
        device = self._target.device
        x = self._target.model.embed_tokens(torch.tensor([[node.token for node in nodes]], device=device))
        visible = torch.zeros(len(nodes), self._columns + len(nodes), dtype=torch.bool)
        visible[:, : self._length] = True
        for row, node in enumerate(nodes):
            lineage = [*self._ancestry[node.parent], self._columns + row]
            visible[row, lineage] = True
            self._ancestry[node.index] = lineage
        self._columns += len(nodes)
        rotary = self._drafter.rotary(self._length + torch.tensor([node.depth for node in nodes], device=device))
        hidden, self._seen = self._drafter.run(x, rotary, self._seen, visible[None, None].to(device))
        log_probs = torch.log_softmax(at_least_float32(self._target.logits(hidden[0])), dim=-1)
        best = log_probs.topk(min(self._pool_size, log_probs.shape[-1]), dim=-1)
        return [Proposal(*row) for row in zip(best.indices, best.values, strict=True)]


class AutoregressiveBatch:
    """An autoregressive drafter on one tree per text; implements :class:`tfm_lab.drafting.batched.ConditionalBatch`.

    Args:
        drafter: the model.
        target: supplies embedding and head.
        seen: what :meth:`ContextDrafter.read` gave for the whole texts.
        lengths: committed positions of each text; what is behind them stays hidden.
        pool_size: most probable tokens listed per node.
        budget: most nodes that a tree will have.
    """

    def __init__(
        self,
        drafter: AutoregressiveDrafter,
        target: TargetModel,
        seen: Sequence[KeyValues],
        lengths: Int[Tensor, " texts"],
        pool_size: int,
        budget: int,
    ) -> None:
        self._drafter, self._target, self._seen, self._lengths = drafter, target, seen, lengths
        self._pool_size = pool_size
        places = torch.arange(seen[0][0].shape[2], device=lengths.device)
        self._context = (places < lengths.unsqueeze(1)).unsqueeze(1)
        self._lineage = Lineage(len(lengths), budget, lengths.device)

    @property
    def max_depth(self) -> int:
        return self._drafter.config.draft_depth

    @torch.no_grad()
    def expand(self, nodes: NodeBatch) -> tuple[Int[Tensor, "texts width pool"], Float[Tensor, "texts width pool"]]:
        """Tokens and full-vocabulary log-probabilities for the children of every node; inactive rows are noise."""
        x = self._target.model.embed_tokens(nodes.token)
        visible = torch.cat([self._context.expand(-1, x.shape[1], -1), self._lineage.extend(nodes)], dim=2)
        rotary = self._drafter.rotary(self._lengths.unsqueeze(1) + nodes.depth)
        hidden, self._seen = self._drafter.run(x, rotary, self._seen, visible.unsqueeze(1))
        log_probs = torch.log_softmax(at_least_float32(self._target.logits(hidden)), dim=-1)
        best = log_probs.topk(min(self._pool_size, log_probs.shape[-1]), dim=-1)
        return best.indices, best.values
