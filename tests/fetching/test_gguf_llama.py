"""GGUF to Hugging Face: the same weights, the same rotation, the same tokens, or one sentence."""

import math
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from fetching.small_gguf import (
    HEAD_DIM,
    HEADS,
    KEY_VALUE_HEADS,
    VOCABULARY,
    WIDTH,
    gguf_rows,
    gguf_tensors,
    small_llama,
    small_tokenizer,
    write_gguf,
)
from safetensors.torch import load_file

from tfm_lab.bundle import check_target_folder, load_target_only
from tfm_lab.fetching.gguf_llama import convert_llama, hugging_face_name, restore_rope_rows
from tfm_lab.models import load_target

HARD = [
    "",
    "the 1952 sea",
    "12345 and 007",
    "안녕하세요 👋🏽 naïve",
    "a    b\t\n\n  c",
    "<|im_start|>the<|im_end|> <|nosuch|>",
]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of transformers, and the folder that was converted from its GGUF file."""
    folder = tmp_path_factory.mktemp("gguf")
    model = small_llama(request.param)
    write_gguf(folder / "model.gguf", model)
    (folder / "converted").mkdir()
    convert_llama(folder / "model.gguf", folder / "converted")
    return model, folder / "converted"


def test_the_weights_come_back_exactly(converted: tuple[Any, Path]) -> None:
    model, folder = converted
    written = load_file(folder / "model.safetensors")
    wanted = dict(model.named_parameters())
    assert written.keys() == wanted.keys()
    for name, tensor in written.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor.float(), wanted[name]), name


def test_transformers_and_the_target_read_the_folder_as_the_model_it_was(converted: tuple[Any, Path]) -> None:
    model, folder = converted
    tokens = torch.randint(VOCABULARY, (1, 40))
    with torch.no_grad():
        wanted = model(tokens).logits
        reread = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        assert torch.equal(reread(tokens).logits, wanted)
        ours = load_target(folder)(tokens)
    assert (ours - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert reread.generation_config.eos_token_id == [2, 0]
    config = check_target_folder(folder)
    assert (config.stop_tokens, config.rope_theta, config.rms_norm_epsilon) == ((2, 0), 500.0, 1e-5)


def test_the_tokenizer_is_the_one_that_was_packed(converted: tuple[Any, Path]) -> None:
    _, folder = converted
    packed, models = small_tokenizer(), load_target_only(str(folder))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in HARD:
        tokens = models.encode(text)
        assert tokens == packed.encode(text, add_special_tokens=False).ids
        assert tokens == theirs.encode(text, add_special_tokens=False)
        assert models.decode(tokens) == text
    special = theirs.eos_token, theirs.bos_token, theirs.pad_token
    assert special == ("<|im_end|>", "<|im_start|>", "<|im_end|>")
    assert models.decode(models.chat(" Why? ")) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def test_quantised_tensors_are_dequantised(tmp_path: Path) -> None:
    model = small_llama()
    kinds = gguf.GGMLQuantizationType
    quantised = {
        "token_embd.weight": kinds.Q8_0,
        "blk.0.attn_q.weight": kinds.Q4_1,
        "blk.1.ffn_down.weight": kinds.Q4_1,
    }
    quantised["blk.1.ffn_up.weight"] = kinds.F16
    convert_llama(write_gguf(tmp_path / "model.gguf", model, quantised=quantised), tmp_path)
    written, stored = load_file(tmp_path / "model.safetensors"), gguf_tensors(model)
    for name, kind in quantised.items():
        tensor = torch.from_numpy(gguf.dequantize(gguf.quantize(stored[name], kind), kind).astype(np.float32))
        if "attn_q" in name:
            tensor = restore_rope_rows(tensor, HEADS)
        found = written[hugging_face_name(name)]
        assert torch.equal(found, tensor.to(torch.bfloat16))
        exact = dict(model.named_parameters())[hugging_face_name(name)]
        assert 0 < (found.float() - exact).abs().max() < 0.1 or kind is kinds.F16


def rotated(vector: torch.Tensor, position: int, pairs: list[tuple[int, int]]) -> torch.Tensor:
    """Each pair of components turned by ``position`` times its frequency."""
    result = vector.clone()
    for index, (first, second) in enumerate(pairs):
        angle = position * 500.0 ** (-2 * index / HEAD_DIM)
        x, y = vector[first], vector[second]
        result[first] = x * math.cos(angle) - y * math.sin(angle)
        result[second] = x * math.sin(angle) + y * math.cos(angle)
    return result


def test_restored_rows_rotated_by_halves_score_as_packed_rows_rotated_by_neighbours() -> None:
    half = HEAD_DIM // 2
    halves, neighbours = [(i, i + half) for i in range(half)], [(2 * i, 2 * i + 1) for i in range(half)]
    packed = [torch.randn(heads * HEAD_DIM, WIDTH, dtype=torch.float64) for heads in (HEADS, KEY_VALUE_HEADS)]
    restored = [restore_rope_rows(packed[0], HEADS), restore_rope_rows(packed[1], KEY_VALUE_HEADS)]
    texts = torch.randn(2, WIDTH, dtype=torch.float64)
    for head, key_head in ((0, 0), (3, 1)):
        scores = []
        for (query, key), pairs in ((packed, neighbours), (restored, halves)):
            q = (query @ texts[0]).reshape(HEADS, HEAD_DIM)[head]
            k = (key @ texts[1]).reshape(KEY_VALUE_HEADS, HEAD_DIM)[key_head]
            scores.append(rotated(q, 11, pairs) @ rotated(k, 4, pairs))
        assert torch.allclose(scores[0], scores[1], rtol=1e-12)
    assert torch.equal(gguf_rows(restored[0], HEADS), packed[0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architecture": "qwen2"}, "a GGUF file of architecture 'qwen2' is not supported, only llama"),
        ({"pre_tokenizer": "llama-bpe"}, "kind 'gpt2' with pre-tokenizer 'llama-bpe' is not supported"),
        ({"extra_fields": {"llama.rope.scaling.type": "yarn"}}, "with rope scaling or with experts is not supported"),
        ({"extra_tensors": {"rope_freqs.weight": np.ones(8, np.float32)}}, "holds a tensor 'rope_freqs.weight'"),
        ({"extra_tensors": {"blk.0.attn_q.bias": np.ones(64, np.float32)}}, "holds a tensor 'blk.0.attn_q.bias'"),
        ({"leave_out": "blk.1.ffn_up.weight"}, "do not fit their config: missing model.layers.1.mlp.up_proj.weight"),
        ({"leave_out": "embedding_length"}, "lacks 'llama.embedding_length'; it is not a complete llama"),
        ({"leave_out": "attention.head_count_kv"}, "layers.0.self_attn.k_proj.weight has shape (32, 64), expected (64"),
    ],
)
def test_what_the_target_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    write_gguf(tmp_path / "model.gguf", small_llama(), **changes)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        convert_llama(tmp_path / "model.gguf", tmp_path)


@pytest.mark.parametrize("content", [b"", b"no GGUF at all, but some text", b"GGUF\x03\x00\x00\x00"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=r"model.gguf is not a GGUF file, or a damaged one .*; fetch it again"):
        convert_llama(tmp_path / "model.gguf", tmp_path)


def test_without_gguf_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match=r"needs the package gguf; install it with: pip install .*\[fetch\]"):
        convert_llama(tmp_path / "model.gguf", tmp_path)
