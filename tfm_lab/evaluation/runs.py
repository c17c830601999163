"""Decode every context under every setting, one JSON line each: a broken-off evaluation goes on where it was."""

import json
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
        ValueError: if ``path`` holds an evaluation of other models or lengths, or a method is unknown.
    """
    header = _header(bundle, evaluation)
    done = _read_done(path, header)
    path.parent.mkdir(parents=True, exist_ok=True)
    total = len(contexts) * len(evaluation.settings)
    with path.open("a", encoding="utf-8") as file:
        if not done and path.stat().st_size == 0:
            file.write(json.dumps(header) + "\n")
        for context in contexts:
            missing = [s for s in evaluation.settings if (context.name, s.method, s.budget, s.temperature) not in done]
            for record in _evaluate_context(bundle, context, missing, evaluation):
                file.write(json.dumps(record) + "\n")
                file.flush()
                done.add((record["context"], record["method"], record["budget"], record["temperature"]))
                if on_record is not None:
                    on_record(len(done), total)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of an evaluation file, without its header.

    Raises:
        ValueError: if the file is missing or damaged.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; run the evaluation first")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:] if line.endswith("}")]


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
            plain = autoregressive_decode(bundle.target, prompt, config).tokens
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


def _decode(bundle: Bundle, setting: Setting, prompt: Sequence[int], config: DecodeConfig) -> DecodeTrace:
    if setting.method == AUTOREGRESSIVE:
        return autoregressive_decode(bundle.target, prompt, config)
    speculator = make_speculator(setting.method, bundle.drafter, bundle.weaver, config.sampling)
    return speculative_decode(bundle.target, speculator, prompt, config)


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
    if not path.is_file() or path.stat().st_size == 0:
        return set()
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    lines = whole.splitlines()
    if not lines or json.loads(lines[0]) != header:
        raise ValueError(f"{path} holds an evaluation of other models or settings; choose another file or remove it")
    records = (json.loads(line) for line in lines[1:])
    return {(r["context"], r["method"], r["budget"], r["temperature"]) for r in records}
