"""The tokenizer: every text comes back exactly, digits stand alone, transformers reads the files."""

import json
from pathlib import Path

import hypothesis.strategies as st
import pytest
import transformers
from hypothesis import example, given, settings
from tokenizers import Tokenizer

from tfm_lab.bundle import load_tokenizer
from tfm_lab.training.corpus import conversation
from tfm_lab.training.tokenizer import SPECIAL_TOKENS, save_tokenizer, token_id, train_tokenizer

SAMPLE = ["def add(a, b):\n    return a + b\n", "In 1984 there were 12 ships, 1984.", "안녕하세요, 세계"] * 3
HARD = [
    "x = 1234567890 + 0.5e-10\n",
    "안녕하세요 👋🏽 — naïve café Ωmega",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><|mask|>",
    "a" + " " * 200 + "b",
    "\tif x:\n\t\t  return\r\n\r\n",
    "\u2028\x85\x00\ufffd\ufeff",
    "Ġ Ċ <|im_start <|im_end|",
    "",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(SAMPLE, 320)


def round_trip(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)


@pytest.mark.parametrize("text", HARD)
def test_hard_texts_come_back_exactly(tokenizer: Tokenizer, text: str) -> None:
    assert round_trip(tokenizer, text) == text


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(text=st.text())
@example(text="\r\n")
def test_any_text_comes_back_exactly(tokenizer: Tokenizer, text: str) -> None:
    assert round_trip(tokenizer, text) == text


def test_every_digit_is_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("In 1984 there were 12 ships").tokens
    assert [token for token in tokens if any(character.isdigit() for character in token)] == list("198412")


def test_special_tokens_come_first_and_are_never_split(tokenizer: Tokenizer) -> None:
    assert [token_id(tokenizer, token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    for token in SPECIAL_TOKENS:
        assert tokenizer.encode(f"a{token}b").tokens == ["a", token, "b"]


def test_the_vocabulary_is_as_large_as_asked_for_and_holds_every_byte(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() <= 320
    assert tokenizer.get_vocab_size() > 260 + 20
    smallest = train_tokenizer([], 260)
    assert smallest.get_vocab_size() == 260
    assert len(smallest.encode("é€").ids) == 5


def test_what_cannot_work_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="a byte-level vocabulary needs at least 260 tokens, got 259"):
        train_tokenizer(SAMPLE, 259)
    with pytest.raises(ValueError, match=r"the tokenizer has no token '<\|nothing\|>'"):
        token_id(tokenizer, "<|nothing|>")


def test_saved_files_are_read_here_and_by_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, 128)
    reread, oracle = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in HARD:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert reread.encode(text, add_special_tokens=False).ids == ids
        assert oracle.encode(text, add_special_tokens=False) == ids
        assert oracle.decode(ids) == text
    assert oracle.model_max_length == 128
    assert (oracle.eos_token_id, oracle.mask_token_id) == (0, 3)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["additional_special_tokens"] == [
        "<|im_start|>",
        "<|im_end|>",
    ]


def test_the_chat_template_writes_what_the_target_is_trained_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, 128)
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    assert oracle.apply_chat_template(turns, tokenize=False) == conversation("Why?", "Because.")
    opening = oracle.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    assert conversation("Why?", "Because.") == f"{opening}Because.<|im_end|>\n"
