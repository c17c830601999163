"""What the drafters share: a small transformer that looks at the target through *taps*.

Taps are outputs of a few target layers at the committed positions, fused to one context feature per position (DFlash,
arXiv 2602.06036, A.3). Every layer injects that feature into its keys and values; the features take no part in
queries, residuals or MLPs. Parameter names are those of published DFlash checkpoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfm_lab.models.config import DrafterConfig
from tfm_lab.models.fingerprint import fingerprint
from tfm_lab.models.layers import GatedMLP, RMSNorm, Rotary, attend, merge_heads, split_heads
from tfm_lab.models.packing import Packable, Packed, pack, product, products
from tfm_lab.models.state import KeyValueBuffer
from tfm_lab.models.target import TargetModel

KeyValues = tuple[Tensor, Tensor]


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


class DrafterAttention(Packable):
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
        self._packed_query: Packed | None = None
        self._packed_key_value: Packed | None = None
        self._packed_output: Packed | None = None

    def key_value(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Normed, rotated keys and plain values of context features or of block rows."""
        keys, values = products(x, self._packed_key_value, self.k_proj, self.v_proj)
        key = rotary.rotate(self.k_norm(split_heads(keys, self.key_value_heads)))
        return key, split_heads(values, self.key_value_heads)

    def forward(self, x: Tensor, rotary: Rotary, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        queries = product(x, self._packed_query, self.q_proj)
        query = rotary.rotate(self.q_norm(split_heads(queries, self.heads)))
        return product(merge_heads(attend(query, key, value, visible)), self._packed_output, self.o_proj)

    def pack_layers(self) -> None:
        self._packed_query, self._packed_key_value = pack(self.q_proj), pack(self.k_proj, self.v_proj)
        self._packed_output = pack(self.o_proj)


class DrafterLayer(nn.Module):
    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_epsilon)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_epsilon)

    def forward(self, x: Tensor, rotary: Rotary, seen: KeyValues, visible: Tensor) -> tuple[Tensor, KeyValues]:
        """The rows after this layer, and what they could see: ``seen`` followed by their own keys and values."""
        normed = self.input_layernorm(x)
        own = self.self_attn.key_value(normed, rotary)
        key, value = (torch.cat(pair, dim=2) for pair in zip(seen, own, strict=True))
        x = x + self.self_attn(normed, rotary, key, value, visible)
        return x + self.mlp(self.post_attention_layernorm(x)), (key, value)


class ContextDrafter(Packable):
    """Fusion, layers and context of a drafter. Embedding and output head are the target's, passed in where needed.

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
        self._packed_fusion: Packed | None = None

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
                    f"the target's is {target_has}; use a bundle that was made for this target, or decode plainly"
                )

    def fingerprint(self) -> str:
        """Identity of config and weights."""
        return fingerprint(self, self.config)

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
        rotary = self.rotary(context.length + torch.arange(taps.shape[0], device=taps.device))
        buffers = [
            buffer.append(context.length, *layer.self_attn.key_value(fused, rotary))
            for buffer, layer in zip(context.layers, self._layers, strict=True)
        ]
        return DraftContext(context.length + taps.shape[0], tuple(buffers))

    def read(self, taps: Float[Tensor, "batch tokens features"]) -> list[KeyValues]:
        """Keys and values of whole texts, one pair per layer: what the blocks of these texts may look at."""
        fused = self._fuse(taps)
        rotary = self.rotary(torch.arange(taps.shape[1], device=taps.device))
        return [layer.self_attn.key_value(fused, rotary) for layer in self._layers]

    def run(
        self, x: Float[Tensor, "batch rows channels"], rotary: Rotary, seen: Sequence[KeyValues], visible: Tensor
    ) -> tuple[Float[Tensor, "batch rows channels"], list[KeyValues]]:
        """Hidden states after the final norm, and per layer the keys and values of ``seen`` and of these rows."""
        extended: list[KeyValues] = []
        for layer, layer_seen in zip(self._layers, seen, strict=True):
            x, after = layer(x, rotary, layer_seen, visible)
            extended.append(after)
        return self.norm(x), extended

    def pack(
        self,
        embedded: Float[Tensor, "batch rows channels"],
        anchors: Int[Tensor, "batch blocks"],
        within: Bool[Tensor, "block block"],
        tokens: int,
    ) -> DraftBlocks:
        """Equally long blocks side by side: each sees the context before its anchor, and itself as ``within`` allows.

        Args:
            embedded: inputs of all blocks of a text, the first row of each at its anchor.
            tokens: length of the texts.
        """
        block, device = within.shape[0], anchors.device
        starts = anchors.repeat_interleave(block, dim=1)
        positions = starts + torch.arange(block, device=device).repeat(anchors.shape[1])
        context = torch.arange(tokens, device=device) < starts.unsqueeze(-1)
        own = torch.block_diag(*[within] * anchors.shape[1]).expand(len(anchors), -1, -1)
        return DraftBlocks(embedded, positions, torch.cat([context, own], dim=2).unsqueeze(1))

    @property
    def _layers(self) -> Sequence[DrafterLayer]:
        return [layer for layer in self.layers if isinstance(layer, DrafterLayer)]

    def _fuse(self, taps: Tensor) -> Tensor:
        return self.hidden_norm(product(taps, self._packed_fusion, self.fc))

    def pack_layers(self) -> None:
        self._packed_fusion = pack(self.fc)

    def rotary(self, positions: Int[Tensor, "*batch rows"]) -> Rotary:
        """Rotary embeddings for rows at these positions of the text."""
        return Rotary(positions, self.config.head_dim, self.config.rope_theta, self.fc.weight.dtype)
