"""Seconds of whole decodes: every method at its own best settings, against the fastest plain decoding of this machine.

A speed-up is only as honest as its baseline. So plain decoding is tried in every dtype, with plain and packed weights
and with every number of threads, and the fastest wins; the speculative methods then choose weights and tree in the same
way, on prompts of their own. The comparison itself decodes other prompts, all methods on each prompt in turn, and
compares in pairs.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from tfm_lab.bundle import Bundle, load_bundle, prepare_models
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.evaluation.statistics import Bounded, Counts, bootstrap
from tfm_lab.methods import AUTOREGRESSIVE, make_speculator
from tfm_lab.trace import DecodeTrace, StageSeconds
from tfm_lab.tree import DraftTree

TREES: dict[str, tuple[TreeConfig, ...]] = {
    "chain": tuple(TreeConfig(budget=depth) for depth in (3, 5, 8, 11, 15)),
    "ddtree": tuple(TreeConfig(budget=budget) for budget in (5, 8, 11, 17, 23, 35, 64)),
    "tfm": tuple(
        TreeConfig(budget=budget, width=width)
        for budget, widths in (
            (5, (1, 2)),
            (8, (1, 2, 3)),
            (11, (1, 2, 4)),
            (17, (2, 4, 6)),
            (23, (4, 6)),
            (35, (6, 12)),
        )
        for width in widths
    ),
}
"""What each method chooses from. Products take rows in blocks of six under AVX2: trees of 6 n - 1 nodes fill them."""

PACKED = "packed float32"
"""Name of float32 weights that :mod:`tfm_lab.models.packing` has laid out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A method with everything that decides its speed.

    Attributes:
        weights: dtype of the weights, or ``PACKED``.
        tree: ``None`` for plain decoding.
    """

    method: str
    weights: str
    threads: int
    tree: TreeConfig | None = None

    @property
    def label(self) -> str:
        """Settings in words, the method left out."""
        threads = f"{self.weights}, {self.threads} thread{'s' if self.threads > 1 else ''}"
        if self.tree is None:
            return threads
        width = f", w = {self.tree.expand_width}" if self.method == "tfm" else ""
        return f"B = {self.tree.budget}{width}, {threads}"


class Prompt(NamedTuple):
    """Token ids to continue, and the kind of text they come from."""

    kind: str
    tokens: tuple[int, ...]


class Timing(NamedTuple):
    """One decode.

    Attributes:
        tokens: new tokens produced in steps (the first one comes with the prefill).
        seconds: of those steps, from the start of drafting to the end of the commit.
        prefill: seconds before the first step.
        calls: target calls in steps.
        stages: seconds in each stage, all steps together.
        text: the new tokens.
    """

    tokens: int
    seconds: float
    prefill: float
    calls: int
    stages: StageSeconds
    text: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Tokens per second; NaN if the text stopped with its first token."""
        return self.tokens / self.seconds if self.seconds else float("nan")


class Comparison(NamedTuple):
    """One method on all prompts.

    Attributes:
        rate: tokens per second over all prompts.
        mal: tokens per target call, bonus included.
        stages: milliseconds per step in each stage (mean).
        speedups: by kind of text, tokens per second over those of plain decoding on the same prompts.
        macro: mean of the kinds' speed-ups, prompts resampled in pairs within each kind.
        same_text: prompts whose text is that of plain decoding.
    """

    plan: Plan
    rate: float
    mal: float
    stages: StageSeconds
    speedups: dict[str, Bounded]
    macro: Bounded
    prefill: float
    same_text: int


Bundles = Mapping[str, Bundle]
"""The same bundle with its weights in several forms, by name: dtypes and ``PACKED``."""


def load_forms(name: str, dtypes: Mapping[str, torch.dtype]) -> dict[str, Bundle]:
    """The bundle in every dtype, and packed if float32 is among them and this processor has packed products.

    Raises:
        ValueError: as :func:`tfm_lab.bundle.load_bundle`.
    """
    forms = {label: load_bundle(name, dtype=dtype) for label, dtype in dtypes.items()}
    if torch.float32 in dtypes.values():
        packed = load_bundle(name)
        if prepare_models(packed):
            forms[PACKED] = packed
    return forms


def plain_plans(forms: Sequence[str]) -> list[Plan]:
    """Every form of the weights with 1, 2, 4, ... threads up to the number of processors."""
    processors = os.cpu_count() or 1
    counts = sorted({processors} | {2**power for power in range(processors.bit_length()) if 2**power <= processors})
    return [Plan(AUTOREGRESSIVE, form, threads) for form in forms for threads in counts]


def tree_plans(method: str, weights: str, threads: int) -> list[Plan]:
    """Every tree that ``method`` may choose.

    Raises:
        ValueError: for a method without trees to choose from.
    """
    if method not in TREES:
        raise ValueError(f"there are no trees to choose from for {method!r}; use {', '.join(TREES)}")
    return [Plan(method, weights, threads, tree) for tree in TREES[method]]


