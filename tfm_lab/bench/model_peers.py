"""Verification that keeps a state for every node, in the engine: SGLang's recurrent kernel, for comparison."""

from collections.abc import Callable

import torch
from torch import Tensor

from tfm_lab.bench.kernel_peers import sglang_update
from tfm_lab.engine.memories import Memories
from tfm_lab.engine.tree_arrays import PADDING, TreeArrays, Walk
from tfm_lab.gdn import step
from tfm_lab.gdn.step import TreeLayout
from tfm_lab.gdn.step_convolution import convolve_trees
from tfm_lab.gdn.step_masked import commit_windows_masked
from tfm_lab.models.config import DeltaNetConfig
from tfm_lab.models.delta_net import GatedDeltaNet

Update = Callable[..., Tensor]
"""Call shape of SGLang's ``fused_sigmoid_gating_delta_rule_update``."""


class RecurrentMemories:
    """One program walks the nodes and writes every node's whole state; a commit copies the accepted node's.

    Args:
        layers, batch, nodes: of a step.
        update: the kernel.
    """

    def __init__(
        self, config: DeltaNetConfig, layers: int, batch: int, nodes: int, dtype: torch.dtype, device: torch.device,
        update: Update,
    ) -> None:  # fmt: skip
        self._config, self._update = config, update
        shape = (config.value_heads, config.value_dim, config.key_dim)
        self.states = torch.zeros(layers, batch, *shape, device=device)
        self._every_state = torch.zeros(layers, batch, nodes, *shape, device=device)
        channels = config.convolution_channels
        self.windows = torch.zeros(layers, batch, config.convolution_width - 1, channels, dtype=dtype, device=device)
        self._inputs = torch.zeros(layers, batch, nodes, channels, dtype=dtype, device=device)
        self._slots = torch.arange(batch, dtype=torch.int32, device=device)
        self._layout: TreeLayout | None = None
        self._parents: Tensor | None = None

    def reset(self) -> None:
        """Nothing waits between steps."""

    def begin(self, tree: TreeArrays) -> None:
        """Parents and convolution taps. To this kernel padding is a child of the root: it has no row before that."""
        parents = tree.parents.to(torch.int32).contiguous()
        self._layout = step.tree_layout(parents, width=self._config.convolution_width, impl="triton")
        self._parents = parents.masked_fill(parents == PADDING, 0)

    def mix(self, layer: int, module: GatedDeltaNet, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Convolution by our kernel, the delta rule by theirs."""
        assert self._layout is not None
        assert self._parents is not None
        config, weight = self._config, module.conv1d.weight.squeeze(1)
        self._inputs[layer].copy_(x)
        mixed = convolve_trees(x, weight, self.windows[layer], self._slots, self._layout, impl="triton")
        width = config.key_heads * config.key_dim
        query, key, value = mixed.split([width, width, config.value_heads * config.value_dim], dim=-1)
        return self._update(
            A_log=module.A_log,
            a=a,
            dt_bias=module.dt_bias,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            q=query.unflatten(-1, (config.key_heads, -1)),
            k=key.unflatten(-1, (config.key_heads, -1)),
            v=value.unflatten(-1, (config.value_heads, -1)),
            b=b,
            initial_state_source=self.states[layer],
            initial_state_indices=self._slots,
            use_qk_l2norm_in_kernel=True,
            disable_state_update=True,
            intermediate_states_buffer=self._every_state[layer],
            intermediate_state_indices=self._slots,
            cache_steps=x.shape[1],
            retrieve_parent_token=self._parents,
        )

    def commit(self, walk: Walk) -> None:
        """The accepted node's state and window become those of the text."""
        request = torch.arange(len(walk.last), device=walk.last.device)
        self.states.copy_(self._every_state[:, request, walk.last])
        commit_windows_masked(self._inputs, self.windows, walk.path, walk.emitted)

    def tensors(self) -> list[Tensor]:
        """States and windows."""
        return [self.states, self.windows]


def recurrent_builder(
    config: DeltaNetConfig, dtype: torch.dtype, device: torch.device, value_tile: int = 4
) -> Callable[[int, int, int, int], Memories]:
    """What an engine takes in place of its own memories.

    Args:
        value_tile: 4, SGLang's setting for trees on Hopper, or 32.

    Raises:
        ValueError: if SGLang is not installed.
    """
    update = sglang_update(value_tile)
    return lambda layers, batch, nodes, rows: RecurrentMemories(config, layers, batch, nodes, dtype, device, update)
