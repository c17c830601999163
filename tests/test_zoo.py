"""The bug zoo: every tool raises the alarm on the wrong code and stays silent on the right one."""

import math
import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from tfm_lab import gdn
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig, TreeKind, best_first, conditional_chain, dyspec_slots, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.exact import enumerate_drafts, enumerate_verdicts, expected_length, random_table
from tfm_lab.theory.worlds import perfect_source
from tfm_lab.verification import AcceptanceRule, rejection_swor, target_sample, traversal
from tfm_lab.zoo import EXHIBITS, Evidence, Exhibit, Measurement, interpreted, measuring, orphans
from tfm_lab.zoo.laws import EXACT, EmittedText, Pair, draw, sampled_chain
from tfm_lab.zoo.plots import symptom_plot
from tfm_lab.zoo.sampling_rules import CHAIN, WrongMatch, WrongResidual
from tfm_lab.zoo.trees import wrong_pruning

NAMES = tuple(EXHIBITS)
THREAD = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")
P, Q = random_table(3, 2, seed=1), random_table(3, 2, seed=2)


@cache
def measured(name: str, side: str) -> Measurement:
    exhibit = EXHIBITS[name]
    if exhibit.needs:
        pytest.importorskip(exhibit.needs)
    return exhibit.tool(getattr(exhibit, side))


def once(name: str) -> Exhibit:
    """The exhibit with a tool that measures each of its two codes once in all tests."""
    exhibit = EXHIBITS[name]
    return replace(exhibit, tool=lambda code: measured(name, "wrong" if code is exhibit.wrong else "right"))


def test_there_are_exactly_twelve_exhibits() -> None:
    assert [exhibit.number for exhibit in EXHIBITS.values()] == list(range(1, 13))
    assert [exhibit.name for exhibit in EXHIBITS.values()] == list(NAMES)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in NAMES)
    assert [name for name in NAMES if EXHIBITS[name].needs] == ["interpreter_benchmark", "interpreted_bfloat16_dot"]


@pytest.mark.parametrize("name", NAMES)
def test_an_exhibit_is_told_in_sentences_and_linked(name: str) -> None:
    exhibit = EXHIBITS[name]
    for sentence in (exhibit.symptom, exhibit.cause, exhibit.fix):
        assert re.fullmatch(r"[A-Z].*[^.]\.", sentence)
        assert ". " not in sentence
    assert exhibit.title
    assert exhibit.threads
    assert all(THREAD.fullmatch(thread) for thread in exhibit.threads)


@pytest.mark.parametrize("name", NAMES)
def test_the_tool_catches_the_wrong_code_and_passes_the_right_one(name: str) -> None:
    evidence = once(name).evidence()
    assert evidence.wrong > evidence.threshold
    assert 0.0 <= evidence.right <= evidence.tolerance
    assert evidence.tolerance < evidence.threshold / 10
    assert evidence.is_caught


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_caught_where_both_codes_are_alike(name: str) -> None:
    exhibit = once(name)
    assert not replace(exhibit, wrong=exhibit.right).evidence().is_caught, "right code was taken for wrong"
    assert not replace(exhibit, right=exhibit.wrong).evidence().is_caught, "wrong code was taken for right"


@pytest.mark.parametrize(
    ("wrong", "right", "caught"),
    [(0.5, 0.0, True), (0.1, 0.0, False), (0.5, 0.02, False), (math.inf, 0.01, True), (math.nan, 0.0, False)],
    ids=["caught", "too small", "false alarm", "infinite", "not a number"],
)
def test_evidence_needs_an_alarm_and_a_silence(wrong: float, right: float, caught: bool) -> None:
    assert Evidence("error", wrong, right, tolerance=0.01, threshold=0.1).is_caught is caught


@pytest.mark.parametrize("name", NAMES)
def test_the_symptom_plot_shows_every_series(name: str) -> None:
    exhibit = once(name)
    evidence = exhibit.evidence()
    figure = symptom_plot(exhibit, evidence)
    assert [trace.name for trace in figure.data] == [series.name for series in evidence.series]
    assert {"right", "wrong"} <= {trace.name for trace in figure.data}
    for trace, series in zip(figure.data, evidence.series, strict=True):
        assert (tuple(trace.x), tuple(trace.y)) == (series.x, series.y)
        assert trace.type == ("bar" if isinstance(series.x[0], str) else "scatter")
    by_name = {series.name: series for series in evidence.series}
    assert by_name["wrong"].x == by_name["right"].x
    assert by_name["wrong"].y != by_name["right"].y
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == (exhibit.x_title, exhibit.y_title)
    assert figure.layout.title.text == f"Exhibit {exhibit.number}: {exhibit.title}"


def test_errors_of_many_sizes_are_drawn_on_a_logarithmic_axis() -> None:
    assert symptom_plot(once("half_precision_rollback")).layout.yaxis.type == "log"
    assert symptom_plot(once("unsampled_q")).layout.yaxis.type is None


# Sampling bugs are bugs of a pair: each half of a wrong pair can be right elsewhere.


