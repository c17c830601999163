"""The first divergence: nothing where decoding is exact, rounding where it rounds, planted errors called by name."""

import json
from pathlib import Path

import pytest
import torch
from command_line import assert_refused, run
from models.oracle import random_tokens
from models.small import drafter_for, tiny_target, weaver_for

from tfm_lab.bundle import Bundle, load_bundle
from tfm_lab.cli.divergence import _contexts
from tfm_lab.decoding import DecodeConfig, Speculator
from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.divergence import SHOWN, Divergence, Ranked, first_divergence
from tfm_lab.drafting import Draft, TreeConfig
from tfm_lab.draws import Draws
from tfm_lab.evaluation import load_contexts
from tfm_lab.evaluation.greedy_texts import Comparison, compare_texts, comparison_table
from tfm_lab.methods import make_speculator
from tfm_lab.models.target import TargetModel
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance, Greedy

GREEDY = SamplingConfig(0.0)
TREE = TreeConfig(budget=12, max_depth=7, children=4, width=3, pool_size=20)


def speculator_for(target: TargetModel, method: str = "tfm") -> Speculator:
    return make_speculator(method, drafter_for(target), weaver_for(target), GREEDY)


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-plain"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_exact_decoding_never_diverges(name: str, dtype: torch.dtype) -> None:
    target = tiny_target(name, dtype)
    for seed in range(4):
        config = DecodeConfig(20, GREEDY, TREE)
        assert first_divergence(target, speculator_for(target), random_tokens(9, seed), config) is None


