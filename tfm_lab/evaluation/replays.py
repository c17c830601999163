"""Fixed trees evaluated on texts that the target wrote beforehand, many at a time: no setting decodes anything.

A fixed tree is accepted by membership, so drafts never change the text (:mod:`tfm_lab.replay`). Greedy text is what
every method decodes at temperature 0; sampled text follows the same law as the text of any ``target_sample`` decode.
So replaying gives the figures that decoding would give, up to near ties that floating point decides one way or the
other. All settings of one temperature then see the very same texts, which makes their comparison tighter.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation.contexts import Context
from tfm_lab.evaluation.records import (
    Appender,
    Key,
    Prompt,
    Record,
    key_of,
    read_prompts,
    records_header,
    resume,
    start_record,
    texts_header,
)
from tfm_lab.evaluation.runs import REPEATS, TOO_LONG, check_settings, is_varied
from tfm_lab.evaluation.settings import Evaluation, Setting
from tfm_lab.noise import noise_key
from tfm_lab.provenance import device_name
from tfm_lab.replay import REPLAYED, DraftModels, ReplayedStep, Text, replay
from tfm_lab.trace import StageSeconds
from tfm_lab.training.sampling import sample_texts

TextKey = tuple[str, float, bool]
"""Digest of the prompt, temperature, and whether the text was sampled with shared noise."""

Texts = dict[TextKey, tuple[int, ...]]
"""What the target wrote."""


def evaluate_replayed(
    bundle: Bundle,
    contexts: Sequence[Context],
    evaluation: Evaluation,
    path: Path,
    on_record: Callable[[int, int], None] | None = None,
    batch: int = 64,
) -> list[Record]:
    """As :func:`tfm_lab.evaluation.runs.evaluate`, for methods in ``REPLAYED``, on texts written once.

    The texts lie beside ``path`` in :func:`texts_path` and may be used again by any evaluation of the same target.
    Records have the shape of decoded ones, with ``replayed`` true; seconds are zero and drafter calls unknown.

    Args:
        on_record: called with (done, in all), texts and records counted alike.
        batch: prompts at a time, at least 1.

    Raises:
        ValueError: before anything is written, as ``evaluate``, and if a method has no fixed trees.
        KeyboardInterrupt: on Ctrl-C; every line of the files is then complete.
    """
    if batch < 1:
        raise ValueError(f"the batch must be at least 1 text, got {batch}")
    for setting in evaluation.settings:
        if setting.method not in REPLAYED:
            raise ValueError(f"method {setting.method!r} cannot be replayed; use {', '.join(REPLAYED)}, or decode")
    settings = check_settings(bundle, evaluation)
    prompts = read_prompts(bundle, contexts, evaluation.max_new_tokens)
    header = records_header(bundle, evaluation)
    done = {key_of(record): record for record in resume(path, header)}
    texts = _read_texts(texts_path(path), texts_header(bundle, evaluation))
    manners = list(dict.fromkeys((setting.temperature, setting.shared_noise) for setting in settings))
    wanted = [_key(prompt, setting) for prompt in prompts for setting in settings]
    fitting = sorted((prompt for prompt in prompts if prompt.fits), key=lambda p: (len(p.tokens), p.digest))
    batches = [fitting[start : start + batch] for start in range(0, len(fitting), batch)]
    total = len(set(wanted)) + len({prompt.digest for prompt in fitting}) * len(manners)
    alike: dict[Setting, list[Setting]] = {}
    for setting in dict.fromkeys([*(key.setting for key in done), *settings]):
        alike.setdefault(setting.trees, []).append(setting)

    def tell() -> None:
        if on_record is not None:
            written = sum((p.digest, *m) in texts for p in {p.digest: p for p in fitting}.values() for m in manners)
            on_record(written + sum(key in done for key in set(wanted)), total)

    with Appender(texts_path(path), texts_header(bundle, evaluation)) as file:
        for part in batches:
            for manner in manners:
                if any((prompt.digest, *manner) not in texts for prompt in part):
                    file.add(_write_texts(bundle, part, *manner, evaluation, texts))
                    tell()
    with Appender(path, header) as file:
        device = device_name(str(bundle.target.device))
        for part in [[prompt for prompt in prompts if not prompt.fits], *batches]:
            for setting in settings:
                missing = [_key(prompt, setting) not in done for prompt in part]
                if any(missing):
                    records = _same_trees(part, setting, alike[setting.trees], done)
                    if records is None:
                        figures = _replay_batch(bundle, part, setting, evaluation, texts)
                        starts = (start_record(prompt, setting, device, replayed=True) for prompt in part)
                        records = [start | figure for start, figure in zip(starts, figures, strict=True)]
                    records = [record for record, is_missing in zip(records, missing, strict=True) if is_missing]
                    file.add(records)
                    done |= {key_of(record): record for record in records}
                    tell()
    return [done[key] for key in dict.fromkeys(wanted)]


def texts_path(records: Path) -> Path:
    """Where the texts of a records file lie."""
    return records.with_name(f"{records.stem}.texts.jsonl")


def _key(prompt: Prompt, setting: Setting) -> Key:
    return Key(prompt.context.name, prompt.digest, True, setting)


def _same_trees(
    prompts: Sequence[Prompt], setting: Setting, alike: Sequence[Setting], done: Mapping[Key, Record]
) -> list[Record] | None:
    """Records of these prompts under one of the settings with the very same trees, as records of this one."""
    for other in alike:
        known = [done[key] for prompt in prompts if (key := _key(prompt, other)) in done]
        if len(known) == len(prompts):
            return [record | asdict(setting) for record in known]
    return None


def _read_texts(path: Path, header: Record) -> Texts:
    rows = resume(path, header)
    return {(row["prompt"], row["temperature"], row["shared_noise"]): tuple(row["tokens"]) for row in rows}


def _write_texts(
    bundle: Bundle,
    prompts: Sequence[Prompt],
    temperature: float,
    shared_noise: bool,
    evaluation: Evaluation,
    texts: Texts,
) -> list[Record]:
    """Let the target continue a batch; add what is new to ``texts`` and return it as lines of the file.

    The draws depend on the seed, the temperature and the prompts of the batch, not on what was written before; shared
    noise on the seed and each prompt.
    """
    target, new_tokens = bundle.target, evaluation.max_new_tokens
    lengths = [len(prompt.tokens) for prompt in prompts]
    rows = [[*prompt.tokens, *[0] * (max(lengths) - len(prompt.tokens))] for prompt in prompts]
    facts = repr((evaluation.seed, temperature, [prompt.digest for prompt in prompts]))
    seed = int.from_bytes(hashlib.sha256(facts.encode()).digest()[:7], "big")
    written = sample_texts(
        target,
        torch.tensor(rows, device=target.device),
        new_tokens,
        torch.full((len(rows),), temperature, device=target.device),
        torch.Generator(target.device).manual_seed(seed),
        torch.tensor(lengths, device=target.device),
        torch.tensor([noise_key(evaluation.seed, prompt.tokens) for prompt in prompts], device=target.device)
        if shared_noise
        else None,
    ).tolist()
    lines: list[Record] = []
    for prompt, length, tokens in zip(prompts, lengths, written, strict=True):
        key = (prompt.digest, temperature, shared_noise)
        if key not in texts:
            texts[key] = _to_first_stop(tokens[length : length + new_tokens], target.config.stop_tokens)
            about = {"prompt": prompt.digest, "temperature": temperature, "shared_noise": shared_noise}
            lines.append(about | {"tokens": list(texts[key])})
    return lines


def _to_first_stop(tokens: Sequence[int], stops: Sequence[int]) -> tuple[int, ...]:
    end = next((place + 1 for place, token in enumerate(tokens) if token in stops), len(tokens))
    return tuple(tokens[:end])


def _replay_batch(
    bundle: Bundle, prompts: Sequence[Prompt], setting: Setting, evaluation: Evaluation, texts: Texts
) -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = [{"left_out": TOO_LONG} for _ in prompts]
    chosen: list[tuple[int, Text]] = []
    for index, prompt in enumerate(prompts):
        if prompt.fits:
            written = texts[prompt.digest, setting.temperature, setting.shared_noise]
            if setting.temperature == 0.0 and not is_varied(written, evaluation):
                figures[index] = {"left_out": REPEATS}
            else:
                key = noise_key(evaluation.seed, prompt.tokens) if setting.shared_noise else None
                text = Text((*prompt.tokens, *written), len(prompt.tokens), evaluation.max_new_tokens, key)
                chosen.append((index, text))
    bundle = bundle.at_temperature(setting.temperature)
    models = DraftModels(bundle.target, bundle.drafter, bundle.weaver, bundle.autoregressive)
    foreseen = setting.temperature if setting.shared_noise else None
    texts_only = [text for _, text in chosen]
    steps = replay(models, texts_only, setting.method, setting.tree, max(1, len(chosen)), foreseen_temperature=foreseen)
    for (index, text), text_steps in zip(chosen, steps, strict=True):
        rule = "greedy" if setting.temperature == 0.0 else "target_sample"
        figures[index] = {"rule": rule, "tokens": len(text.tokens) - text.prompt} | _figures(text_steps)
    return figures


def _figures(steps: Sequence[ReplayedStep]) -> dict[str, Any]:
    deepest = max((step.accepted + step.could_go_on for step in steps), default=0)
    reached = [sum(step.accepted + step.could_go_on >= depth for step in steps) for depth in range(1, deepest + 1)]
    accepted = [sum(step.accepted >= depth for step in steps) for depth in range(1, deepest + 1)]
    return {
        "committed": sum(step.committed for step in steps),
        "target_calls": len(steps),
        "drafter_calls": None,
        "depths": [list(pair) for pair in zip(reached, accepted, strict=True)],
        "seconds": [0.0] * len(StageSeconds._fields),
    }
