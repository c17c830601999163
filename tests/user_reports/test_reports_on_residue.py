"""Report 17 and what all reports ask: a decode leaves nothing behind, and a seed says everything about chance."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from user_reports.worlds import GREEDY, SAMPLED, WORLDS, without_times, world

from tfm_lab.decoding import autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting import Draft, TreeKind
from tfm_lab.draws import Draws
from tfm_lab.methods import METHODS
from tfm_lab.verification import Acceptance, AcceptanceRule

pytestmark = pytest.mark.unchecked

FRESH = """
import json, sys
from tfm_lab.bundle import load_bundle
from tfm_lab.decoding import DecodeConfig, speculative_decode
from tfm_lab.drafting import TreeConfig
from tfm_lab.methods import make_speculator
bundle, prompt = load_bundle("hybrid"), json.loads(sys.argv[1])
config = DecodeConfig(10, tree=TreeConfig(budget=12, width=6))
speculator = make_speculator("tfm", bundle.drafter, bundle.weaver, config.sampling)
trace = speculative_decode(bundle.target, speculator, prompt, config)
print(json.dumps([[step.tree.tokens.tolist(), step.committed] for step in trace.steps]))
"""


def test_a_second_decode_is_that_of_a_fresh_process() -> None:
    """Report 17: text A, text B, text A again; both As agree, and B is what a process writes that never saw A."""
    where = world("hybrid")
    first, second, again = (
        speculative_decode(where.target, where.speculator("tfm"), where.prompts[which], where.config(10))
        for which in (0, 1, 0)
    )
    assert without_times(again) == without_times(first)
    command = [sys.executable, "-c", FRESH, json.dumps(where.prompts[1])]
    fresh = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert fresh == [[step.tree.tokens.tolist(), list(step.committed)] for step in second.steps]


@dataclass
class Counted:
    """A rule that counts what it draws; implements ``AcceptanceRule`` and, around the real draws, ``Draws``."""

    rule: AcceptanceRule
    categoricals: int = 0
    bernoullis: int = 0
    name: str = "counted"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        self.rule.supports(kind, sampling)

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        outer = self

        class Counting:
            def categorical(self, weights):
                outer.categoricals += 1
                return draws.categorical(weights)

            def bernoulli(self, probability):
                outer.bernoullis += 0.0 < probability < 1.0
                return draws.bernoulli(probability)

        return self.rule(draft, target, Counting())


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("method", METHODS)
def test_a_decode_draws_one_number_per_token_and_none_where_nothing_is_open(name: str, method: str) -> None:
    """Membership draws once per emitted token, a ratio rule once per bonus, greedy never."""
    where = world(name)
    for sampling, rule in ((SAMPLED, "target_sample"), (SAMPLED, "traversal"), (GREEDY, "greedy")):
        honest = where.speculator(method, sampling, rule)
        counted = Counted(honest.rule)
        trace = speculative_decode(
            where.target, replace(honest, rule=counted), where.prompts[0], where.config(10, sampling)
        )
        emitted = sum(len(step.acceptance.path) for step in trace.steps)
        if rule == "target_sample":
            assert (counted.categoricals, counted.bernoullis) == (emitted, 0)
        elif rule == "greedy":
            assert (counted.categoricals, counted.bernoullis) == (0, 0)
        else:
            tried = sum(step.tree.budget for step in trace.steps)
            assert len(trace.steps) <= counted.categoricals <= len(trace.steps) + tried
            assert counted.bernoullis <= tried


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_and_settings_give_the_same_trace(name: str, method: str) -> None:
    """Every tree, acceptance and token again; another seed writes another text."""
    where = world(name)
    traces = [
        speculative_decode(
            where.target, where.speculator(method, SAMPLED), where.prompts[0], where.config(10, SAMPLED, seed)
        )
        for seed in (5, 5, 6)
    ]
    assert without_times(traces[0]) == without_times(traces[1])
    assert traces[0].tokens != traces[2].tokens


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("method", METHODS)
def test_budget_zero_with_a_seed_is_plain_sampling_with_that_seed(name: str, method: str) -> None:
    """Whatever the method and its rule, a step without drafts is a step of plain sampling."""
    where = world(name)
    for seed in (0, 7):
        config = where.config(8, SAMPLED, seed)
        config = replace(config, tree=replace(config.tree, budget=0))
        plain = autoregressive_decode(where.target, where.prompts[0], config)
        trace = speculative_decode(where.target, where.speculator(method, SAMPLED), where.prompts[0], config)
        assert trace.tokens == plain.tokens
        assert trace.target_calls == plain.target_calls == 7