def fastest_verification(bundles: Bundles, prompt: Prompt, threads: int, nodes: int = 12, repeats: int = 5) -> str:
    """The form of the weights in which the target verifies a chain of ``nodes`` nodes fastest (median, in turns)."""
    torch.set_num_threads(threads)
    tree = DraftTree.from_parents([1] * nodes, list(range(-1, nodes - 1)), [0.0] * nodes)
    states = {form: bundle.target.prefill(prompt.tokens).state for form, bundle in bundles.items()}
    seconds: dict[str, list[float]] = {form: [] for form in bundles}
    for _ in range(repeats + 1):
        for form, bundle in bundles.items():
            started = time.perf_counter()
            bundle.target.verify_tree(states[form], tree)
            seconds[form].append(time.perf_counter() - started)
    return min(bundles, key=lambda form: float(np.median(seconds[form][1:])))


def choose(
    bundles: Bundles, plans: Sequence[Plan], prompts: Sequence[Prompt], new_tokens: int, tick: Callable[[], None]
) -> list[tuple[Plan, float]]:
    """Plans with their tokens per second on these prompts, the fastest first; they take turns on each prompt.

    Args:
        tick: called after each decode.
    """
    timings: dict[Plan, list[Timing]] = {plan: [] for plan in plans}
    for prompt in prompts:
        for plan in plans:
            timings[plan].append(_timed(bundles, plan, prompt, new_tokens))
            tick()
    rates = [(plan, _rate(of_plan)) for plan, of_plan in timings.items()]
    return sorted(rates, key=lambda entry: -entry[1])


def compare(
    bundles: Bundles, plans: Sequence[Plan], prompts: Sequence[Prompt], new_tokens: int, tick: Callable[[], None]
) -> list[Comparison]:
    """Every plan on every prompt, in turns that begin with another plan each time; the first plan is the baseline.

    One unmeasured decode per plan comes first.

    Args:
        tick: called after each measured decode.

    Raises:
        ValueError: if no prompt has a continuation of more than one token.
    """
    for plan in plans:
        _timed(bundles, plan, prompts[0], 8)
    timings: dict[Plan, list[Timing]] = {plan: [] for plan in plans}
    for index, prompt in enumerate(prompts):
        turn = index % len(plans)
        for plan in [*plans[turn:], *plans[:turn]]:
            timings[plan].append(_timed(bundles, plan, prompt, new_tokens))
            tick()
    baseline = timings[plans[0]]
    going = [place for place in range(len(prompts)) if all(timings[plan][place].tokens for plan in plans)]
    if not going:
        raise ValueError("all texts stop with their first token; give other prompts")
    kinds = [prompts[place].kind for place in going]
    kept = {plan: [of_plan[place] for place in going] for plan, of_plan in timings.items()}
    return [_comparison(plan, kept[plan], [baseline[place] for place in going], kinds) for plan in plans]


def _comparison(plan: Plan, timings: list[Timing], baseline: list[Timing], kinds: Sequence[str]) -> Comparison:
    rows = np.array([(t.tokens, t.seconds, b.tokens, b.seconds) for t, b in zip(timings, baseline, strict=True)])
    groups = {kind: rows[[of == kind for of in kinds]] for kind in dict.fromkeys(kinds)}
    calls = sum(timing.calls for timing in timings)
    stages = StageSeconds(*(1e3 * sum(column) / calls for column in zip(*(t.stages for t in timings), strict=True)))
    return Comparison(
        plan,
        _rate(timings),
        sum(timing.tokens for timing in timings) / calls,
        stages,
        {kind: _speedup([group]) for kind, group in groups.items()},
        _speedup(list(groups.values())),
        sum(timing.prefill for timing in timings) / len(timings),
        sum(timing.text == base.text for timing, base in zip(timings, baseline, strict=True)),
    )


def _speedup(groups: Sequence[Counts]) -> Bounded:
    """Mean over groups of tokens per second over those of the baseline (columns: tokens, seconds, the same of it)."""
    return bootstrap(groups, lambda sums: np.mean([(s[:, 0] / s[:, 1]) / (s[:, 2] / s[:, 3]) for s in sums], axis=0))


def _rate(timings: Sequence[Timing]) -> float:
    seconds = sum(timing.seconds for timing in timings)
    return sum(timing.tokens for timing in timings) / seconds if seconds else float("nan")


def _timed(bundles: Bundles, plan: Plan, prompt: Prompt, new_tokens: int) -> Timing:
    bundle, sampling = bundles[plan.weights], SamplingConfig(temperature=0.0)
    torch.set_num_threads(plan.threads)
    tree = plan.tree or TreeConfig(budget=0)
    config = DecodeConfig(new_tokens, sampling, tree, bundle.target.config.stop_tokens)
    if plan.tree is None:
        trace = autoregressive_decode(bundle.target, prompt.tokens, config)
    else:
        speculator = make_speculator(plan.method, bundle.drafter, bundle.weaver, sampling)
        trace = speculative_decode(bundle.target, speculator, prompt.tokens, config)
    return _timing(trace.uninterrupted())


def _timing(trace: DecodeTrace) -> Timing:
    seconds = [step.seconds for step in trace.steps]
    stages = (
        StageSeconds(*(sum(column) for column in zip(*seconds, strict=True))) if seconds else StageSeconds(*[0.0] * 5)
    )
    committed = sum(len(step.committed) for step in trace.steps)
    return Timing(committed, stages.total, trace.prefill_seconds, trace.target_calls, stages, trace.tokens)
