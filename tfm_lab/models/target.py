"""The target (verifier): a Qwen3.5-style hybrid or a llama that prefills, verifies draft trees and commits paths.

The module tree carries the parameter names of Hugging Face checkpoints. ``forward``, ``features`` and ``extend`` work
on batches; ``prefill``, ``verify_tree`` and ``commit`` are the decoding interface for one text.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tfm_lab import gdn
from tfm_lab.gdn.step import StepImplementation, TreeLayout, check_step, is_triton, tree_layout
from tfm_lab.models.attention import TargetAttention
from tfm_lab.models.config import LINEAR_ATTENTION, TargetConfig
from tfm_lab.models.delta_net import GatedDeltaNet
from tfm_lab.models.fingerprint import fingerprint
from tfm_lab.models.layers import GatedMLP, RMSNorm, Rotary, grouped_mask
from tfm_lab.models.packing import Packable, Packed, pack_weights
from tfm_lab.models.state import (
    AttentionState,
    AttentionWrites,
    LayerState,
    LayerWrites,
    PendingWrites,
    TargetState,
)
from tfm_lab.tree import DraftTree


class Features(NamedTuple):
    """Hidden states of a batch of texts.

    Attributes:
        hidden: after the final norm.
        taps: outputs of the tap layers, concatenated in the order asked for.
    """

    hidden: Float[Tensor, "batch tokens channels"]
    taps: Float[Tensor, "batch tokens features"]


class Prefilled(NamedTuple):
    """A prompt, processed: the state behind it, and the logits and final hidden state of its last token."""

    state: TargetState
    logits: Float[Tensor, " vocab"]
    hidden: Float[Tensor, " channels"]
    taps: Float[Tensor, "tokens features"]


class TreeOutputs(NamedTuple):
    """The target's view of a draft tree: row i belongs to node i, given the committed text and the path to i."""

    logits: Float[Tensor, "nodes vocab"]
    hidden: Float[Tensor, "nodes channels"]
    taps: Float[Tensor, "nodes features"]
    pending: PendingWrites


class DecoderLayer(nn.Module):
    """Token mixer and MLP, each behind a norm and a residual connection."""

    def __init__(self, config: TargetConfig, kind: str) -> None:
        super().__init__()
        self.is_linear = kind == LINEAR_ATTENTION
        if self.is_linear:
            assert config.delta_net is not None
            self.linear_attn = GatedDeltaNet(config.hidden_size, config.rms_norm_epsilon, config.delta_net)
        else:
            self.self_attn = TargetAttention(config)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        zero_centred = config.is_hybrid
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_epsilon, zero_centred=zero_centred)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_epsilon, zero_centred=zero_centred)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        normed = self.input_layernorm(x)
        return self._mlp(x + (self.linear_attn(normed) if self.is_linear else self.self_attn(normed, rotary)))

    def extend(self, x: Tensor, rotary: Rotary, state: LayerState, length: int) -> tuple[Tensor, LayerState]:
        normed = self.input_layernorm(x)
        if isinstance(state, AttentionState):
            mixed, new_state = self.self_attn.extend(normed, rotary, state, length)
        else:
            mixed, new_state = self.linear_attn.extend(normed, state)
        return self._mlp(x + mixed), new_state

    def verify(
        self, x: Tensor, rotary: Rotary, geometry: "TreeGeometry", state: LayerState, length: int
    ) -> tuple[Tensor, LayerWrites]:
        normed = self.input_layernorm(x)
        if isinstance(state, AttentionState):
            mixed, writes = self.self_attn.verify(normed, rotary, geometry.mask, state, length)
        elif geometry.layout is not None:
            mixed, writes = self.linear_attn.verify_by_kernels(normed, geometry.layout, state)
        else:
            mixed, writes = self.linear_attn.verify(normed, geometry.ancestors, geometry.convolution_ancestors, state)
        return self._mlp(x + mixed), writes

    def commit(self, state: LayerState, writes: LayerWrites, path: Tensor, length: int) -> LayerState:
        if isinstance(state, AttentionState) and isinstance(writes, AttentionWrites):
            return self.self_attn.commit(state, writes, path, length)
        assert not isinstance(state, AttentionState)
        assert not isinstance(writes, AttentionWrites)
        return self.linear_attn.commit(state, writes, path)

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> LayerState:
        return (self.linear_attn if self.is_linear else self.self_attn).empty_state(batch, dtype, device)

    def _mlp(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.post_attention_layernorm(x))


class TreeGeometry(NamedTuple):
    """What every layer has to know of a tree; computed once per verification.

    Attributes:
        layout: for the tree kernels; ``None`` without them.
    """

    ancestors: Tensor
    convolution_ancestors: Tensor
    mask: Tensor
    layout: TreeLayout | None