def test_a_tree_verified_as_a_chain_is_the_algorithms_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every node sees all earlier ones, ancestors or not: the rows differ in float64, too."""
    target = tiny_target("llama-plain")
    monkeypatch.setattr(DraftTree, "ancestors", lambda tree: torch.ones(len(tree), len(tree), dtype=torch.bool).tril())
    found = [
        first_divergence(target, speculator_for(target, "ddtree"), random_tokens(9, s), DecodeConfig(24, GREEDY, TREE))
        for s in range(8)
    ]
    wrong = [divergence for divergence in found if divergence is not None]
    assert wrong
    assert {divergence.verdict for divergence in wrong} == {"algorithm"}
    assert min(divergence.disagreement for divergence in wrong) > 1e-6


class SecondBest(Greedy):
    """Takes the runner-up for the bonus token."""

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        right = super().__call__(draft, target, draws)
        logits = target._logits[right.path[-1]]
        return Acceptance(right.path, int(logits.topk(2).indices[1]))


def test_a_wrong_acceptance_rule_is_the_algorithms_fault_though_the_rows_agree() -> None:
    target = tiny_target("hybrid-grouped")
    honest = speculator_for(target)
    cheat = Speculator("tfm", honest.drafter, honest.weaver, honest.build_tree, honest.kind, SecondBest())
    divergence = first_divergence(target, cheat, random_tokens(9), DecodeConfig(20, GREEDY, TREE))
    assert divergence is not None
    assert divergence.verdict == "algorithm"
    assert divergence.disagreement < 1e-10
    assert divergence.margin > 2 * divergence.bound
    assert divergence.plain_best[0].token == divergence.plain_token
    assert divergence.plain_best[1].token == divergence.tree_token
    assert divergence.step == 0


def test_the_place_is_that_of_the_first_difference() -> None:
    """Against both texts, decoded again by hand."""
    from tfm_lab.decoding import autoregressive_decode, speculative_decode

    target, config = tiny_target("hybrid-grouped"), DecodeConfig(20, GREEDY, TREE)
    honest = speculator_for(target)
    cheat = Speculator("tfm", honest.drafter, honest.weaver, honest.build_tree, honest.kind, SecondBest())
    prompt = random_tokens(9, 3)
    plain, trace = autoregressive_decode(target, prompt, config), speculative_decode(target, cheat, prompt, config)
    divergence = first_divergence(target, cheat, prompt, config)
    assert divergence is not None
    assert plain.tokens[: divergence.place] == trace.tokens[: divergence.place]
    assert (plain.tokens[divergence.place], trace.tokens[divergence.place]) == (
        divergence.plain_token,
        divergence.tree_token,
    )
    step = trace.steps[divergence.step]
    before = 1 + sum(len(earlier.committed) for earlier in trace.steps[: divergence.step])
    assert step.acceptance.path[divergence.place - before] == divergence.node
    assert len(divergence.plain_best) == len(divergence.tree_best) == SHOWN


def verdict_of(margin: float, disagreement: float) -> str:
    best = (Ranked(1, 2.0),)
    return Divergence(3, 0, 0, 1, 2, best, best, margin, 0.1, disagreement, "bfloat16").verdict


def test_only_a_margin_that_rounding_can_bridge_is_numerics() -> None:
    assert verdict_of(0.19, 1e-13) == "numerics"
    assert verdict_of(0.21, 1e-13) == "algorithm"
    assert verdict_of(0.0, 1e-6) == "algorithm"


@pytest.mark.slow
@pytest.mark.unchecked
def test_the_shipped_bundle_in_bfloat16_differs_by_rounding_alone() -> None:
    bundle = load_bundle(dtype=torch.bfloat16)
    speculator = make_speculator("tfm", bundle.drafter, bundle.weaver, GREEDY)
    config = DecodeConfig(24, GREEDY, TreeConfig(budget=16), bundle.target.config.stop_tokens)
    found = [
        first_divergence(bundle.target, speculator, bundle.encode(context.prompt), config)
        for context in load_contexts(limit=4)
    ]
    differing = [divergence for divergence in found if divergence is not None]
    assert {divergence.verdict for divergence in differing} <= {"numerics"}
    assert all(divergence.margin <= 2 * divergence.bound for divergence in differing)


@pytest.mark.slow
@pytest.mark.unchecked
def test_the_shipped_bundle_in_float64_writes_the_plain_text_with_every_tree() -> None:
    bundle = load_bundle(dtype=torch.float64)
    prompts = {context.name: context.tokens(bundle) for context in load_contexts(limit=4)}
    comparisons = compare_texts(bundle, prompts, ["chain", "ddtree", "tfm"], TreeConfig(budget=16), 24)
    assert [comparison.identical for comparison in comparisons] == [4, 4, 4]
    assert min(comparison.tokens for comparison in comparisons) > 48


def test_sampled_texts_are_refused() -> None:
    target = tiny_target()
    with pytest.raises(ValueError, match="use temperature 0"):
        first_divergence(target, speculator_for(target), [1], DecodeConfig(5, SamplingConfig(1.0)))


def test_the_command_reports_and_exits(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["divergence", "--bundle", tiny_bundle.name, "--device", "cpu", "--max-new-tokens", "8", "--budget", "4"]
    assert run(*words, "import os\n") == 0
    assert (
        "1 texts: 1 identical, 0 differ by rounding, 0 by the algorithm (tfm, B = 4, float32)"
        in capsys.readouterr().out
    )
    monkeypatch.setattr("tfm_lab.methods.RULES", {"greedy": SecondBest()})
    assert run(*words, "--held-out", "--limit", "2") == 1
    output = capsys.readouterr().out
    assert "plain row: " in output
    assert output.rstrip().endswith("2 by the algorithm (tfm, B = 4, float32)")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "give one of PROMPT, --contexts FILE and --held-out"),
        (["x", "--held-out"], "give one of PROMPT, --contexts FILE and --held-out"),
        (["x", "--method", "ar"], "there is no method 'ar'"),
        (["x", "--budget", "-1"], "budget must be 0 or more"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["divergence", *words], sentence, tmp_path, capsys)


def test_many_methods_and_dtypes_go_into_one_report(
    tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "texts.json"
    words = ["divergence", "--bundle", tiny_bundle.name, "--device", "cpu", "--max-new-tokens", "8", "--budget", "4"]
    words += ["--held-out", "--limit", "2", "--method", "chain,tfm", "--dtype", "float32,float64", "--out", str(out)]
    assert run(*words) == 0
    assert "2 texts: 2 identical, 0 differ by rounding, 0 by the algorithm (chain, B = 4, float64)" in (
        capsys.readouterr().out
    )
    document = json.loads(out.read_text(encoding="utf-8"))
    assert [(c["dtype"], c["method"]) for c in document["comparisons"]] == [
        (dtype, method) for dtype in ("float32", "float64") for method in ("chain", "tfm")
    ]
    assert {"device", "date", "commit", "command"} <= document["provenance"].keys()
    assert all(c["identical"] == c["texts"] == 2 and c["divergences"] == {} for c in document["comparisons"])
    assert "| float64 | tfm | 2 |" in out.with_suffix(".md").read_text(encoding="utf-8")


def test_held_out_texts_come_first_and_a_suite_goes_on() -> None:
    contexts = _contexts(None, held_out=True, suite="math", limit=200)
    assert len(contexts) == 200
    assert contexts[:160] == load_contexts()
    assert {context.kind for context in contexts[160:]} == {"maths"}
    assert len({context.name for context in contexts}) == 200
    with pytest.raises(ValueError, match="at least 1 context"):
        _contexts(None, held_out=True, suite=None, limit=0)


def test_a_report_keeps_what_was_found_where_texts_part() -> None:
    target = tiny_target("hybrid-grouped")
    honest = speculator_for(target)
    cheat = Speculator("tfm", honest.drafter, honest.weaver, honest.build_tree, honest.kind, SecondBest())
    divergence = first_divergence(target, cheat, random_tokens(9), DecodeConfig(20, GREEDY, TREE))
    assert divergence is not None
    comparison = Comparison("tfm", "float64", 3, 60, {"a": divergence})
    assert (comparison.identical, comparison.by_rounding, comparison.by_algorithm) == (2, 0, 1)
    (row,) = comparison_table([comparison]).rows
    assert row[:7] == ("float64", "tfm", "3", "60", "2", "0", "1")
    assert float(row[7]) > 1.0
