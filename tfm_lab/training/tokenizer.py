"""A byte-level BPE tokenizer for a small target, and its files in Hugging Face layout."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, TURN_START, TURN_END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END, MASK)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE with single digits and the chat tokens; every text round-trips exactly.

    Raises:
        ValueError: if the vocabulary cannot even hold the bytes and the special tokens.
    """
    if vocabulary < 256 + len(SPECIAL_TOKENS):
        raise ValueError(f"a byte-level vocabulary needs at least {256 + len(SPECIAL_TOKENS)} tokens, got {vocabulary}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int) -> None:
    """Write ``tokenizer.json`` and a ``tokenizer_config.json`` that transformers reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "mask_token": MASK,
        "additional_special_tokens": [TURN_START, TURN_END],
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Id of a special token.

    Raises:
        ValueError: if the tokenizer does not have it.
    """
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token!r}; use one with the chat tokens of tfm_lab")
    return found
