"""Summaries, gains and the report in its three forms, by hand where a hand can do it."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import plotly
import pytest
from evaluation_samples import BY_HAND, CONTEXTS, EVALUATION, record

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation import Gain, Setting, evaluate, gains, markdown_table, report, summarise
from tfm_lab.evaluation.best_trees import BEST, BestTrees
from tfm_lab.evaluation.ceiling import DRAFTER, ORACLE, Ceiling
from tfm_lab.evaluation.records import records_header
from tfm_lab.evaluation.report import write_report
from tfm_lab.evaluation.statistics import mean_ratio
from tfm_lab.evaluation.summary import gain
from tfm_lab.evaluation.tables import best_tree_table, ceiling_table, depth_table, gain_table
from tfm_lab.metrics import ratio_estimate
from tfm_lab.provenance import device_name

TFM, CHAIN = Setting("tfm", 16, 0.0), Setting("chain", 16, 0.0)
CEILING = Ceiling(8, {ORACLE: np.array([[1.0, 0.5], [1.0, 0.7]]), DRAFTER: np.array([[0.6, 0.2], [0.8, 0.4]])})


def test_summary_by_hand() -> None:
    chain, tfm, sampled = summarise(BY_HAND)
    assert (chain.setting, tfm.setting, sampled.setting.temperature) == (CHAIN, TFM, 1.0)
    assert chain.mal == ratio_estimate([4.0, 4.0], [2.0, 4.0])
    assert chain.interval == mean_ratio([np.array([[4.0, 2.0], [4.0, 4.0]])])
    assert tfm.mal.value == tfm.interval.value == 10 / 4
    assert (tfm.contexts, tfm.left_out, tfm.too_long, tfm.target_calls, tfm.calls_per_step) == (2, 1, 0, 4, 3.0)
    assert chain.acceptance == (2 / 6, 0.0)
    assert chain.conditional == (2 / 6, 0.0)
    assert tfm.acceptance == (3 / 4, 2 / 4, 1 / 4)
    assert tfm.conditional == (3 / 4, 2 / 3, 1.0)
    assert tfm.tokens_per_second == 10 / 2.0


def test_steps_without_a_draft_count_in_the_acceptance_and_not_in_the_conditional() -> None:
    (summary,) = summarise([record("a1", "tfm", 5, 4, [[2, 1]])])
    assert (summary.acceptance, summary.conditional) == ((1 / 4,), (1 / 2,))


def test_low_temperatures_come_first_whatever_the_order_of_the_records() -> None:
    records = [record("a1", method, 4, 2, temperature=t) for t in (1.0, 0.0, 0.5) for method in ("tfm", "chain")]
    assert [(s.setting.temperature, s.setting.method) for s in summarise(records)] == [
        (temperature, method) for temperature in (0.0, 0.5, 1.0) for method in ("tfm", "chain")
    ]
    assert [found.setting.temperature for found in gains(records)] == [0.0, 0.5, 1.0]


def test_the_macro_average_counts_kinds_alike() -> None:
    more = [*BY_HAND, record("a2", "tfm", 6, 2), record("a3", "tfm", 6, 2)]
    (_, tfm, sampled) = summarise(more)
    assert tfm.mal.value == 22 / 8
    assert tfm.macro.value == (3.0 + 2.0) / 2
    assert math.isnan(tfm.macro.low)  # a single text of kind b
    assert math.isnan(sampled.macro.value)  # a single kind
    (_, tfm, _) = summarise([*more, record("b2", "tfm", 4, 2)])
    assert tfm.macro == (2.5, 2.5, 2.5)


def test_summary_by_kind_of_text() -> None:
    summaries = {(s.kind, s.setting.method, s.setting.temperature): s for s in summarise(BY_HAND, by_kind=True)}
    assert summaries["a", "tfm", 0.0].mal.value == 3.0
    assert summaries["b", "tfm", 0.0].mal.value == 2.0
    assert summaries["c", "tfm", 0.0].contexts == 0
    assert summaries["all", "tfm", 0.0].mal.value == 2.5


def test_tokens_per_second_only_of_decodes_on_one_device() -> None:
    on_two = [record("a1", "tfm", 6, 2), record("a2", "tfm", 6, 2, device="another one")]
    replayed = [record("a1", "tfm", 6, 2, replayed=True, drafter_calls=None, seconds=[0.0] * 5)]
    for records in (on_two, replayed):
        assert math.isnan(summarise(records)[0].tokens_per_second)
    assert math.isnan(summarise(replayed)[0].calls_per_step)


def test_markdown_table() -> None:
    lines = markdown_table(summarise(BY_HAND)).splitlines()
    assert lines[0].startswith("| T | method | B | texts | MAL | 95 % interval | standard error |")
    assert lines[1] == "|" + "---|" * lines[0].count(" | ") + "---|"
    assert lines[3] == "| 0 | tfm | 16 | 2 | 2.500 | 2.000 to 3.000 | 0.500 | 2.500 | – | 4 | 3.0 | 5.0 |"
    assert lines[4] == "| 1 | tfm | 16 | 1 | 1.000 | – | – | – | – | 5 | 3.0 | 2.0 |"
    assert markdown_table(summarise(BY_HAND, by_kind=True)).count("| tfm, b |") == 2


def test_depth_table() -> None:
    rows = depth_table(summarise(BY_HAND)).rows
    assert rows[0] == ("0", "chain", "16", "0.333", "0.000", "–")
    assert rows[1] == ("0", "tfm", "16", "0.750", "0.500", "0.250")


def test_paired_gain_by_hand() -> None:
    """TfM 10 / 4, chain 8 / 6: gain 7 / 8. Influences +-1/15, so the error is 15/8 * sqrt(2 * 2 / 15^2) = 1/4.

    Resamples hold text a twice, both, or text b twice: gains 1/2, 7/8 and 1. Macro: (3 + 2) / (2 + 1) - 1.
    """
    found = gain(BY_HAND, TFM, CHAIN)
    assert found.overall == (pytest.approx(0.875), pytest.approx(0.25))
    assert found.interval == (pytest.approx(0.875), pytest.approx(0.5), pytest.approx(1.0))
    assert found.macro.value == pytest.approx(2 / 3)
    assert found.contexts == 2


def test_a_gain_counts_contexts_that_both_methods_have() -> None:
    more = [*BY_HAND, record("d1", "tfm", 100, 1), record("e1", "chain", 1, 100)]
    more += [record("d1", "chain", 1, 1, prompt="<another prompt>"), record("f1", "tfm", 100, 1)]
    more += [record("f1", "chain", 1, 100) | {"replayed": True}]
    assert str(gain(more, TFM, CHAIN)) == str(gain(BY_HAND, TFM, CHAIN))
    one = gain(BY_HAND[:2], TFM, CHAIN)
    assert one.overall.value == pytest.approx(0.5)
    assert math.isnan(one.overall.standard_error)
    assert math.isnan(one.interval.low)
    assert math.isnan(gain([], TFM, CHAIN).overall.value)
    no_calls = [record(name, method, 0, 0) for name in ("a1", "a2") for method in ("tfm", "chain")]
    assert math.isnan(gain(no_calls, TFM, CHAIN).overall.standard_error)


def test_sampled_trees_are_compared_with_fixed_ones_too() -> None:
    records = [record("a1", method, 4, 2, temperature=1.0) for method in ("ranked", "dyspec", "tfm", "ddtree")]
    assert [(g.setting.method, g.baseline.method) for g in gains(records)] == [
        ("tfm", "ddtree"),
        ("dyspec", "ddtree"),
        ("dyspec", "tfm"),
        ("ranked", "ddtree"),
        ("ranked", "tfm"),
    ]


def test_gains_compare_trees_of_the_same_size_and_unusual_numbers_with_usual_ones() -> None:
    small = {"children": 4, "width": 1}
    records = [
        record("a1", method, 4, 2, budget=budget, **changes)
        for budget in (16, 32)
        for method, changes in (("chain", {}), ("ddtree", {}), ("tfm", {}), ("tfm", small), ("ard-tree", small))
    ]
    records += [record("a1", "tfm", 4, 2, max_depth=7)]
    pairs = [(g.setting.budget, g.setting.label, g.baseline.label) for g in gains(records)]
    each = (
        ("tfm", "ddtree"),
        ("tfm", "chain"),
        ("tfm C=4 w=1", "ddtree"),
        ("tfm C=4 w=1", "chain"),
        ("tfm C=4 w=1", "ard-tree C=4 w=1"),
        ("tfm C=4 w=1", "tfm"),
    )
    assert pairs == [*((budget, *pair) for budget in (16, 32) for pair in each), (16, "tfm D=7", "tfm")]


def test_the_error_of_a_gain_is_the_spread_of_repeated_experiments() -> None:
    """Both methods suffer from the same hard texts, so the paired error is far below that of two separate runs."""
    generator = random.Random(0)
    found: list[Gain] = []
    for _ in range(400):
        records = []
        for index in range(40):
            hardness, calls = generator.uniform(1.0, 5.0), generator.randint(5, 20)
            records.append(record(f"x{index}", "chain", round(calls * hardness), calls))
            noise = generator.uniform(0.9, 1.5)
            records.append(record(f"x{index}", "tfm", round(calls * hardness * noise), calls))
        found.append(gain(records, TFM, CHAIN))
    spread = np.std([g.overall.value for g in found], ddof=1)
    assert np.mean([g.overall.standard_error for g in found]) == pytest.approx(spread, rel=0.1)
    widths = [g.interval.high - g.interval.low for g in found]
    assert np.mean(widths) == pytest.approx(2 * 1.96 * spread, rel=0.12)


@pytest.fixture(scope="module")
def records(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return evaluate(tiny_bundle, CONTEXTS, EVALUATION, tmp_path_factory.mktemp("evaluation") / "records.jsonl")


def test_a_report_carries_its_provenance(tiny_bundle: Bundle, records: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "results" / "mal.json"
    write_report(records, tiny_bundle, EVALUATION, path, "held_out.jsonl")
    document = json.loads(path.read_text())
    provenance, setup = document["provenance"], document["setup"]
    assert provenance.keys() >= {"command", "date", "commit", "device", "threads", "torch", "python"}
    assert provenance["device"] == device_name("cpu")
    assert setup.items() >= records_header(tiny_bundle, EVALUATION).items()
    assert setup["weaver"] == tiny_bundle.weaver.fingerprint() if tiny_bundle.weaver else None
    assert (setup["dtype"], setup["seed"], setup["max_new_tokens"]) == ("float32", 0, 6)
    assert (setup["contexts"], setup["records made on"]) == ("held_out.jsonl", device_name("cpu"))
    text, page = path.with_suffix(".md").read_text(), path.with_suffix(".html").read_text()
    for name, value in (provenance | setup).items():
        assert f"{name}: {value}" in text
        assert f"<dt>{name}</dt>" in page
    assert tiny_bundle.drafter.fingerprint() in page


def test_a_report_holds_the_summaries_and_the_gains(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "mal.json"
    write_report(BY_HAND, tiny_bundle, EVALUATION, path)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    chosen = [s for s in document["summaries"] if (s["method"], s["kind"]) == ("tfm", "all")]
    assert [s["mal"] for s in chosen] == [
        {"value": 2.5, "low": 2.0, "high": 3.0, "standard_error": pytest.approx(0.5)},
        {"value": 1.0, "low": None, "high": None, "standard_error": None},
    ]
    assert (chosen[0]["budget"], chosen[0]["children"], chosen[0]["width"]) == (16, 32, None)
    assert (
        document["gains"][0].items()
        >= {
            "temperature": 0.0,
            "budget": 16,
            "method": "tfm",
            "baseline": "chain",
            "gain": pytest.approx(0.875),
            "standard_error": pytest.approx(0.25),
            "low": pytest.approx(0.5),
            "high": pytest.approx(1.0),
        }.items()
    )
    assert not {"ceiling", "best_trees"} & document.keys()
    text = path.with_suffix(".md").read_text()
    assert "| 0 | 16 | tfm | chain | 2 | +87.5 % | +50.0 to +100.0 % | 25.0 % | +66.7 % | – |" in text
    assert "1 contexts are left out because their plain continuation repeats itself" in text
    assert "do not fit the target's context" not in text
    assert markdown_table(summarise(BY_HAND)) in text
    assert gain_table(gains(BY_HAND)).markdown() in text


def test_a_ceiling_joins_the_report(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "mal.json"
    write_report(BY_HAND, tiny_bundle, EVALUATION, path, ceiling=CEILING)
    document = json.loads(path.read_text())["ceiling"]
    assert (document["anchors"], document["continuations"]) == (2, 8)
    assert document["by_depth"][ORACLE][1] == {"value": pytest.approx(0.6), "low": 0.5, "high": 0.7}
    table = ceiling_table(CEILING)
    assert table.rows[1] == ("2", "0.600 (0.500 to 0.700)", "0.300 (0.200 to 0.400)")
    assert table.markdown() in path.with_suffix(".md").read_text()
    assert "The ceiling of factorised drafting" in path.with_suffix(".html").read_text()


def test_best_trees_join_the_report(tiny_bundle: Bundle, tmp_path: Path) -> None:
    figures = {"ddtree": [2.0, 2.0], "tfm": [2.0, 3.0], BEST: [3.0, 5.0]}
    found = BestTrees(("a", "a"), {Setting(method, 16, 1.0): np.array(v) for method, v in figures.items()})
    path = tmp_path / "mal.json"
    write_report(BY_HAND, tiny_bundle, EVALUATION, path, best_trees=found)
    base, tfm, best = json.loads(path.read_text())["best_trees"]
    assert (tfm["method"], tfm["budget"], tfm["kind"], tfm["anchors"]) == ("tfm", 16, "all", 2)
    assert tfm["tokens"] == {"value": 2.5, "low": 2.0, "high": 3.0}
    assert (tfm["gain"]["value"], tfm["share"]["value"], tfm["left"]["value"]) == (0.25, 0.25, pytest.approx(0.6))
    assert base["gain"]["value"] is best["share"]["value"] is best["left"]["value"] is None
    table = best_tree_table(found)
    assert table.rows[1][:5] == ("16", "tfm", "all", "2", "2.500 (2.000 to 3.000)")
    assert table.rows[1][5:7] == ("+25.0 % (+0.0 to +50.0 %)", "25.0 % (+0.0 to +33.3 %)")
    assert table.rows[0][5:] == ("–", "–", "+100.0 % (+50.0 to +150.0 %)")
    assert table.markdown() in path.with_suffix(".md").read_text()
    assert "The best tree of B nodes (temperature 1)" in path.with_suffix(".html").read_text()


def test_the_page_needs_no_network_and_embeds_plotly_once(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "mal.json"
    hostile = [*BY_HAND, record("a1", "tfm", 5, 5, temperature=1.0, kind="<script>alert(1)</script>")]
    write_report(hostile, tiny_bundle, EVALUATION, path, "<b>")
    page = path.with_suffix(".html").read_text()
    library = plotly.offline.get_plotlyjs()
    assert page.count(library) == 1
    rest = page.replace(library, "")
    assert re.findall(r"<(?:link|img|iframe)|\b(?:src|href)=|@import", rest) == []
    assert rest.count('class="plotly-graph-div"') == 6
    assert "<script>alert" not in rest
    assert "<dd>&lt;b&gt;</dd>" in rest


def test_a_report_is_written_whole_or_not_at_all(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mal.json"
    write_report(BY_HAND, tiny_bundle, EVALUATION, path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert sorted(before) == ["mal.html", "mal.json", "mal.md"]
    write_text = Path.write_text

    def full(file: Path, text: str, **options: Any) -> int:
        if ".html" in file.name:
            raise OSError(28, "No space left on device")
        return write_text(file, text, **options)

    with monkeypatch.context() as patch:
        patch.setattr(report.Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            write_report(BY_HAND[:2], tiny_bundle, EVALUATION, path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
