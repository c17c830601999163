"""Model shapes, read from and written to ordinary Hugging Face ``config.json`` files.

Unknown or unsupported settings raise: a config that is half understood gives a model that is silently wrong.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LINEAR_ATTENTION = "linear_attention"
FULL_ATTENTION = "full_attention"
TARGET_TYPES = {"qwen3_5_text": "Qwen3_5ForCausalLM", "llama": "LlamaForCausalLM"}


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """Head layout of the Gated DeltaNet layers."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution_width: int

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise ValueError(
                f"a Gated DeltaNet layer needs a multiple of {self.key_heads} value heads (its key heads), "
                f"got {self.value_heads}"
            )
        if self.convolution_width < 2:
            raise ValueError(f"the short convolution must be at least 2 wide, got {self.convolution_width}")

    @property
    def convolution_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """A decoder-only target: the Qwen3.5/3.6 text hybrid or a llama.

    Attributes:
        model_type: ``qwen3_5_text`` or ``llama``; fixes norm, attention gate and query/key norms.
        layer_types: one of ``linear_attention`` (Gated DeltaNet) and ``full_attention`` for every layer.
        rotary_dim: leading dimensions of each head that are rotated.
        max_positions: longest sequence, prompt included.
        stop_tokens: token ids that end a text.
        delta_net: head layout of the linear layers; ``None`` if there are none.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    attention_heads: int
    key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_epsilon: float
    max_positions: int
    tie_embeddings: bool
    stop_tokens: tuple[int, ...] = ()
    delta_net: DeltaNetConfig | None = None

    def __post_init__(self) -> None:
        if self.model_type not in TARGET_TYPES:
            raise ValueError(f"target type {self.model_type!r} is not supported; use one of {', '.join(TARGET_TYPES)}")
        if not self.layer_types:
            raise ValueError("a target needs at least one layer")
        for kind in self.layer_types:
            if kind not in (LINEAR_ATTENTION, FULL_ATTENTION):
                raise ValueError(f"layer type {kind!r} is not supported; use {LINEAR_ATTENTION} or {FULL_ATTENTION}")
        if LINEAR_ATTENTION in self.layer_types and self.delta_net is None:
            raise ValueError("a target with linear_attention layers needs the head layout of its Gated DeltaNet")
        if self.attention_heads % self.key_value_heads:
            raise ValueError(
                f"{self.attention_heads} attention heads cannot be shared by {self.key_value_heads} key/value heads"
            )
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise ValueError(
                f"rotary_dim must be even and at most the head size {self.head_dim}, got {self.rotary_dim}"
            )

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    @property
    def is_hybrid(self) -> bool:
        """True for the Qwen3.5 text architecture (gated attention, zero-centred norms, query/key norms)."""
        return self.model_type == "qwen3_5_text"

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> "TargetConfig":
        """Read a ``config.json`` as written by transformers (also the text part of a vision-language wrapper).

        Raises:
            ValueError: for another architecture, or a setting that this implementation does not have.
        """
        if config.get("model_type") == "qwen3_5" and "text_config" in config:
            text = dict(config["text_config"])
            text.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", False))
            return cls.from_hugging_face(text)
        model_type = config.get("model_type")
        if model_type not in TARGET_TYPES:
            raise ValueError(f"target type {model_type!r} is not supported; use one of {', '.join(TARGET_TYPES)}")
        _refuse_unsupported(config)
        heads, hidden = _need(config, "num_attention_heads"), _need(config, "hidden_size")
        head_dim = config.get("head_dim") or hidden // heads
        rope = _rope(config)
        is_hybrid = model_type == "qwen3_5_text"
        rotary_fraction = rope.get(
            "partial_rotary_factor", config.get("partial_rotary_factor", 0.25 if is_hybrid else 1.0)
        )
        layer_types = _layer_types(config, is_hybrid)
        return cls(
            model_type=model_type,
            vocab_size=_need(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_need(config, "intermediate_size"),
            layer_types=layer_types,
            attention_heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            rotary_dim=int(head_dim * rotary_fraction),
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            rms_norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
            max_positions=_need(config, "max_position_embeddings"),
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            stop_tokens=_stop_tokens(config.get("eos_token_id")),
            delta_net=_delta_net(config) if LINEAR_ATTENTION in layer_types else None,
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The ``config.json`` that transformers reads as the same model."""
        config: dict[str, Any] = {
            "architectures": [TARGET_TYPES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.attention_heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_epsilon,
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": self.tie_embeddings,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "eos_token_id": list(self.stop_tokens) or None,
            "dtype": "bfloat16",
        }
        if self.is_hybrid:
            config["layer_types"] = list(self.layer_types)
            config["rope_parameters"]["partial_rotary_factor"] = self.rotary_dim / self.head_dim
        if self.delta_net is not None:
            config |= {
                "linear_num_key_heads": self.delta_net.key_heads,
                "linear_num_value_heads": self.delta_net.value_heads,
                "linear_key_head_dim": self.delta_net.key_dim,
                "linear_value_head_dim": self.delta_net.value_dim,
                "linear_conv_kernel_dim": self.delta_net.convolution_width,
            }
        return config


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A DFlash drafter (arXiv 2602.06036): a small transformer that drafts a whole block in one pass.

    Attributes:
        tap_layers: target layers whose outputs are fused into the context features.
        target_layers: number of layers of the target it was trained for.
        block_size: block length, root included; a block of 16 drafts 15 tokens.
        mask_token: token id that stands for a position still to be drafted.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_epsilon: float
    max_positions: int
    target_layers: int
    tap_layers: tuple[int, ...]
    mask_token: int
    block_size: int = 16

    def __post_init__(self) -> None:
        if self.block_size < 2:
            raise ValueError(f"block_size must hold the root and at least one draft, got {self.block_size}")
        if not self.tap_layers or any(not 0 <= layer < self.target_layers for layer in self.tap_layers):
            raise ValueError(
                f"tap layers {list(self.tap_layers)} must name layers of a target with {self.target_layers} layers"
            )
        if not 0 <= self.mask_token < self.vocab_size:
            raise ValueError(f"mask token {self.mask_token} is not in a vocabulary of {self.vocab_size} tokens")
        if self.attention_heads % self.key_value_heads:
            raise ValueError(
                f"{self.attention_heads} attention heads cannot be shared by {self.key_value_heads} key/value heads"
            )

    @property
    def draft_depth(self) -> int:
        """Tokens drafted per pass: the block without its root."""
        return self.block_size - 1

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> "DrafterConfig":
        """Read the ``config.json`` of a DFlash checkpoint (a qwen3 config with a ``dflash_config`` section).

        Raises:
            ValueError: for a sliding-window or otherwise unsupported drafter, or a missing field.
        """
        _refuse_unsupported(config)
        if "sliding_attention" in (config.get("layer_types") or ()):
            raise ValueError(
                "this drafter uses sliding-window layers, which are not supported; use a full-attention one"
            )
        dflash = config.get("dflash_config") or {}
        layers, target_layers = _need(config, "num_hidden_layers"), _need(config, "num_target_layers")
        taps = dflash.get("target_layer_ids") or evenly_spaced_taps(target_layers, layers)
        heads, hidden = _need(config, "num_attention_heads"), _need(config, "hidden_size")
        rope = _rope(config)
        return cls(
            vocab_size=_need(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_need(config, "intermediate_size"),
            layers=layers,
            attention_heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            rms_norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
            max_positions=_need(config, "max_position_embeddings"),
            target_layers=target_layers,
            tap_layers=tuple(taps),
            mask_token=_need(dflash, "mask_token_id"),
            block_size=int(dflash.get("block_size", config.get("block_size", 16))),
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """The ``config.json`` of a DFlash checkpoint."""
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.attention_heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_epsilon,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "num_target_layers": self.target_layers,
            "block_size": self.block_size,
            "dflash_config": {"mask_token_id": self.mask_token, "target_layer_ids": list(self.tap_layers)},
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        }


@dataclass(frozen=True, slots=True)
class WeaverConfig:
    """A Weaver (arXiv 2607.06763): an autoregressive adapter over the drafter's candidate pool.

    Attributes:
        target_width: width of the target's hidden states and embeddings.
        width: internal width of the adapter.
        max_depth: deepest token it can propose (the drafter's ``draft_depth``).
        positions: ``learned`` (a table added to the inputs) or ``rotary``.
        mlp: ``gelu`` or ``swiglu``.
        pool_size: candidate tokens per depth (K).
    """

    target_width: int
    width: int
    layers: int
    attention_heads: int
    mlp_width: int
    max_depth: int = 15
    pool_size: int = 512
    positions: str = "learned"
    mlp: str = "gelu"
    norm_epsilon: float = 1e-6
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        if self.width % self.attention_heads or (self.width // self.attention_heads) % 2:
            raise ValueError(
                f"width {self.width} must split into {self.attention_heads} attention heads of an even size"
            )
        if self.positions not in ("learned", "rotary"):
            raise ValueError(f"positions must be 'learned' or 'rotary', got {self.positions!r}")
        if self.mlp not in ("gelu", "swiglu"):
            raise ValueError(f"mlp must be 'gelu' or 'swiglu', got {self.mlp!r}")

    @property
    def head_dim(self) -> int:
        return self.width // self.attention_heads


def evenly_spaced_taps(target_layers: int, taps: int) -> tuple[int, ...]:
    """Tap layers as DFlash spaces them: evenly from layer 1 to the third from last (2602.06036, A.3).

    Raises:
        ValueError: if the target is too shallow for that many distinct layers.
    """
    last = target_layers - 3
    if taps == 1:
        return (target_layers // 2,)
    spaced = tuple(round(1 + index * (last - 1) / (taps - 1)) for index in range(taps))
    if len(set(spaced)) != taps or last < 1:
        raise ValueError(f"a target of {target_layers} layers has no {taps} distinct tap layers; use fewer taps")
    return spaced


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a checkpoint folder.

    Raises:
        ValueError: if the folder, the file or its JSON is missing or unreadable.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a checkpoint folder: it has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); fetch the checkpoint again") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return config


def _need(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"the model config lacks a whole number for {name!r}")
    return value


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise ValueError(
            f"rotary embedding type {kind!r} is not supported; only plain ('default') rotary embeddings are"
        )
    return rope


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"activation {config['hidden_act']!r} is not supported; only 'silu' is")
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            raise ValueError(f"checkpoints with {name} are not supported")
    if config.get("num_experts"):
        raise ValueError("mixture-of-experts targets are not supported; use a dense one")


def _layer_types(config: Mapping[str, Any], is_hybrid: bool) -> tuple[str, ...]:
    layers = _need(config, "num_hidden_layers")
    if not is_hybrid:
        return (FULL_ATTENTION,) * layers
    listed = config.get("layer_types")
    if listed is None:
        interval = config.get("full_attention_interval", 4)
        listed = [FULL_ATTENTION if (index + 1) % interval == 0 else LINEAR_ATTENTION for index in range(layers)]
    if len(listed) != layers:
        raise ValueError(f"layer_types lists {len(listed)} layers but num_hidden_layers is {layers}")
    return tuple(listed)


def _delta_net(config: Mapping[str, Any]) -> DeltaNetConfig:
    return DeltaNetConfig(
        key_heads=_need(config, "linear_num_key_heads"),
        value_heads=_need(config, "linear_num_value_heads"),
        key_dim=_need(config, "linear_key_head_dim"),
        value_dim=_need(config, "linear_value_head_dim"),
        convolution_width=_need(config, "linear_conv_kernel_dim"),
    )


def _stop_tokens(eos: int | list[int] | None) -> tuple[int, ...]:
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)