@pytest.mark.parametrize(
    "pair",
    [
        Pair(best_first, traversal),
        Pair(woven, target_sample),
        Pair(dyspec_slots, traversal),
        Pair(wrong_pruning, target_sample),
        Pair(sampled_chain(draw), traversal),
    ],
    ids=["best_first", "woven", "dyspec_slots", "pruned, by membership", "chain"],
)
def test_the_exact_law_passes_other_lossless_pairs(pair: Pair) -> None:
    assert EmittedText(P, Q, TreeConfig(budget=2, max_depth=2), 3)(pair).error <= EXACT


def test_matching_a_sample_is_exact_but_accepts_less_than_the_ratio() -> None:
    drafts = enumerate_drafts(sampled_chain(draw), Q, CHAIN)
    lengths = [
        expected_length(enumerate_verdicts(drafts, rule, P, SamplingConfig()))
        for rule in (target_sample, rejection_swor)
    ]
    assert lengths[0] < lengths[1] - 0.1


@pytest.mark.parametrize("rule", [WrongResidual(), WrongMatch()], ids=lambda rule: rule.name)
def test_the_wrong_rules_accept_what_the_right_ones_do(rule: AcceptanceRule) -> None:
    """Only the replacement after a rejection is wrong: a count of accepted tokens would not show it."""
    right = {"wrong_residual": rejection_swor, "wrong_match": target_sample}[rule.name]
    drafts = enumerate_drafts(sampled_chain(draw), Q, CHAIN)
    wrong_length, right_length = (
        expected_length(enumerate_verdicts(drafts, judge, P, SamplingConfig())) for judge in (rule, right)
    )
    assert wrong_length == pytest.approx(right_length, abs=1e-12)
    rule.supports(TreeKind.SAMPLED, SamplingConfig())


def test_a_fixed_tree_is_refused_by_the_rule_that_the_wrong_label_deceives() -> None:
    with pytest.raises(ValueError, match="rejection_swor is lossless only for children drawn from the drafter"):
        EmittedText(P, Q, CHAIN, 3)(Pair(best_first, rejection_swor))


def test_the_spine_of_a_wrongly_scored_tree_keeps_its_promise() -> None:
    world = orphans.WORLD
    tree = orphans.wrong_scores(world)
    scores, below = tree.path_log_probs().exp().tolist(), orphans.orphans(tree)
    assert below
    for node in range(1, len(tree)):
        path = tree.path_tokens(node)[1:]
        truth = math.prod(float(world.conditional(path[:place])[token]) for place, token in enumerate(path))
        if node not in below:
            assert scores[node] == pytest.approx(truth, abs=1e-12)
    assert max(int(tree.depths[node]) for node in below) >= 2


def test_step_counts_are_those_of_a_simulated_decode() -> None:
    world, budget, wanted = measuring.stretches(), 8, 10_000
    config = TreeConfig(budget=budget, max_depth=measuring.DEPTH, children=8, width=1)
    draws, trees = SeededDraws(0), {}
    for context in range(world.vocab):
        tree = woven(context, perfect_source(world.at(context), measuring.DEPTH), config, draws).tree
        trees[context] = tree.tokens.tolist(), tree.children()
    token, written, steps = 0, 0, 0
    while written < wanted:
        tokens, children = trees[token]
        steps, node = steps + 1, 0
        while True:
            token, written = draws.categorical(world.transitions[tokens[node]]), written + 1
            following = [child for child in children[node] if tokens[child] == token]
            if not following:
                break
            node = following[0]
    exact = measuring.Steps.of(world, woven, budget).steps_per_token()
    assert steps / written == pytest.approx(exact, rel=0.03)
    chain = measuring.Steps.of(world, conditional_chain, measuring.DEPTH)
    assert chain.steps_per_token() > 1.1 * exact


# Triton.


def test_a_compiled_kernel_is_benchmarked(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    launches: list[tuple[int, ...]] = []
    monkeypatch.setattr(triton.JITFunction, "run", lambda *arguments, grid, **options: launches.append(grid))
    measuring.right_benchmark(triton.JITFunction(measuring.addition().fn), 3)
    assert launches == [(3,)]
    with pytest.raises(ValueError, match="runs in Triton's interpreter"):
        measuring.right_benchmark(measuring.addition(), 3)


def test_the_interpreted_addition_adds() -> None:
    pytest.importorskip("triton")
    assert bool((interpreted.launch_addition(interpreted.addition(), 2) == 2.0).all())


def test_the_packages_own_kernel_refuses_bfloat16_in_the_interpreter() -> None:
    triton = pytest.importorskip("triton")
    if not triton.knobs.runtime.interpret:
        pytest.skip("Triton compiles here")
    rows = torch.ones(1, 2, 16, dtype=torch.bfloat16)
    gates = torch.zeros(1, 2)
    ancestors = torch.tensor([[True, False], [True, True]])
    with pytest.raises(ValueError, match="multiplies the bit patterns"):
        gdn.tree_verify(rows, rows, rows, gates, gates, torch.zeros(1, 16, 16), ancestors, impl="triton")


@pytest.mark.parametrize("name", [name for name in NAMES if EXHIBITS[name].needs])
def test_an_exhibit_without_its_package_says_what_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreted, "tl", None)
    with pytest.raises(ModuleNotFoundError, match="pip install triton"):
        EXHIBITS[name].evidence()
