"""The byte-level BPE tokenizer inside a GGUF file, as the files that tokenizers and transformers read.

A byte that the vocabulary does not have as a token is left out of the encoded text, as transformers does. SmolLM2 lacks
six control characters, 0x04 among them, and bytes that no assigned character of UTF-8 begins with.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL, USER_DEFINED = 3, 4
END_OF_TEXT = "<|endoftext|>"
ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def stop_tokens(fields: dict[str, Any]) -> tuple[int, ...]:
    """Token ids that end a text: that of the end of a turn, then ``<|endoftext|>`` if it is a control token."""
    tokens, kinds = fields.get("tokenizer.ggml.tokens", []), fields.get("tokenizer.ggml.token_type", [])
    stops = [fields["tokenizer.ggml.eos_token_id"]] if "tokenizer.ggml.eos_token_id" in fields else []
    stops += [index for index, kind in enumerate(kinds) if kind == CONTROL and tokens[index] == END_OF_TEXT]
    return tuple(dict.fromkeys(stops))


def write_tokenizer(fields: dict[str, Any], folder: Path, max_positions: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and, if the file has one, chat_template.jinja.

    Raises:
        ValueError: for another tokenizer than byte-level BPE with single digits, or a token that stands twice.
    """
    kind = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise ValueError(
            f"a GGUF tokenizer of kind {kind[0]!r} with pre-tokenizer {kind[1]!r} is not supported; "
            "only 'gpt2' (byte-level BPE) with 'smollm' (single digits) is"
        )
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ValueError("the GGUF tokenizer repeats a token; the file is damaged, fetch it again")
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = {
        kind: [token for token, own in zip(tokens, kinds, strict=True) if own == kind]
        for kind in (CONTROL, USER_DEFINED)
    }
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added[CONTROL]])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in added[USER_DEFINED]])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _config(fields, added[CONTROL], max_positions)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if "tokenizer.chat_template" in fields:
        (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8", newline="\n")


def _config(fields: dict[str, Any], control: list[str], max_positions: int) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    ids = {role: fields.get(f"tokenizer.ggml.{name}_token_id") for name, role in ROLES.items()}
    named = {role: tokens[index] for role, index in ids.items() if index is not None}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "additional_special_tokens": [token for token in control if token not in named.values()],
        "model_max_length": max_positions,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
