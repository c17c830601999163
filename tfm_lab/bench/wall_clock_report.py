"""The wall-clock comparison as tables and files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfm_lab.bench.wall_clock import Comparison, Plan
from tfm_lab.evaluation.statistics import Bounded
from tfm_lab.evaluation.tables import Table
from tfm_lab.files import write_together
from tfm_lab.provenance import describe_run
from tfm_lab.trace import StageSeconds

Tried = dict[str, list[tuple[Plan, float]]]
"""For every method its plans with tokens per second on the tuning prompts, the fastest first."""


def speed_table(comparisons: Sequence[Comparison]) -> Table:
    """Speed-ups over plain decoding, by kind of text and as their mean."""
    kinds = tuple(dict.fromkeys(kind for comparison in comparisons for kind in comparison.speedups))
    rows = [
        (
            *(c.plan.method, c.plan.label, f"{c.mal:.2f}", f"{c.rate:.1f}"),
            *(_cell(c.speedups[kind]) for kind in kinds),
            *(_cell(c.macro), str(c.same_text)),
        )
        for c in comparisons
    ]
    header = ("method", "settings", "MAL", "tokens / s", *kinds, "mean of the kinds", "same text")
    note = (
        "Tokens per second over those of plain decoding on the same prompts, greedy, with 95 % bootstrap intervals "
        "over prompts; prefill is left out. Same text: prompts whose text is that of plain decoding to the last token."
    )
    return Table("Speed-up in wall-clock time", note, header, rows)


def stage_table(comparisons: Sequence[Comparison]) -> Table:
    """Where the time of a step goes."""
    rows = [
        (c.plan.method, *(f"{stage:.1f}" for stage in c.stages), f"{c.stages.total:.1f}", f"{1e3 * c.prefill:.0f}")
        for c in comparisons
    ]
    header = ("method", *StageSeconds._fields, "step", "prefill of a prompt")
    return Table("Milliseconds per step", "Means over all steps.", header, rows)


def tuning_table(tried: Tried) -> Table:
    """What the settings were chosen from."""
    rows = [(method, plan.label, f"{rate:.1f}") for method, plans in tried.items() for plan, rate in plans]
    return Table(
        "Settings tried", "On prompts that the comparison does not use.", ("method", "settings", "tokens / s"), rows
    )


def save_wall_clock(comparisons: Sequence[Comparison], tried: Tried, setup: dict[str, Any], path: Path) -> None:
    """Write ``path`` (JSON) and Markdown tables beside it, both with their provenance."""
    facts = describe_run("cpu") | setup
    document = {
        "what": "wall-clock time of greedy decoding on a CPU, each method at its own best settings",
        "provenance": facts,
        "comparisons": [_plain(comparison) for comparison in comparisons],
        "tried": {
            method: [{"settings": plan.label, "tokens_per_second": rate} for plan, rate in plans]
            for method, plans in tried.items()
        },
    }
    tables = (speed_table(comparisons), stage_table(comparisons), tuning_table(tried))
    provenance = ", ".join(f"{name}: {value}" for name, value in facts.items() if name != "threads")
    body = "\n".join(f"## {table.title}\n\n{table.note}\n\n{table.markdown()}" for table in tables)
    text = f"# Decoding on a CPU\n\n{provenance}.\n\n{body}"
    write_together({path: json.dumps(document, indent=1) + "\n", path.with_suffix(".md"): text})


def _plain(comparison: Comparison) -> dict[str, Any]:
    speedups = {kind: bounded._asdict() for kind, bounded in comparison.speedups.items()}
    return comparison._asdict() | {
        "plan": {"method": comparison.plan.method, "settings": comparison.plan.label},
        "stages": comparison.stages._asdict(),
        "speedups": speedups,
        "macro": comparison.macro._asdict(),
    }


def _cell(bounded: Bounded) -> str:
    return f"{bounded.value:.2f} [{bounded.low:.2f}, {bounded.high:.2f}]"