class Backbone(nn.Module):
    """Embedding, layers and final norm (the ``model.`` part of a checkpoint)."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, kind) for kind in config.layer_types)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_epsilon, zero_centred=config.is_hybrid)


class TargetModel(Packable):
    """A target of either architecture. Weights may have any floating dtype; gates and recurrent states are float32 up.

    Args:
        config: the model's shape.
    """

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = None if config.tie_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._packed_head: Packed | None = None
        self._tree_kernels: StepImplementation = "reference"

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed_tokens.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    @property
    def head_weight(self) -> Float[Tensor, "vocab channels"]:
        """Rows of the output head; the embedding itself where the checkpoint ties them."""
        return self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def use_kernels(self, implementation: StepImplementation) -> None:
        """Choose what the Gated DeltaNet layers verify trees with: PyTorch, or the fused Triton kernels.

        The kernels overwrite states: after a commit only the newest one can be used
        (:mod:`tfm_lab.models.delta_net_pool`). Prefills and plain decoding take PyTorch in either case.

        Raises:
            ValueError: if this target has no such layers, or the kernels cannot take its head sizes, dtype or device.
            ModuleNotFoundError: if Triton is not installed.
        """
        if is_triton(implementation):
            heads = self.config.delta_net
            if heads is None:
                raise ValueError("this target has no Gated DeltaNet layers, so there is nothing for the tree kernels")
            check_step(heads.key_dim, heads.value_dim, self.dtype, self.device)
        self._tree_kernels = implementation

    def logits(self, hidden: Float[Tensor, "*rows channels"]) -> Float[Tensor, "*rows vocab"]:
        if self._packed_head is not None and self._packed_head.takes(hidden):
            return self._packed_head(hidden)[0]
        return nn.functional.linear(hidden, self.head_weight)

    def pack_layers(self) -> None:
        self._packed_head = pack_weights([self.head_weight])

    def forward(self, tokens: Int[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens vocab"]:
        """Logits after every token of whole texts."""
        return self.logits(self.features(tokens).hidden)

    def features(self, tokens: Int[Tensor, "batch tokens"], tap_layers: Sequence[int] = ()) -> Features:
        """Hidden states of whole texts, each from an empty state. Differentiable."""
        x = self.model.embed_tokens(tokens)
        rotary = self._rotary(torch.arange(tokens.shape[1], device=tokens.device))
        outputs = []
        for layer in self.model.layers:
            x = layer(x, rotary)
            outputs.append(x)
        return Features(self.model.norm(x), _taps(outputs, tap_layers, x))

    def empty_state(self, batch: int = 1) -> TargetState:
        return TargetState(0, tuple(layer.empty_state(batch, self.dtype, self.device) for layer in self._layers))

    @torch.no_grad()
    def extend(
        self, tokens: Int[Tensor, "batch tokens"], state: TargetState, tap_layers: Sequence[int] = ()
    ) -> tuple[Features, TargetState]:
        """Process and commit new tokens of a batch of equally long texts, all at once.

        Raises:
            ValueError: if the text would outgrow the context.
        """
        length = state.length
        self._check_positions(length + tokens.shape[1])
        x = self.model.embed_tokens(tokens)
        rotary = self._rotary(length + torch.arange(tokens.shape[1], device=self.device))
        outputs, states = [], []
        for layer, layer_state in zip(self._layers, state.layers, strict=True):
            x, new_state = layer.extend(x, rotary, layer_state, length)
            outputs.append(x)
            states.append(new_state)
        new_state = TargetState(length + tokens.shape[1], tuple(states))
        return Features(self.model.norm(x), _taps(outputs, tap_layers, x)), new_state

    @torch.no_grad()
    def prefill(self, prompt: Sequence[int], tap_layers: Sequence[int] = (), chunk: int = 512) -> Prefilled:
        """Process a prompt in chunks of at most ``chunk`` tokens.

        Raises:
            ValueError: if the prompt is empty, longer than the context, or holds an unknown token id.
        """
        if not prompt:
            raise ValueError("the prompt is empty; give at least one token (a start-of-text token will do)")
        self._check_positions(len(prompt))
        tokens = torch.tensor([self._checked(prompt)], device=self.device)
        state, pieces = self.empty_state(), []
        for piece in tokens.split(max(1, chunk), dim=1):
            features, state = self.extend(piece, state, tap_layers)
            pieces.append(features)
        hidden = pieces[-1].hidden[0, -1]
        return Prefilled(state, self.logits(hidden), hidden, torch.cat([features.taps[0] for features in pieces]))

    @torch.no_grad()
    def verify_tree(self, state: TargetState, tree: DraftTree, tap_layers: Sequence[int] = ()) -> TreeOutputs:
        """One forward pass over all nodes of a tree below the committed text; ``state`` is left as it is.

        A node of depth d sits at position ``state.length + d``.

        Raises:
            ValueError: if the tree reaches past the context or holds an unknown token id.
        """
        length = state.length
        self._check_positions(length + tree.max_depth + 1)
        rows = tuple(range(len(tree)))
        parents = tuple(tree.parents.tolist())
        if by_kernels := is_triton(self._tree_kernels):
            order = tree.preorder()
            rows = tuple(sorted(rows, key=order.__getitem__))
            tree = tree.reordered(order)
        tokens = torch.tensor(self._checked(tree.tokens.tolist()), device=self.device)
        rotary = self._rotary(length + tree.depths.to(self.device))
        geometry = self._geometry(tree, length)
        x = self.model.embed_tokens(tokens)[None]
        outputs, writes = [], []
        for layer, layer_state in zip(self._layers, state.layers, strict=True):
            x, layer_writes = layer.verify(x, rotary, geometry, layer_state, length)
            outputs.append(x)
            writes.append(layer_writes)
        hidden, taps = self.model.norm(x)[0], _taps(outputs, tap_layers, x)[0]
        if by_kernels:
            index = torch.tensor(rows, device=self.device)
            hidden, taps = hidden[index], taps[index]
        return TreeOutputs(self.logits(hidden), hidden, taps, PendingWrites(state, parents, tuple(writes), rows))

    @torch.no_grad()
    def commit(self, state: TargetState, pending: PendingWrites, path: Sequence[int]) -> TargetState:
        """The state after the nodes on ``path``: the root first, each node the parent of the next.

        Raises:
            ValueError: if ``path`` is not such a path, or ``pending`` belongs to another state.
        """
        if pending.verified is not state:
            raise ValueError(
                f"these writes belong to another state (of length {pending.verified.length}, this one has "
                f"{state.length}); commit to the state that was verified"
            )
        if not path or path[0] != 0 or any(not 0 <= node < len(pending.parents) for node in path):
            raise ValueError(f"a path to commit starts at the root and stays in the tree, got {list(path)}")
        for parent, node in pairwise(path):
            if pending.parents[node] != parent:
                raise ValueError(f"node {node} is not a child of node {parent}; a path descends one edge at a time")
        index = torch.tensor([pending.rows[node] for node in path], device=self.device)
        layers = [
            layer.commit(layer_state, writes, index, state.length)
            for layer, layer_state, writes in zip(self._layers, state.layers, pending.layers, strict=True)
        ]
        return TargetState(state.length + len(path), tuple(layers))

    def fingerprint(self) -> str:
        """Identity of config and weights: a drafter records that of the target it was trained for."""
        return fingerprint(self, self.config)

    def _geometry(self, tree: DraftTree, length: int) -> TreeGeometry:
        width = self.config.delta_net.convolution_width if self.config.delta_net else 2
        ancestors = tree.ancestors().to(self.device)
        visible = torch.cat([ancestors.new_ones(len(tree), length), ancestors], dim=1)
        layout = None
        if is_triton(self._tree_kernels):
            parents = tree.parents.to(self.device, torch.int32)[None]
            layout = tree_layout(parents, max_depth=tree.max_depth, width=width, impl="triton")
        return TreeGeometry(
            ancestors,
            gdn.convolution_ancestors(tree.parents, width).to(self.device),
            grouped_mask(visible, self.config.attention_heads // self.config.key_value_heads, self.dtype),
            layout,
        )

    @property
    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.model.layers if isinstance(layer, DecoderLayer)]

    def _rotary(self, positions: Tensor) -> Rotary:
        return Rotary(positions, self.config.rotary_dim, self.config.rope_theta, self.dtype)

    def _check_positions(self, length: int) -> None:
        if length > self.config.max_positions:
            raise ValueError(
                f"{length} tokens do not fit the target's context of {self.config.max_positions}; shorten the prompt"
            )

    def _checked(self, tokens: Sequence[int]) -> list[int]:
        for token in tokens:
            if not 0 <= token < self.config.vocab_size:
                raise ValueError(f"token id {token} is not in the target's vocabulary of {self.config.vocab_size}")
        return list(tokens)


def _taps(outputs: list[Tensor], tap_layers: Sequence[int], like: Tensor) -> Tensor:
    return torch.cat([outputs[layer] for layer in tap_layers], dim=-1) if tap_layers else like[..., :0]
