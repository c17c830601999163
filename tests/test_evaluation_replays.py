"""Replayed evaluations: the records of decodes, from texts that were written once."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation_samples import CONTEXTS, EVALUATION, without_times

from tfm_lab.bundle import Bundle, load_bundle
from tfm_lab.evaluation import Context, Setting, evaluate, evaluate_replayed, load_contexts, replays, summarise
from tfm_lab.evaluation.records import read_records
from tfm_lab.evaluation.replays import texts_path
from tfm_lab.replay import ReplayedStep
from tfm_lab.training.sampling import sample_texts

SETTINGS = tuple(
    setting
    for temperature in (0.0, 1.0)
    for setting in (
        Setting("chain", 16, temperature),
        Setting("ddtree", 6, temperature),
        Setting("tfm", 6, temperature, children=3, width=2, pool_size=40, max_depth=5),
    )
)
PROMPTS = [*CONTEXTS, Context("docs-001", "docs", "", "It is a file of text\n"), Context("docs-002", "docs", "", "a")]
REPLAYED = replace(EVALUATION, settings=SETTINGS, max_new_tokens=12)


@pytest.fixture(scope="module")
def double(tiny_work: Path) -> Bundle:
    """The tiny bundle in float64, so that no near tie decides differently in a batch."""
    return load_bundle(str(tiny_work / "model"), dtype=torch.float64)


@pytest.fixture(scope="module")
def whole(double: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replayed evaluation that nothing interrupted, in batches of 3."""
    path = tmp_path_factory.mktemp("replayed") / "new" / "records.jsonl"
    evaluate_replayed(double, PROMPTS, REPLAYED, path, batch=3)
    return path


def test_greedy_records_are_those_of_the_decodes(double: Bundle, whole: Path, tmp_path: Path) -> None:
    decoded = evaluate(double, PROMPTS, REPLAYED, tmp_path / "decoded.jsonl")
    replayed = {(r["context"], r["method"]): r for r in read_records(whole) if r["temperature"] == 0.0}
    greedy = [r for r in decoded if r["temperature"] == 0.0]
    assert len(greedy) == len(replayed) == 3 * len(PROMPTS)
    for record in greedy:
        other = replayed[record["context"], record["method"]]
        assert list(other) == list(record)
        assert other["replayed"]
        assert other["seconds"] == [0.0] * 5
        for name in ("kind", "prompt", "rule", "tokens", "committed", "target_calls", "children", "width"):
            assert other[name] == record[name]


def test_records_under_shared_noise_are_those_of_the_decodes(double: Bundle, tmp_path: Path) -> None:
    """The noise belongs to seed and prompt, so text and steps are the same however they came about."""
    shared = tuple(replace(setting, temperature=1.0, shared_noise=True) for setting in SETTINGS[:3])
    evaluation = replace(REPLAYED, settings=shared)
    decoded = evaluate(double, PROMPTS, evaluation, tmp_path / "decoded.jsonl")
    replayed = evaluate_replayed(double, PROMPTS, evaluation, tmp_path / "replayed.jsonl", batch=3)
    assert len(decoded) == 3 * len(PROMPTS)
    names = ("context", "method", "shared_noise", "rule", "tokens", "committed", "target_calls")
    rows = [[tuple(record[name] for name in names) for record in records] for records in (decoded, replayed)]
    assert sorted(rows[0]) == sorted(rows[1])
    assert {record["shared_noise"] for record in read_records(tmp_path / "replayed.jsonl")} == {True}


