"""Kernel measurements as tables and files, and the search for good settings."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfm_lab.bench.kernel import Measurement, Stopwatch, measure
from tfm_lab.bench.kernel_cases import KernelCase, LayerShape
from tfm_lab.bench.kernel_variants import fused
from tfm_lab.evaluation.tables import NOTHING, Table
from tfm_lab.files import write_together
from tfm_lab.gdn import step
from tfm_lab.provenance import describe_run

REFERENCE = "fused verify+commit"
"""The variant that others are compared with."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a group of measurements has in common.

    Attributes:
        tree: kind of the trees.
        nodes: per tree, root included.
        depth: proposed tokens on the longest path.
        inputs: ``warm`` where all layers share q, k and v, ``cold`` where each has its own.
        layers: in one replay.
    """

    tree: str
    nodes: int
    depth: int
    batch: int
    inputs: str
    layers: int


Results = Sequence[tuple[Setting, Sequence[Measurement]]]


def time_table(results: Results) -> Table:
    """Every variant in every setting."""
    header = (
        "tree",
        "depth",
        "batch",
        "nodes",
        "inputs",
        "layers",
        "variant",
        "us per layer",
        "p10",
        "p90",
        "to fused",
        "error",
        "sitting",
    )
    rows = []
    for setting, measurements in results:
        reference = next((m.time.median for m in measurements if m.variant == REFERENCE and m.time), None)
        start = (
            setting.tree,
            *map(str, (setting.depth, setting.batch, setting.nodes)),
            setting.inputs,
            str(setting.layers),
        )
        for m in measurements:
            if m.time is None:
                rows.append((*start, m.variant, f"not reported: {m.refusal}", *[NOTHING] * 4, str(m.sitting)))
                continue
            ratio = f"{m.time.median / reference:.2f}x" if reference else NOTHING
            error = NOTHING if m.output_error is None else f"{m.output_error:.1e}"
            rows.append((*start, m.variant, *(f"{time:.2f}" for time in m.time), ratio, error, str(m.sitting)))
    note = (
        "Medians with p10 and p90 over replays of a CUDA graph of all layers, divided by their number; the states of "
        "the layers differ. To fused: time over that of the fused kernels with commit in the same run. Error: RMS over "
        "RMS against the float64 recurrence; the bfloat16 output alone costs 1.7e-3. Gates, norms and what depends on "
        "the tree alone are inside the time for the fused kernels (layouts in the whole step), outside for the others. "
        "Variants of one sitting took turns; those that found no memory beside them sat later."
    )
    return Table("Tree verification, microseconds per layer", note, header, rows)


def memory_table(shape: LayerShape, layers: int, nodes: Sequence[int], path: int = 16) -> Table:
    """Bytes per request, from the shape alone: what verification keeps, and what a state per node would take."""
    state = 4 * shape.value_heads * shape.key_dim * shape.value_dim
    rows = []
    for count in nodes:
        update = 4 * shape.value_heads * count * shape.value_dim
        small = 2 * 4 * shape.value_heads * count
        keys = 2 * count * shape.key_width
        figures = (update + small, keys, pending_bytes(shape, path), count * state)
        rows.append((str(count), *(f"{layers * figure / 2**20:.1f}" for figure in figures)))
    header = ("nodes", "stash during a step", "keys of the nodes", "pending between steps", "a state per node")
    note = (
        f"MiB per request over {layers} layers; bfloat16 keys, everything else float32; paths of at most {path} nodes."
    )
    return Table("Memory", note, header, rows)


def pending_bytes(shape: LayerShape, path: int = 16) -> int:
    """Of one request and layer between two steps: the rows of the accepted path, in bytes."""
    heads = shape.value_heads
    return 2 * path * shape.key_width + 4 * (path * shape.value_width + path * heads + heads + 1)


def search_settings(
    case: KernelCase,
    repeats: int,
    stopwatch: Stopwatch,
    tick: Callable[[], None] = lambda: None,
    most: int | None = None,
) -> list[Measurement]:
    """The fused kernels with commit under many settings, the fastest first; the name of each holds its settings.

    Two rounds: how the first launch works and whether launches overlap, then, with the fastest of these, how the second
    one divides the values.

    Args:
        tick: called after each setting's preparation and after each turn of them all.
        most: number of settings to try in a round; all if ``None``.
    """
    tiles = [tile for tile in (16, 32, 64, 128) if tile <= case.shape.value_dim]
    blocks = -(-len(case.trees[0]) // 16)
    groups = sorted({count for count in (1, 2, 3, 4, 8, blocks) if count <= blocks})
    first = [
        step.Settings(min(32, case.shape.value_dim))._replace(
            groups=min(2, groups[-1]), key_step=key_step, fold_tile=fold, chained=chained
        )
        for key_step, fold, chained in itertools.product((64, 128), (8, 16, 32), (False, True))
    ]
    measured = _settings_measured(case, first[:most], repeats, stopwatch, tick)
    best = first[min(range(len(measured)), key=lambda index: _median(measured[index]))]
    second = [
        best._replace(value_tile=tile, groups=count, warps=warps, stages=stages)
        for tile, count, warps, stages in itertools.product(tiles, groups, (1, 2, 4, 8), (1, 3))
        if 4 * warps <= tile <= 32 * warps
    ]
    fresh = [settings for settings in second if settings not in first]
    measured += _settings_measured(case, fresh[:most], repeats, stopwatch, tick)
    return sorted(measured, key=_median)


def _settings_measured(
    case: KernelCase,
    settings: Sequence[step.Settings],
    repeats: int,
    stopwatch: Stopwatch,
    tick: Callable[[], None],
) -> list[Measurement]:
    builders = {str(chosen): fused(chosen, commit=True) for chosen in settings}
    return measure(case, builders, repeats, stopwatch, tick)


def _median(measurement: Measurement) -> float:
    """For sorting; what could not run comes last."""
    return measurement.time.median if measurement.time else float("inf")


def search_table(measurements: Sequence[Measurement], most: int = 20) -> Table:
    """The fastest settings, and after them those that could not run."""
    timed = [m for m in measurements if m.time]
    rows = [(m.variant, *(f"{time:.2f}" for time in m.time)) for m in timed[:most] if m.time]
    rows += [(m.variant, f"not reported: {m.refusal}", NOTHING, NOTHING) for m in measurements if not m.time]
    return Table("Settings", f"The fastest {most} of {len(timed)}.", ("settings", "us per layer", "p10", "p90"), rows)


def save_kernel_bench(results: Results, memory: Table, setup: dict[str, Any], path: Path) -> None:
    """Write ``path`` (JSON) and Markdown tables beside it, both with their provenance."""
    facts = describe_run("cuda") | setup
    document = {
        "what": "microseconds per layer of tree verification through Gated DeltaNet layers",
        "provenance": facts,
        "results": [asdict(setting) | {"variants": [_plain(m) for m in group]} for setting, group in results],
    }
    tables = (time_table(results), memory)
    provenance = ", ".join(f"{name}: {value}" for name, value in facts.items() if name != "threads")
    body = "\n".join(f"## {table.title}\n\n{table.note}\n\n{table.markdown()}" for table in tables)
    text = f"# Tree verification kernels\n\n{provenance}.\n\n{body}"
    write_together({path: json.dumps(document, indent=1) + "\n", path.with_suffix(".md"): text})


def _plain(m: Measurement) -> dict[str, Any]:
    return asdict(m) | {"time": m.time._asdict() if m.time else None}
