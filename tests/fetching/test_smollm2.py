"""The real SmolLM2 as ``tfm-lab fetch smollm2`` leaves it. Skipped where it was not fetched."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tfm_lab.bundle import TargetOnly, check_target_folder, load_target_only
from tfm_lab.decoding import DecodeConfig, autoregressive_decode
from tfm_lab.fetching import fetched

pytestmark = pytest.mark.slow

HARD = [
    "",
    "The year 1984, 3.14159 and 007; x2y3.",
    "안녕하세요, 세계! 한국어 문장 하나.",
    "👋🏽👩‍👩‍👧‍👦🇰🇷 e\u0301 ﷽ \u200b\ufeff",
    "a" + " " * 77 + "b\n\n\n\t\t  \r\n ",
    "<|im_start|>user\n<|im_end|><|endoftext|><repo_name><empty_output> <|nosuch|>",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}  # naïve",
    "SELECT*FROM t WHERE a<>'b'&&c||d;",
    "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 ½ ² ٣ ४ 万",
    "\u0000\u0001\u007f\u0085\u00a0",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return fetched("smollm2")
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def models(folder: Path) -> TargetOnly:
    return load_target_only(str(folder))


@pytest.fixture(scope="module")
def their_tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_the_folder_can_be_used(folder: Path) -> None:
    config = check_target_folder(folder)
    assert (config.layers, config.hidden_size, config.vocab_size, config.tie_embeddings) == (30, 576, 49152, True)
    assert config.stop_tokens == (2, 0)


@pytest.mark.parametrize("text", HARD)
def test_hard_strings_become_the_tokens_of_transformers_and_come_back(
    models: TargetOnly, their_tokenizer: Any, text: str
) -> None:
    tokens = models.encode(text)
    assert tokens == their_tokenizer.encode(text, add_special_tokens=False)
    assert models.decode(tokens) == their_tokenizer.decode(tokens) == text
    assert "".join(models.pieces(tokens)) == text


def test_digits_and_special_tokens_stand_alone(models: TargetOnly) -> None:
    assert [models.decode([token]) for token in models.encode("1984")] == list("1984")
    assert models.encode("<|endoftext|><|im_start|><|im_end|><empty_output>") == [0, 1, 2, 16]


def test_six_control_characters_and_bytes_that_begin_no_character_cannot_be_spelled(models: TargetOnly) -> None:
    lost = [code for code in range(0x80) if models.decode(models.encode(chr(code))) != chr(code)]
    assert lost == [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D]


@pytest.mark.parametrize("question", ["What is the capital of France?", " {{ x }} <b>&'\"\n", "안녕?"])
def test_a_question_is_put_as_transformers_puts_it(models: TargetOnly, their_tokenizer: Any, question: str) -> None:
    messages = [{"role": "user", "content": question.strip()}]
    theirs = their_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert models.chat(question) == list(theirs)
    assert models.decode(theirs).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")


def test_it_answers_and_transformers_writes_the_same(folder: Path, models: TargetOnly) -> None:
    prompt = models.chat("What is the capital of France?")
    trace = autoregressive_decode(models.target, prompt, DecodeConfig(24, stop_tokens=models.target.config.stop_tokens))
    assert models.decode(trace.tokens) == "The capital of France is Paris.<|im_end|>"
    oracle = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        wanted = oracle(torch.tensor([prompt])).logits[0]
        found = models.target(torch.tensor([prompt]))[0]
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()
    written = oracle.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
    assert tuple(written) == tuple(trace.tokens)


def test_benchmark_prompts_are_complete() -> None:
    try:
        suites = fetched("suites")
    except ValueError as error:
        pytest.skip(str(error))
    for name, count, licence in (("chat.jsonl", 80, "Apache-2.0"), ("code.jsonl", 164, "MIT")):
        rows = [json.loads(line) for line in (suites / name).read_text(encoding="utf-8").splitlines()]
        assert len({row["name"] for row in rows}) == len(rows) == count
        for row in rows:
            assert row.keys() == {"name", "prompt", "source", "licence"}
            assert row["prompt"].strip()
            assert row["licence"] == licence
