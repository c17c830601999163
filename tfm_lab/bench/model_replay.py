"""End-to-end decoding of a shape without weights: every step is real, only how much it accepts comes from a record.

A trained model's acceptance lengths (or a constant) are drawn beforehand and uploaded; each step accepts as many drafts
as the schedule says, follows a real path of its own tree that is as deep, and commits it. What is measured is the time
of all steps of a decode, caches growing. What is *not* measured is what these weights would accept.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from tfm_lab.bench.model_clock import Clock, Run
from tfm_lab.bench.model_steps import Configuration, Settings, build, refused, step_shape
from tfm_lab.engine import EngineModels
from tfm_lab.planning.shapes import Shapes

LABEL = "random weights, replayed acceptance"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many drafts a step accepts, as a law to draw from.

    Attributes:
        source: where it comes from, for tables.
        suite: kind of text; ``constant`` for figures that the user gave.
        method: of the engine.
        budget: that it was recorded with, which may differ from the measured one; 0 where that does not matter.
        at_least: at_least[d] is the probability of d + 1 drafts or more.
    """

    source: str
    suite: str
    method: str
    budget: int
    at_least: tuple[float, ...]

    @property
    def mean_emitted(self) -> float:
        """Expected tokens per step, the bonus included."""
        return 1.0 + sum(self.at_least)

    def draw(self, tokens: int, depth: int, seed: int) -> list[int]:
        """Accepted drafts of successive steps until they emit this many tokens."""
        draws, accepted, emitted = Random(f"{seed}/{self.suite}/{self.method}"), [], 0
        while emitted < tokens:
            level = draws.random()
            drafts = min(depth, sum(level < share for share in self.at_least))
            accepted.append(drafts)
            emitted += drafts + 1
        return accepted


def constant_acceptance(method: str, emitted: float, depth: int) -> Acceptance:
    """A mean of ``emitted`` tokens per step: the two whole numbers around it, in proportion.

    Args:
        method: of the engine.
        emitted: the mean, the bonus included.
        depth: most drafts that a step can accept, see :func:`deepest`.

    Raises:
        ValueError: if that is less than the one token that every step emits, or more than a step can emit.
    """
    if not 1.0 <= emitted <= 1.0 + depth:
        raise ValueError(
            f"a step of {method} emits 1 to {1 + depth} tokens here, so a mean of {emitted:g} is impossible: "
            "give a number in this range"
        )
    whole = int(emitted - 1.0)
    return Acceptance("given", "constant", method, 0, (*[1.0] * whole, emitted - 1.0 - whole))


def deepest(models: EngineModels, method: str, budget: int) -> int:
    """Most drafts that a step of this method can accept; the models may be without memory (``meta``)."""
    return step_shape(models, Configuration(method, budget, 1, 1, "masked"), Settings(width=1)).depth


