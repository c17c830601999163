"""Evaluations: contexts, files that survive a crash, figures that are those of the decodes, and their summary."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tfm_lab.bundle import Bundle, load_bundle
from tfm_lab.decoding import DecodeConfig, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.evaluation import Context, Evaluation, Setting, evaluate, load_contexts, markdown_table, summarise
from tfm_lab.evaluation.contexts import choose_contexts, save_contexts
from tfm_lab.evaluation.report import write_report
from tfm_lab.evaluation.runs import read_records
from tfm_lab.evaluation.summary import gain
from tfm_lab.methods import make_speculator
from tfm_lab.metrics import acceptance_by_depth, ratio_estimate
from tfm_lab.provenance import device_name
from tfm_lab.training.corpus import conversation

CONTEXTS = [
    Context("code-001", "code", "stdlib: a.py", "import os\n"),
    Context("chat-001", "chat", "chat: Why?", "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"),
]
GREEDY = (("ar", 0), ("chain", 16), ("chain", 32), ("ddtree", 6), ("tfm", 6))
SETTINGS = (*(Setting(*column, 0.0) for column in GREEDY), Setting("chain", 16, 1.0), Setting("tfm", 6, 1.0))
EVALUATION = Evaluation(SETTINGS, max_new_tokens=6, least_distinct=0.0)


def without_times(path: Path) -> list[dict[str, Any]]:
    return [record | {"seconds": None} for record in read_records(path)]


@pytest.fixture(scope="module")
def whole(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation that nothing interrupted."""
    path = tmp_path_factory.mktemp("evaluation") / "new" / "records.jsonl"
    evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)
    return path


def test_every_context_meets_every_setting_once(whole: Path) -> None:
    records = read_records(whole)
    keys = [(r["context"], r["temperature"], r["method"], r["budget"]) for r in records]
    assert keys == [(c.name, s.temperature, s.method, s.budget) for c in CONTEXTS for s in SETTINGS]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_record_holds_the_figures_of_the_decode(tiny_bundle: Bundle, whole: Path, setting: Setting) -> None:
    sampling = SamplingConfig(setting.temperature)
    stops = tiny_bundle.target.config.stop_tokens
    config = DecodeConfig(6, sampling, TreeConfig(budget=setting.budget), stops)
    method = setting.method if setting.method != "ar" else "chain"  # a chain of budget 0 is plain decoding
    speculator = make_speculator(method, tiny_bundle.drafter, tiny_bundle.weaver, sampling)
    trace = speculative_decode(tiny_bundle.target, speculator, tiny_bundle.encode(CONTEXTS[1].prompt), config)
    wanted = {
        "context": "chat-001",
        "kind": "chat",
        "method": setting.method,
        "budget": setting.budget,
        "temperature": setting.temperature,
        "rule": "greedy" if setting.temperature == 0.0 else "target_sample",
        "tokens": len(trace.tokens),
        "committed": len(trace.tokens) - 1,
        "target_calls": trace.target_calls,
        "drafter_calls": sum(step.drafter_calls for step in trace.steps),
        "depths": [[depth.reached, depth.accepted] for depth in acceptance_by_depth([trace])],
        "seconds": None,
    }
    assert without_times(whole)[len(SETTINGS) + SETTINGS.index(setting)] == wanted
    assert (wanted["drafter_calls"] > 0) == (setting.method == "tfm")


