"""Where a decoding step spends its time: draft, weave, verify, accept, commit, by method."""

import gc
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import (
    ConditionalSession,
    DraftSource,
    Marginals,
    MarginalSession,
    OpenNode,
    Proposal,
    TreeConfig,
    best_first,
    chain,
    woven,
)
from tfm_lab.draws import SeededDraws
from tfm_lab.evaluation.contexts import Context
from tfm_lab.files import write_together
from tfm_lab.methods import AUTOREGRESSIVE, make_speculator
from tfm_lab.models.weaver import WeaverSession
from tfm_lab.provenance import describe_run
from tfm_lab.trace import DecodeTrace, StageSeconds


class Spread(NamedTuple):
    """Median with the 10th and 90th percentile, in milliseconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread":
        """Of times in seconds; NaN without any."""
        if len(seconds) < 2:
            return cls(*[1e3 * seconds[0] if seconds else float("nan")] * 3)
        cuts = statistics.quantiles(seconds, n=10, method="inclusive")
        return cls(*(1e3 * value for value in (statistics.median(seconds), cuts[0], cuts[-1])))


class StageTable(NamedTuple):
    """Times of one method.

    Attributes:
        stages: milliseconds per step in each stage.
        step: milliseconds of a whole step.
        mal: tokens per target call, bonus included.
        tokens_per_second: new tokens over time in steps (prefill left out).
    """

    method: str
    budget: int
    steps: int
    stages: dict[str, Spread]
    step: Spread
    mal: float
    tokens_per_second: float


def bench_decode(
    bundle: Bundle,
    contexts: Sequence[Context],
    methods: Sequence[str],
    budget: int,
    max_new_tokens: int,
    on_decode: Callable[[], None] | None = None,
) -> list[StageTable]:
    """Decode every context greedily with every method, the methods taking turns on each context, after one warm-up.

    Args:
        methods: names, ``ar`` included if wanted.
        budget: of the trees.
        on_decode: called after each decode.
    """
    sampling = SamplingConfig(temperature=0.0)
    config = DecodeConfig(max_new_tokens, sampling, TreeConfig(budget=budget), bundle.target.config.stop_tokens)
    traces: dict[str, list[DecodeTrace]] = {method: [] for method in methods}
    for index, context in enumerate([contexts[0], *contexts]):
        prompt = bundle.encode(context.prompt)
        for method in methods:
            if method == AUTOREGRESSIVE:
                trace = autoregressive_decode(bundle.target, prompt, config)
            else:
                speculator = make_speculator(
                    method, bundle.drafter, bundle.weaver, sampling, autoregressive=bundle.autoregressive
                )
                trace = speculative_decode(bundle.target, speculator, prompt, config)
            if index:
                traces[method].append(trace.uninterrupted())
            if on_decode is not None:
                on_decode()
    return [_stage_table(method, 0 if method == AUTOREGRESSIVE else budget, traces[method]) for method in methods]


def bench_building(bundle: Bundle, context: Context, budget: int, repeats: int = 50) -> dict[str, Spread]:
    """Time of tree building without the models: builders fed with marginals and conditionals computed beforehand."""
    bundle = bundle.at_temperature(0.0)
    target, drafter = bundle.target, bundle.drafter
    prefilled = target.prefill(bundle.encode(context.prompt), drafter.config.tap_layers)
    draft_context = drafter.extend_context(drafter.empty_context(), prefilled.taps)
    root = int(prefilled.logits.argmax())
    marginals = drafter.propose(draft_context, root, target)
    config, draws = TreeConfig(budget=budget), SeededDraws(0)
    plain = DraftSource(marginals)
    times = {
        "chain": _time(lambda: chain(root, plain, config, draws), repeats),
        "best_first": _time(lambda: best_first(root, plain, config, draws), repeats),
    }
    source = replayed_source(bundle, root, marginals, prefilled.hidden, config)
    return times | {"woven": _time(lambda: woven(root, source, config, draws), repeats)}


def save_bench(tables: Sequence[StageTable], building: dict[str, Spread], setup: dict[str, Any], path: Path) -> None:
    """Write ``path`` (JSON) and a Markdown table beside it, both with their provenance."""
    provenance = describe_run(setup["device"])
    document = {
        "what": "milliseconds per decoding step by stage: median [10th, 90th percentile]; greedy decoding",
        "provenance": provenance,
        "setup": setup,
        "methods": [replace_spreads(table) for table in tables],
        "tree_building_without_models": {name: spread._asdict() for name, spread in building.items()},
    }
    facts = ", ".join(f"{name}: {value}" for name, value in (provenance | setup).items())
    text = f"# Cost of a decoding step by stage\n\n{document['what'].capitalize()}. {facts}.\n\n"
    text += markdown_stages(tables, building)
    write_together({path: json.dumps(document, indent=1) + "\n", path.with_suffix(".md"): text})


def markdown_stages(tables: Sequence[StageTable], building: dict[str, Spread]) -> str:
    """Stage times as a Markdown table, tree building without models below it."""
    names = StageSeconds._fields
    lines = [
        "| method | B | " + " | ".join(names) + " | step | MAL | tok/s |",
        "|---" * (len(names) + 5) + "|",
    ]
    for table in tables:
        cells = [_cell(table.stages[name]) for name in names]
        row = [table.method, str(table.budget), *cells, _cell(table.step), f"{table.mal:.2f}"]
        lines.append("| " + " | ".join([*row, f"{table.tokens_per_second:.1f}"]) + " |")
    lines += ["", "Tree building alone, models replaced by recorded outputs (ms):", ""]
    lines += [f"* {name}: {_cell(spread)}" for name, spread in building.items()]
    return "\n".join(lines) + "\n"


def replace_spreads(table: StageTable) -> dict[str, Any]:
    """The table as plain JSON."""
    stages = {name: spread._asdict() for name, spread in table.stages.items()}
    return table._asdict() | {"stages": stages, "step": table.step._asdict()}


class ReplaySession:
    """A conditional drafter that answers from a recording; nodes are known by their token path."""

    def __init__(self, recording: dict[tuple[int, ...], Proposal], max_depth: int) -> None:
        self._recording = recording
        self._paths: dict[int, tuple[int, ...]] = {-1: ()}
        self._max_depth = max_depth

    @property
    def max_depth(self) -> int:
        return self._max_depth

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        for node in nodes:
            self._paths[node.index] = (*self._paths[node.parent], node.token)
        return [self._recording[self._paths[node.index]] for node in nodes]


class _RecordingSession(ReplaySession):
    """Passes calls on to a real session and keeps its answers."""

    def __init__(self, session: ConditionalSession) -> None:
        super().__init__({}, session.max_depth)
        self._session = session
        self.recording = self._recording

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        for node, proposal in zip(nodes, self._session.expand(nodes), strict=True):
            self._recording[(*self._paths[node.parent], node.token)] = proposal
        return super().expand(nodes)


def replayed_source(
    bundle: Bundle, root: int, marginals: Marginals, hidden: Float[Tensor, " channels"], config: TreeConfig
) -> DraftSource:
    """A source whose conditionals are those that the Weaver (or the bare marginals) gave while one tree grew."""
    if bundle.weaver is None:
        real: ConditionalSession = MarginalSession(marginals, config.pool_size)
    else:
        real = WeaverSession(bundle.weaver, bundle.target, marginals, hidden, config.pool_size)
    recorder = _RecordingSession(real)
    woven(root, DraftSource(marginals, lambda: recorder), config, SeededDraws(0))
    return DraftSource(marginals, lambda: ReplaySession(recorder.recording, recorder.max_depth))


def _stage_table(method: str, budget: int, traces: Sequence[DecodeTrace]) -> StageTable:
    steps = [step for trace in traces for step in trace.steps]
    stages = {name: Spread.of([getattr(step.seconds, name) for step in steps]) for name in StageSeconds._fields}
    committed, seconds = sum(len(step.committed) for step in steps), sum(step.seconds.total for step in steps)
    whole = Spread.of([step.seconds.total for step in steps])
    if not steps:
        raise ValueError(f"{method} took no step on these contexts: they stop at once; give others")
    return StageTable(method, budget, len(steps), stages, whole, committed / len(steps), committed / seconds)


def _time(function: Callable[[], object], repeats: int) -> Spread:
    """Times of a function in a warm process, the garbage collector at rest (as ``timeit`` has it)."""
    for _ in range(repeats):
        function()
    gc.collect()
    gc.disable()
    try:
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
    finally:
        gc.enable()
    return Spread.of(seconds)


def _cell(spread: Spread) -> str:
    return f"{spread.median:.2f} [{spread.low:.2f}, {spread.high:.2f}]"
