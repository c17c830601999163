"""Tiny random models of transformers, and the same weights in tfm_lab's own classes."""

import logging
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import transformers

from tfm_lab.models import TargetModel, load_target

transformers.utils.logging.disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)

VOCABULARY = 97
HYBRIDS: dict[str, dict[str, Any]] = {
    "hybrid-grouped": {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "tie_word_embeddings": True},
    "hybrid-plain": {"linear_num_key_heads": 3, "linear_num_value_heads": 3, "tie_word_embeddings": False},
}
LLAMAS: dict[str, dict[str, Any]] = {
    "llama-grouped": {"num_attention_heads": 6, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "llama-plain": {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False},
}
NAMES = [*HYBRIDS, *LLAMAS]


class Pair(NamedTuple):
    """The same weights twice."""

    oracle: torch.nn.Module
    target: TargetModel


def oracle_model(name: str) -> torch.nn.Module:
    """A random model of transformers in eval mode, float32, with norms and gates away from their initial values."""
    torch.manual_seed(NAMES.index(name))
    common = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 64, "max_position_embeddings": 2304}
    if name in HYBRIDS:
        shape = {"num_hidden_layers": 5, "full_attention_interval": 4, "num_attention_heads": 4}
        shape |= {"num_key_value_heads": 2, "head_dim": 32, "linear_key_head_dim": 16, "linear_value_head_dim": 24}
        config = transformers.Qwen3_5TextConfig(**(common | shape | HYBRIDS[name]))
        model = transformers.Qwen3_5ForCausalLM(config)
    else:
        config = transformers.LlamaConfig(**(common | {"num_hidden_layers": 3, "head_dim": 16} | LLAMAS[name]))
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@cache
def pair(name: str, dtype: torch.dtype = torch.float32) -> Pair:
    """The oracle, and tfm_lab's model read from the folder that transformers wrote."""
    oracle = oracle_model(name)
    with TemporaryDirectory() as folder:
        oracle.save_pretrained(folder)
        return Pair(oracle.to(dtype), load_target(Path(folder), dtype=dtype))


@torch.no_grad()
def oracle_logits(oracle: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """Logits after every token of a text, from one plain forward pass."""
    return oracle(torch.tensor([tokens]), use_cache=False).logits[0]


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference, in units of the largest logit."""
    return float((got - wanted).abs().max() / wanted.abs().max())
