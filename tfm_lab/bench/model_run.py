"""All configurations of a full-size benchmark, one after the other; what is done already is not done again."""

import gc
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tfm_lab.bench.model_clock import Clock, Milliseconds
from tfm_lab.bench.model_replay import Acceptance, nearest, replay_decode, replay_key
from tfm_lab.bench.model_steps import RECURRENT, Configuration, Settings, measure_step, sweep_bytes, weight_sweep
from tfm_lab.engine import EngineModels
from tfm_lab.engine.config import ONE_TOKEN
from tfm_lab.files import write_together
from tfm_lab.planning.shapes import Shapes

CHAIN_BUDGET = 15
"""Proposed tokens of a chain: a block of 16 rows."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Which configurations to measure.

    Attributes:
        methods: of the engine.
        budgets: proposed nodes of trees; a tree takes one row more.
        contexts: committed tokens.
        batches: texts side by side; more than one at the first context alone, and without DDTree.
        gdn: the first verifies everything; others verify TfM's trees at the first context, for contrast. Plain
            decoding is measured with its own recurrence and with the kernels: the faster one is the baseline.
        further_budgets: in place of ``budgets`` for larger batches and for contrast.
    """

    methods: tuple[str, ...]
    budgets: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    gdn: tuple[str, ...]
    further_budgets: tuple[int, ...] = (15, 63)

    def configurations(self) -> list[Configuration]:
        """In the order of their use: the first context, its contrast, larger batches, longer contexts."""
        first, *further = self.contexts
        single, *batches = sorted(self.batches)
        few = replace(self, budgets=self.further_budgets)
        methods, few_methods = self.methods, [method for method in self.methods if method != "ddtree"]
        listed = [self.of(method, single, first, self.gdn[0]) for method in methods]
        listed += [few.of("tfm", single, first, other) for other in self.gdn[1:] if "tfm" in methods]
        listed += [self.of(method, single, context, self.gdn[0]) for context in further for method in methods]
        listed += [few.of(method, batch, first, self.gdn[0]) for batch in batches for method in few_methods]
        return [configuration for group in listed for configuration in group]

    def of(self, method: str, batch: int, context: int, gdn: str) -> list[Configuration]:
        """This method with every budget."""
        if method == "ar":
            ways = (ONE_TOKEN, "triton") if gdn == "triton" else (ONE_TOKEN,)
            return [Configuration(method, 0, batch, context, way) for way in ways]
        budgets = (CHAIN_BUDGET,) if method == "chain" else self.budgets
        return [Configuration(method, budget, batch, context, gdn) for budget in budgets]


@dataclass(frozen=True, slots=True)
class Replays:
    """Which decodes to time from end to end.

    Attributes:
        laws: of acceptance; none for no replay.
        tokens: of each decode.
        context: committed tokens before it.
        budget: proposed nodes of trees.
    """

    laws: tuple[Acceptance, ...] = ()
    tokens: int = 4096
    context: int = 1024
    budget: int = 63

    def decodes(self, grid: Grid) -> Iterator[tuple[Configuration, Acceptance]]:
        """Plain decoding, which is the same on every kind of text, then every other method on every kind."""
        gdn = grid.gdn[0]
        if "ar" in grid.methods and self.laws:
            for configuration in grid.of("ar", 1, self.context, gdn):
                yield configuration, Acceptance("none", "any", "ar", 0, ())
        for suite in dict.fromkeys(law.suite for law in self.laws):
            for method in grid.methods:
                budget = CHAIN_BUDGET if method == "chain" else self.budget
                law = nearest(self.laws, method, suite, budget)
                if law is not None:
                    yield Configuration(method, budget, 1, self.context, gdn), law


