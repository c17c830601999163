"""Frequencies of emitted tokens: the statistic by hand and by simulation, and the hybrid with its planted controls."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import assert_refused, run
from torch import Tensor

from tfm_lab.bundle import load_bundle
from tfm_lab.distributions import SamplingConfig
from tfm_lab.evaluation import load_contexts
from tfm_lab.evaluation.emissions import REDRAWN, merge_trees, plain_laws
from tfm_lab.evaluation.frequencies import LEVEL, ChiSquared, Classes, count_tokens
from tfm_lab.evaluation.frequency_test import DECODES, STEPS, Counter, Plan, is_passed, run_plan, save_frequencies
from tfm_lab.tree import DraftTree

PLAIN = SamplingConfig()


def judged(counts: Tensor, laws: Tensor) -> ChiSquared:
    test = ChiSquared(laws.shape[1], least=0.0)
    test.add(counts, laws)
    return test


def test_with_one_law_the_statistic_is_pearsons() -> None:
    law = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    counts = torch.tensor([[60.0, 25.0, 15.0]], dtype=torch.float64)
    test = judged(counts, law)
    pearson = float(((counts - 100 * law) ** 2 / (100 * law)).sum())
    assert test.statistic == pytest.approx(pearson, rel=1e-9)
    assert (test.freedom, test.tokens) == (2, 100)
    assert test.p_value == pytest.approx(torch.exp(torch.tensor(-pearson / 2)).item(), rel=1e-6)
    assert test.distance == pytest.approx(0.1)


def test_a_class_that_never_has_a_chance_is_no_degree_of_freedom() -> None:
    law = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    counts = torch.tensor([[5.0, 5.0, 0.0], [7.0, 0.0, 0.0]], dtype=torch.float64)
    test = judged(counts, law)
    assert test.freedom == 1
    assert test.statistic == pytest.approx(0.0, abs=1e-12)
    assert ChiSquared(3).p_value == 1.0


def test_rare_classes_are_judged_together() -> None:
    law = torch.tensor([[0.96, 0.02, 0.015, 0.005]], dtype=torch.float64)
    counts = torch.tensor([[940.0, 30.0, 18.0, 12.0]], dtype=torch.float64)
    test = ChiSquared(4)
    test.add(counts, law)
    two = torch.tensor([[0.96, 0.04]], dtype=torch.float64)
    pooled = judged(torch.tensor([[940.0, 60.0]], dtype=torch.float64), two)
    assert test.statistic == pytest.approx(pooled.statistic, rel=1e-6)
    assert test.freedom == 1
    assert test.least_expected == pytest.approx(40.0)
    few = ChiSquared(4)
    few.add(counts / 20, law)
    assert few.freedom == 0
    assert few.p_value == 1.0


def test_parts_merge_into_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    laws = torch.rand(6, 4, generator=generator, dtype=torch.float64)
    laws /= laws.sum(1, keepdim=True)
    counts = torch.randint(0, 9, (6, 4), generator=generator).double()
    whole, parts = judged(counts, laws), judged(counts[:2], laws[:2])
    parts.merge(judged(counts[2:], laws[2:]))
    assert parts.statistic == pytest.approx(whole.statistic, rel=1e-9)
    assert parts.tokens == whole.tokens


def test_texts_whose_tokens_depend_on_each_other_keep_the_promised_level() -> None:
    """2,000 tests on texts of a Markov chain: p-values are uniform though tokens of a text depend on each other."""
    generator = torch.Generator().manual_seed(1)
    transitions = (3.0 * torch.randn(4, 4, generator=generator, dtype=torch.float64)).softmax(1)
    p_values = []
    for _ in range(2000):
        token, counts = torch.zeros(50, dtype=torch.long), torch.zeros(4, 4, dtype=torch.float64)
        for _ in range(12):
            after = torch.multinomial(transitions[token], 1, generator=generator)[:, 0]
            counts.index_put_((token, after), torch.ones(50, dtype=torch.float64), accumulate=True)
            token = after
        p_values.append(judged(counts, transitions).p_value)
    for level in (0.5, 0.1, 0.02):
        share = sum(p < level for p in p_values) / len(p_values)
        assert abs(share - level) < 5 * (level * (1 - level) / len(p_values)) ** 0.5


def test_classes_have_equal_shares_and_the_favourite_its_own() -> None:
    generator = torch.Generator().manual_seed(2)
    laws = torch.randn(30, 500, generator=generator, dtype=torch.float64).softmax(1)
    classes = Classes.by_frequency(laws, 9)
    assert classes.count == 9
    of_class = classes.law(laws)
    torch.testing.assert_close(of_class.sum(1), torch.ones(30, dtype=torch.float64))
    torch.testing.assert_close(of_class[:, 0], laws.max(1).values)
    shares = of_class[:, 1:].mean(0)
    assert float(shares.max() / shares.min()) < 1.2
    counts, _ = count_tokens(classes, laws, [(3, int(laws[3].argmax())), (3, int(laws[3].argmin()))])
    assert counts[3, 0] == 1.0
    assert counts.sum() == 2.0


def test_too_few_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3 classes"):
        Classes.by_frequency(torch.ones(1, 5) / 5, 2)


def test_merged_trees_keep_every_node_of_each() -> None:
    first = DraftTree.from_parents([9, 1, 2, 3], [-1, 0, 0, 1])
    second = DraftTree.from_parents([9, 2, 4, 1], [-1, 0, 1, 0])
    merged, places = merge_trees([first, second])
    assert len(merged) == 5
    for tree, nodes in zip((first, second), places, strict=True):
        assert [merged.path_tokens(node) for node in nodes] == [tree.path_tokens(node) for node in range(len(tree))]
    with pytest.raises(ValueError, match="have 2"):
        merge_trees([first, DraftTree.root_only(8)])


def test_the_plain_law_is_that_of_plain_decoding() -> None:
    bundle = load_bundle()
    text = bundle.encode(load_contexts(limit=1)[0].prompt)[:9]
    behind = [(), (5,), (5, 7), (5, 7, 11), (8,)]
    laws = plain_laws(bundle.target, text, behind, PLAIN)
    for law, more in zip(laws, behind, strict=True):
        wanted = PLAIN.probabilities(bundle.target.prefill([*text, *more]).logits)
        torch.testing.assert_close(law, wanted, rtol=1e-3, atol=1e-6)


SMALL = Plan(tokens=3000, decoded=60, places=3, classes=12)


@pytest.mark.slow
@pytest.mark.unchecked
def test_the_hybrid_writes_like_plain_sampling_and_the_controls_do_not(tmp_path: Path) -> None:
    """The test of ``tfm-lab frequencies`` on fewer tokens: no alarm at 1e-7 but for every planted bias."""
    tests = run_plan(SMALL)
    assert len(tests) == 12
    assert is_passed(tests)
    for (source, name), test in tests.items():
        is_control = name.endswith(REDRAWN)
        assert test.tokens >= (SMALL.tokens if source == STEPS else SMALL.decoded)
        assert (test.p_value < LEVEL) is is_control
        assert source in (STEPS, DECODES)
    key = STEPS, "tfm, traversal"
    assert not is_passed(tests | {key: tests[STEPS, f"tfm, traversal, {REDRAWN}"]})
    assert not is_passed(tests | {(STEPS, f"tfm, traversal, {REDRAWN}"): tests[key]})
    save_frequencies(tests, SMALL, {}, tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written["is_passed"] is True
    assert len(written["tests"]) == 12
    assert {"device", "date", "commit", "command"} <= written["provenance"].keys()
    assert "| steps | tfm, target_sample |" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.unchecked
def test_a_place_is_counted_alike_whoever_counts_it() -> None:
    plan = replace(SMALL, tokens=200, decoded=40, places=2)
    first, second = (Counter(load_bundle(), plan).count(1) for _ in range(2))
    assert {key: test.emitted.tolist() for key, test in first.items()} == {
        key: test.emitted.tolist() for key, test in second.items()
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--temperature", "0"], "greedy text has no frequencies to test"),
        (["--tokens", "0"], "at least 1 token and 1 place"),
        (["--workers", "0"], "at least 1 worker, got 0"),
        (["--out", "report.txt"], "--out takes the name of a .json file"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["frequencies", *words], sentence, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.unchecked
def test_too_few_tokens_are_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    words = ["--tokens", "60", "--decoded", "0", "--places", "2", "--classes", "4", "--workers", "2"]
    assert run("frequencies", *words, "--out", str(out)) == 1
    assert "FAILED: too few tokens to notice the planted bias of tfm, target_sample" in capsys.readouterr().out
    assert json.loads(out.read_text(encoding="utf-8"))["is_passed"] is False


def test_the_command_needs_texts_to_go_on_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("frequencies", "--places", "100000", "--workers", "1") == 2
    assert "ask for fewer places" in capsys.readouterr().err
