"""What the Gated DeltaNet layers keep between steps, and how a step verifies trees against it.

States and windows of all layers lie in one tensor each. An accepted path is gathered at the end of a step (one launch
for all layers) and folded into the states when the next tree is verified: the lagged commit.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm_lab.engine.tree_arrays import TreeArrays, Walk, convolution_taps
from tfm_lab.gdn import step
from tfm_lab.gdn.step import Pending, Stash, StatePool, TreeLayout
from tfm_lab.gdn.step_convolution import commit_windows, convolve_trees
from tfm_lab.gdn.step_masked import commit_windows_masked, is_fused, masked_tree_step, plain_token
from tfm_lab.models.config import DeltaNetConfig
from tfm_lab.models.delta_net import GatedDeltaNet


class Memories(Protocol):
    """How a step works with the memories of all Gated DeltaNet layers.

    Attributes:
        states: [layers, batch, value_heads, value_dim, key_dim], float32 or wider.
        windows: [layers, batch, rows, channels].
    """

    states: Tensor
    windows: Tensor

    def reset(self) -> None:
        """States and windows were written from outside: nothing waits to be folded in."""
        ...

    def begin(self, tree: TreeArrays) -> None:
        """What all layers have to know of this step's trees."""
        ...

    def mix(self, layer: int, module: GatedDeltaNet, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Outputs [batch, nodes, value_heads, value_dim] of convolution inputs, decays and writing strengths."""
        ...

    def commit(self, walk: Walk) -> None:
        """Keep the accepted paths."""
        ...

    def tensors(self) -> list[Tensor]:
        """Everything that one step leaves for the next."""
        ...


class TreeMemories:
    """Verification of trees by the masked PyTorch form or the fused kernels, with the lagged commit.

    Args:
        layers: number of Gated DeltaNet layers.
        nodes: rows of a tree, the root included.
        rows: of an accepted path.
    """

    def __init__(
        self, config: DeltaNetConfig, layers: int, batch: int, nodes: int, rows: int, implementation: str,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        self._config, self._fused, self._max_depth = config, is_fused(implementation), rows - 1
        wide = torch.promote_types(dtype, torch.float32)
        heads, values, keys, channels = (
            config.value_heads, config.value_dim, config.key_dim, config.convolution_channels
        )  # fmt: skip
        path = step.BLOCK * -(-rows // step.BLOCK)

        def zeros(*shape: int, dtype: torch.dtype = wide) -> Tensor:
            return torch.zeros(layers, batch, *shape, dtype=dtype, device=device)

        self.states, self.windows = (
            zeros(heads, values, keys),
            zeros(config.convolution_width - 1, channels, dtype=dtype),
        )
        self._slots = torch.arange(batch, dtype=torch.int32, device=device)
        self._inputs = zeros(nodes, channels, dtype=dtype)
        self._stash = Stash(
            zeros(nodes, config.key_heads, keys, dtype=dtype), zeros(heads, nodes, values), zeros(heads, nodes),
            zeros(heads, nodes),
        )  # fmt: skip
        self._pending = Pending(
            zeros(path, config.key_heads, keys, dtype=dtype), zeros(heads, path, values), zeros(heads, path),
            zeros(heads) + 1, zeros(dtype=torch.int32),
        )  # fmt: skip
        self._tree: TreeArrays | None = None
        self._layout: TreeLayout | None = None

    def reset(self) -> None:
        for tensor in self._pending:
            tensor.zero_()
        self._pending.decay.fill_(1)

    def begin(self, tree: TreeArrays) -> None:
        self._tree = tree
        width = self._config.convolution_width
        if self._fused:
            parents = tree.parents.to(torch.int32)
            self._layout = step.tree_layout(parents, max_depth=self._max_depth, width=width, impl="triton")
        else:
            taps = convolution_taps(tree, width).to(torch.int32)
            nothing = taps[:, :0]
            self._layout = TreeLayout(tree.parents.to(torch.int32), nothing, nothing, taps)

    def mix(self, layer: int, module: GatedDeltaNet, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        assert self._layout is not None
        assert self._tree is not None
        config, weight = self._config, module.conv1d.weight.squeeze(1)
        self._inputs[layer].copy_(x)
        mixed = convolve_trees(
            x, weight, self.windows[layer], self._slots, self._layout, impl="triton" if self._fused else "reference"
        )
        width = config.key_heads * config.key_dim
        query, key, value = mixed.split([width, width, config.value_heads * config.value_dim], dim=-1)
        query, key = (part.unflatten(-1, (config.key_heads, -1)) for part in (query, key))
        value = value.unflatten(-1, (config.value_heads, -1))
        pool, pending = StatePool(self.states[layer], self._slots), Pending(*(x[layer] for x in self._pending))
        into = Stash(*(part[layer] for part in self._stash))
        into.key.copy_(key)
        if self._fused:
            return step.tree_step(
                query, key, value, a, b, module.A_log, module.dt_bias, self._layout, pool, pending, into=into,
                impl="triton",
            )[0]  # fmt: skip
        output, stash = masked_tree_step(
            query, key, value, a, b, module.A_log, module.dt_bias, self._tree.ancestors, pool, pending
        )
        for mine, new in zip(into[1:], stash[1:], strict=True):
            mine.copy_(new)
        return output

    def commit(self, walk: Walk) -> None:
        accepted = walk.accepted.to(torch.int32)
        accepted = F.pad(accepted, (0, self._pending.weight.shape[-1] - accepted.shape[1]), value=-1)
        if self._fused:
            for mine, new in zip(self._pending, step.accept_path(self._stash, accepted, impl="triton"), strict=True):
                mine.copy_(new)
            commit_windows(self._inputs, self.windows, self._slots, accepted, impl="triton")
            return
        for layer in range(len(self.states)):
            new = step.accept_path(Stash(*(part[layer] for part in self._stash)), accepted)
            for mine, part in zip(self._pending, new, strict=True):
                mine[layer].copy_(part)
        commit_windows_masked(self._inputs, self.windows, walk.path, walk.emitted)

    def tensors(self) -> list[Tensor]:
        return [self.states, self.windows, *self._pending]


class PlainMemories:
    """One token per step, committed at once: plain decoding.

    Args:
        token: :func:`tfm_lab.gdn.step_masked.plain_token`, perhaps compiled.
    """

    def __init__(
        self, config: DeltaNetConfig, layers: int, batch: int, dtype: torch.dtype, device: torch.device,
        token: "PlainToken" = plain_token,
    ) -> None:  # fmt: skip
        self._config, self._token = config, token
        wide = torch.promote_types(dtype, torch.float32)
        shape = (layers, batch, config.value_heads, config.value_dim, config.key_dim)
        self.states = torch.zeros(shape, dtype=wide, device=device)
        rows = (layers, batch, config.convolution_width - 1, config.convolution_channels)
        self.windows = torch.zeros(rows, dtype=dtype, device=device)

    def reset(self) -> None:
        return

    def begin(self, tree: TreeArrays) -> None:
        return

    def mix(self, layer: int, module: GatedDeltaNet, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return self._token(
            x[:, 0], a[:, 0], b[:, 0], module.conv1d.weight.squeeze(1), module.A_log, module.dt_bias,
            self.windows[layer], self.states[layer], self._config.key_heads,
        )[:, None]  # fmt: skip

    def commit(self, walk: Walk) -> None:
        return

    def tensors(self) -> list[Tensor]:
        return [self.states, self.windows]


class PlainToken(Protocol):
    """The call shape of :func:`tfm_lab.gdn.step_masked.plain_token`."""

    def __call__(
        self, x: Tensor, a: Tensor, b: Tensor, weight: Tensor, A_log: Tensor, dt_bias: Tensor, window: Tensor,
        states: Tensor, key_heads: int, /,
    ) -> Tensor: ...  # fmt: skip
