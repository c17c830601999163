"""Decode every context under every setting, one JSON line each: a broken-off evaluation goes on where it was."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
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
)
from tfm_lab.evaluation.settings import Evaluation, Setting
from tfm_lab.methods import AUTOREGRESSIVE, make_speculator
from tfm_lab.metrics import acceptance_by_depth
from tfm_lab.provenance import device_name
from tfm_lab.trace import DecodeTrace

REPEATS, TOO_LONG = "repeats itself", "does not fit"
"""Why a context may be left out; a record then says so in its field ``left_out``."""


def evaluate(
    bundle: Bundle,
    contexts: Sequence[Context],
    evaluation: Evaluation,
    path: Path,
    on_record: Callable[[int, int], None] | None = None,
) -> list[Record]:
    """Append one line per (context, setting) to ``path``; lines that are there already are not computed again.

    A context that does not leave room for the new tokens is left out, and its records say so.

    Args:
        on_record: called with (records done, records in all).

    Returns:
        The records of these contexts and settings, contexts in order, settings in order for each.

    Raises:
        ValueError: before anything is written, if ``path`` holds an evaluation of other models or settings, a setting
            cannot work with this bundle, or a context is empty.
        KeyboardInterrupt: on Ctrl-C; every line of the file is then complete.
    """
    settings = check_settings(bundle, evaluation)
    prompts = read_prompts(bundle, contexts, evaluation.max_new_tokens)
    header = records_header(bundle, evaluation)
    done = {key_of(record): record for record in resume(path, header)}
    wanted = [Key(p.context.name, p.digest, False, setting) for p in prompts for setting in settings]
    left = len(set(wanted) - done.keys())
    total, device = len(set(wanted)), device_name(str(bundle.target.device))
    with Appender(path, header) as file:
        for prompt in prompts:
            missing = [s for s in settings if Key(prompt.context.name, prompt.digest, False, s) not in done]
            for setting, figures in _evaluate_prompt(bundle, prompt, missing, evaluation):
                record = start_record(prompt, setting, device, replayed=False) | figures
                file.add([record])
                done[key_of(record)] = record
                left -= 1
                if on_record is not None:
                    on_record(total - left, total)
    return [done[key] for key in dict.fromkeys(wanted)]


def check_settings(bundle: Bundle, evaluation: Evaluation) -> list[Setting]:
    """The settings, each once.

    Raises:
        ValueError: for what would otherwise break an evaluation off half-way.
    """
    DecodeConfig(evaluation.max_new_tokens)
    settings = list(dict.fromkeys(setting.essential for setting in evaluation.settings))
    for setting in settings:
        if setting.method != AUTOREGRESSIVE:
            _speculator(bundle, setting)
    return settings


def is_varied(tokens: Sequence[int], evaluation: Evaluation) -> bool:
    """False for a text that only repeats itself."""
    return len(set(tokens)) >= evaluation.least_distinct * len(tokens)


def _evaluate_prompt(
    bundle: Bundle, prompt: Prompt, settings: Sequence[Setting], evaluation: Evaluation
) -> Iterator[tuple[Setting, dict[str, Any]]]:
    traces: dict[Setting, DecodeTrace] = {}

    def decoded(setting: Setting) -> DecodeTrace:
        longest = _longest_chain(bundle, setting)
        if longest not in traces:
            traces[longest] = _decode(bundle, setting, prompt.tokens, evaluation)
        return traces[longest]

    for setting in settings:
        if not prompt.fits:
            yield setting, {"left_out": TOO_LONG}
        elif setting.temperature == 0.0 and not is_varied(decoded(Setting(AUTOREGRESSIVE, 0, 0.0)).tokens, evaluation):
            yield setting, {"left_out": REPEATS}
        else:
            yield setting, _figures(decoded(setting))


def _longest_chain(bundle: Bundle, setting: Setting) -> Setting:
    """The setting with the smallest budget that gives the same trees: a larger one does not make a chain longer."""
    drafter = {"chain": bundle.drafter, "ard-chain": bundle.autoregressive}.get(setting.method)
    if drafter is None:
        return setting
    longest = min(setting.budget, setting.max_depth, drafter.config.draft_depth)
    return Setting(setting.method, longest, setting.temperature, shared_noise=setting.shared_noise)


def _decode(bundle: Bundle, setting: Setting, prompt: Sequence[int], evaluation: Evaluation) -> DecodeTrace:
    stops = bundle.target.config.stop_tokens
    config = DecodeConfig(evaluation.max_new_tokens, setting.sampling, setting.tree, stops, evaluation.seed)
    if setting.method == AUTOREGRESSIVE:
        return autoregressive_decode(bundle.target, prompt, config).uninterrupted()
    return speculative_decode(bundle.target, _speculator(bundle, setting), prompt, config).uninterrupted()


def _speculator(bundle: Bundle, setting: Setting):
    return make_speculator(
        setting.method, bundle.drafter, bundle.weaver, setting.sampling, autoregressive=bundle.autoregressive
    )


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