class Lines:
    """Records in a file, one JSON object per line, each written as soon as it is known.

    Args:
        path: of the file; ``None`` to keep records in memory alone.
        setup: facts under which records belong together. Lines of another setup are refused, not mixed.

    Raises:
        ValueError: if the file holds the lines of another setup, or something else.
    """

    def __init__(self, path: Path | None, setup: dict[str, Any]) -> None:
        self._path, self.records = path, []
        lines = [] if path is None or not path.is_file() else path.read_text(encoding="utf-8").splitlines()
        kept = [record for record in map(_record, lines) if record is not None]
        if lines and (not kept or kept[0].get("kind") != "setup"):
            raise ValueError(f"{path} holds no lines of this benchmark: name another --out, or remove it")
        wanted = json.loads(json.dumps(setup))
        if kept:
            there = {name: value for name, value in kept.pop(0).items() if name != "kind"}
            changed = [name for name in wanted | there if there.get(name) != wanted.get(name)]
            if changed:
                raise ValueError(
                    f"{path} was measured with another {', '.join(changed)}: name another --out, or remove it"
                )
        self.records = kept
        if path is not None:
            whole = [{"kind": "setup", **wanted}, *kept]
            write_together({path: "".join(json.dumps(record) + "\n" for record in whole)})

    def done(self, key: str) -> bool:
        """Whether there is a record with this key that is no refusal."""
        return any(record["key"] == key and "refusal" not in record for record in self.records)

    def add(self, record: dict[str, Any]) -> None:
        """Keep a record, in place of an older one with its key."""
        self.records = [old for old in self.records if old["key"] != record["key"]]
        self.records.append(record)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def _record(line: str) -> dict[str, Any] | None:
    """A line's record; ``None`` for one that was cut off when a run was."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "kind" in record else None


def run_all(
    load: Callable[[], EngineModels],
    shapes: Shapes,
    grid: Grid,
    replays: Replays,
    settings: Settings,
    clock: Clock,
    lines: Lines,
    tick: Callable[[str], None] = lambda key: None,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Measure everything that ``lines`` does not hold yet.

    Args:
        load: makes the models, when the first thing is left to measure.
        tick: called with the key of what comes next.
        is_over: asked before each; whether to begin nothing more.

    Returns:
        How many were left out because it was over.
    """
    models: EngineModels | None = None
    left = 0
    for key, measure in _work(shapes, grid, replays, settings, clock):
        tick(key)
        if lines.done(key):
            continue
        if is_over():
            left += 1
            continue
        models = models or load()
        lines.add(measure(models))
        gc.collect()
        if clock.device == "cuda":
            torch.cuda.empty_cache()
    return left


def count_of(grid: Grid, replays: Replays) -> int:
    """How many things :func:`run_all` goes through."""
    return 2 + len(grid.configurations()) + len(list(replays.decodes(grid)))


Measure = Callable[[EngineModels], dict[str, Any]]


def _work(
    shapes: Shapes, grid: Grid, replays: Replays, settings: Settings, clock: Clock
) -> Iterable[tuple[str, Measure]]:
    for only in ("", "head"):
        yield f"floor {only or 'all'}", lambda models, only=only: measure_floor(models, only, settings.repeats, clock)
    for configuration in grid.configurations():
        yield (
            configuration.key,
            lambda models, configuration=configuration: measure_step(models, shapes, configuration, settings, clock),
        )
    for configuration, law in replays.decodes(grid):
        yield (
            replay_key(configuration, law, replays.tokens),
            lambda models, configuration=configuration, law=law: replay_decode(
                models, shapes, configuration, law, replays.tokens, _roomy(settings, replays.tokens), clock
            ),
        )


def measure_floor(models: EngineModels, only: str, repeats: int, clock: Clock) -> dict[str, Any]:
    """Reading the target's matrices, and nothing else."""
    run = clock.record(weight_sweep(models, only))
    seconds = [clock.seconds(run) for _ in range(repeats)]
    read = sweep_bytes(models, only)
    return {
        "kind": "floor",
        "key": f"floor {only or 'all'}",
        "bytes": read,
        "ms": Milliseconds.of(seconds)._asdict(),
        "bytes_per_second": read / sorted(seconds)[len(seconds) // 2],
    }


def _roomy(settings: Settings, tokens: int) -> Settings:
    """Room for a whole decode and its last tree."""
    return replace(settings, room=tokens + 64)


def check_grid(grid: Grid, allowed: Sequence[str]) -> None:
    """Raise a ValueError if a name or a number is out of range."""
    for name, values, known in (
        ("--methods", grid.methods, ("ar", "chain", "ddtree", "tfm")),
        ("--gdn", grid.gdn, allowed),
    ):
        for value in values:
            if value not in known:
                raise ValueError(f"{name} knows no {value!r}; use {', '.join(known)}")
    if not (grid.methods and grid.contexts and grid.batches and grid.gdn and grid.budgets and grid.further_budgets):
        raise ValueError("--methods, --budgets, --contexts, --batches and --gdn take at least one value each")
    if grid.gdn[0] == RECURRENT:
        raise ValueError(
            f"--gdn starts with what verifies everything; {RECURRENT} is for contrast and stands behind it"
        )
    budgets = *grid.budgets, *grid.further_budgets
    if min(budgets) < 1 or max(budgets) > 511 or min(grid.contexts) < 1 or min(grid.batches) < 1:
        raise ValueError("--budgets takes 1 to 511 proposed nodes; --contexts and --batches at least 1")
