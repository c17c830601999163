"""Softmax attention of the target: plain (llama) or with query/key norms and an output gate (Qwen3.5)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from tfm_lab.models.config import TargetConfig
from tfm_lab.models.layers import RMSNorm, Rotary, attend, merge_heads, split_heads
from tfm_lab.models.state import AttentionState, AttentionWrites, KeyValueBuffer


class TargetAttention(nn.Module):
    """Grouped-query attention over committed tokens and new ones.

    In the hybrid ``q_proj`` is twice as wide: for each head a query and a gate; the attention output is multiplied by
    ``sigmoid(gate)`` before ``o_proj``.
    """

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.heads, self.key_value_heads = config.attention_heads, config.key_value_heads
        self.head_dim, self.is_gated = config.head_dim, config.is_hybrid
        width = self.heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, 2 * width if self.is_gated else width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        if config.is_hybrid:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_epsilon, zero_centred=True)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_epsilon, zero_centred=True)

    def forward(
        self, x: Float[Tensor, "batch tokens channels"], rotary: Rotary
    ) -> Float[Tensor, "batch tokens channels"]:
        """Causal attention over ``x`` alone: whole texts, for training and scoring."""
        query, key, value, gate = self._project(x, rotary)
        return self._finish(attend(query, key, value, None), gate)

    def extend(
        self, x: Float[Tensor, "batch tokens channels"], rotary: Rotary, state: AttentionState, length: int
    ) -> tuple[Float[Tensor, "batch tokens channels"], AttentionState]:
        """Attend from new tokens to the ``length`` committed ones and causally to each other, and commit them all."""
        query, key, value, gate = self._project(x, rotary)
        buffer = state.buffer.append(length, key, value)
        keys, values = buffer.rows(length + x.shape[1])
        visible = None
        if x.shape[1] > 1:
            visible = torch.ones(x.shape[1], keys.shape[2], dtype=torch.bool, device=x.device).tril(length)[None, None]
        return self._finish(attend(query, keys, values, visible), gate), AttentionState(buffer)

    def verify(
        self,
        x: Float[Tensor, "batch nodes channels"],
        rotary: Rotary,
        ancestors: Bool[Tensor, "nodes nodes"],
        state: AttentionState,
        length: int,
    ) -> tuple[Float[Tensor, "batch nodes channels"], AttentionWrites]:
        """Every node attends to the committed tokens and to its ancestors (itself included); ``state`` is unchanged."""
        query, key, value, gate = self._project(x, rotary)
        keys, values = state.buffer.with_scratch(length, key, value)
        visible = torch.cat([ancestors.new_ones(ancestors.shape[0], length), ancestors], dim=1)
        return self._finish(attend(query, keys, values, visible[None, None]), gate), AttentionWrites(key, value)

    def commit(self, state: AttentionState, writes: AttentionWrites, path: Tensor, length: int) -> AttentionState:
        """Append the keys and values of the nodes on ``path`` (root first)."""
        keys, values = writes.keys.index_select(2, path), writes.values.index_select(2, path)
        return AttentionState(state.buffer.append(length, keys, values))

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> AttentionState:
        return AttentionState(KeyValueBuffer.empty(batch, self.key_value_heads, self.head_dim, dtype, device))

    def _project(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        query, gate = split_heads(self.q_proj(x), self.heads), None
        if self.is_gated:
            query, gate = query.chunk(2, dim=-1)
        key = split_heads(self.k_proj(x), self.key_value_heads)
        value = split_heads(self.v_proj(x), self.key_value_heads)
        if self.is_gated:
            query, key = self.q_norm(query), self.k_norm(key)
        return rotary.rotate(query), rotary.rotate(key), value, gate

    def _finish(self, attended: Tensor, gate: Tensor | None) -> Tensor:
        return self.o_proj(merge_heads(attended if gate is None else attended * gate.sigmoid()))
