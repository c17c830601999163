"""The published form of an evaluation: JSON, Markdown tables and an HTML page, each with its provenance."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation.best_trees import BestTrees, Yield
from tfm_lab.evaluation.ceiling import Ceiling
from tfm_lab.evaluation.documents import BOOTSTRAP, gain_to_dict, publish, summary_to_dict
from tfm_lab.evaluation.figures import best_tree_figure, budget_figure, ceiling_figure, depth_figure, kind_figure
from tfm_lab.evaluation.records import Record, records_header
from tfm_lab.evaluation.settings import Evaluation
from tfm_lab.evaluation.summary import ALL, Summary, gains, summarise
from tfm_lab.evaluation.tables import best_tree_table, ceiling_table, depth_table, gain_table, summary_table
from tfm_lab.provenance import describe_run

TITLE = "Mean accepted length on held-out contexts"
WHAT = "mean accepted length on held-out contexts (bonus included; standard error and intervals over contexts)"


def write_report(
    records: Sequence[Record],
    bundle: Bundle,
    evaluation: Evaluation,
    path: Path,
    contexts: str = "",
    ceiling: Ceiling | None = None,
    best_trees: BestTrees | None = None,
) -> None:
    """Write ``path`` (JSON), and tables (``.md``) and a page with figures (``.html``) beside it; all or nothing.

    Args:
        contexts: where the contexts come from.
    """
    provenance = describe_run(str(bundle.target.device))
    setup = {"bundle": bundle.name, "contexts": contexts} | records_header(bundle, evaluation)
    setup |= {"records made on": ", ".join(sorted({record["device"] for record in records}))}
    setup |= {"bootstrap": BOOTSTRAP}
    overall, by_kind = summarise(records), [s for s in summarise(records, by_kind=True) if s.kind != ALL]
    found = gains(records)
    document = {
        "what": WHAT,
        "provenance": provenance,
        "setup": setup,
        "summaries": [summary_to_dict(summary) for summary in [*overall, *by_kind]],
        "gains": [gain_to_dict(found_gain) for found_gain in found],
    }
    tables = [
        summary_table(overall),
        gain_table(found),
        depth_table(overall),
        summary_table(by_kind, "By kind of text"),
    ]
    temperatures = sorted({summary.setting.temperature for summary in overall})
    figures = [
        draw(chosen, temperature)
        for draw, chosen in ((budget_figure, overall), (depth_figure, overall), (kind_figure, by_kind))
        for temperature in temperatures
    ]
    if ceiling is not None:
        document["ceiling"] = _ceiling_to_dict(ceiling)
        tables.insert(2, ceiling_table(ceiling))
        figures.append(ceiling_figure(ceiling))
    if best_trees is not None:
        document["best_trees"] = [_yield_to_dict(entry) for entry in best_trees.yields()]
        tables.insert(2, best_tree_table(best_trees))
        figures.append(best_tree_figure(best_trees))
    publish(path, TITLE, document, _notes(overall), tables, figures)


def _notes(overall: Sequence[Summary]) -> list[str]:
    left_out = max((summary.left_out for summary in overall), default=0)
    too_long = max((summary.too_long for summary in overall), default=0)
    notes: list[str] = []
    if left_out:
        why = "their plain continuation repeats itself"
        notes.append(f"At temperature 0, {left_out} contexts are left out because {why}.")
    if too_long:
        notes.append(f"{too_long} contexts are left out because prompt and new tokens do not fit the target's context.")
    if any(summary.replayed for summary in overall):
        notes.append(
            "The target wrote each text once and every setting was replayed on it. For the greedy and target_sample "
            "rules that is what decoding gives, up to near ties in floating point."
        )
    return notes


def _yield_to_dict(found: Yield) -> dict[str, Any]:
    figures = {name: getattr(found, name)._asdict() for name in ("tokens", "gain", "share", "left")}
    return asdict(found.setting) | {"kind": found.kind, "anchors": found.anchors} | figures


def _ceiling_to_dict(ceiling: Ceiling) -> dict[str, Any]:
    figures = {name: [figure._asdict() for figure in column] for name, column in ceiling.figures().items()}
    return {"anchors": ceiling.anchors, "continuations": ceiling.continuations, "by_depth": figures}
