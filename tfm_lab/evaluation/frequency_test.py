"""The chi-squared test of speculative sampling on a bundle: rules that must pass, controls that must not, and a report.

Tokens come from two sources. ``steps`` repeats single steps at fixed places, which gives many tokens; ``decodes`` lets
the decoding loop write whole texts from the same places, which gives fewer and tests commits, too.
"""

import json
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tfm_lab.bundle import Bundle, load_bundle, prepare_models
from tfm_lab.decoding import DecodeConfig, Speculator, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.evaluation.contexts import load_contexts
from tfm_lab.evaluation.emissions import REDRAWN, Contender, Place, Redraws, count_emissions, plain_laws
from tfm_lab.evaluation.frequencies import LEVEL, ChiSquared, Classes
from tfm_lab.evaluation.tables import Table
from tfm_lab.files import write_together
from tfm_lab.methods import make_speculator
from tfm_lab.provenance import describe_run

PAIRS = (
    (("tfm", "target_sample"), ("tfm", "traversal")),
    (("dyspec", "rejection_swor"), ("dyspec", "traversal")),
)
"""Methods and rules: fixed trees, then sampled ones. The pairs of one group grow the same trees."""

STEPS, DECODES = "steps", "decodes"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to count.

    Attributes:
        bundle: its name or folder.
        tokens: emitted by repeated steps, for every pair and every control.
        decoded: emitted by whole decodes, for every pair.
        places: beginnings of held-out texts.
        prompt: tokens of each.
        classes: of tokens.
        tree: of the drafts.
        sampling: of the target.
        text: new tokens of a whole decode.
        seed: of all draws.

    Raises:
        ValueError: if there is nothing to count, or a place has no token before its root.
    """

    bundle: str = "hybrid"
    tokens: int = 200_000
    decoded: int = 5_000
    places: int = 40
    prompt: int = 16
    classes: int = 32
    tree: TreeConfig = field(default_factory=lambda: TreeConfig(budget=8, width=8, max_depth=4, pool_size=64))
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    text: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.decoded < 0 or self.places < 1:
            raise ValueError("the test needs at least 1 token and 1 place")
        if self.prompt < 2:
            raise ValueError(f"a place needs at least 2 tokens of text, got {self.prompt}")


Tests = dict[tuple[str, str], ChiSquared]
"""By source of the tokens and name of the contender."""


class Counter:
    """Counts the tokens of one place after another.

    Args:
        bundle: target, drafter and Weaver.
        plan: what to count.

    Raises:
        ValueError: if the bundle has no Weaver, or there are fewer held-out texts than places.
    """

    def __init__(self, bundle: Bundle, plan: Plan) -> None:
        contexts = load_contexts(limit=plan.places)
        texts = [tuple(context.tokens(bundle)[: plan.prompt]) for context in contexts]
        if len(texts) < plan.places or min(map(len, texts)) < 2:
            raise ValueError(f"there are no {plan.places} held-out texts of 2 tokens or more; ask for fewer places")
        bundle = bundle.at_temperature(plan.sampling.temperature)
        self._bundle, self._plan, self._texts = bundle, plan, texts
        laws = [plain_laws(bundle.target, text, [()], plan.sampling) for text in texts]
        self.classes = Classes.by_frequency(torch.cat(laws), plan.classes)
        self._groups = [
            [
                contender
                for method, rule in pairs
                for contender in _with_control(
                    make_speculator(method, bundle.drafter, bundle.weaver, plan.sampling, rule)
                )
            ]
            for pairs in PAIRS
        ]

    def count(self, place: int) -> Tests:
        """All tokens of one place."""
        plan, text, tests = self._plan, self._texts[place], {}
        share = -(-plan.tokens // plan.places)
        for group in self._groups:
            emitted = Place(self._bundle, text, plan.tree).emit(group, plan.sampling, share, plan.seed)
            for contender, steps in zip(group, emitted, strict=True):
                tests[STEPS, contender.name] = self._tested(text, steps)
        if plan.decoded:
            for group in self._groups:
                for contender in group:
                    if not contender.is_biased:
                        texts = self._decode(contender.speculator, text, -(-plan.decoded // plan.places))
                        tests[DECODES, contender.name] = self._tested(text, texts)
        return tests

    def _decode(self, speculator: Speculator, text: Sequence[int], tokens: int) -> list[tuple[int, ...]]:
        """Whole texts from the decoding loop, ``tokens`` tokens in all."""
        plan, written, texts = self._plan, 0, []
        while written < tokens:
            config = DecodeConfig(
                min(plan.text, tokens - written), plan.sampling, plan.tree, seed=plan.seed + len(texts)
            )
            texts.append(speculative_decode(self._bundle.target, speculator, text, config).uninterrupted().tokens)
            written += len(texts[-1])
        return texts

    def _tested(self, text: Sequence[int], emitted: Sequence[tuple[int, ...]]) -> ChiSquared:
        test = ChiSquared(self.classes.count)
        count_emissions(test, self.classes, self._bundle.target, text, emitted, self._plan.sampling)
        return test


def run_plan(plan: Plan, workers: int = 1, on_place: Callable[[int], None] = lambda done: None) -> Tests:
    """Count everything. The result does not depend on the number of workers.

    Args:
        workers: processes, each with one thread and models of its own.
        on_place: called with the number of places that are done.

    Raises:
        ValueError: if there are no workers, or the bundle cannot be used.
    """
    if workers < 1:
        raise ValueError(f"the test needs at least 1 worker, got {workers}")
    jobs = [(plan, place) for place in range(plan.places)]
    if workers == 1:
        return _merged(map(_count, jobs), on_place)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        try:
            return _merged(pool.map(_count, jobs), on_place)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def false_alarms(tests: Tests) -> list[str]:
    """Honest contenders that raise an alarm; there must be none."""
    return [name for (_, name), test in tests.items() if test.is_alarm and not name.endswith(REDRAWN)]


def missed_controls(tests: Tests) -> list[str]:
    """Controls that raise none; with enough tokens there are none."""
    return [name for (_, name), test in tests.items() if not test.is_alarm and name.endswith(REDRAWN)]


def is_passed(tests: Tests) -> bool:
    """No honest contender raises an alarm, and every control does."""
    return not false_alarms(tests) and not missed_controls(tests)


def frequency_table(tests: Tests) -> Table:
    """Every contender with its statistic and verdict."""
    rows = [
        (
            *(source, name, f"{test.tokens}", f"{test.statistic:.1f}", str(test.freedom), f"{test.p_value:.1e}"),
            *(f"{test.distance:.4f}", f"{test.least_expected:.0f}", "alarm" if test.is_alarm else "none"),
        )
        for (source, name), test in tests.items()
    ]
    note = (
        "Emitted tokens in classes by frequency against the law of plain sampling after the same text. An alarm is a "
        f"p below {LEVEL:g}; it must come for the controls ({REDRAWN}) and for nothing else. Distance: total variation "
        "between emitted and expected shares of the classes, sampling error included. Rare classes are pooled."
    )
    header = ("source", "method, rule", "tokens", "chi-squared", "degrees of freedom", "p", "distance")
    return Table("Frequencies of emitted tokens", note, (*header, "least expected in a class", "alarm"), rows)


def save_frequencies(tests: Tests, plan: Plan, setup: dict[str, Any], path: Path) -> None:
    """Write ``path`` (JSON) and a Markdown table beside it, both with their provenance."""
    facts = describe_run("cpu") | setup | asdict(plan)
    document = {
        "what": "chi-squared test of emitted tokens against plain sampling, in classes by frequency",
        "provenance": facts,
        "level": LEVEL,
        "is_passed": is_passed(tests),
        "tests": [_plain(source, name, test) for (source, name), test in tests.items()],
    }
    table = frequency_table(tests)
    provenance = ", ".join(f"{name}: {value}" for name, value in facts.items())
    body = f"# {table.title}\n\n{provenance}.\n\n{table.note}\n\n{table.markdown()}"
    write_together({path: json.dumps(document, indent=1) + "\n", path.with_suffix(".md"): body})


def _plain(source: str, name: str, test: ChiSquared) -> dict[str, Any]:
    figures = ("tokens", "statistic", "freedom", "p_value", "distance", "is_alarm")
    return (
        {"source": source, "contender": name, "is_control": name.endswith(REDRAWN)}
        | {figure: getattr(test, figure) for figure in figures}
        | {"emitted": test.emitted.tolist(), "expected": test.expected.tolist()}
    )


def _with_control(speculator: Speculator) -> tuple[Contender, Contender]:
    return Contender(speculator, False), Contender(replace(speculator, rule=Redraws(speculator.rule)), True)


def _merged(counted: Iterable[Tests], on_place: Callable[[int], None]) -> Tests:
    tests: Tests = {}
    for done, of_place in enumerate(counted, start=1):
        for key, test in of_place.items():
            if key in tests:
                tests[key].merge(test)
            else:
                tests[key] = test
        on_place(done)
    return tests


def _count(job: tuple[Plan, int]) -> Tests:
    plan, place = job
    return _counter(plan).count(place)


@cache
def _counter(plan: Plan) -> Counter:
    """One per process."""
    torch.set_num_threads(1)
    bundle = load_bundle(plan.bundle)
    prepare_models(bundle)
    return Counter(bundle, plan)
