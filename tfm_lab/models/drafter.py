"""DFlash (arXiv 2602.06036): one pass over ``[root, mask, ..., mask]`` gives marginals for a whole block."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.drafting.types import Marginals
from tfm_lab.models.context_drafter import ContextDrafter, DraftBlocks, DraftContext, KeyValues
from tfm_lab.models.target import TargetModel


class FactorisedDrafter(ContextDrafter):
    """The DFlash drafter: bidirectional within the block, so that no drafted position depends on another's token."""

    @torch.no_grad()
    def propose(self, context: DraftContext, root: int, target: TargetModel, depth: int | None = None) -> Marginals:
        """Marginals of the tokens after ``root``, which sits at position ``context.length``.

        Args:
            depth: how many places to give logits for; by default all ``draft_depth``. The output head is a large part
                of the cost on a CPU.
        """
        config = self.config
        tokens = torch.full((1, config.block_size), config.mask_token, device=target.device)
        tokens[0, 0] = root
        x = target.model.embed_tokens(tokens)
        rotary = self.rotary(context.length + torch.arange(config.block_size, device=target.device))
        visible = x.new_ones(1, 1, config.block_size, context.length + config.block_size, dtype=torch.bool)
        rows, _ = self.run(x, rotary, [buffer.rows(context.length) for buffer in context.layers], visible)
        hidden = rows[0, 1:]
        return Marginals(target.logits(hidden[:depth]), hidden)

    def forward(
        self, taps: Float[Tensor, "batch tokens features"], blocks: DraftBlocks
    ) -> Float[Tensor, "batch blocks drafts channels"]:
        """Hidden states of all drafted positions of all blocks. Differentiable."""
        return self.draft(self.read(taps), blocks)

    def draft(self, context: Sequence[KeyValues], blocks: DraftBlocks) -> Float[Tensor, "batch blocks drafts channels"]:
        """Hidden states of all drafted positions of blocks in texts that were read before."""
        rows, _ = self.run(blocks.embedded, self.rotary(blocks.positions), context, blocks.visible)
        return rows.unflatten(1, (-1, self.config.block_size))[:, :, 1:]

    def pack_blocks(
        self, tokens: Int[Tensor, "batch tokens"], anchors: Int[Tensor, "batch blocks"], target: TargetModel
    ) -> DraftBlocks:
        """Blocks that start at the ``anchors``: each sees the context before its anchor and itself, nothing else."""
        block = self.config.block_size
        ids = torch.full((*anchors.shape, block), self.config.mask_token, device=tokens.device)
        ids[..., 0] = tokens.gather(1, anchors)
        within = torch.ones(block, block, dtype=torch.bool, device=tokens.device)
        return self.pack(target.model.embed_tokens(ids.flatten(1)), anchors, within, tokens.shape[1])
