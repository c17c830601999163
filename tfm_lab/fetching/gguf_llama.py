"""A llama in a GGUF file, written as a Hugging Face folder: dequantised bfloat16 weights under transformers' names.

GGUF keeps the rows of the query and key projections in the order of llama.cpp's rotary embedding, which rotates
neighbouring pairs. transformers (and :mod:`tfm_lab.models`) rotate one half of each head against the other. So the rows
of every head, stored as (half, 2), go back to (2, half).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tfm_lab.fetching.gguf_tokenizer import stop_tokens, write_tokenizer
from tfm_lab.models.checkpoint import WEIGHTS, check_target
from tfm_lab.models.config import FULL_ATTENTION, TargetConfig

OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOKEN_KINDS = {"bos": "bos", "pad": "padding"}


def convert_llama(path: Path, folder: Path) -> None:
    """Write config.json, model.safetensors (bfloat16), tokenizer and chat template of a GGUF file into ``folder``.

    Raises:
        ValueError: if the package gguf is missing, the file is no GGUF, holds another architecture, a setting or
            tensor that :class:`tfm_lab.models.TargetModel` does not have, or another kind of tokenizer.
    """
    gguf = import_gguf()
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, OSError) as error:
        raise ValueError(f"{path} is not a GGUF file, or a damaged one ({error}); fetch it again") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    names = {tensor.name: hugging_face_name(tensor.name) for tensor in reader.tensors}
    tensors: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
        if ".attn_q." in tensor.name:
            weight = restore_rope_rows(weight, config.attention_heads)
        elif ".attn_k." in tensor.name:
            weight = restore_rope_rows(weight, config.key_value_heads)
        tensors[names[tensor.name]] = weight.to(torch.bfloat16)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    ids = {f"{kind}_token_id": fields.get(f"tokenizer.ggml.{name}_token_id") for kind, name in _TOKEN_KINDS.items()}
    written = config.to_hugging_face() | {name: value for name, value in ids.items() if value is not None}
    _write_json(folder / "config.json", written)
    generation = {"eos_token_id": list(config.stop_tokens), **{k: written[k] for k in ids if k in written}}
    _write_json(folder / "generation_config.json", generation)
    write_tokenizer(fields, folder, config.max_positions)
    check_target(folder)


def import_gguf() -> Any:
    """The package gguf.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise ValueError(
            "reading a GGUF file needs the package gguf; install it with: pip install -c constraints.txt -e '.[fetch]'"
        ) from None
    return gguf


def restore_rope_rows(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection from llama.cpp's order to transformers'.

    Args:
        weight: [heads * head_dim, width].
        heads: query heads for ``attn_q``, key/value heads for ``attn_k``.
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def hugging_face_name(name: str) -> str:
    """transformers' name of a GGUF tensor.

    >>> hugging_face_name("blk.3.attn_output.weight")
    'model.layers.3.self_attn.o_proj.weight'

    Raises:
        ValueError: for a tensor that a plain llama does not have.
    """
    if name in OUTER_NAMES:
        return OUTER_NAMES[name]
    match name.split("."):
        case ["blk", index, part, "weight"] if part in LAYER_NAMES and index.isdecimal():
            return f"model.layers.{index}.{LAYER_NAMES[part]}.weight"
    raise ValueError(f"the GGUF file holds a tensor {name!r}, which a plain llama does not have; it is not supported")


def _config(fields: dict[str, Any], tied: bool) -> TargetConfig:
    if fields.get("general.architecture") != "llama":
        raise ValueError(
            f"a GGUF file of architecture {fields.get('general.architecture')!r} is not supported, only llama"
        )
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none" or fields.get("llama.expert_count", 0):
        raise ValueError("a GGUF llama with rope scaling or with experts is not supported; use a plain one")
    heads, width = _need(fields, "llama.attention.head_count"), _need(fields, "llama.embedding_length")
    head_dim = fields.get("llama.attention.key_length", width // heads)
    return TargetConfig(
        model_type="llama",
        vocab_size=len(_need(fields, "tokenizer.ggml.tokens")),
        hidden_size=width,
        intermediate_size=_need(fields, "llama.feed_forward_length"),
        layer_types=(FULL_ATTENTION,) * _need(fields, "llama.block_count"),
        attention_heads=heads,
        key_value_heads=fields.get("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        rotary_dim=fields.get("llama.rope.dimension_count", head_dim),
        rope_theta=fields.get("llama.rope.freq_base", 10000.0),
        rms_norm_epsilon=_short(_need(fields, "llama.attention.layer_norm_rms_epsilon")),
        max_positions=_need(fields, "llama.context_length"),
        tie_embeddings=tied,
        stop_tokens=stop_tokens(fields),
    )


def _need(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise ValueError(f"the GGUF file lacks {name!r}; it is not a complete llama")
    return fields[name]


def _short(value: float) -> float:
    """The shortest decimal that reads as the same float32: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
