"""DFlash (arXiv 2602.06036): one pass over ``[root, mask, ..., mask]`` gives marginals for a whole block.

The drafter sees the target through *taps*: outputs of a few target layers at the committed positions, fused to one
context feature per position. Every layer injects that feature into its keys and values; the features take no part in
queries, residuals or MLPs. Parameter names are those of published DFlash checkpoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfm_lab.drafting.types import Marginals
from tfm_lab.models.config import DrafterConfig
from tfm_lab.models.layers import GatedMLP, RMSNorm, Rotary, attend, merge_heads, split_heads
from tfm_lab.models.state import KeyValueBuffer
from tfm_lab.models.target import TargetModel


@dataclass(frozen=True, slots=True, eq=False)
class DraftContext:
    """Keys and values of exactly the committed positions, one buffer per drafter layer."""

    length: int
    layers: tuple[KeyValueBuffer, ...]


class DraftBlocks(NamedTuple):
    """Many blocks of one batch of texts, packed for training.

    Attributes:
        embedded: root and mask embeddings of all blocks of a text, side by side.
        positions: position of every row.
        visible: which context position and which block row each row may see.
    """

    embedded: Float[Tensor, "batch rows channels"]
    positions: Int[Tensor, "batch rows"]
    visible: Bool[Tensor, "batch 1 rows keys"]


class DrafterAttention(nn.Module):
    """Bidirectional attention of block rows to the context features and to each other."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.heads, self.key_value_heads = config.attention_heads, config.key_value_heads
        self.q_proj = nn.Linear(config.hidden_size, self.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.key_value_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.key_value_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_epsilon)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_epsilon)

    def key_value(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Normed, rotated keys and plain values of context features or of block rows."""
        key = rotary.rotate(self.k_norm(split_heads(self.k_proj(x), self.key_value_heads)))
        return key, split_heads(self.v_proj(x), self.key_value_heads)

    def forward(self, x: Tensor, rotary: Rotary, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        query = rotary.rotate(self.q_norm(split_heads(self.q_proj(x), self.heads)))
        return self.o_proj(merge_heads(attend(query, key, value, visible)))


class DrafterLayer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_epsilon)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_epsilon)

    def forward(self, x: Tensor, rotary: Rotary, context_key: Tensor, context_value: Tensor, visible: Tensor) -> Tensor:
        normed = self.input_layernorm(x)
        key, value = self.self_attn.key_value(normed, rotary)
        key, value = torch.cat([context_key, key], dim=2), torch.cat([context_value, value], dim=2)
        x = x + self.self_attn(normed, rotary, key, value, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class FactorisedDrafter(nn.Module):
    """The DFlash drafter. Embedding and output head are the target's and are passed in where they are needed.

    Args:
        config: the drafter's shape.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.tap_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_epsilon)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_epsilon)

    def check_target(self, target: TargetModel) -> None:
        """Raise a ValueError if this drafter cannot have been made for ``target``."""
        ours, theirs = self.config, target.config
        for what, drafter_has, target_has in (
            ("vocabulary size", ours.vocab_size, theirs.vocab_size),
            ("width", ours.hidden_size, theirs.hidden_size),
            ("number of target layers", ours.target_layers, theirs.layers),
        ):
            if drafter_has != target_has:
                raise ValueError(
                    f"the drafter was made for another target: its {what} is {drafter_has}, "
                    f"the target's is {target_has}"
                )

    # Decoding: one text, one block.

    @torch.no_grad()
    def empty_context(self) -> DraftContext:
        weight, config = self.fc.weight, self.config
        empty = [
            KeyValueBuffer.empty(1, config.key_value_heads, config.head_dim, weight.dtype, weight.device)
            for _ in range(config.layers)
        ]
        return DraftContext(0, tuple(empty))

    @torch.no_grad()
    def extend_context(self, context: DraftContext, taps: Float[Tensor, "tokens features"]) -> DraftContext:
        """The context after more committed positions, whose target taps are ``taps``."""
        fused = self._fuse(taps)[None]
        rotary = self._rotary(context.length + torch.arange(taps.shape[0], device=taps.device))
        buffers = [
            buffer.append(context.length, *layer.self_attn.key_value(fused, rotary))
            for buffer, layer in zip(context.layers, self._layers, strict=True)
        ]
        return DraftContext(context.length + taps.shape[0], tuple(buffers))

    @torch.no_grad()
    def propose(self, context: DraftContext, root: int, target: TargetModel) -> Marginals:
        """Marginals of the ``draft_depth`` tokens after ``root``, which sits at position ``context.length``."""
        config = self.config
        tokens = torch.full((1, config.block_size), config.mask_token, device=target.device)
        tokens[0, 0] = root
        x = target.model.embed_tokens(tokens)
        rotary = self._rotary(context.length + torch.arange(config.block_size, device=target.device))
        visible = x.new_ones(1, 1, config.block_size, context.length + config.block_size, dtype=torch.bool)
        for layer, buffer in zip(self._layers, context.layers, strict=True):
            x = layer(x, rotary, *buffer.rows(context.length), visible)
        hidden = self.norm(x)[0, 1:]
        return Marginals(target.logits(hidden), hidden)

    # Training: many texts, many blocks.

    def forward(
        self, taps: Float[Tensor, "batch tokens features"], blocks: DraftBlocks
    ) -> Float[Tensor, "batch blocks drafts channels"]:
        """Hidden states of all drafted positions of all blocks. Differentiable."""
        fused = self._fuse(taps)
        context_rotary = self._rotary(torch.arange(taps.shape[1], device=taps.device))
        rotary = self._rotary(blocks.positions)
        x = blocks.embedded
        for layer in self._layers:
            x = layer(x, rotary, *layer.self_attn.key_value(fused, context_rotary), blocks.visible)
        return self.norm(x).unflatten(1, (-1, self.config.block_size))[:, :, 1:]

    def pack_blocks(
        self, tokens: Int[Tensor, "batch tokens"], anchors: Int[Tensor, "batch blocks"], target: TargetModel
    ) -> DraftBlocks:
        """Blocks that start at the ``anchors``: each sees the context before its anchor and itself, nothing else."""
        block = self.config.block_size
        offsets = torch.arange(block, device=tokens.device)
        ids = torch.full((*anchors.shape, block), self.config.mask_token, device=tokens.device)
        ids[..., 0] = tokens.gather(1, anchors)
        starts = anchors.repeat_interleave(block, dim=1)
        positions = starts + offsets.repeat(anchors.shape[1])
        context = torch.arange(tokens.shape[1], device=tokens.device) < starts.unsqueeze(-1)
        owner = torch.arange(anchors.shape[1], device=tokens.device).repeat_interleave(block)
        same_block = (owner[:, None] == owner).expand(tokens.shape[0], -1, -1)
        visible = torch.cat([context, same_block], dim=2).unsqueeze(1)
        return DraftBlocks(target.model.embed_tokens(ids.flatten(1)), positions, visible)

    @property
    def _layers(self) -> Sequence[DrafterLayer]:
        return [layer for layer in self.layers if isinstance(layer, DrafterLayer)]

    def _fuse(self, taps: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(taps))

    def _rotary(self, positions: Tensor) -> Rotary:
        return Rotary(positions, self.config.head_dim, self.config.rope_theta, self.fc.weight.dtype)
