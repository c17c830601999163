"""Measured steps of a whole model of the paper's size: what ``tfm-lab bench model`` wrote, read and checked.

Weights there are random and every stage of a step is real. Whole decodes accept as many drafts as is drawn from a law
that was recorded from another, trained model; ``replayed`` says what follows from them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tfm_lab.planning.costs import PLAIN, Plan, rule_width
from tfm_lab.planning.curves import RESULTS
from tfm_lab.planning.fitting import MeasuredStep

FULL_MODEL = RESULTS / "model_h200.json"
FIRST_MODEL = RESULTS / "model_h200_first.json"
"""An earlier measurement, of a costlier Weaver and attention; it has 8,192 tokens of context and four requests too."""
KIND = "27B shape, random weights"
"""What kind of measurement the steps are, for labels."""
FUSED, STATE_PER_NODE = "triton", "recurrent"
"""What verifies the Gated DeltaNet layers, as the file calls it: the fused kernels, or one with a state per node."""
NODES = 64
"""Rows of the trees that are compared with the paper's, root included."""
RULE_WIDTH = "ceil(budget / 16)"


class Spread(NamedTuple):
    """Seconds: the median of the repeats, their 10th and their 90th percentile."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class FullStep:
    """One measured configuration.

    Attributes:
        plan: how was decoded.
        context: committed tokens before the step.
        gdn: what verified the Gated DeltaNet layers: ``triton`` (the fused kernels), ``recurrent`` (a state per node,
            SGLang's kernel), ``plain`` (one token's recurrence).
        seconds: of the whole step.
        stages: stage -> its median seconds, recorded on its own.
        parts: part of the target's pass -> its median seconds, recorded on its own: ``products`` with all matrices,
            ``memories`` (convolution, verification and commit of the Gated DeltaNet layers) and ``attention``.
    """

    plan: Plan
    context: int
    gdn: str
    seconds: Spread
    stages: Mapping[str, float]
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Decode:
    """A whole decode whose acceptance was drawn from a recorded law.

    Attributes:
        plan, context, gdn: as of a step; the context is that of the first step.
        suite: kind of text that the law was recorded on; ``any`` for plain decoding, which accepts nothing.
        source: result file that holds the law; ``none`` for plain decoding.
        recorded_budget: of the law.
        recorded: its tokens per step.
        tokens, steps: emitted, and taken for it.
        seconds: of all steps.
    """

    plan: Plan
    context: int
    gdn: str
    suite: str
    source: str
    recorded_budget: int
    recorded: float
    tokens: int
    steps: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Sweep:
    """Reading every matrix of the target once, or the head alone: bytes and median seconds."""

    bytes: float
    seconds: float


@dataclass(frozen=True, slots=True)
class FullModel:
    """All that a file holds.

    Attributes:
        device, date, commit: where the numbers come from.
        steps: every configuration that could be measured.
        decodes: every whole decode.
        all_weights, head: the sweeps of the same run.
        temperature: of the recorded acceptance.
    """

    device: str
    date: str
    commit: str
    steps: tuple[FullStep, ...]
    decodes: tuple[Decode, ...]
    all_weights: Sweep
    head: Sweep
    temperature: float

    @property
    def origin(self) -> str:
        """Device, date and commit, for labels."""
        return f"{self.device}, {self.date}, commit {self.commit}"

    def step(self, method: str, rows: int, gdn: str = FUSED, context: int = 1024, batch: int = 1) -> FullStep:
        """The step of a method with so many rows of the target.

        Raises:
            ValueError: if it was not measured.
        """
        for item in self.steps:
            if (item.plan.method, item.plan.rows, item.gdn) == (method, rows, gdn) and (
                (item.context, item.plan.batch) == (context, batch)
            ):
                return item
        raise ValueError(
            f"no step of {method} with {rows} rows, {gdn} memories, {context} tokens of context and batch {batch} was "
            "measured: measure it with tfm-lab bench model"
        )

    def plain_step(self, context: int = 1024, batch: int = 1) -> FullStep:
        """The faster of the plain steps of this context and batch: the baseline.

        Raises:
            ValueError: if none was measured.
        """
        found = [s for s in self.steps if s.plan == Plan(PLAIN, batch=batch) and s.context == context]
        if not found:
            raise ValueError(f"no plain step with {context} tokens of context and batch {batch} was measured")
        return min(found, key=lambda item: item.seconds.median)

    def table(self, contexts: tuple[int, ...] | None = None, batch: int = 1) -> list[MeasuredStep]:
        """Steps to fit costs to, in the order of the file: drafted ones by the fused kernels, and the faster plain one.

        Args:
            contexts: that are taken; all if left out.
            batch: requests per step.
        """
        return [
            MeasuredStep(item.plan, item.seconds.median, item.context)
            for item in self.steps
            if item.plan.batch == batch
            and (contexts is None or item.context in contexts)
            and (item == self.plain_step(item.context, batch) if item.plan.method == PLAIN else item.gdn == FUSED)
        ]


def read_full_model(file: Path = FULL_MODEL) -> FullModel:
    """The measured steps in a file that ``tfm-lab bench model`` wrote. Configurations that it refused are left out.

    Raises:
        ValueError: if there is no such file, or it is of another kind.
    """
    if not file.is_file():
        raise ValueError(f"there is no file {file}: tfm-lab bench model --out makes one")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        facts, width = document["provenance"], document["provenance"]["width"]
        records = [record for record in document["records"] if "refusal" not in record]
        sweeps = {r["key"]: Sweep(r["bytes"], 1e-3 * r["ms"]["median"]) for r in records if r["kind"] == "floor"}
        return FullModel(
            *(str(facts[name]) for name in ("device", "date", "commit")),
            steps=tuple(_step(record, width) for record in records if record["kind"] == "step"),
            decodes=tuple(_decode(record, width) for record in records if record["kind"] == "replay"),
            all_weights=sweeps["floor all"],
            head=sweeps["floor head"],
            temperature=float(facts["temperature of recorded acceptance"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file.name} holds no measured steps of a whole model ({type(error).__name__}: {error}): give a file that "
            "tfm-lab bench model wrote"
        ) from None


def _plan(record: Mapping[str, Any], width: int | str) -> Plan:
    method, budget = record["method"], int(record["budget"])
    nodes = 0
    if method == "tfm":
        nodes = rule_width(budget) if width == RULE_WIDTH else int(width)
    return Plan(method, budget, nodes, int(record["batch"]))


def _step(record: Mapping[str, Any], width: int | str) -> FullStep:
    spread = Spread(*(1e-3 * float(record["step_ms"][name]) for name in ("median", "p10", "p90")))
    stages, parts = (
        MappingProxyType({name: 1e-3 * float(ms["median"]) for name, ms in record[group].items()})
        for group in ("stages_ms", "parts_ms")
    )
    return FullStep(_plan(record, width), int(record["context"]), str(record["gdn"]), spread, stages, parts)


def _decode(record: Mapping[str, Any], width: int | str) -> Decode:
    return Decode(
        _plan(record, width),
        context=int(record["context"]),
        recorded_budget=int(record["recorded_budget"]),
        tokens=int(record["tokens"]),
        steps=int(record["steps"]),
        gdn=str(record["gdn"]),
        suite=str(record["suite"]),
        source=str(record["source"]),
        recorded=float(record["mean_emitted_recorded"]),
        seconds=float(record["seconds"]),
    )
