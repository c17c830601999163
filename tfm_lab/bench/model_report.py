"""Records of a full-size benchmark as tables and files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfm_lab.bench.model_replay import LABEL
from tfm_lab.evaluation.tables import NOTHING, Table
from tfm_lab.files import write_together
from tfm_lab.provenance import describe_run

Record = dict[str, Any]


def step_table(records: Sequence[Record]) -> Table:
    """Every configuration: milliseconds, and what plain decoding, the chain and the floor of the same run cost."""
    header = ("method", "B", "batch", "context", "GDN", "rows", "ms", "p10", "p90", "to AR", "to chain", "to floor")
    floor = floor_ms(records)
    rows = []
    for record in _steps(records):
        start = _names(record)
        if "refusal" in record:
            rows.append((*start, NOTHING, f"not reported: {record['refusal']}", *[NOTHING] * 6))
            continue
        time = record["step_ms"]
        rows.append(
            (
                *start,
                str(record["rows"]),
                *(f"{time[name]:.3f}" for name in ("median", "p10", "p90")),
                _ratio(time["median"], _baseline(records, record, "ar")),
                _ratio(time["median"], _baseline(records, record, "chain")),
                _ratio(time["median"], floor),
                _gigabytes(record["peak_bytes"]),
                record["attention"],
            )
        )
    note = (
        "Medians of a whole step (p10, p90), recorded as one CUDA graph where the device has them. Rows are those of "
        "the target, roots included. To AR and to chain: over the fastest such step of the same batch and context; to "
        "floor: over reading the target's matrices once, measured in the same run."
    )
    return Table("Steps", note, (*header, "peak GB", "attention"), rows)


STAGES = ("root", "draft", "grow", "layout", "verify", "head", "accept", "commit")
"""Columns of the tables of stages, in the order of a step."""


def stage_table(records: Sequence[Record]) -> Table:
    """Every stage of every configuration: time, and its share of the stages' sum."""
    rows = []
    for record in _timed(records):
        times = {name: spread["median"] for name, spread in record["stages_ms"].items()}
        total = sum(times.values())
        cells = [
            f"{times[name]:.3f} ({100 * times[name] / total:.1f} %)" if name in times else NOTHING for name in STAGES
        ]
        rows.append((*_names(record), *cells, f"{total:.3f}", f"{record['step_ms']['median']:.3f}"))
    note = (
        "Milliseconds, medians, and shares of the stages' sum. Each stage is recorded and replayed on its own, so a "
        "launch is in each; the step is one recording of them all. Root: the last token of the text; draft: the "
        "drafter's pass with its logits; grow: the tree, Weaver included; layout: order, masks and what kernels read; "
        "verify: the target up to its final norm; head: its logits and their argmax; commit: caches, memories, the "
        "drafter's context."
    )
    return Table("Stages", note, ("method", "B", "batch", "context", "GDN", *STAGES, "sum", "step"), rows)


def traffic_table(records: Sequence[Record]) -> Table:
    """Bytes that the stages have to move, and the rate at which they did."""
    rows = []
    for record in _timed(records):
        cells = []
        for name in STAGES:
            moved = record["bytes"].get(name, 0)
            rate = moved / record["stages_ms"][name]["median"] / 1e9 if moved else 0.0
            cells.append(f"{moved / 1e9:.3f} ({rate:.2f})" if moved else NOTHING)
        total = sum(record["bytes"].values())
        cells.append(f"{total / 1e9:.3f} ({total / record['step_ms']['median'] / 1e9:.2f})")
        rows.append((*_names(record), *cells, f"{record['foreseen_bytes'] / 1e9:.2f}"))
    note = (
        "GB that a stage has to move at least (weights, caches, memories), counted from shapes, and in brackets TB/s: "
        "that over the stage's time. Foreseen: GB that were foreseen for the configuration, weights aside."
    )
    header = ("method", "B", "batch", "context", "GDN", *STAGES, "step", "foreseen")
    return Table("Traffic", note, header, rows)


def part_table(records: Sequence[Record]) -> Table:
    """What the target's pass consists of, and its share of the step."""
    header = ("method", "B", "batch", "context", "GDN", "part of the target's pass", "ms", "of the step")
    rows = []
    for record in _timed(records):
        whole = record["step_ms"]["median"]
        for name, spread in record["parts_ms"].items():
            share = f"{100 * spread['median'] / whole:.1f} %"
            rows.append((*_names(record), name, f"{spread['median']:.3f}", share))
    note = (
        "All layers' work of one kind, on its own: products with every matrix and the head; memories with convolution, "
        "verification and commit; attention over the cache. The rest of the pass are norms, gates and rotations."
    )
    return Table("Parts of the target's pass", note, header, rows)


