"""Softmax attention of the target: plain (llama) or with query/key norms and an output gate (Qwen3.5)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tfm_lab.models.config import TargetConfig
from tfm_lab.models.layers import RMSNorm, Rotary, attend, attend_in_groups, merge_heads, split_heads
from tfm_lab.models.packing import Packable, Packed, pack, product, products
from tfm_lab.models.state import AttentionState, AttentionWrites, KeyValueBuffer


class TargetAttention(Packable):
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
        self._packed_inputs: Packed | None = None
        self._packed_output: Packed | None = None
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
        mask: Float[Tensor, "1 1 rows keys"],
        state: AttentionState,
        length: int,
    ) -> tuple[Float[Tensor, "batch nodes channels"], AttentionWrites]:
        """Every node attends to the committed tokens and to its ancestors; ``state`` is unchanged.

        Args:
            mask: :func:`tfm_lab.models.layers.grouped_mask` of committed tokens and ancestors (a node itself included).
        """
        query, key, value, gate = self._project(x, rotary)
        keys, values = state.buffer.with_scratch(length, key, value)
        return self._finish(attend_in_groups(query, keys, values, mask), gate), AttentionWrites(key, value)

    def commit(self, state: AttentionState, writes: AttentionWrites, path: Tensor, length: int) -> AttentionState:
        """Append the keys and values of the nodes on ``path`` (root first)."""
        keys, values = writes.keys.index_select(2, path), writes.values.index_select(2, path)
        return AttentionState(state.buffer.append(length, keys, values))

    def pack_layers(self) -> None:
        self._packed_inputs, self._packed_output = pack(self.q_proj, self.k_proj, self.v_proj), pack(self.o_proj)

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> AttentionState:
        return AttentionState(KeyValueBuffer.empty(batch, self.key_value_heads, self.head_dim, dtype, device))

    def _project(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        queries, keys, values = products(x, self._packed_inputs, self.q_proj, self.k_proj, self.v_proj)
        query, gate = split_heads(queries, self.heads), None
        if self.is_gated:
            query, gate = query.chunk(2, dim=-1)
        key, value = split_heads(keys, self.key_value_heads), split_heads(values, self.key_value_heads)
        if self.is_gated:
            query, key = self.q_norm(query), self.k_norm(key)
        return rotary.rotate(query), rotary.rotate(key), value, gate

    def _finish(self, attended: Tensor, gate: Tensor | None) -> Tensor:
        merged = merge_heads(attended if gate is None else attended * gate.sigmoid())
        return product(merged, self._packed_output, self.o_proj)
