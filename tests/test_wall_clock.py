"""The wall-clock comparison: what is compared with what, and how figures follow from decodes. No time is judged."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import assert_refused

from tfm_lab.bench import wall_clock
from tfm_lab.bench.wall_clock import (
    Plan,
    Prompt,
    Timing,
    choose,
    compare,
    fastest_verification,
    plain_plans,
    tree_plans,
)
from tfm_lab.bench.wall_clock_report import save_wall_clock, speed_table, stage_table
from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode
from tfm_lab.drafting import TreeConfig
from tfm_lab.trace import StageSeconds

PLAIN = Plan("ar", "float32", 1)
CHAIN = Plan("chain", "float32", 1, TreeConfig(budget=3))
TFM = Plan("tfm", "float32", 1, TreeConfig(budget=4, width=2))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def prompts(tiny_bundle: Bundle) -> list[Prompt]:
    texts = (("code", "import os\n"), ("chat", "What is"), ("code", "def f(x):\n"))
    return [Prompt(kind, tuple(tiny_bundle.encode(text))) for kind, text in texts]


def timing(tokens: int, seconds: float, calls: int = 1, text: tuple[int, ...] = ()) -> Timing:
    return Timing(tokens, seconds, 0.5, calls, StageSeconds(0.0, 0.0, seconds, 0.0, 0.0), text)


def test_plain_decoding_is_tried_in_every_dtype_with_every_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall_clock.os, "cpu_count", lambda: 6)
    plans = plain_plans(["float32", "bfloat16"])
    assert [(plan.weights, plan.threads) for plan in plans[:4]] == [("float32", n) for n in (1, 2, 4, 6)]
    assert {plan.weights for plan in plans[4:]} == {"bfloat16"}
    assert all(plan.tree is None for plan in plans)


def test_every_method_has_trees_to_choose_from() -> None:
    for method in ("chain", "ddtree", "tfm"):
        plans = tree_plans(method, "float32", 2)
        assert len({plan.tree for plan in plans}) == len(plans) > 2
        assert {(plan.method, plan.weights, plan.threads) for plan in plans} == {(method, "float32", 2)}
    with pytest.raises(ValueError, match="no trees to choose from for 'dyspec'"):
        tree_plans("dyspec", "float32", 2)


def test_settings_are_put_into_words() -> None:
    assert PLAIN.label == "float32, 1 thread"
    assert CHAIN.label == "B = 3, float32, 1 thread"
    assert Plan("tfm", "bfloat16", 2, TreeConfig(budget=4, width=2)).label == "B = 4, w = 2, bfloat16, 2 threads"


def test_the_fastest_plan_comes_first_and_all_take_turns(
    monkeypatch: pytest.MonkeyPatch, prompts: list[Prompt]
) -> None:
    order: list[str] = []

    def timed(bundles: object, plan: Plan, prompt: Prompt, new_tokens: int) -> Timing:
        order.append(plan.method)
        return timing(10, {"ar": 2.0, "chain": 1.0, "tfm": 4.0}[plan.method])

    monkeypatch.setattr(wall_clock, "_timed", timed)
    ticks: list[None] = []
    ranked = choose({}, [PLAIN, CHAIN, TFM], prompts, 8, lambda: ticks.append(None))
    assert ranked == [(CHAIN, 10.0), (PLAIN, 5.0), (TFM, 2.5)]
    assert order == ["ar", "chain", "tfm"] * 3
    assert len(ticks) == 9


def test_speed_ups_are_ratios_on_the_same_prompts(monkeypatch: pytest.MonkeyPatch, prompts: list[Prompt]) -> None:
    """Kinds: code twice, chat once. By hand: code (8/1)/(8/4) = 4, chat 1/3; their mean is what counts."""
    seconds = {"ar": [1.0, 1.0, 3.0], "chain": [0.5, 3.0, 0.5]}
    seen: dict[str, int] = {"ar": -1, "chain": -1}
    order: list[str] = []

    def timed(bundles: object, plan: Plan, prompt: Prompt, new_tokens: int) -> Timing:
        order.append(plan.method)
        seen[plan.method] += 1
        place = seen[plan.method] - 1
        text = (1, 2) if plan is PLAIN or place != 1 else (1, 3)
        return timing(4, 9.0 if place < 0 else seconds[plan.method][place], 4 if plan is PLAIN else 2, text)

    monkeypatch.setattr(wall_clock, "_timed", timed)
    baseline, chain = compare({}, [PLAIN, CHAIN], prompts, 8, lambda: None)
    assert order == ["ar", "chain", "ar", "chain", "chain", "ar", "ar", "chain"]  # warm-up, then turns
    assert baseline.macro.value == 1.0
    assert chain.speedups["code"].value == pytest.approx(4.0)
    assert chain.speedups["chat"].value == pytest.approx(1 / 3)
    assert chain.macro.value == pytest.approx((4 + 1 / 3) / 2)
    assert np.isnan(chain.speedups["chat"].low)  # one prompt has no interval
    assert chain.speedups["code"].low <= 4.0 <= chain.speedups["code"].high
    assert (chain.mal, baseline.mal) == (2.0, 1.0)
    assert chain.rate == pytest.approx(12 / 4.0)
    assert chain.stages.verify == pytest.approx(1e3 * 4.0 / 6)
    assert chain.same_text == 2


def test_texts_that_stop_at_once_are_left_out(monkeypatch: pytest.MonkeyPatch, prompts: list[Prompt]) -> None:
    monkeypatch.setattr(wall_clock, "_timed", lambda *_: timing(0, 0.0))
    with pytest.raises(ValueError, match="give other prompts"):
        compare({}, [PLAIN, CHAIN], prompts, 8, lambda: None)


def test_real_decodes_give_the_text_of_plain_decoding(tiny_bundle: Bundle, prompts: list[Prompt]) -> None:
    config = DecodeConfig(12, stop_tokens=tiny_bundle.target.config.stop_tokens)
    plain = [autoregressive_decode(tiny_bundle.target, prompt.tokens, config) for prompt in prompts]
    comparisons = compare({"float32": tiny_bundle}, [PLAIN, CHAIN, TFM], prompts, 12, lambda: None)
    steps = sum(trace.target_calls for trace in plain)
    assert steps > 10
    for comparison in comparisons:
        assert comparison.same_text == 3
        assert comparison.rate > 0.0
        assert comparison.stages.verify > 0.0
    assert comparisons[0].mal == 1.0
    assert all(comparison.mal >= 1.0 for comparison in comparisons)
    assert comparisons[0].stages.weave == 0.0 < comparisons[2].stages.weave


def test_trees_take_the_weights_with_the_fastest_verification(
    tiny_bundle: Bundle, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = [[(0, 1), (0, 9)], [(0, 5), (0, 4)]]  # the first round does not count
    clock = iter(float(x) for turns in rounds for turn in turns for x in turn)
    monkeypatch.setattr(wall_clock.time, "perf_counter", lambda: next(clock))
    assert fastest_verification({"slow": tiny_bundle, "fast": tiny_bundle}, prompts[0], 1, repeats=1) == "fast"


def test_the_report_holds_every_figure(tmp_path: Path, tiny_bundle: Bundle, prompts: list[Prompt]) -> None:
    comparisons = compare({"float32": tiny_bundle}, [PLAIN, CHAIN], prompts, 6, lambda: None)
    tried = {"ar": [(PLAIN, 50.0)], "chain": [(CHAIN, 70.0)]}
    path = tmp_path / "deep" / "speed.json"
    save_wall_clock(comparisons, tried, {"bundle": "tiny"}, path)
    document, text = json.loads(path.read_text()), path.with_suffix(".md").read_text()
    assert [entry["plan"]["method"] for entry in document["comparisons"]] == ["ar", "chain"]
    assert document["tried"]["chain"] == [{"settings": CHAIN.label, "tokens_per_second": 70.0}]
    assert document["provenance"]["bundle"] == "tiny"
    for table in (speed_table(comparisons), stage_table(comparisons)):
        assert table.markdown() in text
        assert all(len(row) == len(table.header) for row in table.rows)
    assert "| chain | B = 3, float32, 1 thread | 70.0 |" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "0"], "--limit and --tuning take at least 1 prompt"),
        (["--dtypes", "float7"], "there is no dtype 'float7'"),
        (["--methods", "dyspec", "--limit", "1", "--tuning", "1"], "no trees to choose from for 'dyspec'"),
        (["--limit", "200"], "these suites hold 200 prompts"),
        (["--suite", "poetry"], "there is no suite 'poetry'"),
    ],
)
def test_bad_options_end_in_one_sentence(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["bench", "cpu", "--suite", "math", *options], message, tmp_path, capsys)
