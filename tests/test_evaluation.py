"""Evaluations: files that survive a crash, never mix models, and hold the figures of the decodes."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation_samples import CONTEXTS, EVALUATION, SETTINGS, without_times
from models.small import autoregressive_for

from tfm_lab.bundle import Bundle, load_bundle
from tfm_lab.decoding import DecodeConfig, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.evaluation import Context, Setting, cross_settings, evaluate, runs, summarise
from tfm_lab.evaluation.records import read_records, records_header
from tfm_lab.methods import ALL_METHODS, make_speculator
from tfm_lab.metrics import acceptance_by_depth
from tfm_lab.models.checkpoint import save_autoregressive, save_weaver
from tfm_lab.provenance import device_name


@pytest.fixture(scope="module")
def whole(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation that nothing interrupted."""
    path = tmp_path_factory.mktemp("evaluation") / "new" / "records.jsonl"
    evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)
    return path


def test_every_context_meets_every_setting_once(tiny_bundle: Bundle, whole: Path) -> None:
    records = read_records(whole)
    settings = [Setting(**{name: r[name] for name in asdict(SETTINGS[0])}) for r in records]
    assert settings == [*SETTINGS, *SETTINGS]
    assert [r["context"] for r in records] == [c.name for c in CONTEXTS for _ in SETTINGS]
    assert evaluate(tiny_bundle, CONTEXTS, EVALUATION, whole) == records


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_record_holds_the_figures_of_the_decode(tiny_bundle: Bundle, whole: Path, setting: Setting) -> None:
    sampling = SamplingConfig(setting.temperature)
    stops = tiny_bundle.target.config.stop_tokens
    config = DecodeConfig(6, sampling, setting.tree, stops)
    method = setting.method if setting.method != "ar" else "chain"  # a chain of budget 0 is plain decoding
    speculator = make_speculator(method, tiny_bundle.drafter, tiny_bundle.weaver, sampling)
    trace = speculative_decode(tiny_bundle.target, speculator, tiny_bundle.chat("Why?"), config)
    got = without_times(whole)[len(SETTINGS) + SETTINGS.index(setting)]
    sampled_rule = "rejection_swor" if setting.method in ("dyspec", "ranked") else "target_sample"
    wanted = {
        "context": "chat-001",
        "kind": "chat",
        "prompt": got["prompt"],
        **asdict(setting),
        "replayed": False,
        "device": device_name("cpu"),
        "rule": "greedy" if setting.temperature == 0.0 else sampled_rule,
        "tokens": len(trace.tokens),
        "committed": len(trace.tokens) - 1,
        "target_calls": trace.target_calls,
        "drafter_calls": sum(step.drafter_calls for step in trace.steps),
        "depths": [[depth.reached, depth.accepted] for depth in acceptance_by_depth([trace])],
        "seconds": None,
    }
    assert got == wanted
    assert (wanted["drafter_calls"] > 0) == (setting.method in ("tfm", "dyspec"))
    assert len(got["prompt"]) == 12
    assert got["prompt"] != without_times(whole)[0]["prompt"]