def recorded_acceptance(
    path: Path, methods: Sequence[str], budgets: Sequence[int], temperature: float
) -> list[Acceptance]:
    """Laws from a file that ``tfm-lab evaluate`` wrote, per kind of text, or from lines of accepted drafts.

    Of the recorded budgets the one next to each measured budget is taken. A ``.jsonl`` file holds one object per line
    with ``suite``, ``method``, ``budget`` and ``accepted``, a list of accepted drafts step by step.

    Raises:
        ValueError: if the file is missing, no such file, or holds nothing for these methods.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give one of tfm-lab evaluate, or --lengths in its place")
    try:
        laws = _lines(path) if path.suffix == ".jsonl" else _summaries(path, temperature)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no recorded acceptance: {type(error).__name__} {error}") from None
    chosen: dict[tuple[str, str, int], Acceptance] = {}
    for method in methods:
        for suite in dict.fromkeys(law.suite for law in laws if law.method == method):
            there = [law for law in laws if (law.method, law.suite) == (method, suite)]
            for budget in budgets:
                law = min(there, key=lambda law: abs(law.budget - budget))
                chosen[method, suite, law.budget] = law
    if not chosen:
        raise ValueError(f"{path} holds nothing for {', '.join(methods)} at temperature {temperature:g}")
    return list(chosen.values())


def nearest(laws: Sequence[Acceptance], method: str, suite: str, budget: int) -> Acceptance | None:
    """The law for this method and kind of text whose budget is next; ``None`` if there is none."""
    there = [law for law in laws if (law.method, law.suite) == (method, suite)]
    return min(there, key=lambda law: abs(law.budget - budget), default=None)


def replay_decode(
    models: EngineModels,
    shapes: Shapes,
    configuration: Configuration,
    law: Acceptance,
    tokens: int,
    settings: Settings,
    clock: Clock,
    seed: int = 0,
) -> dict[str, Any]:
    """Time of a whole decode under a drawn schedule, as a plain record; only a ``refusal`` if it cannot run.

    All texts of a batch follow the same schedule. Trees that are not as deep as the schedule asks accept what they
    have; the record says how many tokens were emitted, and speeds are those of emitted tokens.
    """
    record: dict[str, Any] = {
        "kind": "replay", "key": replay_key(configuration, law, tokens), **asdict(configuration),
        "suite": law.suite, "source": law.source, "recorded_budget": law.budget, "label": LABEL,
        "mean_emitted_recorded": law.mean_emitted,
    }  # fmt: skip
    try:
        built = build(models, shapes, configuration, settings, clock)
        engine = built.engine
        schedule = law.draw(tokens, built.step.depth, seed)
        if len(schedule) > len(engine.schedule):
            raise ValueError(f"{len(schedule)} steps do not fit a schedule of {len(engine.schedule)}")
        drafts = torch.tensor(schedule, device=engine.schedule.device)
        engine.schedule[: len(schedule)] = drafts[:, None]
        run = clock.record(engine.step, engine)
        seconds = clock.seconds(partial(_repeat, run, len(schedule)))
    except Exception as error:  # as for steps
        return record | refused(error)
    emitted = (engine.length - engine.start_length).tolist()
    return record | {
        "tokens": emitted[0],
        "steps": len(schedule),
        "seconds": seconds,
        "tokens_per_second": sum(emitted) / seconds,
        "mean_emitted_drawn": 1.0 + sum(schedule) / len(schedule),
        "mean_emitted": emitted[0] / len(schedule),
        "attention": built.attention,
        "fused": engine.fusing.compiles,
    }


def _repeat(run: Run, times: int) -> None:
    for _ in range(times):
        run()


def replay_key(configuration: Configuration, law: Acceptance, tokens: int) -> str:
    """Identifies a replay in a file of results: decodes under another law of acceptance are others."""
    lengths = f"{law.mean_emitted:.6g} per step ({law.source})"
    return f"replay {law.suite} {lengths} {tokens} tokens, {configuration.key}"


def _summaries(path: Path, temperature: float) -> list[Acceptance]:
    """Of the summaries of an evaluation: those per kind of text where there are any, else those of all texts."""
    summaries = [
        summary
        for summary in json.loads(path.read_text(encoding="utf-8"))["summaries"]
        if summary["temperature"] == temperature and not summary.get("shared_noise")
    ]
    kinds = {summary["kind"] for summary in summaries} - {"all"} or {"all"}
    return [
        Acceptance(path.name, s["kind"], s["method"], s["budget"], _at_least(s))
        for s in summaries
        if s["kind"] in kinds
    ]


def _at_least(summary: Mapping[str, Any]) -> tuple[float, ...]:
    """Share of steps with d drafts or more, from those shares or from the conditional ones."""
    if "acceptance" in summary:
        return tuple(summary["acceptance"])
    shares, share = [], 1.0
    for further in summary["conditional"]:
        share *= further
        shares.append(share)
    return tuple(shares)


def _lines(path: Path) -> list[Acceptance]:
    laws = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        accepted = entry["accepted"]
        shares = [sum(drafts > d for drafts in accepted) / len(accepted) for d in range(max(accepted, default=0))]
        laws.append(Acceptance(path.name, entry["suite"], entry["method"], entry["budget"], tuple(shares)))
    return laws
