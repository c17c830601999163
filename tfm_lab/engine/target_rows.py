"""The target on the rows of a step: one pass over fused weights against static caches."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm_lab.engine import pointwise
from tfm_lab.engine.attention import Attend, Visible
from tfm_lab.engine.fusing_weights import fuse
from tfm_lab.engine.memories import Memories
from tfm_lab.engine.pointwise import Fusing
from tfm_lab.engine.tree_arrays import Walk
from tfm_lab.models.target import DecoderLayer, TargetModel


class RowOutputs(NamedTuple):
    """What the target says about every row.

    Attributes:
        hidden: after the final norm.
        taps: outputs of the tap layers side by side.
    """

    hidden: Tensor
    taps: Tensor


class TargetRows:
    """Fused weights of a target, its key/value cache and its memories.

    Args:
        capacity: rows of the cache per request.
        memories: of the Gated DeltaNet layers; ``None`` for a target without them.
        attend: how to compute attention.
        fusing: compiles what stands between the products.
        taps: layers whose outputs the drafter reads.
    """

    def __init__(
        self, target: TargetModel, batch: int, capacity: int, memories: Memories | None, attend: Attend,
        fusing: Fusing, taps: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.target, self.config, self.memories, self.attend = target, target.config, memories, attend
        self._taps = taps
        self.layers = [layer for layer in target.model.layers if isinstance(layer, DecoderLayer)]
        self.inputs, self.ups = [], []
        for layer in self.layers:
            inputs, ups = fuse_layer(layer)
            self.inputs.append(inputs)
            self.ups.append(ups)
        config, attention_layers = self.config, sum(not layer.is_linear for layer in self.layers)
        self.groups = config.attention_heads // config.key_value_heads
        shape = (attention_layers, 2, batch, capacity, config.key_value_heads, config.head_dim)
        self.cache = torch.zeros(shape, dtype=target.dtype, device=target.device)
        self._request = torch.arange(batch, device=target.device)[:, None]
        self._angles = fusing(pointwise.angles)
        self._norm, self._add_norm = fusing(pointwise.norm), fusing(pointwise.add_norm)
        self._gated, self._gated_norm = fusing(pointwise.gated), fusing(pointwise.gated_norm)
        self._gated_inputs = fusing(pointwise.gated_attention_inputs)
        self._plain_inputs = fusing(pointwise.plain_attention_inputs)
        self._ungrouped, self._ungrouped_gated = fusing(pointwise.ungrouped), fusing(pointwise.ungrouped_gated)

    def run(self, tokens: Tensor, positions: Tensor, rows: Tensor, visible: Visible) -> RowOutputs:
        """One pass over all rows.

        Args:
            tokens: [batch, nodes].
            positions: of the nodes in the text, [batch, nodes].
            rows: of the cache that take the nodes' keys and values, [batch, nodes].
            visible: who sees whom.
        """
        config = self.config
        angles = self._angles(positions, config.rotary_dim, config.rope_theta, self.target.dtype)
        x = self.target.model.embed_tokens(tokens)
        delta: Tensor | None = None
        tapped: dict[int, Tensor] = {}
        memory = attention = 0
        for index, layer in enumerate(self.layers):
            first, second = layer.input_layernorm, layer.post_attention_layernorm
            if delta is None:
                normed = self._norm(x, first.weight, first.epsilon, first.zero_centred)
            else:
                x, normed = self._add_norm(x, delta, first.weight, first.epsilon, first.zero_centred)
            if index - 1 in self._taps:
                tapped[index - 1] = x
            projected = F.linear(normed, self.inputs[index])
            if layer.is_linear:
                mixed = self.mix(memory, layer, projected)
                memory += 1
            else:
                mixed = self.attend_rows(attention, layer, projected, angles, rows, visible)
                attention += 1
            x, normed = self._add_norm(x, mixed, second.weight, second.epsilon, second.zero_centred)
            delta = layer.mlp.down_proj(self._gated(F.linear(normed, self.ups[index])))
        assert delta is not None
        last = self.target.model.norm
        x, hidden = self._add_norm(x, delta, last.weight, last.epsilon, last.zero_centred)
        tapped[len(self.layers) - 1] = x
        taps = torch.cat([tapped[layer] for layer in self._taps], dim=-1) if self._taps else x[..., :0]
        return RowOutputs(hidden, taps)

    def mix(self, memory: int, layer: DecoderLayer, projected: Tensor) -> Tensor:
        """A Gated DeltaNet layer behind its fused projection."""
        module = layer.linear_attn
        heads, config = module.config.value_heads, module.config
        sizes = [config.convolution_channels, heads * config.value_dim, heads, heads]
        inputs, gate, b, a = projected.split(sizes, dim=-1)
        assert self.memories is not None
        output = self.memories.mix(memory, module, inputs, a, b)
        gate = gate.unflatten(-1, (heads, config.value_dim))
        return module.out_proj(self._gated_norm(output, gate, module.norm.weight, module.norm.epsilon))

    def attend_rows(
        self, index: int, layer: DecoderLayer, projected: Tensor, angles: tuple[Tensor, Tensor], rows: Tensor,
        visible: Visible,
    ) -> Tensor:  # fmt: skip
        """An attention layer behind its fused projection; keys and values of the nodes go into the cache."""
        module, shared, gate = layer.self_attn, self.config.key_value_heads, None
        if module.is_gated:
            norms = module.q_norm.weight, module.k_norm.weight, module.q_norm.epsilon
            query, keys_values, gate = self._gated_inputs(projected, *norms, *angles, shared)
        else:
            query, keys_values = self._plain_inputs(projected, *angles, shared, self.config.head_dim)
        cache = self.cache[index]
        cache[:, self._request, rows] = keys_values
        attended = self.attend(query, cache[0], cache[1], visible)
        if gate is None:
            return module.o_proj(self._ungrouped(attended, projected.shape[1]).flatten(-2))
        return module.o_proj(self._ungrouped_gated(attended, gate))

    def commit(self, walk: Walk, length: Tensor) -> None:
        """Keep the accepted paths: cache rows move up behind the committed ones, memories keep the path.

        What is copied behind the end of a path lies behind the committed rows, where the next tree overwrites it.
        """
        rows = walk.path.shape[1]
        if rows > 1:  # a root alone stands where it belongs
            target = length[:, None] + torch.arange(rows, device=length.device)
            source = length[:, None] + walk.path
            self.cache[:, :, self._request, target] = self.cache[:, :, self._request, source]
        if self.memories is not None:
            self.memories.commit(walk)


def fuse_layer(layer: DecoderLayer) -> tuple[Tensor, Tensor]:
    """The fused matrices behind a layer's two norms: of the token mixer and of the MLP."""
    if layer.is_linear:
        delta = layer.linear_attn
        mixer = [delta.in_proj_qkv, delta.in_proj_z, delta.in_proj_b, delta.in_proj_a]
    else:
        attention = layer.self_attn
        mixer = [attention.q_proj, attention.k_proj, attention.v_proj]
    return fuse(mixer), fuse([layer.mlp.gate_proj, layer.mlp.up_proj])