@pytest.mark.parametrize("kept", [0, 40, 0.55, 0.999])
def test_a_broken_off_evaluation_goes_on_where_it_was(
    tiny_bundle: Bundle, whole: Path, tmp_path: Path, kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut anywhere, also inside the header or inside a line; only what is missing is decoded."""
    raw = whole.read_bytes()
    path = tmp_path / "records.jsonl"
    path.write_bytes(raw[: int(kept if kept >= 1 else kept * len(raw))])
    lines = path.read_bytes().count(b"\n")
    done: list[tuple[int, int]] = []
    evaluate(tiny_bundle, CONTEXTS, EVALUATION, path, lambda *progress: done.append(progress))
    assert without_times(path) == without_times(whole)
    assert path.read_bytes().split(b"\n")[0] == raw.split(b"\n")[0]
    total = len(CONTEXTS) * len(SETTINGS)
    assert done == [(count, total) for count in range(max(1, lines), total + 1)]


def test_more_settings_may_be_added_to_a_file(tiny_bundle: Bundle, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    done: list[tuple[int, int]] = []
    for settings in (SETTINGS[:2], SETTINGS[1:3]):
        evaluate(
            tiny_bundle,
            CONTEXTS[:1],
            replace(EVALUATION, settings=settings),
            path,
            lambda *progress: done.append(progress),
        )
    assert without_times(path) == without_times(whole)[:3]
    assert done == [(1, 2), (2, 2), (2, 2)]


def test_a_setting_named_twice_is_decoded_once(tiny_bundle: Bundle, tmp_path: Path) -> None:
    evaluation = replace(EVALUATION, settings=(SETTINGS[1], SETTINGS[1]))
    evaluate(tiny_bundle, CONTEXTS[:1], evaluation, tmp_path / "records.jsonl")
    assert len(read_records(tmp_path / "records.jsonl")) == 1


@pytest.mark.parametrize(
    "changes", [{"max_new_tokens": 9}, {"children": 4}, {"seed": 1}, {"least_distinct": 0.5}, {"bundle": "float64"}]
)
def test_a_file_of_another_evaluation_is_refused_and_left_alone(
    tiny_bundle: Bundle, tiny_work: Path, whole: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(whole.read_bytes()[:-5])
    before = path.read_bytes()
    bundle, changes = tiny_bundle, dict(changes)
    if changes.pop("bundle", None):
        bundle = load_bundle(str(tiny_work / "model"), dtype=torch.float64)
    with pytest.raises(ValueError, match="holds an evaluation of other models or settings; choose another file"):
        evaluate(bundle, CONTEXTS, replace(EVALUATION, **changes), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"my notes", b"line one\nline two, not ended", b'{"a": 1}\n[1]\n', b"[]\n", b"\xff\xfe\n"]
)
def test_a_file_of_something_else_is_refused_and_left_alone(
    tiny_bundle: Bundle, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"records.jsonl is not an evaluation file, or a damaged one; choose another"):
        evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)
    with pytest.raises(ValueError, match="is not an evaluation file"):
        read_records(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("settings", "contexts", "sentence"),
    [
        ((SETTINGS[0], Setting("nosuch", 3, 0.0)), CONTEXTS, "there is no method 'nosuch'"),
        ((Setting("tfm", -1, 0.0),), CONTEXTS, "budget must be 0 or more"),
        ((Setting("tfm", 3, -1.0),), CONTEXTS, "temperature must be zero or a positive number"),
        (SETTINGS, [replace(CONTEXTS[0], prompt="x" * 300)], "'code-001' is empty or does not fit the target's 256"),
        (SETTINGS, [replace(CONTEXTS[0], prompt="")], "'code-001' is empty or does not fit"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_written(
    tiny_bundle: Bundle, tmp_path: Path, settings: tuple[Setting, ...], contexts: list[Context], sentence: str
) -> None:
    path = tmp_path / "new" / "records.jsonl"
    with pytest.raises(ValueError, match=sentence):
        evaluate(tiny_bundle, contexts, replace(EVALUATION, settings=settings), path)
    assert not path.parent.exists()


def test_there_are_no_records_before_an_evaluation(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"records.jsonl does not exist; run the evaluation first"):
        read_records(tmp_path / "records.jsonl")


def test_contexts_that_repeat_themselves_are_left_out_at_temperature_zero_alone(
    tiny_bundle: Bundle, tmp_path: Path
) -> None:
    """No text of six tokens of the toy target is without repetition at temperature 0."""
    path = tmp_path / "records.jsonl"
    settings = (Setting("chain", 4, 0.0), Setting("tfm", 4, 0.0), Setting("chain", 4, 1.0))
    evaluate(tiny_bundle, CONTEXTS, replace(EVALUATION, settings=settings, least_distinct=1.0), path)
    records = read_records(path)
    left_out = [(r["method"], r["temperature"]) for r in records if "left_out" in r]
    assert left_out == [("chain", 0.0), ("tfm", 0.0)] * 2
    assert {r["left_out"] for r in records if "left_out" in r} == {"repeats itself"}
    chain, tfm, sampled = summarise(records)
    assert [(s.contexts, s.left_out) for s in (chain, tfm, sampled)] == [(0, 2), (0, 2), (2, 0)]
    assert chain.acceptance == ()
    assert math.isnan(chain.mal.value)
    evaluate(tiny_bundle, CONTEXTS, replace(EVALUATION, settings=settings, least_distinct=1.0), path)
    assert read_records(path) == records


def record(
    context: str, method: str, committed: int, calls: int, depths: Sequence[Sequence[int]] = (), **changes: Any
) -> dict[str, Any]:
    fields = {"context": context, "kind": context[0], "method": method, "budget": 16, "temperature": 0.0}
    counts = {"committed": committed, "target_calls": calls, "drafter_calls": 3 * calls, "depths": depths}
    return fields | counts | changes


BY_HAND = [
    record("a1", "chain", 4, 2, [[2, 2], [2, 0]]),
    record("a1", "tfm", 6, 2, [[2, 2], [2, 1], [1, 1]]),
    record("b1", "chain", 4, 4, [[4, 0]]),
    record("b1", "tfm", 4, 2, [[2, 1], [1, 1]]),
    record("c1", "chain", 0, 0, left_out="repeats itself"),
    record("c1", "tfm", 0, 0, left_out="repeats itself"),
    record("a1", "tfm", 5, 5, temperature=1.0),
]


def test_summary_by_hand() -> None:
    chain, tfm, sampled = summarise(BY_HAND)
    assert (chain.method, tfm.method, sampled.temperature) == ("chain", "tfm", 1.0)
    assert chain.mal == ratio_estimate([4.0, 4.0], [2.0, 4.0])
    assert tfm.mal.value == 10 / 4
    assert (tfm.contexts, tfm.left_out, tfm.target_calls, tfm.calls_per_step) == (2, 1, 4, 3.0)
    assert chain.acceptance == (2 / 6, 0.0)
    assert tfm.acceptance == (3 / 4, 2 / 4, 1 / 4)


def test_summary_by_kind_of_text() -> None:
    summaries = {(s.kind, s.method, s.temperature): s for s in summarise(BY_HAND, by_kind=True)}
    assert summaries["a", "tfm", 0.0].mal.value == 3.0
    assert summaries["b", "tfm", 0.0].mal.value == 2.0
    assert summaries["c", "tfm", 0.0].contexts == 0
    assert summaries["all", "tfm", 0.0].mal.value == 2.5


def test_markdown_table() -> None:
    lines = markdown_table(summarise(BY_HAND)).splitlines()
    assert lines[3] == "| 0 | tfm | 16 | 2 | 2.500 | 0.500 | 4 | 3.0 |"
    assert markdown_table(summarise(BY_HAND, by_kind=True)).count("| tfm, b |") == 2


def test_paired_gain_by_hand() -> None:
    """TfM 10 / 4, chain 8 / 6: gain 7 / 8. Influences +-1/15, so the error is 15/8 * sqrt(2 * 2 / 15^2) = 1/4."""
    estimate = gain(BY_HAND, "tfm", "chain", 16, 0.0)
    assert estimate.value == pytest.approx(0.875)
    assert estimate.standard_error == pytest.approx(0.25)


def test_a_gain_counts_contexts_that_both_methods_have() -> None:
    more = [*BY_HAND, record("d1", "tfm", 100, 1), record("e1", "chain", 1, 100)]
    assert gain(more, "tfm", "chain", 16, 0.0) == gain(BY_HAND, "tfm", "chain", 16, 0.0)
    one = gain(BY_HAND[:2], "tfm", "chain", 16, 0.0)
    assert all(math.isnan(figure) for figure in one)


def test_the_error_of_a_gain_is_the_spread_of_repeated_experiments() -> None:
    """Both methods suffer from the same hard texts, so the paired error is far below that of two separate runs."""
    generator = random.Random(0)
    values, errors = [], []
    for _ in range(800):
        records = []
        for index in range(40):
            hardness, calls = generator.uniform(1.0, 5.0), generator.randint(5, 20)
            records.append(record(f"x{index}", "chain", round(calls * hardness), calls))
            noise = generator.uniform(0.9, 1.5)
            records.append(record(f"x{index}", "tfm", round(calls * hardness * noise), calls))
        estimate = gain(records, "tfm", "chain", 16, 0.0)
        values.append(estimate.value)
        errors.append(estimate.standard_error)
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.08)


def test_a_report_carries_its_provenance(tiny_bundle: Bundle, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "results" / "mal.json"
    write_report(read_records(whole), tiny_bundle, EVALUATION, path)
    document = json.loads(path.read_text())
    assert document["provenance"].keys() >= {"command", "date", "commit", "device", "threads", "torch", "python"}
    assert document["provenance"]["device"] == device_name("cpu")
    assert document["setup"]["dtype"] == "float32"
    assert document["setup"]["target"] == tiny_bundle.target.fingerprint()
    assert (document["setup"]["seed"], document["setup"]["max_new_tokens"]) == (0, 6)
    text = path.with_suffix(".md").read_text()
    for name in ("command", "date", "commit", "device", "torch"):
        assert f"{name}: {document['provenance'][name]}" in text
    assert "dtype: float32" in text


def test_a_report_holds_the_summaries_and_the_gains(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "mal.json"
    write_report(BY_HAND, tiny_bundle, EVALUATION, path)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    chosen = [s for s in document["summaries"] if (s["method"], s["kind"]) == ("tfm", "all")]
    assert [s["mal"] for s in chosen] == [
        {"value": 2.5, "standard_error": pytest.approx(0.5)},
        {"value": 1.0, "standard_error": None},
    ]
    assert document["gains"][0] == {
        "temperature": 0.0,
        "budget": 16,
        "baseline": "chain",
        "gain": pytest.approx(0.875),
        "standard_error": pytest.approx(0.25),
    }
    text = path.with_suffix(".md").read_text()
    assert "| 0 | 16 | chain | +87.5 % | 25.0 % |" in text
    assert "1 contexts are left out" in text
    assert markdown_table(summarise(BY_HAND)) in text


def test_kinds_of_contexts_take_turns(tmp_path: Path) -> None:
    kinds = ["code", "code", "code", "chat", "docs", "chat"]
    save_contexts([Context(f"{i}", kind, "", "x") for i, kind in enumerate(kinds)], tmp_path / "contexts.jsonl")
    ordered = load_contexts(tmp_path / "contexts.jsonl")
    assert [(context.name, context.kind) for context in ordered] == [
        ("3", "chat"),
        ("0", "code"),
        ("4", "docs"),
        ("5", "chat"),
        ("1", "code"),
        ("2", "code"),
    ]
    assert load_contexts(tmp_path / "contexts.jsonl", limit=2) == ordered[:2]
    assert load_contexts(tmp_path / "contexts.jsonl", limit=100) == ordered


def test_contexts_come_back_as_saved(tmp_path: Path) -> None:
    contexts = [Context("one", "docs", "manuals: x", 'line\u2028separator, "quoted"\x85\n\tend 한국어 👋')]
    save_contexts(contexts, tmp_path / "contexts.jsonl")
    assert load_contexts(tmp_path / "contexts.jsonl") == contexts


LINE = '{"name": "a", "kind": "docs", "source": "", "prompt": "x"}'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (LINE[:-3], r"contexts.jsonl is not a file of contexts: "),
        ('{"name": "a"}', "is not a file of contexts: every line holds name, kind, source and prompt"),
        (LINE[:-1] + ', "more": 1}', "every line holds name, kind, source and prompt"),
        ("[1]", "is not a file of contexts"),
        ("\n\n", "holds no contexts"),
        (f"{LINE}\n{LINE}", "names two contexts 'a'; give each its own name"),
    ],
)
def test_a_damaged_file_of_contexts_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "contexts.jsonl").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        load_contexts(tmp_path / "contexts.jsonl")


def test_a_missing_file_and_a_limit_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist; give a JSON-lines file with name, kind, source and prompt"):
        load_contexts(tmp_path / "nowhere.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not a file of contexts"):
        load_contexts(tmp_path / "binary.jsonl")
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"the limit must be at least 1 context, got {limit}"):
            load_contexts(limit=limit)


def texts_to_choose_from() -> list[tuple[str, str, str]]:
    lines = "".join(f"line {number} of a file with some words in it\n" for number in range(60))
    texts = [("stdlib", f"{n}.py", f"# {n}\n{lines}") for n in range(8)]
    texts += [("manuals", f"{n}.html", f"Page {n}\n{lines}") for n in range(8)]
    texts += [("docs", "short.rst", "short\n")]
    return texts + [
        (kind, f"{kind} {n}?", conversation(f"{kind} {n}?", "!")) for kind in ("chat", "maths") for n in range(8)
    ]


def test_chosen_contexts_are_openings_and_excerpts_of_held_out_texts() -> None:
    texts = texts_to_choose_from()
    whole = {f"{source}: {key}": text for source, key, text in texts}
    chosen = choose_contexts(texts, per_kind=5, seed=0, count_tokens=lambda text: len(text) // 3)
    assert [context.kind for context in chosen] == ["chat"] * 5 + ["maths"] * 5 + ["code"] * 5 + ["docs"] * 5
    assert len({context.name for context in chosen}) == len({context.prompt for context in chosen}) == 20
    for context in chosen:
        assert context.prompt in whole[context.source]
        if context.kind in ("chat", "maths"):
            assert context.prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
        else:
            assert 300 <= len(context.prompt) <= 760
            assert context.prompt.endswith("\n")
    assert chosen == choose_contexts(texts, 5, 0, lambda text: len(text) // 3)
    assert chosen != choose_contexts(texts, 5, 1, lambda text: len(text) // 3)


def test_contexts_longer_than_allowed_are_passed_over() -> None:
    chosen = choose_contexts(texts_to_choose_from(), 5, 0, count_tokens=len, longest=60)
    assert {context.kind for context in chosen} == {"chat", "maths"}
