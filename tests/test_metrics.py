"""Figures from traces: counts are added before anything is divided, and errors are those of repeated experiments."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from models.oracle import random_tokens
from models.small import drafter_for, tiny_target, weaver_for
from support import random_fixed_tree

from tfm_lab.decoding import DecodeConfig, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import Draft, TreeConfig, TreeKind
from tfm_lab.exact import enumerate_verdicts, expected_length, random_table, target_rows
from tfm_lab.methods import make_speculator
from tfm_lab.metrics import (
    DepthAcceptance,
    acceptance_by_depth,
    expected_tokens_per_call,
    mean_accepted_length,
    mean_stage_seconds,
    ratio_estimate,
)
from tfm_lab.trace import DecodeStep, DecodeTrace, StageSeconds, StopReason
from tfm_lab.tree import DraftTree
from tfm_lab.verification import RULES, Acceptance

SECONDS = StageSeconds(1.0, 2.0, 3.0, 4.0, 5.0)


def step_of(parents: Sequence[int], path: Sequence[int], committed: int | None = None) -> DecodeStep:
    """A step on a tree of this shape; ``committed`` tokens of the path and the bonus were kept."""
    tree = DraftTree.from_parents(list(range(len(parents))), list(parents))
    acceptance = Acceptance(tuple(path), 99)
    emitted = acceptance.emitted(tree)
    return DecodeStep(tree, TreeKind.FIXED, (), 0, acceptance, emitted[:committed], SECONDS)


def chain_step(drafts: int, accepted: int) -> DecodeStep:
    return step_of(range(-1, drafts), range(accepted + 1))


def trace_of(*steps: DecodeStep) -> DecodeTrace:
    sampling, tree = SamplingConfig(0.0), TreeConfig()
    return DecodeTrace("chain", "greedy", "", sampling, tree, 0, 99, (), (1,), 7, steps, StopReason.LENGTH, 0.0)


RUNS = trace_of(*(chain_step(3, accepted) for accepted in (3, 1, 2, 0)))
"""Four steps that accepted 3, 1, 2 and 0 of three drafts."""


def test_accepted_runs_of_3_1_2_0_have_the_mean_1_5() -> None:
    """The sum of prefix frequencies is the truth; the product of per-position accuracies, once published, is not."""
    depths = acceptance_by_depth([RUNS])
    assert [depth.cumulative for depth in depths] == [0.75, 0.5, 0.25]
    assert sum(depth.cumulative for depth in depths) == 1.5
    assert mean_accepted_length([RUNS]).value == RUNS.mean_accepted_length == 1.5 + 1.0
    product, expected = 1.0, 0.0
    for depth in depths:
        product *= depth.cumulative
        expected += product
    assert expected == pytest.approx(1.219, abs=5e-4)


def test_conditional_acceptance_multiplies_to_the_cumulative_one() -> None:
    product = 1.0
    for depth, wanted in zip(acceptance_by_depth([RUNS]), (3 / 4, 2 / 3, 1 / 2), strict=True):
        assert depth.conditional == wanted
        product *= depth.conditional
        assert product == pytest.approx(depth.cumulative)


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        pytest.param(step_of([-1], [0]), [], id="root only"),
        pytest.param(chain_step(3, 0), [(1, 1, 0), (2, 0, 0), (3, 0, 0)], id="nothing accepted"),
        pytest.param(chain_step(3, 3), [(1, 1, 1), (2, 1, 1), (3, 1, 1)], id="everything accepted"),
        pytest.param(step_of([-1, 0, 0, 0], [0, 3]), [(1, 1, 1)], id="one of three siblings"),
        pytest.param(
            step_of([-1, 0, 0, 1, 3], [0, 2]), [(1, 1, 1), (2, 0, 0), (3, 0, 0)], id="a leaf beside a deeper branch"
        ),
        pytest.param(
            step_of([-1, 0, 0, 1, 3], [0, 1]), [(1, 1, 1), (2, 1, 0), (3, 0, 0)], id="a branch that went on in vain"
        ),
    ],
)
def test_acceptance_by_depth_counts_steps_that_could_and_did(
    step: DecodeStep, wanted: list[tuple[int, int, int]]
) -> None:
    assert acceptance_by_depth([trace_of(step)]) == tuple(DepthAcceptance(*counts, 1) for counts in wanted)


def test_shares_without_a_count_are_not_numbers() -> None:
    depth = DepthAcceptance(1, 0, 0, 0)
    assert math.isnan(depth.conditional)
    assert math.isnan(depth.cumulative)
    assert acceptance_by_depth([]) == ()
    assert math.isnan(mean_accepted_length([]).value)
    assert math.isnan(trace_of().mean_accepted_length)
    assert all(math.isnan(value) for value in mean_stage_seconds([trace_of()]))


def test_a_clipped_step_counts_what_it_committed() -> None:
    """A stop token inside the accepted path: the rule accepted three drafts, the text got two tokens."""
    trace = trace_of(chain_step(3, 1), step_of(range(-1, 3), range(4), committed=2))
    assert trace.mean_accepted_length == mean_accepted_length([trace]).value == (2 + 2) / 2
    assert [depth.accepted for depth in acceptance_by_depth([trace])] == [2, 1, 1]


@pytest.mark.parametrize("method", ["chain", "ddtree", "tfm"])
def test_figures_of_a_real_decode_are_additive_over_any_split(method: str) -> None:
    target = tiny_target(dtype=torch.float32)
    sampling = SamplingConfig(temperature=0.5)
    tree = TreeConfig(budget=9, max_depth=7, pool_size=20)
    speculator = make_speculator(method, drafter_for(target), weaver_for(target), sampling)
    whole = [
        speculative_decode(target, speculator, random_tokens(5, seed), DecodeConfig(12, sampling, tree, seed=seed))
        for seed in range(3)
    ]
    pieces = [replace(trace, steps=trace.steps[cut]) for trace in whole for cut in (slice(0, 3), slice(3, None))]
    assert acceptance_by_depth(pieces) == acceptance_by_depth(reversed(whole)) == acceptance_by_depth(whole)
    assert mean_accepted_length(pieces).value == mean_accepted_length(whole).value
    assert mean_stage_seconds(pieces) == pytest.approx(mean_stage_seconds(whole))
    calls = sum(trace.target_calls for trace in whole)
    parts = [acceptance_by_depth([trace]) for trace in whole]
    for depth in acceptance_by_depth(whole):
        same = [part[depth.depth - 1] for part in parts if len(part) >= depth.depth]
        assert depth.accepted == sum(entry.accepted for entry in same)
        assert depth.reached == sum(entry.reached for entry in same)
        assert depth.steps == calls
    accepted = sum(step.accepted for trace in whole for step in trace.steps)
    assert sum(depth.cumulative for depth in acceptance_by_depth(whole)) == pytest.approx(accepted / calls)


def test_collections_are_pooled_and_never_averaged() -> None:
    """One step with four tokens and three with one: MAL is 7 / 4; the mean of the two ratios would be 2.5."""
    traces = [trace_of(chain_step(3, 3)), trace_of(*[chain_step(3, 0)] * 3)]
    assert mean_accepted_length(traces).value == 7 / 4


def test_ratio_and_its_standard_error_by_hand() -> None:
    """Ratio 12 / 6; residuals 1, 1, -2 with variance 3; standard error sqrt(3 * 3) / 6."""
    estimate = ratio_estimate([3.0, 5.0, 4.0], [1.0, 2.0, 3.0])
    assert estimate.value == 2.0
    assert estimate.standard_error == pytest.approx(0.5)


def test_with_equal_denominators_it_is_the_standard_error_of_a_mean() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    estimate = ratio_estimate(values, [1.0] * 5)
    assert estimate.value == pytest.approx(statistics.mean(values))
    assert estimate.standard_error == pytest.approx(statistics.stdev(values) / math.sqrt(5))


def test_the_standard_error_is_the_spread_of_repeated_experiments() -> None:
    """Texts of unlike length, whose MAL goes with their length: the spread of the ratio, not of the mean of ratios."""
    generator = random.Random(0)
    estimates = []
    for _ in range(1500):
        calls = [generator.randint(5, 40) for _ in range(40)]
        tokens = [sum(generator.choice((1, 2, 2 + count / 20)) for _ in range(count)) for count in calls]
        estimates.append(ratio_estimate(tokens, [float(count) for count in calls]))
    spread = statistics.stdev(estimate.value for estimate in estimates)
    claimed = statistics.mean(estimate.standard_error for estimate in estimates)
    assert claimed == pytest.approx(spread, rel=0.08)


def test_what_has_no_error_says_so() -> None:
    assert ratio_estimate([3.0], [2.0]).value == 1.5
    assert math.isnan(ratio_estimate([3.0], [2.0]).standard_error)
    assert all(math.isnan(figure) for figure in ratio_estimate([0.0, 0.0], [0.0, 0.0]))
    with pytest.raises(ValueError, match="2 numerators do not pair up with 1 denominators"):
        ratio_estimate([1.0, 2.0], [1.0])


@pytest.mark.parametrize("sampling", [SamplingConfig(1.0), SamplingConfig(0.6, top_k=2), SamplingConfig(0.0)])
@pytest.mark.parametrize("seed", range(4))
def test_expected_tokens_per_call_by_enumeration(seed: int, sampling: SamplingConfig) -> None:
    """Against every outcome of the membership rule on a random tree."""
    p, tree = random_table(3, 4, seed), random_fixed_tree(3, 8, 3, seed)
    draft = Draft(tree, TreeKind.FIXED)
    wanted = expected_length(enumerate_verdicts([(1.0, draft)], RULES["target_sample"], p, sampling))
    assert expected_tokens_per_call(tree, target_rows(draft, p, sampling)) == pytest.approx(wanted, abs=1e-12)


def test_stage_seconds_are_means_over_steps() -> None:
    slow = replace(chain_step(1, 0), seconds=StageSeconds(3.0, 2.0, 3.0, 4.0, 9.0))
    traces = [trace_of(chain_step(1, 0), slow), trace_of(chain_step(1, 1), chain_step(1, 1))]
    assert mean_stage_seconds(traces) == StageSeconds(1.5, 2.0, 3.0, 4.0, 6.0)
    assert mean_stage_seconds(traces).total == 16.5
