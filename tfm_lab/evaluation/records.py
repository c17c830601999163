"""Files of JSON lines behind a header that says what they belong to: what a crash cut short is completed later."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation.contexts import Context
from tfm_lab.evaluation.settings import Evaluation, Setting

RECORDS, TEXTS = "tfm_lab.records/3", "tfm_lab.texts/2"
CONTENTS = {RECORDS: "an evaluation", TEXTS: "texts"}
SETTING_FIELDS = tuple(field.name for field in fields(Setting))
ABOUT = {"context", "kind", "prompt", "replayed", "device", *SETTING_FIELDS}
FIGURES = {"tokens", "committed", "target_calls", "drafter_calls", "depths", "seconds"}
DRAFTING = ("drafter", "weaver", "autoregressive")
"""Fields of a header that name the models which draft; all others decide which texts are written and kept."""

TEXT_FIELDS = {"prompt", "temperature", "shared_noise", "tokens"}

Record = dict[str, Any]


class Prompt(NamedTuple):
    """A context as the target reads it.

    Attributes:
        digest: of the token ids, short.
        fits: whether prompt and new tokens fit the target's context.
    """

    context: Context
    tokens: tuple[int, ...]
    digest: str
    fits: bool


class Key(NamedTuple):
    """What a record is about. A record of the same key is never computed twice."""

    context: str
    prompt: str
    replayed: bool
    setting: Setting


def read_prompts(bundle: Bundle, contexts: Sequence[Context], max_new_tokens: int) -> list[Prompt]:
    """Token ids of every context.

    Raises:
        ValueError: if a context is empty.
    """
    room = bundle.target.config.max_positions - max_new_tokens
    prompts: list[Prompt] = []
    for context in contexts:
        tokens = tuple(context.tokens(bundle))
        if not tokens:
            raise ValueError(f"context {context.name!r} is empty; give it a prompt")
        digest = hashlib.sha256(repr(tokens).encode()).hexdigest()[:12]
        prompts.append(Prompt(context, tokens, digest, len(tokens) <= room))
    return prompts


def start_record(prompt: Prompt, setting: Setting, device: str, *, replayed: bool) -> Record:
    """The fields of a record that say what it is about."""
    about = {"context": prompt.context.name, "kind": prompt.context.kind, "prompt": prompt.digest}
    return about | asdict(setting) | {"replayed": replayed, "device": device}


def key_of(record: Record) -> Key:
    """What a record is about."""
    setting = Setting(**{name: record[name] for name in SETTING_FIELDS})
    return Key(record["context"], record["prompt"], record["replayed"], setting)


def target_header(bundle: Bundle, evaluation: Evaluation) -> Record:
    """Everything that decides what text the target writes, given a prompt and a temperature."""
    config = bundle.target.config
    return {
        "target": bundle.target.fingerprint(),
        "dtype": str(bundle.target.dtype).removeprefix("torch."),
        "max_new_tokens": evaluation.max_new_tokens,
        "seed": evaluation.seed,
        "stop_tokens": list(config.stop_tokens),
        "max_positions": config.max_positions,
    }


def records_header(bundle: Bundle, evaluation: Evaluation) -> Record:
    """Everything that decides what a record holds, given its key: all models by fingerprint, lengths and seeds."""
    models = (bundle.drafter, bundle.weaver, bundle.autoregressive)
    prints = [None if model is None else model.fingerprint() for model in models]
    drafting = dict(zip(DRAFTING, prints, strict=True))
    rest = {"least_distinct": evaluation.least_distinct}
    return {"format": RECORDS} | target_header(bundle, evaluation) | drafting | rest


def texts_header(bundle: Bundle, evaluation: Evaluation) -> Record:
    """Header of a file of texts that the target wrote."""
    return {"format": TEXTS} | target_header(bundle, evaluation)


def read_records(path: Path) -> list[Record]:
    """The records of an evaluation file, without its header; see :func:`read_evaluation`."""
    return read_evaluation(path)[1]


def read_evaluation(path: Path) -> tuple[Record, list[Record]]:
    """Header and records of an evaluation file; a last line that was cut short is passed over.

    Raises:
        ValueError: if the file is missing, damaged, or of another version.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; run the evaluation first")
    header, *records = _parse(path, path.read_bytes(), RECORDS)
    if header.get("format") != RECORDS:
        raise ValueError(f"{path} is not an evaluation file of this version; run the evaluation again")
    return header, records


def differences(header: Record, other: Record) -> list[str]:
    """Names of the fields that two headers do not share."""
    return [name for name in {**header, **other} if header.get(name) != other.get(name)]


def resume(path: Path, header: Record) -> list[Record]:
    """Complete records of a file that may be continued; a line that a crash cut short is removed.

    Raises:
        ValueError: if the file is something else, or belongs to other models or settings. It is then left alone.
    """
    kind = header["format"]
    raw = path.read_bytes() if path.is_file() else b""
    if (json.dumps(header) + "\n").encode().startswith(raw):
        if raw:
            os.truncate(path, 0)
        return []
    found = _parse(path, raw, kind)
    different = differences(header, found[0])
    if different:
        raise ValueError(
            f"{path} holds {CONTENTS[kind]} of other models or settings (not the same: {', '.join(different)}); "
            "choose another file or remove it"
        )
    os.truncate(path, _whole(raw))
    return found[1:]


class Appender:
    """Adds lines to a file, the header first; every call reaches the system before it returns."""

    def __init__(self, path: Path, header: Record) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        if path.stat().st_size == 0:
            self.add([header])

    def add(self, records: Iterable[Record]) -> None:
        self._file.write("".join(json.dumps(record) + "\n" for record in records).encode())
        self._file.flush()

    def __enter__(self) -> "Appender":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _whole(raw: bytes) -> int:
    """Length of the complete lines."""
    return raw.rfind(b"\n") + 1


def _is_record(line: Record) -> bool:
    """Whether a line says what it is about, and has figures or a reason why there are none."""
    if not ABOUT.issubset(line):
        return False
    hash(key_of(line))
    counts = [line.get(name) for name in ("tokens", "committed", "target_calls")]
    return "left_out" in line or (FIGURES.issubset(line) and all(isinstance(count, int) for count in counts))


def _parse(path: Path, raw: bytes, kind: str) -> list[Record]:
    """Header and records from the complete lines."""
    is_whole = _is_record if kind == RECORDS else TEXT_FIELDS.issubset
    try:
        found = [json.loads(line) for line in raw[: _whole(raw)].split(b"\n") if line]
        if found and "target" in found[0]:
            is_ours = found[0].get("format") == kind
            if not is_ours or all(is_whole(record) for record in found[1:]):
                return found
    except (ValueError, TypeError, AttributeError):
        pass
    name = "an evaluation file" if kind == RECORDS else "a file of texts"
    raise ValueError(f"{path} is not {name}, or a damaged one; choose another file or remove it")
