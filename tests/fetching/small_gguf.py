"""A llama of transformers with a few thousand weights, written as a GGUF file the way llama.cpp's converter does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer

from tfm_lab.training.tokenizer import CHAT_TEMPLATE, train_tokenizer

HEADS, KEY_VALUE_HEADS, HEAD_DIM, WIDTH, VOCABULARY = 4, 2, 16, 64, 288
TEXTS = ["the old man and the sea 1952", "there and then the other one", "for index in range(12): print(index)"] * 4
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def small_llama(tied: bool = True) -> transformers.LlamaForCausalLM:
    """Random weights that bfloat16 holds exactly, in float32."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            parameter.copy_(parameter.to(torch.bfloat16))
    return model.eval()


def small_tokenizer() -> Tokenizer:
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def gguf_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's order of query and key rows."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).transpose(1, 2).reshape(rows, width)


def write_gguf(
    path: Path,
    model: transformers.LlamaForCausalLM,
    *,
    architecture: str = "llama",
    pre_tokenizer: str = "smollm",
    quantised: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    extra_tensors: Mapping[str, np.ndarray] | None = None,
    extra_fields: Mapping[str, Any] | None = None,
    leave_out: str = "",
) -> Path:
    """Write ``model`` and the small tokenizer.

    Args:
        quantised: type of the tensors that are not stored in float32, by GGUF name.
        leave_out: a tensor or one of the fields about the model to forget.
    """
    writer = gguf.GGUFWriter(path, architecture)
    config = model.config
    shape = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KEY_VALUE_HEADS,
        "rope.dimension_count": HEAD_DIM,
    }
    for name, count in shape.items():
        if name != leave_out:
            writer.add_uint32(f"llama.{name}", count)
    writer.add_float32("llama.rope.freq_base", 500.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in (extra_fields or {}).items():
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    _add_tokenizer(writer, pre_tokenizer)
    for name, tensor in gguf_tensors(model).items():
        kind = (quantised or {}).get(name)
        if name == leave_out:
            continue
        if kind is None:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)
    for name, tensor in (extra_tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(model: transformers.LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The weights by GGUF name, in GGUF order, float32."""
    tensors = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output_norm.weight": model.model.norm.weight,
    }
    if not model.config.tie_word_embeddings:
        tensors["output.weight"] = model.lm_head.weight
    for index, layer in enumerate(model.model.layers):
        weights = dict(layer.named_parameters())
        for name, part in PARTS.items():
            weight = weights[f"{name}.weight"]
            heads = {"attn_q": HEADS, "attn_k": KEY_VALUE_HEADS}.get(part)
            tensors[f"blk.{index}.{part}.weight"] = weight if heads is None else gguf_rows(weight, heads)
    return {name: tensor.detach().contiguous().numpy() for name, tensor in tensors.items()}


def _add_tokenizer(writer: gguf.GGUFWriter, pre_tokenizer: str) -> None:
    content = json.loads(small_tokenizer().to_str())
    vocabulary = content["model"]["vocab"]
    special = {token["content"] for token in content["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in content["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
