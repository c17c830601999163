"""The Gated DeltaNet layer of the hybrid target (arXiv 2412.06464), with tree verification that never rolls back."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfm_lab import gdn
from tfm_lab.gdn.step import TreeLayout
from tfm_lab.models.config import DeltaNetConfig
from tfm_lab.models.delta_net_pool import (
    DeltaNetPool,
    PooledDeltaNetState,
    PooledDeltaNetWrites,
    commit_pooled,
    verify_pooled,
)
from tfm_lab.models.layers import RMSNorm, at_least_float32, merge_heads, split_heads
from tfm_lab.models.state import DeltaNetState, DeltaNetWrites


class GatedDeltaNet(nn.Module):
    """Short convolution, gated delta rule, gated norm. Parameter names are those of the Hugging Face layer."""

    def __init__(self, hidden_size: int, epsilon: float, config: DeltaNetConfig) -> None:
        super().__init__()
        self.config = config
        channels, value_width = config.convolution_channels, config.value_heads * config.value_dim
        self.in_proj_qkv = nn.Linear(hidden_size, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden_size, value_width, bias=False)
        self.in_proj_b = nn.Linear(hidden_size, config.value_heads, bias=False)
        self.in_proj_a = nn.Linear(hidden_size, config.value_heads, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, config.convolution_width, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.empty(config.value_heads).uniform_(0.01, 16.0).log())
        self.dt_bias = nn.Parameter(torch.ones(config.value_heads))
        self.norm = RMSNorm(config.value_dim, epsilon)
        self.out_proj = nn.Linear(value_width, hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "batch tokens channels"]) -> Float[Tensor, "batch tokens channels"]:
        """Whole texts from an empty state, for training and scoring."""
        return self.extend(x, self.empty_state(x.shape[0], x.dtype, x.device))[0]

    def extend(
        self, x: Float[Tensor, "batch tokens channels"], state: DeltaNetState | PooledDeltaNetState
    ) -> tuple[Float[Tensor, "batch tokens channels"], DeltaNetState]:
        """Process new tokens in order and commit them all."""
        mixed, window = gdn.causal_convolution(self.in_proj_qkv(x), self._convolution_weight, state.window)
        inputs = self._delta_inputs(mixed, x)
        rule = gdn.delta_rule_recurrent if x.shape[1] == 1 else gdn.delta_rule_chunked
        output, matrix = rule(*inputs, state.matrix)
        return self._finish(output, x), DeltaNetState(matrix, window)

    def verify(
        self,
        x: Float[Tensor, "batch nodes channels"],
        ancestors: Bool[Tensor, "nodes nodes"],
        convolution_ancestors: Int[Tensor, "nodes width"],
        state: DeltaNetState | PooledDeltaNetState,
    ) -> tuple[Float[Tensor, "batch nodes channels"], DeltaNetWrites]:
        """Outputs of all nodes, each as if its root path alone had been processed; ``state`` is unchanged."""
        convolution_inputs = self.in_proj_qkv(x)
        mixed = gdn.tree_convolution(convolution_inputs, self._convolution_weight, state.window, convolution_ancestors)
        verified = gdn.tree_verify(*self._delta_inputs(mixed, x), state.matrix, ancestors)
        return self._finish(verified.output, x), DeltaNetWrites(verified.writes, convolution_inputs)

    def verify_by_kernels(
        self, x: Float[Tensor, "batch nodes channels"], layout: TreeLayout, state: DeltaNetState | PooledDeltaNetState
    ) -> tuple[Float[Tensor, "batch nodes channels"], PooledDeltaNetWrites]:
        """The outputs of :meth:`verify` for nodes in depth-first order, through the fused kernels."""
        if isinstance(state, DeltaNetState):
            state = PooledDeltaNetState(DeltaNetPool(state.matrix, state.window), 0, None)
        projections = self.in_proj_qkv(x), self.in_proj_a(x), self.in_proj_b(x)
        parameters = self._convolution_weight, self.A_log, self.dt_bias
        output, writes = verify_pooled(*projections, *parameters, self.config, layout, state)
        return self._finish(output.transpose(1, 2), x), writes

    def commit(
        self,
        state: DeltaNetState | PooledDeltaNetState,
        writes: DeltaNetWrites | PooledDeltaNetWrites,
        path: Tensor,
    ) -> DeltaNetState | PooledDeltaNetState:
        """The state after the nodes on ``path`` (root first), in closed form."""
        if isinstance(writes, PooledDeltaNetWrites):
            return commit_pooled(writes, path)
        matrix = gdn.commit_path(state.matrix, writes.tree, path)
        return DeltaNetState(matrix, gdn.commit_window(state.window, writes.convolution_inputs, path))

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> DeltaNetState:
        config = self.config
        wide = torch.promote_types(dtype, torch.float32)
        shape = (batch, config.value_heads, config.key_dim, config.value_dim)
        return DeltaNetState(
            torch.zeros(shape, dtype=wide, device=device),
            torch.zeros(batch, config.convolution_width - 1, config.convolution_channels, dtype=dtype, device=device),
        )

    @property
    def _convolution_weight(self) -> Float[Tensor, "channels width"]:
        return self.conv1d.weight.squeeze(1)

    def _delta_inputs(self, mixed: Tensor, x: Tensor) -> "DeltaInputs":
        config = self.config
        key_width = config.key_heads * config.key_dim
        query, key, value = F.silu(mixed).split([key_width, key_width, config.value_heads * config.value_dim], dim=-1)
        query, key = gdn.normalised_query_and_key(
            split_heads(query, config.key_heads), split_heads(key, config.key_heads)
        )
        log_decay, beta = gdn.gates(
            self.in_proj_a(x).transpose(-2, -1), self.in_proj_b(x).transpose(-2, -1), self.A_log, self.dt_bias
        )
        return DeltaInputs(query, key, split_heads(value, config.value_heads), log_decay, beta)

    def _finish(self, output: Tensor, x: Tensor) -> Tensor:
        gate = split_heads(self.in_proj_z(x), self.config.value_heads)
        gated = self.norm(output) * F.silu(at_least_float32(gate))
        return self.out_proj(merge_heads(gated).to(x.dtype))


class DeltaInputs(NamedTuple):
    """Arguments of the delta rule, in its order."""

    query: Float[Tensor, "batch key_heads tokens key_dim"]
    key: Float[Tensor, "batch key_heads tokens key_dim"]
    value: Float[Tensor, "batch value_heads tokens value_dim"]
    log_decay: Float[Tensor, "batch value_heads tokens"]
    beta: Float[Tensor, "batch value_heads tokens"]
