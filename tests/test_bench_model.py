"""The full-size benchmark on a shape of no model: everything runs, bytes are right by hand, nothing times itself."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import assert_refused, run

from tfm_lab.bench.model_bytes import StepShape, memory_bytes, shortage, stage_bytes
from tfm_lab.bench.model_clock import EagerClock
from tfm_lab.bench.model_replay import (
    Acceptance,
    constant_acceptance,
    nearest,
    recorded_acceptance,
    replay_decode,
)
from tfm_lab.bench.model_report import replay_table, stage_table, step_table, traffic_table
from tfm_lab.bench.model_run import Grid, Lines, Replays, count_of, run_all
from tfm_lab.bench.model_steps import (
    Configuration,
    Settings,
    build,
    choose_attention,
    measure_step,
    step_shape,
    sweep_bytes,
)
from tfm_lab.bench.model_weights import meta_models, random_models, shrunk, toy_shapes, weight_bytes
from tfm_lab.engine import EngineModels
from tfm_lab.planning.shapes import paper_shapes

SHAPES = toy_shapes()
RECORDED = Path(__file__).parent.parent / "tfm_lab" / "results"
QUICK = Settings(repeats=1, accepted=2)


@pytest.fixture(scope="module")
def models() -> EngineModels:
    return random_models(SHAPES, torch.float32, "cpu")


class CountingClock(EagerClock):
    """Runs everything, and calls the n-th run n seconds long."""

    def __init__(self, free: int = 10**12) -> None:
        super().__init__()
        self.runs, self._free = 0, free

    def seconds(self, run: Callable[[], None]) -> float:
        run()
        self.runs += 1
        return float(self.runs)

    def free(self) -> int:
        return self._free


def test_bytes_of_the_stages_by_hand():
    attention = 3 * 64 * 64 + 2 * 2 * 16 * 64  # queries with gates and the way out; keys and values
    memory = 64 * (128 + 2 * 64 + 2 * 2)
    body, head, state = attention + 3 * memory + 4 * 3 * 64 * 96, 320 * 64, 2 * 32 * 32 * 4
    plain = stage_bytes(SHAPES, StepShape("ar", 1, 0, 2, 100, 256, item=4))
    caches, memories = 2 * 100 * (2 * 2 * 16 * 4), 2 * 3 * state
    assert plain == {"verify": 4 * body + caches + 2 * memories, "head": 4 * head}
    woven = stage_bytes(SHAPES, StepShape("tfm", 16, 15, 2, 100, 256, width=4, pool=32, item=4))
    drafter = 2 * (2 * 64 * 64 + 2 * 2 * 16 * 64 + 3 * 64 * 96)
    assert woven["draft"] == 4 * (drafter + head) + 2 * 100 * (2 * 2 * 2 * 16 * 4)
    assert woven["commit"] == 4 * (2 * 64 * 64 + 2 * 2 * 2 * 16 * 64)
    weaver = 4 * 32 * 32 + 2 * 32 * 32 + 2 * 64 * 32
    assert woven["grow"] == 4 * (4 * weaver + 2 * 15 * 32 * 64 * 4)
    folded = stage_bytes(SHAPES, StepShape("tfm", 16, 15, 2, 100, 256, width=4, pool=32, item=4, folds=True))
    assert folded["grow"] == 4 * (4 * (weaver - 2 * 64 * 32) + 2 * 15 * 32 * 32 * 4)
    fused = StepShape("tfm", 16, 15, 2, 100, 256, width=4, pool=32, item=4, folds=True, by_kernels=True)
    assert stage_bytes(SHAPES, fused)["grow"] == 4 * (4 * (weaver - 2 * 64 * 32) + 2 * 4 * 32 * 32 * 4)
    kept = stage_bytes(SHAPES, StepShape("tfm", 16, 15, 2, 100, 256, item=4, keeps_states=True))
    assert kept["verify"] - woven["verify"] == 15 * memories


def test_what_is_swept_are_the_matrices_of_the_target(models: EngineModels):
    attention, memory = 3 * 64 * 64 + 2 * 2 * 16 * 64, 64 * (128 + 2 * 64 + 2 * 2)
    assert sweep_bytes(models) == 4 * (attention + 3 * memory + 4 * 3 * 64 * 96 + 320 * 64)
    assert sweep_bytes(models, "head") == 4 * 320 * 64


def test_memory_that_is_foreseen_covers_what_the_engine_allocates(models: EngineModels):
    for method, budget in (("ar", 0), ("chain", 15), ("tfm", 31)):
        configuration = Configuration(method, budget, 2, 300, "masked")
        engine = build(models, SHAPES, configuration, QUICK, CountingClock()).engine
        parts = memory_bytes(SHAPES, 0, step_shape(models, configuration, QUICK))
        assert engine.rows.cache.nbytes == parts["key/value cache"]
        assert engine.rows.memories is not None
        assert engine.rows.memories.states.nbytes + engine.rows.memories.windows.nbytes == parts["memories"]
        if engine.block is not None:
            assert engine.block.cache.nbytes == parts["drafter context"]
            kept = sum(tensor.nbytes for tensor in engine.rows.memories.tensors()) - parts["memories"]
            assert 0 < kept < parts["tree writes"]


def test_the_real_shape_has_the_published_sizes():
    shapes = paper_shapes()
    target = meta_models(shrunk(shapes, 2), torch.bfloat16).target
    assert target.head_weight.numel() == 248320 * 5120
    verify = stage_bytes(shapes, StepShape("ar", 1, 0, 1, 0, 1024))
    states = 2 * 48 * 48 * 128 * 128 * 4
    assert round((verify["verify"] + verify["head"] - states) / 1e9, 1) == 51.2


@pytest.mark.parametrize(("method", "budget"), [("ar", 0), ("chain", 15), ("ddtree", 15), ("tfm", 15)])
def test_a_configuration_is_measured_whole_by_stage_and_by_part(models: EngineModels, method: str, budget: int):
    record = measure_step(models, SHAPES, Configuration(method, budget, 2, 50, "masked"), QUICK, CountingClock())
    assert "refusal" not in record
    assert record["rows"] == 2 * (budget + 1)
    drafting = [] if method == "ar" else ["draft", "grow"]
    assert list(record["stages_ms"]) == ["root", *drafting, "layout", "verify", "head", "accept", "commit"]
    assert list(record["parts_ms"]) == ["products", "memories", "attention"]
    assert record["step_ms"]["median"] == 1000.0
    assert set(record["bytes"]) <= set(record["stages_ms"])


def test_what_does_not_fit_is_said_before_it_is_allocated(models: EngineModels):
    configuration = Configuration("tfm", 15, 16, 4000, "masked")
    record = measure_step(models, SHAPES, configuration, QUICK, CountingClock(free=1000))
    assert record["refusal"].startswith("tfm B=15 batch=16 context=4000 gdn=masked needs about 0.")
    assert "workspaces" in record["refusal"]
    assert record["refusal"].endswith("0.0 GB are free")
    assert shortage({"weights": 5}, 5) == ""
    assert (
        shortage({"weights": 6 * 10**9, "cache": 1}, 5 * 10**9)
        == "needs about 6.0 GB (weights 6.0, cache 0.0 GB), and 5.0 GB are free"
    )


def test_a_peer_that_is_missing_is_a_refusal_and_not_the_end(models: EngineModels):
    record = measure_step(models, SHAPES, Configuration("tfm", 15, 1, 50, "recurrent"), QUICK, CountingClock())
    assert "SGLang" in record["refusal"] or "GPU" in record["refusal"] or "kernel" in record["refusal"]
    assert record["where"].split(":")[0].endswith(".py")
    assert "not reported" in " ".join(step_table([record]).rows[0])


class TimingClock(CountingClock):
    """A clock that pretends to be no CPU, so that attention is chosen by time: the first that runs wins."""

    device = "test"


def test_attention_is_the_fastest_that_is_right(monkeypatch: pytest.MonkeyPatch):
    like = torch.zeros(1)
    assert choose_attention(TimingClock(), like, 1, 4, 1024, 4, 2, 16) == "fused"
    from tfm_lab.bench import model_steps

    kinds = {"wrong": lambda query, key, value, visible: query + 1, "right": model_steps.products_attention}
    monkeypatch.setattr(model_steps, "attention_kinds", lambda capacity: kinds)
    assert choose_attention(TimingClock(), like, 1, 4, 1024, 4, 2, 16) == "right"
    del kinds["right"]
    with pytest.raises(ValueError, match="no attention implementation is right"):
        choose_attention(TimingClock(), like, 1, 4, 1024, 4, 2, 16)


def test_recorded_acceptance_has_the_recorded_means():
    path = RECORDED / "smollm2_mal.json"
    laws = recorded_acceptance(path, ["chain", "tfm"], [15, 63], 0.0)
    summaries = [s for s in json.loads(path.read_text())["summaries"] if s["temperature"] == 0.0]
    assert {law.suite for law in laws} == {"chat", "code", "maths"}
    for law in laws:
        (summary,) = [
            s for s in summaries if (s["kind"], s["method"], s["budget"]) == (law.suite, law.method, law.budget)
        ]
        assert law.mean_emitted == pytest.approx(summary["mal"]["value"], rel=0.05)  # ends of texts are clipped there
    assert nearest(laws, "tfm", "chat", 63) == nearest(laws, "tfm", "chat", 70)
    older = recorded_acceptance(RECORDED / "hybrid_mal.json", ["tfm"], [63], 0.0)
    assert older[0].mean_emitted > 3


def test_drawn_lengths_follow_the_law_and_fill_the_text():
    law = Acceptance("made up", "any", "tfm", 63, (0.75, 0.5, 0.25))
    drafts = law.draw(20000, 15, seed=1)
    assert sum(drafts) + len(drafts) >= 20000 > sum(drafts) + len(drafts) - 4
    assert sum(drafts) / len(drafts) == pytest.approx(1.5, abs=0.05)
    assert max(law.draw(100, 2, seed=1)) == 2
    assert constant_acceptance("tfm", 3.25, 15).at_least == (1.0, 1.0, 0.25)
    assert constant_acceptance("tfm", 16.0, 15).mean_emitted == 16.0


@pytest.mark.parametrize("emitted", [0.5, 16.5, -1.0, float("inf"), float("nan"), 1e300])
def test_a_mean_that_no_step_reaches_is_refused(emitted: float):
    sentence = f"a step of tfm emits 1 to 16 tokens here, so a mean of {emitted:g} is impossible"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        constant_acceptance("tfm", emitted, 15)


def test_lines_of_accepted_drafts_are_a_law(tmp_path: Path):
    path = tmp_path / "traces.jsonl"
    path.write_text('{"suite": "chat", "method": "tfm", "budget": 64, "accepted": [0, 2, 2, 4]}\n')
    (law,) = recorded_acceptance(path, ["tfm"], [63], 0.0)
    assert law.at_least == (0.75, 0.75, 0.25, 0.25)
    with pytest.raises(ValueError, match="holds nothing for chain"):
        recorded_acceptance(path, ["chain"], [15], 0.0)
    path.write_text('{"suite": "chat"}\n')
    with pytest.raises(ValueError, match="holds no recorded acceptance"):
        recorded_acceptance(path, ["tfm"], [63], 0.0)
    with pytest.raises(ValueError, match="there is no file"):
        recorded_acceptance(tmp_path / "none.json", ["tfm"], [63], 0.0)


def test_a_replay_emits_what_was_drawn_and_reports_its_speed(models: EngineModels):
    law = Acceptance("made up", "chat", "tfm", 64, (0.9, 0.6, 0.3))
    configuration, clock = Configuration("tfm", 15, 1, 50, "masked"), CountingClock()
    settings = Settings(room=100)
    record = replay_decode(models, SHAPES, configuration, law, 30, settings, clock)
    drawn = law.draw(30, 15, 0)
    assert record["tokens"] == sum(drawn) + len(drawn)
    assert record["steps"] == len(drawn)
    assert record["tokens_per_second"] == record["tokens"] / 1.0
    assert record["label"] == "random weights, replayed acceptance"
    slower = record | {"method": "chain", "tokens_per_second": record["tokens"] / 2}
    plain = record | {"method": "ar", "suite": "any", "tokens_per_second": record["tokens"] / 4}
    table = replay_table([record, slower, plain])
    assert table.rows[0][-3:] == ("4.000x", "2.000x", "–")
    assert "random weights, replayed acceptance" in table.title


def test_a_broken_run_goes_on_where_it_stopped(models: EngineModels, tmp_path: Path):
    grid = Grid(("ar", "chain"), (15,), (40,), (1,), ("masked",))
    law = Acceptance("made up", "chat", "chain", 16, (0.5,))
    replays, path, loads = Replays((law,), 3, 40, 15), tmp_path / "run.jsonl", []

    def load() -> EngineModels:
        loads.append(1)
        return models

    def go(clock: CountingClock) -> Lines:
        lines = Lines(path, {"shape": "toy"})
        run_all(load, SHAPES, grid, replays, QUICK, clock, lines)
        return lines

    assert count_of(grid, replays) == 6
    wide = Grid(("ar", "chain", "ddtree", "tfm"), (15, 31), (1, 2), (1, 4), ("masked", "recurrent"), (31,))
    listed = wide.configurations()
    assert [(c.method, c.budget) for c in listed if c.batch == 4] == [("ar", 0), ("chain", 15), ("tfm", 31)]
    assert [(c.method, c.budget) for c in listed if c.gdn == "recurrent"] == [("tfm", 31)]
    assert len(listed) == 6 + 1 + 6 + 3
    assert [c.gdn for c in Grid(("ar",), (15,), (40,), (1,), ("triton",)).configurations()] == ["plain", "triton"]
    first = go(CountingClock())
    assert [record["kind"] for record in first.records] == ["floor", "floor", "step", "step", "replay", "replay"]
    idle = CountingClock()
    assert go(idle).records == first.records
    assert (idle.runs, len(loads)) == (0, 1)
    replays = Replays((replace(law, at_least=(0.25,)),), 3, 40, 15)
    assert len(go(CountingClock()).records) == 7, "a decode of other lengths is another one"
    replays = Replays((law,), 3, 40, 15)
    whole = path.read_text().splitlines()
    path.write_text("\n".join(whole[:3]) + "\n" + whole[3][:20])  # killed while writing
    again = go(CountingClock())
    assert [record["key"] for record in again.records] == [record["key"] for record in first.records]
    path.unlink()
    lines = Lines(path, {"shape": "toy"})
    answers = iter([False, False, *[True] * 4])
    assert run_all(load, SHAPES, grid, replays, QUICK, idle, lines, is_over=lambda: next(answers)) == 4
    assert [record["kind"] for record in lines.records] == ["floor", "floor"]
    with pytest.raises(ValueError, match="measured with another shape"):
        Lines(path, {"shape": "other"})
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="no lines of this benchmark"):
        Lines(path, {"shape": "toy"})


def test_tables_compare_with_the_same_batch_and_context(models: EngineModels):
    clock = CountingClock()
    records = [
        measure_step(models, SHAPES, Configuration(method, budget, batch, 40, "masked"), QUICK, clock)
        for method, budget, batch in (("ar", 0, 1), ("chain", 15, 1), ("chain", 15, 2))
    ]
    times = [record["step_ms"]["median"] for record in records]
    records.append({"kind": "floor", "key": "floor all", "ms": {"median": times[0] / 2}})
    rows = step_table(records).rows
    assert [row[9:12] for row in rows] == [
        ("1.000x", f"{times[0] / times[1]:.3f}x", "2.000x"),
        (f"{times[1] / times[0]:.3f}x", "1.000x", f"{2 * times[1] / times[0]:.3f}x"),
        ("–", "1.000x", f"{2 * times[2] / times[0]:.3f}x"),
    ]
    assert len(stage_table(records).rows) == len(traffic_table(records).rows) == 3


TRIAL = [
    *("bench", "model", "--device", "cpu", "--shape", "toy", "--dtype", "float32", "--gdn", "masked"),
    *("--contexts", "40", "--batches", "1", "--budgets", "15", "--methods", "ar,chain", "--repeats", "1"),
    *("--replay-tokens", "5"),
]


def test_the_command_writes_tables_with_their_provenance(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "model.json"
    words = [*TRIAL, "--out", str(out)]
    refused = "a step of chain emits 1 to 16 tokens here, so a mean of 99 is impossible"
    assert_refused([*words, "--lengths", "chain=99"], refused, tmp_path, capsys)
    assert run(*words, "--lengths", "chain=2.5") == 0
    capsys.readouterr()
    written = out.with_suffix(".jsonl").read_bytes()
    assert_refused([*words, "--lengths", "chain=99"], refused, tmp_path, capsys)
    assert out.with_suffix(".jsonl").read_bytes() == written, "a run that goes on is refused like a new one"
    document = json.loads(out.read_text())
    assert {"device", "date", "commit", "command", "dtype", "layers"} <= set(document["provenance"])
    assert len(document["records"]) == 6
    text = out.with_suffix(".md").read_text()
    assert "Decodes (random weights, replayed acceptance)" in text
    assert "layers: 4 of 4" in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--shape", "small"], "--shape knows no 'small'; use qwen3.6-27b, toy"),
        (["--device", "tpu"], "--device takes cuda or cpu"),
        (["--methods", "dyspec"], "--methods knows no 'dyspec'"),
        (["--gdn", "recurrent"], "--gdn starts with what verifies everything"),
        (["--layers", "65"], "this shape has 64 layers"),
        (["--budgets", "0"], "--budgets takes 1 to 511"),
        (["--lengths", "chain=fast"], "--lengths takes pairs such as tfm=5.8, got 'chain=fast'"),
        (["--lengths", "ar=2"], "--lengths speaks of 'ar'"),
        (["--lengths", "tfm=2,tfm=3"], "--lengths gives tfm twice"),
        (["--lengths", "ddtree=0.5"], "a mean of 0.5 is impossible"),
        (["--lengths", "tfm=16.5"], "a step of tfm emits 1 to 16 tokens here"),
        (["--lengths", "tfm=4.5", "--replay-budget", "3"], "a step of tfm emits 1 to 4 tokens here"),
        (["--lengths", "tfm=inf"], "a mean of inf is impossible"),
        (["--lengths", "chain=99", "--replay-tokens", "0"], "a mean of 99 is impossible"),
        (["--replay-budget", "0"], "--replay-budget takes 1 to 511 proposed nodes"),
        (["--repeats", "0"], "--repeats and --children take at least 1"),
        (["--device", "cpu", "--dtype", "float64"], "GB are free: take fewer --layers"),
    ],
)
def test_the_command_refuses_with_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert_refused(["bench", "model", *words], sentence, tmp_path, capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert_refused(["bench", "model"], "needs a CUDA GPU, and torch sees none", tmp_path, capsys)


def test_weights_of_all_models_are_counted():
    assert weight_bytes(meta_models(SHAPES, torch.bfloat16)) == 2 * sum(
        parameter.numel() for model in meta_models(SHAPES, torch.float32) if model for parameter in model.parameters()
    )
