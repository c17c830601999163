"""Bytes that a step reads and operations that a row costs, counted from model configs. Nothing is measured."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tfm_lab.models.config import LINEAR_ATTENTION, DrafterConfig, TargetConfig, WeaverConfig

MODEL_BYTES, STATE_BYTES = 2, 4
"""Bytes of a weight (bfloat16) and of a number in a state of Gated DeltaNet (float32)."""

QWEN3_6_27B: Mapping[str, Any] = MappingProxyType(
    {
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    }
)
"""The published config of the paper's target, as far as a shape needs it."""


class Shapes(NamedTuple):
    """A target, its drafter and its Weaver."""

    target: TargetConfig
    drafter: DrafterConfig
    weaver: WeaverConfig


def paper_shapes() -> Shapes:
    """Qwen3.6-27B with its published DFlash drafter (5 layers, block 16) and Weaver (one block, width 2048)."""
    target = TargetConfig.from_hugging_face(QWEN3_6_27B)
    drafter = DrafterConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        layers=5,
        attention_heads=32,
        key_value_heads=8,
        head_dim=128,
        rope_theta=target.rope_theta,
        rms_norm_epsilon=target.rms_norm_epsilon,
        max_positions=target.max_positions,
        target_layers=target.layers,
        tap_layers=(1, 16, 31, 46, 61),
        mask_token=248070,
    )
    weaver = WeaverConfig(target_width=target.hidden_size, width=2048, layers=1, attention_heads=16, mlp_width=2048)
    return Shapes(target, drafter, weaver)


def target_weights(config: TargetConfig) -> int:
    """Weights of all matrices that a row of the target is multiplied with, head included.

    Norms, gates and the short convolution are left out (thousands of times smaller), and so is the embedding table, of
    which a row reads one line.
    """
    linear = sum(kind == LINEAR_ATTENTION for kind in config.layer_types)
    width, heads = config.hidden_size, config.attention_heads * config.head_dim
    attention = (
        (3 if config.is_hybrid else 2) * heads * width + 2 * config.key_value_heads * config.head_dim * width
    )  # a hybrid's query carries an output gate of its own width
    delta_net = 0
    if config.delta_net is not None:
        layout = config.delta_net
        values = layout.value_heads * layout.value_dim
        delta_net = width * (layout.convolution_channels + 2 * values + 2 * layout.value_heads)
    mixers = linear * delta_net + (config.layers - linear) * attention
    return mixers + config.layers * 3 * width * config.intermediate_size + config.vocab_size * width


def drafter_weights(config: DrafterConfig) -> int:
    """Weights of the drafter's matrices, with the target's head that it shares and the fusion of the tapped layers."""
    width, heads = config.hidden_size, config.attention_heads * config.head_dim
    layer = (
        2 * heads * width + 2 * config.key_value_heads * config.head_dim * width + 3 * width * config.intermediate_size
    )
    return config.layers * layer + len(config.tap_layers) * width * width + config.vocab_size * width


def weaver_weights(config: WeaverConfig) -> int:
    """Weights that every call of the Weaver reads: blocks, token input, read-out. The prefix is made once a step."""
    mlp = (3 if config.mlp == "swiglu" else 2) * config.width * config.mlp_width
    return config.layers * (4 * config.width**2 + mlp) + 2 * config.target_width * config.width


def pool_bytes(config: WeaverConfig) -> int:
    """Bytes of the target's head that one expanded node gathers: a line for each candidate of its pool."""
    return MODEL_BYTES * config.pool_size * config.target_width


def state_bytes(config: TargetConfig) -> int:
    """Bytes of the memory of one Gated DeltaNet layer for one request; 0 without such layers."""
    layout = config.delta_net
    return 0 if layout is None else STATE_BYTES * layout.value_heads * layout.key_dim * layout.value_dim


def delta_net_layers(config: TargetConfig) -> int:
    """How many layers keep a matrix as memory."""
    return sum(kind == LINEAR_ATTENTION for kind in config.layer_types)
