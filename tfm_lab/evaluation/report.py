"""The published form of an evaluation: summary JSON and a Markdown table, each with its provenance."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation.runs import Evaluation
from tfm_lab.evaluation.summary import Summary, gain, markdown_table, summarise
from tfm_lab.provenance import describe_run


def write_report(records: Sequence[dict[str, Any]], bundle: Bundle, evaluation: Evaluation, path: Path) -> None:
    """Write ``path`` (JSON) and the table beside it (``.md``)."""
    provenance = describe_run(str(bundle.target.device))
    dtype = str(bundle.target.dtype).removeprefix("torch.")
    setup = {"bundle": bundle.name, "target": bundle.target.fingerprint(), "dtype": dtype, "seed": evaluation.seed}
    setup |= {"max_new_tokens": evaluation.max_new_tokens, "children": evaluation.children}
    setup |= {"least_distinct": evaluation.least_distinct}
    overall, by_kind = summarise(records), [s for s in summarise(records, by_kind=True) if s.kind != "all"]
    gains = _gains(records)
    document = {
        "what": "mean accepted length on held-out contexts (bonus included; standard error over contexts)",
        "provenance": provenance,
        "setup": setup,
        "summaries": [_to_dict(summary) for summary in [*overall, *by_kind]],
        "gains": gains,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_without_nan(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    facts = ", ".join(f"{name}: {value}" for name, value in (provenance | setup).items())
    left_out = max((summary.left_out for summary in overall), default=0)
    text = [
        "# Mean accepted length on held-out contexts",
        "",
        f"{document['what'].capitalize()}. {facts}.",
        "",
        f"At temperature 0, {left_out} contexts are left out because their plain continuation repeats itself.",
        "",
        markdown_table(overall),
        "## Gains on the same contexts",
        "",
        "| T | B | TfM over | gain | standard error |",
        "|---|---|---|---|---|",
        *(
            f"| {g['temperature']:g} | {g['budget']} | {g['baseline']} | {100 * g['gain']:+.1f} % "
            f"| {100 * g['standard_error']:.1f} % |"
            for g in gains
        ),
        "",
        "## By kind of text",
        "",
        markdown_table(by_kind),
    ]
    path.with_suffix(".md").write_text("\n".join(text), encoding="utf-8")


def _gains(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    gains: list[dict[str, Any]] = []
    settings = dict.fromkeys((r["temperature"], r["budget"]) for r in records if r["method"] == "tfm")
    methods = {r["method"] for r in records}
    for temperature, budget in sorted(settings):
        for baseline in ("ddtree", "chain"):
            if baseline in methods:
                estimate = gain(records, "tfm", baseline, budget, temperature)
                gains.append(
                    {
                        "temperature": temperature,
                        "budget": budget,
                        "baseline": baseline,
                        "gain": estimate.value,
                        "standard_error": estimate.standard_error,
                    }
                )
    return gains


def _without_nan(value: Any) -> Any:
    """Null in place of NaN, which JSON does not have: the standard error of a single context, for example."""
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _to_dict(summary: Summary) -> dict[str, Any]:
    fields = summary._asdict()
    fields["mal"] = {"value": summary.mal.value, "standard_error": summary.mal.standard_error}
    fields["acceptance"] = [round(share, 4) for share in summary.acceptance]
    return fields