@pytest.mark.parametrize("kept", [0, 40, 0.55, 0.999])
def test_a_broken_off_evaluation_goes_on_where_it_was(
    tiny_bundle: Bundle, whole: Path, tmp_path: Path, kept: float
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


@pytest.mark.parametrize("step", [1, 9, 30])
def test_ctrl_c_leaves_whole_records_and_a_later_run_completes_them(
    tiny_bundle: Bundle, whole: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a decode: its part of a text becomes no record."""
    path, steps = tmp_path / "records.jsonl", 0

    def pressed(target: Any, speculator: Any, prompt: Any, config: DecodeConfig) -> Any:
        def count(_: object) -> None:
            nonlocal steps
            steps += 1
            if steps == step:
                signal.raise_signal(signal.SIGINT)

        return speculative_decode(target, speculator, prompt, config, count)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "speculative_decode", pressed)
        with pytest.raises(KeyboardInterrupt):
            evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)
    assert path.read_bytes().endswith(b"\n")
    found = without_times(path)
    assert found == without_times(whole)[: len(found)]
    assert len(found) < len(CONTEXTS) * len(SETTINGS)
    evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)
    assert without_times(path) == without_times(whole)


KILLED = """
import os, signal, sys
from evaluation_samples import CONTEXTS, EVALUATION
from tfm_lab.bundle import load_bundle
from tfm_lab.evaluation import evaluate
from pathlib import Path

def killed(done, total):
    if done == 5:
        os.kill(os.getpid(), signal.SIGKILL)

evaluate(load_bundle(sys.argv[1]), CONTEXTS, EVALUATION, Path(sys.argv[2]), killed)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
def test_a_killed_evaluation_is_completed_to_the_same_records(
    tiny_bundle: Bundle, tiny_work: Path, whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", KILLED, str(tiny_work / "model"), str(path)]
    assert subprocess.run(command, env=environment, timeout=300).returncode == -signal.SIGKILL
    assert without_times(path) == without_times(whole)[:5]
    with path.open("ab") as file:
        file.write(b'{"context": "code-001", "ki')  # what a kill within a write would leave
    evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)
    assert without_times(path) == without_times(whole)


def test_a_decode_gets_all_that_its_setting_says_and_is_shared_only_by_equal_chains(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain is as long as its budget, its depth and its drafter allow; beyond that a budget changes nothing."""
    shape = tiny_bundle.drafter.config
    short = autoregressive_for(tiny_bundle.target, **(asdict(shape) | {"block_size": 5}))
    longest, seen = shape.draft_depth, list[DecodeConfig]()

    def seeing(target: Any, speculator: Any, prompt: Any, config: DecodeConfig) -> Any:
        seen.append(config)
        return speculative_decode(target, speculator, prompt, config)

    monkeypatch.setattr(runs, "speculative_decode", seeing)
    decoded = [
        Setting("chain", longest - 1, 0.7),
        Setting("chain", longest, 0.7),
        Setting("chain", longest, 0.7, max_depth=2),
        Setting("chain", longest, 0.7, shared_noise=True),
        Setting("ard-chain", 3, 0.7),
        Setting("ard-chain", 4, 0.7),
    ]
    repeated = [Setting("chain", longest + 1, 0.7), Setting("ard-chain", 5, 0.7)]
    evaluation = replace(EVALUATION, settings=(*decoded, *repeated), seed=3)
    bundle = replace(tiny_bundle, autoregressive=short)
    evaluate(bundle, CONTEXTS[:1], evaluation, tmp_path / "records.jsonl")
    stops = bundle.target.config.stop_tokens
    assert stops
    assert seen == [
        DecodeConfig(6, SamplingConfig(0.7, shared_noise=s.shared_noise), s.tree, stops, seed=3) for s in decoded
    ]


def test_a_context_given_twice_is_evaluated_once(tiny_bundle: Bundle, tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    evaluation = replace(EVALUATION, settings=(SETTINGS[0],))
    twice = [CONTEXTS[0], CONTEXTS[0]]
    (found,) = evaluate(tiny_bundle, twice, evaluation, tmp_path / "r.jsonl", lambda *progress: done.append(progress))
    assert found["context"] == CONTEXTS[0].name
    assert done == [(1, 1)]


def test_the_header_tells_every_model_and_the_stop_tokens_apart(tiny_work: Path) -> None:
    before = records_header(load_bundle(str(tiny_work / "model")), EVALUATION)
    for name in ("target", "drafter", "weaver", "autoregressive"):
        bundle = load_bundle(str(tiny_work / "model"))
        next(getattr(bundle, name).parameters()).data.add_(1.0)
        after = records_header(bundle, EVALUATION)
        assert [field for field in before if after[field] != before[field]] == [name]
    bundle = load_bundle(str(tiny_work / "model"))
    bundle.target.config = replace(bundle.target.config, stop_tokens=(1, 2))
    after = records_header(bundle, EVALUATION)
    assert [field for field in before if after[field] != before[field]] == ["stop_tokens"]


@pytest.mark.parametrize(("distinct", "is_enough"), [(3, True), (2, False)])
def test_a_text_with_just_enough_distinct_tokens_is_varied(distinct: int, is_enough: bool) -> None:
    tokens = [*range(distinct), *[0] * (12 - distinct)]
    assert runs.is_varied(tokens, replace(EVALUATION, least_distinct=0.25)) is is_enough


def test_more_settings_may_be_added_to_a_file(tiny_bundle: Bundle, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    done: list[tuple[int, int]] = []
    for settings in (SETTINGS[:2], SETTINGS[1:3]):
        evaluation = replace(EVALUATION, settings=settings)
        found = evaluate(tiny_bundle, CONTEXTS[:1], evaluation, path, lambda *progress: done.append(progress))
        assert [record["budget"] for record in found] == [setting.budget for setting in settings]
    assert without_times(path) == without_times(whole)[:3]
    assert done == [(1, 2), (2, 2), (2, 2)]


@pytest.mark.parametrize("change", [{"children": 1}, {"width": 2}, {"pool_size": 3}, {"max_depth": 2}])
def test_every_number_of_a_setting_tells_records_apart(
    tiny_bundle: Bundle, tmp_path: Path, change: dict[str, int]
) -> None:
    path, setting = tmp_path / "records.jsonl", Setting("tfm", 5, 0.0)
    for settings in ((setting,), (setting, replace(setting, **change))):
        evaluate(tiny_bundle, CONTEXTS[:1], replace(EVALUATION, settings=settings), path)
    first, second = read_records(path)
    assert {name: second[name] for name in change} == change
    assert {name: first[name] for name in change} != change


def test_settings_that_differ_in_nothing_that_matters_count_once(tiny_bundle: Bundle, tmp_path: Path) -> None:
    same = (SETTINGS[1], SETTINGS[1], replace(SETTINGS[1], children=3, width=2, pool_size=9))
    evaluate(tiny_bundle, CONTEXTS[:1], replace(EVALUATION, settings=same), tmp_path / "records.jsonl")
    assert len(read_records(tmp_path / "records.jsonl")) == 1
    crossed = cross_settings(
        ["ar", "chain", "ddtree", "tfm", "dyspec", "ranked", "ard-chain", "ard-tree", "ard-dyspec"],
        budgets=[4, 8],
        temperatures=[0.0, 1.0],
        children=[2, 32],
        widths=[None, 1],
        pool_sizes=[64, 512],
        max_depths=[7, 15],
    )
    shared = cross_settings(["ar", "tfm"], [4], [0.0, 1.0], shared_noise=[False, True])
    assert [(s.method, s.temperature) for s in shared if s.shared_noise] == [("ar", 1.0), ("tfm", 1.0)]
    assert len(shared) == 6
    assert shared[-1].label == "tfm shared noise"
    counts = {method: sum(s.method == method for s in crossed) for method in ("ar", *ALL_METHODS)}
    assert counts == {
        "ar": 2,
        "chain": 8,
        "ddtree": 8,
        "tfm": 64,
        "dyspec": 16,
        "ranked": 16,
        "ard-chain": 8,
        "ard-tree": 64,
        "ard-dyspec": 16,
    }
    assert crossed[0] == Setting("ar", 0, 0.0)


def test_at_temperature_zero_there_is_no_noise_to_share() -> None:
    assert cross_settings(["chain", "ddtree"], [4], [0.0, 0.7], shared_noise=[False, True]) == tuple(
        Setting(method, 4, temperature, shared_noise=is_shared)
        for temperature, is_shared in ((0.0, False), (0.7, False), (0.7, True))
        for method in ("chain", "ddtree")
    )


def test_the_label_says_what_is_unusual() -> None:
    assert Setting("ddtree", 64, 1.0, max_depth=7, shared_noise=True).label == "ddtree D=7 shared noise"
    assert Setting("tfm", 64, 0.0).label == "tfm"
    assert Setting("tfm", 64, 0.0, children=8, width=1, pool_size=128, max_depth=7).label == "tfm C=8 w=1 K=128 D=7"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_new_tokens": 9}, "max_new_tokens"),
        ({"seed": 1}, "seed"),
        ({"least_distinct": 0.5}, "least_distinct"),
        ({"bundle": "float64"}, "dtype"),
        ({"bundle": "another Weaver"}, "weaver"),
        ({"bundle": "no Weaver"}, "weaver"),
        ({"bundle": "an autoregressive drafter"}, "autoregressive"),
        ({"bundle": "fewer positions"}, "max_positions"),
    ],
)
def test_a_file_of_another_evaluation_is_refused_and_left_alone(
    tiny_bundle: Bundle, tiny_work: Path, whole: Path, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    """Above all records of another Weaver: nothing else about them differs."""
    path, folder = tmp_path / "records.jsonl", tmp_path / "model"
    path.write_bytes(whole.read_bytes()[:-5])
    before = path.read_bytes()
    shutil.copytree(tiny_work / "model", folder)
    bundle, changes = tiny_bundle, dict(changes)
    other = changes.pop("bundle", None)
    if other == "another Weaver":
        loaded = load_bundle(str(folder))
        assert loaded.weaver is not None
        loaded.weaver.out_norm.weight.data.add_(1.0)
        save_weaver(loaded.weaver, loaded.target, folder / "weaver")
    elif other == "no Weaver":
        shutil.rmtree(folder / "weaver")
    elif other == "fewer positions":
        config = json.loads((folder / "target" / "config.json").read_text())
        (folder / "target" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 200}))
    elif other == "an autoregressive drafter":
        config = tiny_bundle.drafter.config
        drafter = autoregressive_for(tiny_bundle.target, **asdict(config))
        save_autoregressive(drafter, tiny_bundle.target, folder / "autoregressive")
    if other is not None:
        dtype = torch.float64 if other == "float64" else torch.float32
        bundle = load_bundle(str(folder), dtype=dtype)
    methods = replace(EVALUATION, settings=SETTINGS[:3], **changes)
    sentence = rf"holds an evaluation of other models or settings \(not the same: {named}\); choose another file"
    with pytest.raises(ValueError, match=sentence):
        evaluate(bundle, CONTEXTS, methods, path)
    assert path.read_bytes() == before


def test_records_of_another_prompt_of_the_same_name_are_not_taken_over(
    tiny_bundle: Bundle, whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(whole.read_bytes())
    changed = [replace(CONTEXTS[0], prompt="import sys, os, re\n"), CONTEXTS[1]]
    found = evaluate(tiny_bundle, changed, EVALUATION, path)
    assert len(read_records(path)) == 3 * len(SETTINGS)
    old = read_records(whole)
    assert found[len(SETTINGS) :] == old[len(SETTINGS) :]
    assert {r["prompt"] for r in found[: len(SETTINGS)]}.isdisjoint(r["prompt"] for r in old)


@pytest.mark.parametrize(
    "content",
    [
        b"my notes",
        b"line one\nline two, not ended",
        b'{"a": 1}\n[1]\n',
        b"[]\n",
        b"\xff\xfe\n",
        b'{"format": "tfm_lab.records/3", "target": "x"}\n{"context": "a", "temperature": 0.0}\n',
    ],
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


def test_a_damaged_record_and_an_unknown_field_of_the_header_are_refused(
    tiny_bundle: Bundle, whole: Path, tmp_path: Path
) -> None:
    header, first, second, *_ = whole.read_text().splitlines()
    damaged = json.loads(second)
    del damaged["replayed"]
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join([header, first, json.dumps(damaged), ""]))
    with pytest.raises(ValueError, match="is not an evaluation file, or a damaged one"):
        evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)
    path.write_text("\n".join([json.dumps(json.loads(header) | {"handicap": 1}), first, ""]))
    with pytest.raises(ValueError, match=r"\(not the same: handicap\)"):
        evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)


def test_a_file_of_an_older_edition_is_refused_and_left_alone(tiny_bundle: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    content = '{"target": "x", "children": 32}\n{"context": "a", "method": "chain"}\n'
    path.write_text(content)
    with pytest.raises(ValueError, match="holds an evaluation of other models or settings"):
        evaluate(tiny_bundle, CONTEXTS, EVALUATION, path)
    with pytest.raises(ValueError, match="is not an evaluation file"):
        read_records(path)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("settings", "contexts", "sentence"),
    [
        ((SETTINGS[0], Setting("nosuch", 3, 0.0)), CONTEXTS, "there is no method 'nosuch'"),
        ((Setting("ard-tree", 3, 0.0),), CONTEXTS, "'ard-tree' needs an autoregressive drafter"),
        (SETTINGS, [replace(CONTEXTS[0], prompt="")], "'code-001' is empty; give it a prompt"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_written(
    tiny_bundle: Bundle, tmp_path: Path, settings: tuple[Setting, ...], contexts: list[Context], sentence: str
) -> None:
    path = tmp_path / "new" / "records.jsonl"
    bundle = replace(tiny_bundle, autoregressive=None)
    with pytest.raises(ValueError, match=sentence):
        evaluate(bundle, contexts, replace(EVALUATION, settings=settings), path)
    assert not path.parent.exists()


def test_a_negative_length_is_refused_before_anything_is_written(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_new_tokens must be 0 or more"):
        evaluate(tiny_bundle, CONTEXTS, replace(EVALUATION, max_new_tokens=-1), tmp_path / "new" / "records.jsonl")
    assert not (tmp_path / "new").exists()


def test_a_setting_out_of_range_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="budget must be 0 or more"):
        Setting("tfm", -1, 0.0)
    with pytest.raises(ValueError, match="temperature must be zero or a positive number"):
        Setting("tfm", 3, -1.0)
    with pytest.raises(ValueError, match="width must be at least 1"):
        cross_settings(["chain"], [3], [0.0], widths=[0])


def test_there_are_no_records_before_an_evaluation(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"records.jsonl does not exist; run the evaluation first"):
        read_records(tmp_path / "records.jsonl")


def test_contexts_that_do_not_fit_are_recorded_as_left_out(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """The context holds 256 tokens; 6 of them are needed for the answer."""
    path, room = tmp_path / "records.jsonl", tiny_bundle.target.config.max_positions - 6
    tokens = tiny_bundle.encode("x\n" * 300)
    assert len(tokens) > room
    long = [Context(f"code-{size}", "code", "", tiny_bundle.decode(tokens[:size])) for size in (room, room + 1)]
    settings = (Setting("chain", 4, 0.0), Setting("tfm", 4, 1.0))
    records = evaluate(tiny_bundle, long, replace(EVALUATION, settings=settings), path)
    assert [r.get("left_out") for r in records] == [None, None, "does not fit", "does not fit"]
    assert [(s.contexts, s.left_out, s.too_long) for s in summarise(records)] == [(1, 0, 1)] * 2
    assert evaluate(tiny_bundle, long, replace(EVALUATION, settings=settings), path) == records


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
