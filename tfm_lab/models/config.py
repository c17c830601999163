"""Model shapes, read from and written to ordinary Hugging Face ``config.json`` files.

Unknown or unsupported settings raise: a config that is half understood gives a model that is silently wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfm_lab.models.config_reading import (
    positive_number,
    read_json,
    refuse_unsupported,
    rope_theta,
    rotary_settings,
    section,
    text,
    texts,
    truth_value,
    whole_number,
    whole_numbers,
)

LINEAR_ATTENTION = "linear_attention"
FULL_ATTENTION = "full_attention"
TARGET_TYPES = {"qwen3_5_text": "Qwen3_5ForCausalLM", "llama": "LlamaForCausalLM"}
MOST_LAYERS = 1000


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
        refuse_unsupported(config)
        if config.get("model_type") == "qwen3_5" and "text_config" in config:
            inner = dict(section(config, "text_config"))
            inner.setdefault("tie_word_embeddings", config.get("tie_word_embeddings", False))
            return cls.from_hugging_face(inner)
        model_type = text(config, "model_type", "")
        if model_type not in TARGET_TYPES:
            raise ValueError(f"target type {model_type!r} is not supported; use one of {', '.join(TARGET_TYPES)}")
        is_hybrid = model_type == "qwen3_5_text"
        if truth_value(config, "attn_output_gate", is_hybrid) is not is_hybrid:
            wanted = "needs" if is_hybrid else "has no"
            raise ValueError(f"a target of type {model_type} {wanted} gated attention (attn_output_gate)")
        head_dim = _head_dim(config)
        rotary = rotary_settings(config)
        rotary_fraction = positive_number(
            rotary if "partial_rotary_factor" in rotary else config, "partial_rotary_factor", 0.25 if is_hybrid else 1.0
        )
        layer_types = _layer_types(config, is_hybrid)
        vocabulary = whole_number(config, "vocab_size")
        return cls(
            model_type=model_type,
            vocab_size=vocabulary,
            hidden_size=whole_number(config, "hidden_size"),
            intermediate_size=whole_number(config, "intermediate_size"),
            layer_types=layer_types,
            attention_heads=whole_number(config, "num_attention_heads"),
            key_value_heads=_key_value_heads(config),
            head_dim=head_dim,
            rotary_dim=int(head_dim * rotary_fraction),
            rope_theta=rope_theta(config),
            rms_norm_epsilon=positive_number(config, "rms_norm_eps", 1e-6),
            max_positions=whole_number(config, "max_position_embeddings"),
            tie_embeddings=truth_value(config, "tie_word_embeddings", False),
            stop_tokens=_stop_tokens(config, vocabulary),
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
        refuse_unsupported(config)
        if set(texts(config, "layer_types") or ()) - {FULL_ATTENTION}:
            raise ValueError(
                "this drafter uses sliding-window or other layers that are not supported; use a full-attention one"
            )
        dflash = section(config, "dflash_config")
        layers = whole_number(config, "num_hidden_layers", most=MOST_LAYERS)
        target_layers = whole_number(config, "num_target_layers", most=MOST_LAYERS)
        vocabulary = whole_number(config, "vocab_size")
        taps = whole_numbers(dflash, "target_layer_ids", below=target_layers)
        return cls(
            vocab_size=vocabulary,
            hidden_size=whole_number(config, "hidden_size"),
            intermediate_size=whole_number(config, "intermediate_size"),
            layers=layers,
            attention_heads=whole_number(config, "num_attention_heads"),
            key_value_heads=_key_value_heads(config),
            head_dim=_head_dim(config),
            rope_theta=rope_theta(config),
            rms_norm_epsilon=positive_number(config, "rms_norm_eps", 1e-6),
            max_positions=whole_number(config, "max_position_embeddings"),
            target_layers=target_layers,
            tap_layers=taps or evenly_spaced_taps(target_layers, layers),
            mask_token=whole_number(dflash, "mask_token_id", least=0, most=vocabulary - 1),
            block_size=_block_size(config, dflash),
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
        sees_target: whether the prefix carries the target's hidden state; zeros stand in its place otherwise.
        sees_temperature: whether it knows the temperature that the target samples at; then it needs learned positions.
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
    sees_target: bool = True
    sees_temperature: bool = False

    def __post_init__(self) -> None:
        if self.attention_heads < 1 or self.width % self.attention_heads or (self.width // self.attention_heads) % 2:
            raise ValueError(
                f"width {self.width} must split into {self.attention_heads} attention heads of an even size"
            )
        if self.positions not in ("learned", "rotary"):
            raise ValueError(f"positions must be 'learned' or 'rotary', got {self.positions!r}")
        if self.mlp not in ("gelu", "swiglu"):
            raise ValueError(f"mlp must be 'gelu' or 'swiglu', got {self.mlp!r}")
        if self.sees_temperature and self.positions != "learned":
            raise ValueError("a Weaver that sees the temperature needs learned positions")

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> "WeaverConfig":
        """Read the ``config.json`` of a Weaver.

        Raises:
            ValueError: naming the first field that is missing, of another type or out of range.
        """
        refuse_unsupported(config)
        return cls(
            target_width=whole_number(config, "target_width"),
            width=whole_number(config, "width"),
            layers=whole_number(config, "layers", most=MOST_LAYERS),
            attention_heads=whole_number(config, "attention_heads"),
            mlp_width=whole_number(config, "mlp_width"),
            max_depth=whole_number(config, "max_depth", 15),
            pool_size=whole_number(config, "pool_size", 512),
            positions=text(config, "positions", "learned"),
            mlp=text(config, "mlp", "gelu"),
            norm_epsilon=positive_number(config, "norm_epsilon", 1e-6),
            rope_theta=positive_number(config, "rope_theta", 10000.0),
            sees_target=truth_value(config, "sees_target", True),
            sees_temperature=truth_value(config, "sees_temperature", False),
        )

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
    return read_json(path)


def _head_dim(config: Mapping[str, Any]) -> int:
    if config.get("head_dim") is not None:
        return whole_number(config, "head_dim")
    heads, hidden = whole_number(config, "num_attention_heads"), whole_number(config, "hidden_size")
    if heads > hidden:
        raise ValueError(f"num_attention_heads is {heads}, which is more than the hidden_size of {hidden}")
    return hidden // heads


def _key_value_heads(config: Mapping[str, Any]) -> int:
    given = config.get("num_key_value_heads") is not None
    return whole_number(config, "num_key_value_heads" if given else "num_attention_heads")


def _layer_types(config: Mapping[str, Any], is_hybrid: bool) -> tuple[str, ...]:
    layers = whole_number(config, "num_hidden_layers", most=MOST_LAYERS)
    listed = texts(config, "layer_types")
    if listed is None:
        interval = whole_number(config, "full_attention_interval", 4) if is_hybrid else 1
        return tuple(FULL_ATTENTION if (index + 1) % interval == 0 else LINEAR_ATTENTION for index in range(layers))
    if len(listed) != layers:
        raise ValueError(f"layer_types lists {len(listed)} layers but num_hidden_layers is {layers}")
    if not is_hybrid and set(listed) != {FULL_ATTENTION}:
        raise ValueError(f"layer_types of a llama must all be {FULL_ATTENTION}")
    return listed


def _delta_net(config: Mapping[str, Any]) -> DeltaNetConfig:
    return DeltaNetConfig(
        key_heads=whole_number(config, "linear_num_key_heads"),
        value_heads=whole_number(config, "linear_num_value_heads"),
        key_dim=whole_number(config, "linear_key_head_dim"),
        value_dim=whole_number(config, "linear_value_head_dim"),
        convolution_width=whole_number(config, "linear_conv_kernel_dim"),
    )


def _stop_tokens(config: Mapping[str, Any], vocabulary: int) -> tuple[int, ...]:
    name = "eos_token_id"
    if config.get(name) is None or isinstance(config[name], list):
        return whole_numbers(config, name, below=vocabulary)
    return (whole_number(config, name, least=0, most=vocabulary - 1),)


def _block_size(config: Mapping[str, Any], dflash: Mapping[str, Any]) -> int:
    sizes = {whole_number(place, "block_size", least=2) for place in (config, dflash) if "block_size" in place}
    if len(sizes) > 1:
        raise ValueError(f"block_size is {config['block_size']}, but {dflash['block_size']} in dflash_config")
    return sizes.pop() if sizes else 16
