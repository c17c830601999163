"""The kernel benchmark on small shapes: every variant is right, a wrong one is refused. No time is judged."""

import gc
import json
import math
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from weakref import WeakSet

import pytest
import torch
from command_line import assert_refused, run
from torch import Tensor

from tfm_lab.bench import kernel, kernel_cases, kernel_report
from tfm_lab.bench.kernel import Measurement, Microseconds, measure, measure_or_refuse
from tfm_lab.bench.kernel_cases import Builder, KernelCase, LayerShape, Work, exact_answers, layers_that_fit, make_case
from tfm_lab.bench.kernel_peers import installed_peers
from tfm_lab.bench.kernel_report import (
    REFERENCE,
    Setting,
    memory_table,
    pending_bytes,
    search_settings,
    search_table,
    time_table,
)
from tfm_lab.bench.kernel_trees import MAX_DEPTH, TREES
from tfm_lab.bench.kernel_variants import VARIANTS, dense_torch, fused, state_copy
from tfm_lab.gdn import step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = LayerShape(1, 2, 32, 32)
PEERS = {
    "SGLang recurrent BV=32": "sglang",
    "SGLang recurrent BV=4": "sglang",
    "path-parallel FLA": "fla-core",
}
"""Variant -> the distribution that it needs."""


class EagerStopwatch:
    """Runs a step as it is and counts the runs as seconds."""

    def __init__(self) -> None:
        self.runs = 0

    def ready(self, step: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        outputs = step()

        def again() -> None:
            for old, new in zip(outputs, step(), strict=True):
                old.copy_(new)

        return again, outputs

    def seconds(self, run: Callable[[], None]) -> float:
        run()
        self.runs += 1
        return float(self.runs)

    def release(self) -> None:
        gc.collect()


class IdleStopwatch:
    """For results alone: nothing runs again."""

    def ready(self, step: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        return (lambda: None), []

    def seconds(self, run: Callable[[], None]) -> float:
        return 1.0

    def release(self) -> None:
        pass


def small_case(kind: str = "random", nodes: int = 7, batch: int = 1, **options: object) -> KernelCase:
    trees = [TREES[kind](nodes, 0) for _ in range(batch)]
    defaults = {"layers": 2, "cold": True, "dtype": torch.float32, "device": DEVICE}
    return make_case(SMALL, trees, **(defaults | options))  # pyright: ignore


@pytest.mark.filterwarnings("ignore")  # what the peers warn of when they are imported
def test_every_variant_is_right():
    case = small_case("best-first", batch=2, layers=1)
    assert case.max_depth > 2
    measured = measure(case, VARIANTS, 1, IdleStopwatch())
    assert [m.variant for m in measured] == list(VARIANTS)
    peers = installed_peers()
    for m in measured:
        if m.variant in PEERS and PEERS[m.variant] not in peers:
            assert "is not installed: pip install --no-deps" in m.refusal
            continue
        assert m.refusal == ""
        assert m.time is not None
        assert (m.output_error is None) == (m.variant == "state copy")
        assert m.output_error is None or m.output_error < 2e-6
        assert (m.state_error is not None) == ("commit" in m.variant or "whole step" in m.variant)
        assert m.state_error is None or m.state_error < 2e-6


def test_variants_take_turns_and_times_are_per_layer():
    ticks: list[None] = []
    variants = {"one": state_copy, "two": dense_torch}
    one, two = measure(small_case(), variants, 3, EagerStopwatch(), lambda: ticks.append(None))
    assert one.time == Microseconds(3e6 / 2, pytest.approx(1.4e6 / 2), pytest.approx(4.6e6 / 2))
    assert two.time is not None
    assert two.time.median == 4e6 / 2
    assert len(ticks) == 2 + 3


def spoiled(output: float, state: float) -> Callable[[KernelCase], Work]:
    """The fused kernels with one number of the last layer's output and state moved."""

    def build(case: KernelCase) -> Work:
        work = fused(commit=True)(case)

        def run() -> list[Tensor]:
            outputs = work.step()
            outputs[-1][-1, -1, -1, 0] += output
            case.states[-1, -1, -1, 0, 0] += state
            return outputs

        return Work(run, case.states)

    return build


def test_a_wrong_variant_is_not_reported():
    def broken(case: KernelCase) -> Work:
        raise RuntimeError("out of memory\nand more")

    def restless(case: KernelCase) -> Work:
        work, runs = dense_torch(case), []

        def run() -> list[Tensor]:
            runs.append(1)
            return [output + 1e-6 * len(runs) for output in work.step()]

        return Work(run)

    builders = {
        "right": spoiled(0.0, 0.0),
        "output": spoiled(0.5, 0.0),
        "state": spoiled(0.0, 0.5),
        "nothing": spoiled(math.nan, 0.0),
        "broken": broken,
        "restless": restless,
    }
    measured = {m.variant: m for m in measure(small_case(layers=1), builders, 2, EagerStopwatch())}
    assert measured["right"].time is not None
    for name in ("output", "state", "nothing"):
        assert measured[name].time is None
        assert measured[name].refusal == "its result is wrong"
    assert measured["broken"].refusal == "out of memory"
    assert measured["restless"].refusal == "its result changes from run to run"


FULL = "CUDA out of memory. Tried to allocate 24.00 GiB. GPU 0 has a total capacity of 139.81 GiB, and more"


class Room:
    """Memory for so many variants at once. A variant stays in it for as long as anything refers to what it runs."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.inside: WeakSet[Callable[[], list[Tensor]]] = WeakSet()

    def variant(self, places: int = 1) -> Builder:
        def build(case: KernelCase) -> Work:
            if sum(step.places for step in self.inside) + places > self.places:  # pyright: ignore
                raise torch.OutOfMemoryError(FULL)
            work = dense_torch(case)

            def run() -> list[Tensor]:
                return work.step()

            run.places = places  # pyright: ignore
            self.inside.add(run)
            return Work(run)

        return build


def test_variants_that_do_not_fit_beside_each_other_sit_one_after_the_other():
    room, inside = Room(4), []

    class Looking(EagerStopwatch):
        def release(self) -> None:
            super().release()
            inside.append(len(room.inside))

    stopwatch = Looking()
    sizes = {"one": 1, "three": 3, "two": 2, "five": 5, "none": 0, "four": 4}
    measured = measure(small_case(layers=1), {name: room.variant(size) for name, size in sizes.items()}, 2, stopwatch)
    sittings = {"one": 1, "three": 1, "two": 2, "five": 3, "none": 1, "four": 3}
    assert [(m.variant, m.sitting) for m in measured] == list(sittings.items())
    assert [m.variant for m in measured if m.time is None] == ["five"]
    assert measured[3].refusal == "CUDA out of memory. Tried to allocate 24.00 GiB"
    assert stopwatch.runs == 2 * 5
    # After two, five and four, and when all have had their turns; after five and four; after five, and in the end.
    assert inside == [2, 2, 3, 0, 1, 1, 0, 0, 0]


def test_a_full_memory_is_seen_behind_the_error_that_it_led_to():
    class Capturing(EagerStopwatch):
        tried = 0

        def ready(self, step: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
            self.tried += 1
            if self.tried < 2:
                return super().ready(step)
            try:
                raise torch.OutOfMemoryError(FULL)
            except RuntimeError:
                raise RuntimeError("the capture is broken")  # noqa: B904

    stopwatch = Capturing()
    one, two = measure(small_case(layers=1), {"one": dense_torch, "two": dense_torch}, 1, stopwatch)
    assert one.time is not None
    assert (two.sitting, two.refusal) == (2, "CUDA out of memory. Tried to allocate 24.00 GiB")
    assert stopwatch.tried == 3


def test_what_fails_while_it_is_timed_is_refused_and_the_others_go_on():
    class Failing(EagerStopwatch):
        def seconds(self, run: Callable[[], None]) -> float:
            seconds = super().seconds(run)
            if self.runs == 3:
                raise torch.OutOfMemoryError(FULL)
            return seconds

    one, two = measure(small_case(layers=1), {"one": state_copy, "two": dense_torch}, 3, Failing())
    assert one.refusal == "CUDA out of memory. Tried to allocate 24.00 GiB"
    assert one.time is None
    assert two.time == Microseconds(4e6, pytest.approx(2.4e6), pytest.approx(4.8e6))


def test_any_error_of_a_variant_is_its_refusal():
    class Unforeseen(Exception):
        pass

    def broken(case: KernelCase) -> Work:
        raise Unforeseen("out of shared memory")

    measured = measure(small_case(layers=1), {"broken": broken, "right": dense_torch}, 1, EagerStopwatch())
    assert [m.refusal for m in measured] == ["Unforeseen: out of shared memory", ""]


def test_a_group_that_cannot_be_set_up_is_refused_with_the_reason():
    def group() -> list[Measurement]:
        raise torch.OutOfMemoryError(FULL)

    class Lost(EagerStopwatch):
        def release(self) -> None:
            raise RuntimeError("the GPU is lost")

    refused = measure_or_refuse(["one", "two"], group, Lost())
    reason = "CUDA out of memory. Tried to allocate 24.00 GiB"
    assert refused == [Measurement(name, None, None, None, refusal=reason) for name in ("one", "two")]


def test_charts_are_drawn_without_plotly_and_widgets():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['plotly', 'ipywidgets', 'anywidget', 'traitlets'])); "
        "import tfm_lab.cli.bench, tfm_lab.bench.kernel_report; from tfm_lab.show.charts import lines_svg; "
        "print(lines_svg({'one': {1: 2.0}}, 'title', 'x', 'y')[:4])"
    )
    drawn = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert drawn.stdout == "<svg\n", drawn.stderr


def test_the_exact_answers_of_the_commit_start_from_the_committed_state():
    case = small_case()
    before, after = exact_answers(case), exact_answers(case, committed=True)
    assert [(e.request, e.layer) for e in before] == [(0, 0), (0, 1)]
    assert not torch.allclose(before[0].output, after[0].output)
    moved = case._replace(states=case.states.clone())
    moved.states[0, 0, before[0].heads] = before[0].state.float().to(DEVICE)
    torch.testing.assert_close(exact_answers(moved)[0].output, after[0].output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", TREES)
def test_trees_have_the_size_and_depth_that_they_promise(kind):
    for nodes in (1, 2, 17, 65):
        tree = TREES[kind](nodes, 3)
        assert len(tree) == nodes
        assert tree.preorder() == tuple(range(nodes))
        assert tree.max_depth <= (nodes - 1 if kind == "chain" else MAX_DEPTH)
    assert TREES["comb"](65, 0).max_depth == MAX_DEPTH
    assert TREES["star"](65, 0).max_depth == 1


def test_the_memory_table_counts_what_is_allocated():
    case = small_case(nodes=16)
    layout = step.tree_layout(case.parents, max_depth=15, impl="triton")
    pool = step.StatePool(case.states[0], torch.zeros(1, dtype=torch.int32, device=DEVICE))
    _, stash = step.tree_step(*case.rows[0], case.A_log, case.dt_bias, layout, pool, impl="triton")
    pending = step.accept_path(stash, case.deepest_paths(), impl="triton")
    held = sum(tensor.nbytes for tensor in stash[1:])
    row = memory_table(SMALL, 1024, [16]).rows[0]
    assert row[:2] == ("16", f"{1024 * held / 2**20:.1f}")
    assert row[2] == f"{1024 * case.rows[0].key.numel() * 2 / 2**20:.1f}"
    bfloat16 = sum(tensor.nbytes for tensor in pending) - pending.key.nbytes // 2
    assert pending_bytes(SMALL) == bfloat16
    assert row[4] == f"{1024 * 16 * case.states[0, 0].nbytes / 2**20:.1f}"


def test_the_shape_of_qwen_keeps_what_the_documents_say():
    row = memory_table(LayerShape(), 48, [129]).rows[0]
    assert [float(cell) for cell in row[1:]] == pytest.approx([147.4, 24.2, 21.2, 18576.0], abs=0.1)


def test_a_report_names_ratios_and_refusals():
    setting = Setting("random", 129, 15, 1, "cold", 48)
    group = [
        Measurement("dense torch", Microseconds(30.0, 29.0, 31.0), 1e-6, None),
        Measurement(REFERENCE, Microseconds(10.0, 9.0, 11.0), 1.7e-3, 1e-6),
        Measurement("dense Triton", None, None, None, refusal="too large"),
    ]
    table = time_table([(setting, group)])
    assert table.rows[0][6:] == ("dense torch", "30.00", "29.00", "31.00", "3.00x", "1.0e-06", "1")
    assert table.rows[2][7] == "not reported: too large"


def test_a_search_names_the_fastest_first():
    class Counting(EagerStopwatch):
        def seconds(self, run: Callable[[], None]) -> float:
            self.runs += 1
            return 1.0 / self.runs

    found = search_settings(small_case(nodes=2, layers=1), 1, Counting(), most=3)
    assert len(found) == len({m.variant for m in found}) == 6
    times = [m.time.median for m in found if m.time]
    assert times == sorted(times)
    assert len(times) == (6 if DEVICE == "cuda" else 5)
    assert sum("prepare_warps=2, key_step=64" in m.variant for m in found) == 6
    assert sum("value_tile=16" in m.variant for m in found) == 3
    rows = search_table(found).rows
    assert rows[0][0] == found[0].variant
    if DEVICE == "cpu":
        assert rows[5][1] == "not reported: programmatic dependent launch needs a GPU; the interpreter has none"


def test_large_batches_take_fewer_layers():
    assert [layers_that_fit(48, batch) for batch in (1, 8, 32)] == [48, 12, 4]
    assert layers_that_fit(2, 32) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "the kernel benchmark needs a CUDA GPU, and torch sees none on this machine"),
        (["--nodes", "17,513"], "--nodes takes sizes of 1 to 512"),
        (["--batch", "0"], "--batch, --layers and --repeats at least 1"),
        (["--nodes", "many"], "--nodes takes a comma-separated list of numbers, and 'many' is none"),
        (["--trees", "oak"], "--trees knows no 'oak'; use random, best-first, comb, star, chain"),
        (["--inputs", "hot"], "--inputs knows no 'hot'; use warm, cold"),
        (["--variants", "state copy,mine"], "--variants knows no 'mine'; use state copy, SGLang recurrent BV=32"),
        (["--settings", "groups=3 speed=9"], "'speed=9' changes no setting; write groups=3, with one of value_tile"),
        (["--settings", "groups=few"], "'groups=few' changes no setting; write groups=3, with one of value_tile"),
        (["--out", "kernel.md"], "--out takes the name of a .json file"),
    ],
)
def test_bad_input_and_a_machine_without_a_gpu_are_one_sentence(words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert_refused(["bench", "kernel", *words], sentence, tmp_path, capsys)


@pytest.fixture
def small_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The whole command, with a small layer, a stopwatch that counts, no GPU, and files in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernel, "GraphStopwatch", EagerStopwatch)
    monkeypatch.setattr(kernel_cases.LayerShape, "__new__", lambda cls: tuple.__new__(cls, (1, 1, 32, 32)))

    def on_this_device(*arguments, dtype, device, **options):
        return make_case(*arguments, dtype=torch.float32, device=DEVICE, **options)

    monkeypatch.setattr(kernel_cases, "make_case", on_this_device)
    monkeypatch.setattr(kernel_report, "describe_run", lambda device: {"device": device})
    fixed = ("--batch", "1", "--layers", "1", "--repeats", "2", "--inputs", "cold", "--out", "new/kernel.json")
    return lambda *words: run("bench", "kernel", *fixed, *words)


def test_the_command_measures_reports_and_draws(small_command, tmp_path, capsys):
    assert small_command("--nodes", "2,3", "--variants", "state copy,dense torch,fused verify+commit") == 0
    output = capsys.readouterr().out
    assert output.startswith("| tree | depth | batch | nodes | inputs | layers | variant | us per layer |")
    assert "written: new/kernel.json, new/kernel.svg and new/kernel.md" in output
    document = json.loads((tmp_path / "new/kernel.json").read_text())
    assert [entry["nodes"] for entry in document["results"]] == [2, 3]
    assert document["results"][1]["variants"][2]["time"]["median"] > 0
    assert document["results"][1]["variants"][2]["sitting"] == 1
    assert document["provenance"]["settings"] == "2 of 2"
    assert document["provenance"]["triton"] == version("triton")
    assert "## Memory" in (tmp_path / "new/kernel.md").read_text()
    assert "dense torch" in (tmp_path / "new/kernel.svg").read_text()


def test_a_setting_that_cannot_be_made_is_reported_and_the_next_is_measured(small_command, tmp_path, monkeypatch):
    make = kernel_cases.make_case

    def too_large(shape, trees, **options):
        if len(trees[0]) == 3:
            raise torch.OutOfMemoryError(FULL)
        return make(shape, trees, **options)

    monkeypatch.setattr(kernel_cases, "make_case", too_large)
    assert small_command("--nodes", "3,2", "--variants", "state copy,dense torch") == 0
    three, two = json.loads((tmp_path / "new/kernel.json").read_text())["results"]
    assert [v["refusal"] for v in three["variants"]] == ["CUDA out of memory. Tried to allocate 24.00 GiB"] * 2
    assert [v["time"] for v in three["variants"]] == [None, None]
    assert all(v["time"] for v in two["variants"])
    assert "not reported: CUDA out of memory" in (tmp_path / "new/kernel.md").read_text()


def test_a_run_that_breaks_off_keeps_what_it_has_measured(small_command, tmp_path, monkeypatch):
    make = kernel_cases.make_case

    def interrupted(shape, trees, **options):
        if len(trees[0]) == 4:
            raise KeyboardInterrupt
        return make(shape, trees, **options)

    monkeypatch.setattr(kernel_cases, "make_case", interrupted)
    assert small_command("--nodes", "2,3,4,5", "--variants", "dense torch") != 0
    document = json.loads((tmp_path / "new/kernel.json").read_text())
    assert [entry["nodes"] for entry in document["results"]] == [2, 3]
    assert document["provenance"]["settings"] == "2 of 4"
    assert "dense torch" in (tmp_path / "new/kernel.svg").read_text()


def test_changed_settings_are_measured_beside_the_variants(small_command, tmp_path, monkeypatch):
    taken = []
    step_of_kernel = step.tree_step

    def listening(*arguments, settings, **options):
        taken.append(settings)
        return step_of_kernel(*arguments, settings=settings, **options)

    monkeypatch.setattr(step, "tree_step", listening)
    words = ("--settings", "groups=1 registers=None", "--settings", "value_tile=16")
    assert small_command("--nodes", "17", "--variants", "fused verify", *words) == 0
    entries = json.loads((tmp_path / "new/kernel.json").read_text())["results"][0]["variants"]
    one, other = "groups=1 registers=None", "value_tile=16"
    names = [f"fused verify{commit}, {text}" for text in (one, other) for commit in ("", "+commit")]
    assert [entry["variant"] for entry in entries] == ["fused verify", *names]
    assert all(entry["time"] for entry in entries)
    table = step.settings_for(17, 1, 32, 32, wide=True)
    assert set(taken) == {None, table._replace(groups=1, registers=None), table._replace(value_tile=16)}


def test_a_search_keeps_all_settings_in_the_files(small_command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        kernel_report, "search_settings", lambda case, *_: search_settings(case, 1, EagerStopwatch(), most=2)
    )
    assert small_command("--nodes", "2", "--search") == 0
    assert "written: new/kernel.json and new/kernel.md" in capsys.readouterr().out
    document = json.loads((tmp_path / "new/kernel.json").read_text())
    assert len(document["results"][0]["variants"]) == 4
    assert not (tmp_path / "new/kernel.svg").exists()
