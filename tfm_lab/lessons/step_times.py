"""Steps and speeds of a model of the paper's size: what the paper reports beside what this package measured."""

from collections.abc import Sequence
from typing import NamedTuple

from tfm_lab.lessons.cards import Card, table_card
from tfm_lab.planning import FullModel, step_ratio
from tfm_lab.planning.costs import PLAIN
from tfm_lab.planning.fitting import FittedCosts, HeldOut
from tfm_lab.planning.measured import KIND, NODES, STATE_PER_NODE, FullStep
from tfm_lab.planning.published import (
    LENGTH_GAIN,
    RATES,
    SPEED_GAIN,
    SPEED_GAINS_OVER_DDTREE,
    VERIFICATION_SHARE,
    plain_step_seconds,
)
from tfm_lab.planning.replayed import predicted_rate, speed_up

NOT_REPORTED, NOT_REACHED = "not reported", "not reached"
CHAIN_ROWS = 16
SUITES = ("chat", "code", "maths")


class Row(NamedTuple):
    """A quantity, what the paper says, what was measured here."""

    name: str
    reported: str
    own: str


def compared(model: FullModel) -> list[Row]:
    """All rows of the comparison: steps, ratios of steps, the share of verification, and speeds."""
    plain, chain = model.plain_step().seconds.median, model.step("chain", CHAIN_ROWS).seconds.median
    ddtree, tree = model.step("ddtree", NODES).seconds.median, model.step("tfm", NODES)
    tfm = tree.seconds.median
    ratio = step_ratio(LENGTH_GAIN.value, SPEED_GAIN.value)
    low, high = (1 + gain.value for gain in SPEED_GAINS_OVER_DDTREE)
    chain_rate, tfm_rate = (RATES[name].value / RATES[PLAIN].value for name in ("chain", "tfm"))
    return [
        Row("plain step", f"{1e3 * plain_step_seconds():.1f} ms (derived)", f"{1e3 * plain:.2f} ms"),
        Row("chain step, 16 rows", NOT_REPORTED, f"{1e3 * chain:.2f} ms"),
        Row(f"DDTree step, {NODES} rows", NOT_REPORTED, f"{1e3 * ddtree:.2f} ms"),
        Row(f"TfM step, {NODES} rows", NOT_REPORTED, f"{1e3 * tfm:.2f} ms"),
        Row("TfM step over chain step", f"{ratio:.2f} (derived)", f"{tfm / chain:.3f}"),
        Row("TfM step over plain step", NOT_REPORTED, f"{tfm / plain:.3f}"),
        Row(
            "Gated DeltaNet in a TfM step, with commit",
            f"{100 * VERIFICATION_SHARE.value:.0f} % is verification, which stages is not said",
            f"{_memories(tree)}; with a state per node {_memories(model.step('tfm', NODES, STATE_PER_NODE))}",
        ),
        Row("speed, chain over plain", f"{chain_rate:.2f}", _speeds(model, "chain", PLAIN)),
        Row("speed, TfM over plain", f"{tfm_rate:.2f}", _speeds(model, "tfm", PLAIN)),
        Row("speed, TfM over chain", f"{1 + SPEED_GAIN.value:.2f}", _speeds(model, "tfm", "chain")),
        Row("speed, TfM over DDTree", f"{low:.2f} to {high:.2f}", _speeds(model, "tfm", "ddtree")),
    ]


def compared_card(model: FullModel) -> Card:
    """The comparison as a table with both settings in its caption."""
    note = (
        "Reported: arXiv 2607.06763, Qwen3.6-27B with its trained drafter and Weaver, one NVIDIA B200, batch 1, "
        f"temperature 1. Here: {KIND}, one {model.origin}, batch 1, 1024 tokens of context; steps are medians, speeds "
        "those of whole decodes with replayed acceptance (SmolLM2-135M's, temperature "
        f"{model.temperature:g}), ± the standard error of drawing it. Devices, models and accepted lengths differ."
    )
    return table_card(note, ("what", "reported by the paper", "measured here"), compared(model))


def held_out_card(held_out: Sequence[HeldOut], note: str) -> Card:
    """Every step that was held out: measured, predicted, and the error."""
    rows = [
        (
            _name(item.step.plan.method, item.step.plan.rows),
            f"{item.step.context:,}",
            f"{1e3 * item.step.seconds:.2f}",
            f"{1e3 * item.predicted:.2f}",
            f"{100 * item.relative_error:+.1f} %",
        )
        for item in held_out
    ]
    return table_card(note, ("step", "context", "measured, ms", "predicted, ms", "error"), rows)


def decodes_card(model: FullModel, fitted: FittedCosts, note: str) -> Card:
    """Every whole decode: measured tokens per second, and what the fitted steps say."""
    fastest = max((item.rate for item in model.decodes if item.plan.method == PLAIN), default=0.0)
    rows = [
        (
            _name(item.plan.method, item.plan.rows),
            item.suite,
            f"{item.tokens / item.steps:.2f}",
            f"{item.rate:.1f}",
            f"{predicted_rate(fitted, item):.1f}",
            f"{100 * (predicted_rate(fitted, item) / item.rate - 1):+.1f} %",
        )
        for item in model.decodes
        if item.plan.method != PLAIN or item.rate == fastest
    ]
    heads = ("decode", "text", "tokens per step", "measured, tokens/s", "predicted, tokens/s", "error")
    return table_card(note, heads, rows)


def _memories(step: FullStep) -> str:
    return f"{100 * step.parts['memories'] / step.seconds.median:.1f} %"


def _name(method: str, rows: int) -> str:
    titles = {PLAIN: "plain", "chain": "chain", "ddtree": "DDTree", "tfm": "TfM"}
    return f"{titles[method]}, {rows} row{'s' if rows > 1 else ''}"


def _speeds(model: FullModel, method: str, over: str) -> str:
    told: list[str] = []
    for suite in SUITES:
        found = speed_up(model, suite, method, over)
        told.append(f"{suite} {NOT_REACHED if found is None else f'{found.value:.2f} ± {found.error:.2f}'}")
    return ", ".join(told)