def test_under_shared_noise_records_are_those_of_the_decodes(double: Bundle, tmp_path: Path) -> None:
    """The noise fixes the text, so that sampled texts can be compared, too."""
    shared = [Setting("chain", 4, 0.5, shared_noise=True), replace(SETTINGS[-1], temperature=0.5, shared_noise=True)]
    evaluation = replace(REPLAYED, settings=(*shared, Setting("chain", 4, 0.5)), seed=3, max_new_tokens=20)
    decoded = evaluate(double, PROMPTS, evaluation, tmp_path / "decoded.jsonl")
    path = tmp_path / "records.jsonl"
    replayed = evaluate_replayed(double, PROMPTS, evaluation, path, batch=3)
    for record, other in zip(decoded, replayed, strict=True):
        assert other["rule"] == record["rule"] == "target_sample"
        if record["shared_noise"]:
            for name in ("tokens", "committed", "target_calls"):
                assert other[name] == record[name]
    assert sum(r["committed"] for r in decoded) > sum(r["target_calls"] for r in decoded)
    texts = texts_path(path).read_bytes()
    path.unlink()
    assert evaluate_replayed(double, PROMPTS, evaluation, path, batch=3) == replayed
    assert texts_path(path).read_bytes() == texts


def test_a_damaged_file_of_texts_is_refused(double: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    evaluate_replayed(double, CONTEXTS, REPLAYED, path)
    path.unlink()
    header, first, *_ = texts_path(path).read_text().splitlines()
    damaged = json.loads(first)
    del damaged["shared_noise"]
    texts_path(path).write_text(f"{header}\n{json.dumps(damaged)}\n")
    with pytest.raises(ValueError, match="is not a file of texts, or a damaged one"):
        evaluate_replayed(double, CONTEXTS, REPLAYED, path)


def test_another_seed_writes_other_texts(double: Bundle, tmp_path: Path) -> None:
    written = []
    for seed in (0, 1):
        evaluation = replace(REPLAYED, settings=(Setting("chain", 4, 1.0),), seed=seed)
        evaluate_replayed(double, CONTEXTS, evaluation, tmp_path / f"{seed}.jsonl")
        written.append(texts_path(tmp_path / f"{seed}.jsonl").read_text().splitlines()[1:])
    assert not set(written[0]) & set(written[1])


def test_depths_of_a_replay_by_hand() -> None:
    """Steps count where their tree went on below the accepted path, also if the text did not follow it."""
    steps = [ReplayedStep(2, 3, True), ReplayedStep(0, 1, True), ReplayedStep(0, 1, False), ReplayedStep(1, 2, False)]
    figures = replays._figures(steps)
    assert figures["depths"] == [[3, 2], [1, 1], [1, 0]]
    assert (figures["committed"], figures["target_calls"]) == (7, 4)


@pytest.mark.slow
@pytest.mark.unchecked
def test_acceptance_by_depth_is_that_of_the_decodes_too(tmp_path: Path) -> None:
    """With the shipped bundle, whose drafts are often accepted; the ends of texts alone may differ."""
    bundle = load_bundle(dtype=torch.float64)
    evaluation = replace(EVALUATION, settings=(Setting("tfm", 32, 0.0),), max_new_tokens=32)
    contexts = load_contexts(limit=4)[::3]  # a chat and a word problem
    (decoded,) = summarise(evaluate(bundle, contexts, evaluation, tmp_path / "decoded.jsonl"))
    (replayed,) = summarise(evaluate_replayed(bundle, contexts, evaluation, tmp_path / "replayed.jsonl"))
    assert replayed.mal == decoded.mal
    assert replayed.target_calls == decoded.target_calls
    assert replayed.acceptance[:3] == pytest.approx(
        decoded.acceptance[:3], abs=2 * len(contexts) / decoded.target_calls
    )
    assert decoded.acceptance[0] > 0.5


def test_every_setting_of_a_temperature_sees_the_same_text(whole: Path) -> None:
    records = read_records(whole)
    for temperature in (0.0, 1.0):
        for context in PROMPTS:
            tokens = {r["tokens"] for r in records if (r["context"], r["temperature"]) == (context.name, temperature)}
            assert len(tokens) == 1
    rows = [json.loads(line) for line in texts_path(whole).read_text().splitlines()[1:]]
    assert len(rows) == len({(row["prompt"], row["temperature"]) for row in rows}) == 2 * len(PROMPTS)


def test_texts_end_at_the_first_stop_token(double: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    evaluate_replayed(double, PROMPTS, REPLAYED, path)
    rows = [json.loads(line) for line in texts_path(path).read_text().splitlines()[1:]]
    common = max({t for row in rows for t in row["tokens"]}, key=lambda t: sum(t in row["tokens"] for row in rows))
    target = double.target
    config = target.config
    target.config = replace(config, stop_tokens=(common,))
    try:
        records = evaluate_replayed(double, PROMPTS, REPLAYED, tmp_path / "stopped" / "records.jsonl")
        stopped = [
            json.loads(line) for line in texts_path(tmp_path / "stopped" / "records.jsonl").read_text().splitlines()[1:]
        ]
    finally:
        target.config = config
    for row, whole_row in zip(stopped, rows, strict=True):
        tokens = whole_row["tokens"]
        end = tokens.index(common) + 1 if common in tokens else len(tokens)
        assert row["tokens"] == tokens[:end]
    assert any(len(row["tokens"]) < 12 for row in stopped)
    assert {r["tokens"] for r in records} == {len(row["tokens"]) for row in stopped}


@pytest.mark.parametrize("texts_kept", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("records_kept", [0.0, 0.4, 0.97])
def test_a_broken_off_replay_goes_on_where_it_was(
    double: Bundle, whole: Path, tmp_path: Path, texts_kept: float, records_kept: float
) -> None:
    path = tmp_path / "records.jsonl"
    for source, place, kept in ((whole, path, records_kept), (texts_path(whole), texts_path(path), texts_kept)):
        raw = source.read_bytes()
        place.write_bytes(raw[: int(kept * len(raw))])
    evaluate_replayed(double, PROMPTS, REPLAYED, path, batch=3)
    assert path.read_bytes() == whole.read_bytes()
    assert texts_path(path).read_bytes() == texts_path(whole).read_bytes()


@pytest.mark.parametrize("call", [2, 4])
def test_ctrl_c_leaves_whole_lines_and_a_later_run_completes_them(
    double: Bundle, whole: Path, tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls = tmp_path / "records.jsonl", 0

    def pressed(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            signal.raise_signal(signal.SIGINT)
        return sample_texts(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(replays, "sample_texts", pressed)
        with pytest.raises(KeyboardInterrupt):
            evaluate_replayed(double, PROMPTS, REPLAYED, path, batch=3)
    assert texts_path(whole).read_bytes().startswith(texts_path(path).read_bytes())
    evaluate_replayed(double, PROMPTS, REPLAYED, path, batch=3)
    assert path.read_bytes() == whole.read_bytes()


def test_progress_counts_texts_and_records(double: Bundle, whole: Path, tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    evaluate_replayed(double, PROMPTS, REPLAYED, tmp_path / "r.jsonl", lambda *step: done.append(step), batch=3)
    total = len(PROMPTS) * (2 + len(SETTINGS))
    assert done[-1] == (total, total)
    assert done == sorted(set(done))


def test_two_contexts_of_the_same_prompt_share_a_text(double: Bundle, tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    twins = [CONTEXTS[0], replace(CONTEXTS[0], name="code-twin")]
    evaluation = replace(REPLAYED, settings=SETTINGS[:1])
    first, second = evaluate_replayed(
        double, twins, evaluation, tmp_path / "records.jsonl", lambda *step: done.append(step)
    )
    assert first | {"context": "code-twin"} == second
    assert len(texts_path(tmp_path / "records.jsonl").read_text().splitlines()) == 2
    assert done[-1] == (3, 3)


def test_texts_of_another_target_or_length_are_refused(double: Bundle, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    texts_path(path).write_bytes(texts_path(whole).read_bytes())
    with pytest.raises(ValueError, match=r"texts of other models or settings \(not the same: max_new_tokens\)"):
        evaluate_replayed(double, PROMPTS, replace(REPLAYED, max_new_tokens=13), path)
    texts_path(path).write_text("my notes\n")
    with pytest.raises(ValueError, match="is not a file of texts, or a damaged one"):
        evaluate_replayed(double, PROMPTS, REPLAYED, path)
    assert texts_path(path).read_text() == "my notes\n"
    assert not path.exists()


def test_decoded_and_replayed_records_share_a_file_and_are_told_apart(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    evaluation = replace(EVALUATION, settings=(Setting("chain", 16, 1.0),))
    decoded = evaluate(tiny_bundle, CONTEXTS, evaluation, path)
    replayed = evaluate_replayed(tiny_bundle, CONTEXTS, evaluation, path)
    assert [s.replayed for s in summarise(read_records(path))] == [False, True]
    assert evaluate(tiny_bundle, CONTEXTS, evaluation, path) == decoded
    assert evaluate_replayed(tiny_bundle, CONTEXTS, evaluation, path) == replayed
    assert without_times(path) == [r | {"seconds": None} for r in (*decoded, *replayed)]


def test_left_out_contexts_are_recorded_as_by_decoding(tiny_bundle: Bundle, tmp_path: Path) -> None:
    long = [*CONTEXTS, Context("code-long", "code", "", "x\n" * 300)]
    evaluation = replace(REPLAYED, least_distinct=1.0)
    decoded = evaluate(tiny_bundle, long, evaluation, tmp_path / "decoded.jsonl")
    replayed = evaluate_replayed(tiny_bundle, long, evaluation, tmp_path / "replayed.jsonl")
    assert [r.get("left_out") for r in replayed] == [r.get("left_out") for r in decoded]
    assert {r.get("left_out") for r in replayed} == {None, "repeats itself", "does not fit"}


def test_what_cannot_be_replayed_is_refused_before_anything_is_written(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    for setting in (Setting("dyspec", 6, 1.0), Setting("ar", 0, 1.0)):
        with pytest.raises(ValueError, match="cannot be replayed; use chain, ddtree, tfm"):
            evaluate_replayed(tiny_bundle, CONTEXTS, replace(EVALUATION, settings=(setting,)), path)
    with pytest.raises(ValueError, match="the batch must be at least 1 text, got 0"):
        evaluate_replayed(tiny_bundle, CONTEXTS, REPLAYED, path, batch=0)
    bare = replace(tiny_bundle, autoregressive=None)
    with pytest.raises(ValueError, match="needs an autoregressive drafter"):
        evaluate_replayed(bare, CONTEXTS, replace(REPLAYED, settings=(Setting("ard-tree", 6, 0.0),)), path)
    assert not path.parent.exists()


def test_a_chain_is_replayed_once_whatever_budget_it_leaves_unused(
    double: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed: list[int] = []
    real = replays._replay_batch
    monkeypatch.setattr(replays, "_replay_batch", lambda *args: replayed.append(args[2].budget) or real(*args))
    settings = (
        Setting("chain", 64, 1.0),
        Setting("chain", 1, 1.0),
        Setting("chain", 15, 1.0),
        Setting("ddtree", 15, 1.0),
    )
    records = evaluate_replayed(double, PROMPTS, replace(REPLAYED, settings=settings), tmp_path / "a.jsonl", batch=99)
    assert [budget for budget in replayed if budget != 15] == [64, 1]
    assert replayed.count(15) == 1
    by_budget = {
        budget: [r | {"budget": 0} for r in records if (r["method"], r["budget"]) == ("chain", budget)]
        for budget in (64, 15)
    }
    assert by_budget[64] == by_budget[15]
    assert len(by_budget[15]) == len(PROMPTS)
    assert len(read_records(tmp_path / "a.jsonl")) == len(records) == 4 * len(PROMPTS)


def test_settings_with_the_same_trees_are_looked_for_among_settings_not_records(
    double: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may hold many thousands of records when the next batch begins."""
    asked: list[Setting] = []
    real = Setting.trees.fget  # pyright: ignore[reportFunctionMemberAccess]
    monkeypatch.setattr(Setting, "trees", property(lambda setting: asked.append(setting) or real(setting)))
    evaluation = replace(REPLAYED, settings=tuple(Setting("chain", budget, 0.0) for budget in (2, 15, 64)))
    counts = []
    for name, contexts in (("few", PROMPTS[:1]), ("many", PROMPTS)):
        asked.clear()
        evaluate_replayed(double, contexts, evaluation, tmp_path / f"{name}.jsonl", batch=99)
        counts.append(len(asked))
    assert counts[0] == counts[1]
