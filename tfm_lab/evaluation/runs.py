"""Decode every context under every setting, one JSON line each: a broken-off evaluation goes on where it was."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.evaluation.contexts import Context
from tfm_lab.methods import AUTOREGRESSIVE, make_speculator
from tfm_lab.metrics import acceptance_by_depth
from tfm_lab.trace import DecodeTrace


@dataclass(frozen=True, slots=True)
class Setting:
    """One column of an evaluation."""

    method: str
    budget: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What to evaluate.

    Attributes:
        settings: methods, budgets and temperatures to compare.
        max_new_tokens: per context.
        children: most children per node of a woven tree.
        seed: of all draws.
        least_distinct: at temperature 0, contexts whose plain continuation has a smaller share of distinct tokens are
            left out for every method: a text that only repeats itself flatters every drafter.
    """

    settings: tuple[Setting, ...]
    max_new_tokens: int = 64
    children: int = 32
    seed: int = 0
    least_distinct: float = 0.3


def evaluate(
    bundle: Bundle,
    contexts: Sequence[Context],
    evaluation: Evaluation,
    path: Path,
    on_record: Callable[[int, int], None] | None = None,
) -> None:
    """Append one line per (context, setting) to ``path``; lines that are there already are not computed again.

    Args:
        on_record: called with (records done, records in all).

    Raises:
        ValueError: before anything is written, if ``path`` holds an evaluation of other models or lengths, a setting
            cannot work with this bundle, or a context does not fit the target.
    """
    _check(bundle, contexts, evaluation)
    header = _header(bundle, evaluation)
    done = _read_done(path, header)
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = {(c.name, s.method, s.budget, s.temperature) for c in contexts for s in evaluation.settings}
    with path.open("a", encoding="utf-8") as file:
        if path.stat().st_size == 0:
            file.write(json.dumps(header) + "\n")
        for context in contexts:
            settings = dict.fromkeys(evaluation.settings)
            missing = [s for s in settings if (context.name, s.method, s.budget, s.temperature) not in done]
            for record in _evaluate_context(bundle, context, missing, evaluation):
                file.write(json.dumps(record) + "\n")
                file.flush()
                done.add((record["context"], record["method"], record["budget"], record["temperature"]))
                if on_record is not None:
                    on_record(len(done & wanted), len(wanted))


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of an evaluation file, without its header.

    Raises:
        ValueError: if the file is missing or damaged.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; run the evaluation first")
    return _parse(path, path.read_bytes())[1:]


def _evaluate_context(
    bundle: Bundle, context: Context, settings: Sequence[Setting], evaluation: Evaluation
) -> Iterator[dict[str, Any]]:
    prompt = bundle.encode(context.prompt)
    is_varied: bool | None = None
    chains: dict[tuple[int, float], DecodeTrace] = {}
    for setting in settings:
        config = DecodeConfig(
            evaluation.max_new_tokens,
            SamplingConfig(setting.temperature),
            TreeConfig(budget=setting.budget, children=evaluation.children),
            bundle.target.config.stop_tokens,
            evaluation.seed,
        )
        if setting.temperature == 0.0 and is_varied is None:
            plain = autoregressive_decode(bundle.target, prompt, config).uninterrupted().tokens
            is_varied = len(set(plain)) >= evaluation.least_distinct * len(plain)
        record: dict[str, Any] = {"context": context.name, "kind": context.kind} | asdict(setting)
        if setting.temperature == 0.0 and not is_varied:
            yield record | {"left_out": "repeats itself"}
            continue
        longest = min(setting.budget, bundle.drafter.config.draft_depth)
        if setting.method == "chain" and (longest, setting.temperature) in chains:
            trace = chains[longest, setting.temperature]  # a larger budget does not make a chain longer
        else:
            trace = _decode(bundle, setting, prompt, config)
        if setting.method == "chain":
            chains[longest, setting.temperature] = trace
        yield record | _figures(trace)


def _check(bundle: Bundle, contexts: Sequence[Context], evaluation: Evaluation) -> None:
    """Raise for what would otherwise break an evaluation off half-way."""
    DecodeConfig(evaluation.max_new_tokens)
    for setting in evaluation.settings:
        TreeConfig(budget=setting.budget, children=evaluation.children)
        sampling = SamplingConfig(setting.temperature)
        if setting.method != AUTOREGRESSIVE:
            make_speculator(setting.method, bundle.drafter, bundle.weaver, sampling)
    room = bundle.target.config.max_positions
    for context in contexts:
        if not 0 < len(bundle.encode(context.prompt)) < room:
            raise ValueError(f"context {context.name!r} is empty or does not fit the target's {room} positions")


def _decode(bundle: Bundle, setting: Setting, prompt: Sequence[int], config: DecodeConfig) -> DecodeTrace:
    if setting.method == AUTOREGRESSIVE:
        return autoregressive_decode(bundle.target, prompt, config).uninterrupted()
    speculator = make_speculator(setting.method, bundle.drafter, bundle.weaver, config.sampling)
    return speculative_decode(bundle.target, speculator, prompt, config).uninterrupted()


def _figures(trace: DecodeTrace) -> dict[str, Any]:
    return {
        "rule": trace.rule,
        "tokens": len(trace.tokens),
        "committed": sum(len(step.committed) for step in trace.steps),
        "target_calls": trace.target_calls,
        "drafter_calls": sum(step.drafter_calls for step in trace.steps),
        "depths": [[depth.reached, depth.accepted] for depth in acceptance_by_depth([trace])],
        "seconds": [round(sum(column), 6) for column in zip(*(step.seconds for step in trace.steps), strict=True)],
    }


def _header(bundle: Bundle, evaluation: Evaluation) -> dict[str, Any]:
    return {
        "target": bundle.target.fingerprint(),
        "dtype": str(bundle.target.dtype).removeprefix("torch."),
        "max_new_tokens": evaluation.max_new_tokens,
        "children": evaluation.children,
        "seed": evaluation.seed,
        "least_distinct": evaluation.least_distinct,
    }


def _read_done(path: Path, header: dict[str, Any]) -> set[tuple[str, str, int, float]]:
    """Which records are complete; a line that a crash cut short is removed."""
    if not path.is_file():
        return set()
    raw = path.read_bytes()
    if (json.dumps(header) + "\n").encode().startswith(raw):
        os.truncate(path, 0)
        return set()
    found = _parse(path, raw)
    if found[0] != header:
        raise ValueError(f"{path} holds an evaluation of other models or settings; choose another file or remove it")
    os.truncate(path, _whole(raw))
    return {(r["context"], r["method"], r["budget"], r["temperature"]) for r in found[1:]}


def _whole(raw: bytes) -> int:
    """Length of the complete lines."""
    return raw.rfind(b"\n") + 1


def _parse(path: Path, raw: bytes) -> list[dict[str, Any]]:
    """Header and records from the complete lines."""
    try:
        found = [json.loads(line) for line in raw[: _whole(raw)].split(b"\n") if line]
        if found and "target" in found[0] and all("context" in record for record in found[1:]):
            return found
    except (ValueError, TypeError):
        pass
    raise ValueError(f"{path} is not an evaluation file, or a damaged one; choose another file or remove it")
