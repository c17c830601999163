"""Layers that the target, the drafter and the Weaver share: norms, rotary positions, gated MLP, masked attention."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from tfm_lab.models.packing import Packable, Packed, pack, product, products


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 or wider.

    Args:
        size: number of channels.
        epsilon: added to the mean square.
        zero_centred: multiply by ``1 + weight`` (Qwen3.5) instead of ``weight`` (llama, qwen3).
        bias: add a learned bias after the weight (Weaver).
    """

    def __init__(self, size: int, epsilon: float, *, zero_centred: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.zero_centred = zero_centred
        self.weight = nn.Parameter(torch.zeros(size) if zero_centred else torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Float[Tensor, "*rows channels"]) -> Float[Tensor, "*rows channels"]:
        wide = at_least_float32(x)
        weight = self.weight.to(wide.dtype)
        normed = F.rms_norm(wide, weight.shape, 1.0 + weight if self.zero_centred else weight, self.epsilon)
        if self.bias is not None:
            normed = normed + self.bias.to(wide.dtype)
        return normed.to(x.dtype)


class GatedMLP(Packable):
    """SwiGLU: ``down(silu(gate(x)) * up(x))``, no biases."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)
        self._packed_inputs: Packed | None = None
        self._packed_down: Packed | None = None

    def forward(self, x: Float[Tensor, "*rows channels"]) -> Float[Tensor, "*rows channels"]:
        gate, up = products(x, self._packed_inputs, self.gate_proj, self.up_proj)
        return product(F.silu(gate) * up, self._packed_down, self.down_proj)

    def pack_layers(self) -> None:
        self._packed_inputs, self._packed_down = pack(self.gate_proj, self.up_proj), pack(self.down_proj)


class Rotary:
    """Cosines and sines of rotary position embeddings for a set of positions (2104.09864).

    The first ``rotary_dim`` channels of a head are rotated in pairs (i, i + rotary_dim / 2); the rest pass through.
    Angles are computed in float32 whatever the model's dtype, float64 for a float64 model.
    """

    def __init__(self, positions: Int[Tensor, "*rows"], rotary_dim: int, theta: float, dtype: torch.dtype) -> None:
        wide = torch.promote_types(dtype, torch.float32)
        exponents = torch.arange(0, rotary_dim, 2, device=positions.device, dtype=wide) / rotary_dim
        angles = positions.to(wide).unsqueeze(-1) * theta**-exponents
        self.rotary_dim = rotary_dim
        cosines, sines = angles.cos().to(dtype), angles.sin().to(dtype)
        self.cosines = torch.cat([cosines, cosines], dim=-1).unsqueeze(-3)
        self.sines = torch.cat([-sines, sines], dim=-1).unsqueeze(-3)

    def rotate(self, x: Float[Tensor, "*rows heads tokens size"]) -> Float[Tensor, "*rows heads tokens size"]:
        """Rotate heads; ``positions`` must broadcast against [..., tokens], one axis short of ``x``'s heads."""
        pairs, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        partners = pairs.roll(self.rotary_dim // 2, dims=-1)
        rotated = torch.addcmul(pairs * self.cosines, partners, self.sines)
        return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated


def split_heads(x: Float[Tensor, "*rows tokens channels"], heads: int) -> Float[Tensor, "*rows heads tokens size"]:
    """[..., tokens, heads * size] -> [..., heads, tokens, size]."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def merge_heads(x: Float[Tensor, "*rows heads tokens size"]) -> Float[Tensor, "*rows tokens channels"]:
    """[..., heads, tokens, size] -> [..., tokens, heads * size]."""
    return x.transpose(-3, -2).flatten(-2)


def attend(
    query: Float[Tensor, "batch heads queries size"],
    key: Float[Tensor, "batch shared keys size"],
    value: Float[Tensor, "batch shared keys size"],
    visible: Bool[Tensor, "#batch 1 queries keys"] | None,
) -> Float[Tensor, "batch heads queries size"]:
    """Softmax attention with scale 1/sqrt(size); groups of query heads share a key/value head.

    Query heads of one group become further queries of their key/value head, so that keys are read once and not once
    per head; and no kernel has to know about groups, which those for masks do not.

    Args:
        visible: True where a query may see a key, the same for all heads; ``None`` means causal attention over equally
            many queries and keys, and for a single query that it sees every key.
    """
    groups = query.shape[1] // key.shape[1]
    if visible is None and query.shape[2] > 1:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=groups > 1)
    if groups == 1:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
    return attend_in_groups(query, key, value, None if visible is None else visible.repeat(1, 1, groups, 1))


def attend_in_groups(
    query: Float[Tensor, "batch heads queries size"],
    key: Float[Tensor, "batch shared keys size"],
    value: Float[Tensor, "batch shared keys size"],
    mask: Shaped[Tensor, "#batch 1 rows keys"] | None,
) -> Float[Tensor, "batch heads queries size"]:
    """:func:`attend` with a mask that was made for all layers at once.

    Args:
        mask: of the queries, repeated for every query head of a group: see :func:`grouped_mask`.
    """
    groups = query.shape[1] // key.shape[1]
    rows = query.unflatten(1, (key.shape[1], groups)).flatten(2, 3)
    attended = F.scaled_dot_product_attention(rows, key, value, attn_mask=mask)
    return attended.unflatten(2, (groups, -1)).flatten(1, 2)


def grouped_mask(
    visible: Bool[Tensor, "queries keys"], groups: int, dtype: torch.dtype
) -> Float[Tensor, "1 1 rows keys"]:
    """What to add to attention scores: zero where a query may see a key, minus infinity elsewhere."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))
    return mask.repeat(groups, 1)[None, None]


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` in float32, or unchanged if it is wider already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
