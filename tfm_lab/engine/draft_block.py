"""The block drafter on the device: one pass over root and masks, and its context of committed positions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm_lab.engine import pointwise
from tfm_lab.engine.attention import TREE, Attend, Visible, attention_kinds, block_mask
from tfm_lab.engine.fusing_weights import fuse
from tfm_lab.engine.pointwise import Fusing
from tfm_lab.models.context_drafter import DrafterLayer
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.target import TargetModel


class DraftBlock:
    """Fused weights of a DFlash drafter and its context cache.

    Args:
        capacity: rows of the cache per request; the block's own rows need room behind the committed ones.
        attention: how to compute attention, a name of :func:`tfm_lab.engine.attention.attention_kinds`.
        fusing: compiles what stands between the products.
    """

    def __init__(
        self, drafter: FactorisedDrafter, target: TargetModel, batch: int, capacity: int, attention: str, fusing: Fusing
    ) -> None:
        self.drafter, self.config = drafter, drafter.config
        self.attend: Attend = attention_kinds(capacity)[attention]
        self._takes_mask = attention != TREE
        self._target = target
        self.layers = [layer for layer in drafter.layers if isinstance(layer, DrafterLayer)]
        fused = [fuse_draft_layer(layer) for layer in self.layers]
        self.inputs, self.ups = [inputs for inputs, _ in fused], [ups for _, ups in fused]
        config = self.config
        self.groups = config.attention_heads // config.key_value_heads
        shape = (len(self.layers), 2, batch, capacity, config.key_value_heads, config.head_dim)
        self.cache = torch.zeros(shape, dtype=target.dtype, device=target.device)
        self._request = torch.arange(batch, device=target.device)[:, None]
        self._block = torch.arange(config.block_size, device=target.device)
        self._all = torch.ones(batch, config.block_size, config.block_size, dtype=torch.bool, device=target.device)
        self._masks = torch.full((batch, config.block_size - 1), config.mask_token, device=target.device)
        self._angles = fusing(pointwise.angles)
        self._norm, self._add_norm = fusing(pointwise.norm), fusing(pointwise.add_norm)
        self._gated, self._ungrouped = fusing(pointwise.gated), fusing(pointwise.ungrouped)
        self._attention_inputs = fusing(pointwise.drafter_attention_inputs)
        self._block_mask = fusing(block_mask)
        self._keys_values = fusing(pointwise.drafter_keys_values)

    def propose(self, roots: Tensor, length: Tensor) -> Tensor:
        """Hidden states [batch, drafts, channels] of the places behind the roots, which sit at ``length``."""
        config = self.config
        rows = length[:, None] + self._block
        angles = self._angles(rows, config.head_dim, config.rope_theta, self.cache.dtype)
        mask = None
        if self._takes_mask:
            mask = self._block_mask(length, config.block_size, self.cache.shape[3], self.groups, self.cache.dtype)
        visible = Visible(length, self._all, mask)
        x = self._target.model.embed_tokens(torch.cat([roots[:, None], self._masks], dim=1))
        width = config.attention_heads * config.head_dim
        normed = self._norm(x, self.layers[0].input_layernorm.weight, config.rms_norm_epsilon, False)
        for index, layer in enumerate(self.layers):
            module, cache = layer.self_attn, self.cache[index]
            projected = F.linear(normed, self.inputs[index])
            query, keys_values = self._attention_inputs(
                projected[..., :width], projected[..., width:], module.q_norm.weight, module.k_norm.weight,
                config.rms_norm_epsilon, *angles, config.key_value_heads,
            )  # fmt: skip
            cache[:, self._request, rows] = keys_values
            attended = self.attend(query, cache[0], cache[1], visible)
            mixed = module.o_proj(self._ungrouped(attended, config.block_size).flatten(-2))
            x, normed = self._add_norm(x, mixed, layer.post_attention_layernorm.weight, config.rms_norm_epsilon, False)
            delta = layer.mlp.down_proj(self._gated(F.linear(normed, self.ups[index])))
            following = self.layers[index + 1].input_layernorm if index + 1 < len(self.layers) else self.drafter.norm
            x, normed = self._add_norm(x, delta, following.weight, config.rms_norm_epsilon, False)
        return normed[:, 1:]

    def extend(self, taps: Tensor, length: Tensor) -> None:
        """Context rows of the positions from ``length`` on, whose taps are [batch, rows, features]."""
        config, rows = self.config, length[:, None] + torch.arange(taps.shape[1], device=length.device)
        angles = self._angles(rows, config.head_dim, config.rope_theta, self.cache.dtype)
        fused = self._norm(self.drafter.fc(taps), self.drafter.hidden_norm.weight, config.rms_norm_epsilon, False)
        queries = config.attention_heads * config.head_dim
        for index, layer in enumerate(self.layers):
            projected = F.linear(fused, self.inputs[index][queries:])
            norm = layer.self_attn.k_norm.weight
            self.cache[index][:, self._request, rows] = self._keys_values(
                projected, norm, config.rms_norm_epsilon, *angles, config.key_value_heads
            )


def fuse_draft_layer(layer: DrafterLayer) -> tuple[Tensor, Tensor]:
    """The fused matrices behind a layer's two norms: queries, keys and values, and those of the MLP."""
    attention = layer.self_attn
    return fuse([attention.q_proj, attention.k_proj, attention.v_proj]), fuse([layer.mlp.gate_proj, layer.mlp.up_proj])