def replay_table(records: Sequence[Record]) -> Table:
    """Whole decodes: tokens per second, and over plain decoding, the chain and DDTree on the same kind of text."""
    replays = [record for record in records if record["kind"] == "replay"]
    header = ("suite", "method", "B", "context", "tokens", "steps", "tokens per step", "recorded", "tokens/s")
    rows = []
    for record in replays:
        start = (record["suite"], record["method"], str(record["budget"]), str(record["context"]))
        if "refusal" in record:
            rows.append((*start, f"not reported: {record['refusal']}", *[NOTHING] * 7))
            continue
        speed = record["tokens_per_second"]
        over = [_speed(replays, record, method) for method in ("ar", "chain", "ddtree")]
        rows.append(
            (
                *start,
                str(record["tokens"]),
                str(record["steps"]),
                f"{record['mean_emitted']:.2f}",
                f"{record['mean_emitted_recorded']:.2f} at B = {record['recorded_budget']}",
                f"{speed:.1f}",
                *(_ratio(speed, other) for other in over),
            )
        )
    note = (
        f"Every row: {LABEL}. Steps, trees and commits are real; how many drafts a step accepts is drawn from "
        "what a trained model accepted (tokens per step as recorded, bonus included) or from a given mean. Text that "
        "these weights write means nothing."
    )
    return Table(f"Decodes ({LABEL})", note, (*header, "over AR", "over chain", "over DDTree"), rows)


def floor_table(records: Sequence[Record]) -> Table:
    """What reading the weights alone takes."""
    names = {"floor all": "every matrix of the target", "floor head": "the output head alone"}
    rows = [
        (
            names[record["key"]],
            f"{record['bytes'] / 1e9:.3f}",
            f"{record['ms']['median']:.3f}",
            f"{record['bytes_per_second'] / 1e12:.3f}",
        )
        for record in records
        if record["kind"] == "floor"
    ]
    note = "A maximum over every matrix: read once, nothing written."
    return Table("Bandwidth floor", note, ("what", "GB", "ms", "TB/s"), rows)


def model_tables(records: Sequence[Record]) -> list[Table]:
    """All tables that have rows, the main ones first."""
    tables = [floor_table, step_table, replay_table, part_table, stage_table, traffic_table]
    return [table for table in (make(records) for make in tables) if table.rows]


def save_model_bench(records: Sequence[Record], setup: dict[str, Any], device: str, path: Path) -> None:
    """Write ``path`` (JSON) and Markdown tables beside it, both with their provenance."""
    facts = describe_run(device) | setup
    document = {
        "what": "milliseconds of decode steps of a whole model, by stage, and of decodes with replayed acceptance",
        "provenance": facts,
        "records": list(records),
    }
    provenance = ", ".join(f"{name}: {value}" for name, value in facts.items() if name != "threads")
    body = "\n".join(f"## {table.title}\n\n{table.note}\n\n{table.markdown()}" for table in model_tables(records))
    unfused = sorted({name for record in _timed(records) for name in record["not_fused"]})
    if unfused:
        body += f"\nNot compiled on this machine, run as they are: {', '.join(unfused)}.\n"
    text = f"# Full-size decode steps: {setup['shape']}, random weights\n\n{provenance}.\n\n{body}"
    write_together({path: json.dumps(document, indent=1) + "\n", path.with_suffix(".md"): text})


def floor_ms(records: Sequence[Record]) -> float | None:
    """Milliseconds of reading every matrix once; ``None`` if it was not measured."""
    return next((record["ms"]["median"] for record in records if record["key"] == "floor all"), None)


def _steps(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["kind"] == "step"]


def _timed(records: Sequence[Record]) -> list[Record]:
    return [record for record in _steps(records) if "refusal" not in record]


def _names(record: Record) -> tuple[str, ...]:
    return (record["method"], *(str(record[name]) for name in ("budget", "batch", "context", "gdn")))


def _baseline(records: Sequence[Record], record: Record, method: str) -> float | None:
    """Median of this method's fastest step with the batch and context of ``record``; ``None`` without any."""
    alike = [
        other["step_ms"]["median"]
        for other in _timed(records)
        if other["method"] == method and all(other[name] == record[name] for name in ("batch", "context"))
    ]
    return min(alike, default=None)


def _speed(replays: Sequence[Record], record: Record, method: str) -> float | None:
    """Most tokens per second of this method on the same kind of text; plain decoding's are the same on all."""
    alike = [
        other["tokens_per_second"]
        for other in replays
        if other["method"] == method and "refusal" not in other and other["suite"] in (record["suite"], "any")
    ]
    return max(alike, default=None)


def _ratio(value: float, other: float | None) -> str:
    return NOTHING if other is None else f"{value / other:.3f}x"


def _gigabytes(count: int) -> str:
    return NOTHING if count == 0 else f"{count / 1e9:.1f}"
