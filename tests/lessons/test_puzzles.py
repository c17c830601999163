"""The puzzles of notebook 09: solutions against the reference, the watch on memory, costs, pictures, times."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import traitlets
from trees import TREES, chain, preordered, random_tree

from tfm_lab import gdn
from tfm_lab.bench.kernel import Measurement, Microseconds
from tfm_lab.bench.kernel_cases import LayerShape
from tfm_lab.bench.kernel_report import Setting, memory_table, save_kernel_bench
from tfm_lab.bench.kernel_trees import best_first
from tfm_lab.lessons import EXERCISES, by_hand_kernels, judge, todo
from tfm_lab.lessons.closure import closure_blocks, closure_picture, is_closed
from tfm_lab.lessons.interpreting import Access, can_interpret, launch
from tfm_lab.lessons.judging import NotAttemptedError
from tfm_lab.lessons.kernel_times import RESULTS, own_times, times_card
from tfm_lab.lessons.puzzles import CLOSE, PUZZLES, branch_arguments, random_head, relative_error
from tfm_lab.lessons.solving import (
    BRANCHES,
    FUSED,
    SolveExplorer,
    SolveState,
    branch_steps,
    solve_picture,
    solve_steps,
    total,
)
from tfm_lab.lessons.traffic import launch_card, programs
from tfm_lab.tree import DraftTree

triton = pytest.importorskip("triton")
tl = triton.language

interpreted = pytest.mark.skipif(not can_interpret(), reason="Triton compiles in this process")
SMALL_TREES = {name: tree for name, tree in TREES.items() if len(tree) <= 40}


def solution(name: str) -> Any:
    return EXERCISES[name].solution


# The solutions.


@interpreted
@pytest.mark.parametrize("tree", SMALL_TREES.values(), ids=SMALL_TREES.keys())
def test_the_whole_kernel_verifies_every_tree(tree: DraftTree) -> None:
    head = random_head(tree, seed=len(tree))
    ran = PUZZLES["09.verify_tree"].run(solution("09.verify_tree"), head)
    rows = (head.query, head.key, head.value, head.log_decay, head.beta, head.state)
    query, key, value, log_decay, beta, state = (row.double()[None] for row in rows)
    output, writes = gdn.tree_verify(query, key, value, log_decay, beta, state, tree.ancestors())
    assert relative_error(ran.tensors["output"], output[0]) <= CLOSE
    assert relative_error(ran.tensors["update"], writes.update[0]) <= CLOSE
    assert ran.strays == ()
    assert ran.access["state"].bytes_read == head.state.nbytes


@interpreted
@pytest.mark.parametrize("name", PUZZLES)
def test_a_solution_below_triton_jit_passes_as_well(name: str) -> None:
    assert judge(EXERCISES[name], triton.jit(solution(name))).passed


@interpreted
def test_the_puzzles_together_are_the_whole() -> None:
    """Gram, decays, substitution and outputs, each by its own kernel, give what the last one gives."""
    head = random_head(best_first(13, 1), seed=7)
    product = PUZZLES["09.gram"].run(by_hand_kernels.gram, head).tensors["product"]
    decay = PUZZLES["09.decay_mask"].run(by_hand_kernels.decay_mask, head).tensors["decay"]
    x, right = torch.zeros(16, 16), torch.zeros(16, 16)
    x[:13, :13] = head.beta[:, None] * decay * product
    from_root = head.path_sum.exp()
    right[:13] = head.beta[:, None] * (head.value - from_root[:, None] * (head.key @ head.state))
    ran = launch(
        by_hand_kernels.substitute, {"x": x, "right": right, "update": torch.full((16, 16), torch.nan), "DIM": 16}, (1,)
    )
    update = ran.tensors["update"][:13].clone()
    arguments = PUZZLES["09.output_tile"].arguments(head) | {"update": update, "decay": decay}
    output = launch(by_hand_kernels.output_tile, arguments, (1,)).tensors["output"]
    whole = PUZZLES["09.verify_tree"].run(by_hand_kernels.verify_tree, head).tensors
    torch.testing.assert_close(update, whole["update"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(output, whole["output"], rtol=1e-5, atol=1e-6)


@interpreted
@pytest.mark.parametrize("tree", [chain(5), best_first(23, 0), random_tree(33, 1)], ids=["chain", "best", "random"])
def test_costs_of_the_picture_are_what_the_interpreter_counts(tree: DraftTree) -> None:
    head = random_head(tree, seed=1)
    fused = PUZZLES["09.verify_tree"].run(by_hand_kernels.verify_tree, head)
    cost = total(solve_steps(tree, head.dim))
    substitutions = head.tiles * 2 * 15 * 16 * head.dim
    assert cost == (1, fused.bytes_read + fused.bytes_written, fused.product_flops + substitutions)
    replay = launch(by_hand_kernels.verify_branches, branch_arguments(head), (len(tree.leaves()),))
    assert relative_error(replay.tensors["output"], head.verified().output[0]) <= CLOSE
    cost = total(branch_steps(tree, head.dim))
    reads = replay.access["state"].bytes_read + replay.access["scratch"].bytes_read
    assert cost.bytes == replay.bytes_read + replay.bytes_written
    assert cost.state_reads == reads / head.state.nbytes == sum(len(tree.path(leaf)) for leaf in tree.leaves())


# The watch on memory.


def shifted(source, target, count):
    place = tl.arange(0, 16)
    tl.store(target + place, tl.load(source + place + 1, mask=place < count))


def broken(source, target, count):
    tl.store(target, tl.load(source) + missing)  # noqa: F821


def unfinished(source, target, count):
    tl.store(target + tl.arange(0, 16), todo())


def arguments(**changes: Any) -> dict[str, Any]:
    return {"source": torch.arange(16.0), "target": torch.zeros(16), "count": 16} | changes


@interpreted
def test_what_lies_outside_is_reported_and_not_touched() -> None:
    given = arguments()
    ran = launch(shifted, given, (1,))
    assert ran.strays == ("a program reads 1 entries outside of source",)
    assert ran.tensors["target"][:15].tolist() == list(range(1, 16))
    assert ran.tensors["target"][15].isnan()
    assert ran.access == {"source": Access(1, 0, 60, 0), "target": Access(0, 1, 0, 64)}
    assert given["target"].eq(0).all()
    ran = launch(shifted, arguments(target=torch.zeros(12)), (2,))
    assert "a program writes 4 entries outside of target" in ran.strays
    assert ran.access["target"] == Access(0, 2, 0, 2 * 48)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_what_is_masked_out_without_another_value_is_undefined(dtype: torch.dtype) -> None:
    given = arguments(count=3, source=torch.zeros(17, dtype=dtype), target=torch.zeros(16, dtype=dtype))
    target = launch(shifted, given, (1,)).tensors["target"]
    assert target[:3].eq(0).all()
    assert (target[3:].isnan() if dtype.is_floating_point else target[3:] == torch.iinfo(dtype).max).all()


@interpreted
def test_products_are_counted() -> None:
    head = random_head(chain(17), seed=0, dim=32)
    assert PUZZLES["09.gram"].run(by_hand_kernels.gram, head).product_flops == 4 * 2 * 16 * 16 * 32


@interpreted
def test_the_interpreter_is_left_as_it_was() -> None:
    from triton.runtime.interpreter import interpreter_builder

    before = set(vars(interpreter_builder))
    with pytest.raises(NameError, match="missing"):
        launch(broken, arguments(), (1,))
    assert set(vars(interpreter_builder)) <= before | {"grid_dim", "grid_idx"}


@interpreted
def test_what_is_no_kernel_is_refused_with_a_sentence() -> None:
    with pytest.raises(NotAttemptedError):
        launch(unfinished, arguments(), (1,))
    with pytest.raises(ValueError, match="a kernel needs a name"):
        launch(lambda source, target, count: None, arguments(), (1,))
    with pytest.raises(ValueError, match="a kernel names its parameters"):
        launch(lambda *values: None, arguments(), (1,))
    with pytest.raises(ValueError, match="bit patterns of bfloat16 numbers; pass float32"):
        launch(shifted, arguments(source=torch.zeros(17, dtype=torch.bfloat16)), (1,))


def test_a_process_in_which_triton_compiles_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm_lab.lessons.interpreting.can_interpret", lambda: False)
    with pytest.raises(ValueError, match="set TRITON_INTERPRET=1 before Python imports it"):
        launch(shifted, arguments(), (1,))


def test_a_machine_without_triton_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "triton.runtime.errors", None)
    with pytest.raises(ModuleNotFoundError, match="pip install triton"):
        launch(shifted, arguments(), (1,))


@interpreted
def test_a_table_of_traffic_adds_up() -> None:
    head = random_head(chain(17), seed=0)
    ran = PUZZLES["09.gram"].run(by_hand_kernels.gram, head)
    card = launch_card(ran, programs("09.gram", head))
    assert card.words.startswith("2 x 2 programs; 32,768 floating-point operations in tl.dot")
    assert f"together: {ran.bytes_read:,} of " in card.words
    assert card.html.count("<tr>") == 1 + 2 + 1


# The pictures.


def test_the_solve_skips_blocks_without_ancestors_and_finishes_every_node_once() -> None:
    tree = best_first(64, 0)
    state = SolveState(tree)
    ancestors = tree.ancestors()
    seen = {step.block: step.kind for step in state.steps if step.kind in ("block", "skip")}
    for (row, column), kind in seen.items():
        block = ancestors[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        assert (kind == "block") == bool(block.any())
    assert "skip" in seen.values()
    state.go(99)
    assert state.index == len(state.steps) - 1
    assert state.times() == [1] * 64
    state.choose(BRANCHES)
    assert state.index == 0
    state.go(99)
    assert state.times() == ancestors[list(tree.leaves())].sum(0).tolist()
    with pytest.raises(traitlets.TraitError):
        state.choose("by magic")
    with pytest.raises(ValueError, match="room for 128 nodes, and the tree has 129"):
        SolveState(chain(129))


def test_slider_buttons_and_switch_move_the_solve() -> None:
    explorer = SolveExplorer(SolveState(best_first(33, 0)))
    before = explorer._picture.value
    explorer._next.click()
    assert explorer._slider.value == 2
    assert explorer._picture.value != before
    explorer._slider.value = 4
    assert explorer.state.index == 3
    assert "step 4 of" in explorer._words.value
    explorer._switch.value = BRANCHES
    assert (explorer.state.index, explorer._back.disabled) == (0, True)
    assert "Branch 1 of" in explorer._words.value
    explorer.state.choose(FUSED)
    assert explorer._switch.value == FUSED
    data, _ = explorer._repr_mimebundle_()
    assert data["image/svg+xml"] == solve_picture(explorer.state).svg
    assert data["text/plain"] == explorer.state.describe()


@pytest.mark.parametrize("tree", [chain(1), best_first(17, 0), chain(128)], ids=["root", "17", "128"])
def test_the_picture_of_every_step_is_well_formed(tree: DraftTree) -> None:
    state = SolveState(tree)
    for method in (FUSED, BRANCHES):
        state.choose(method)
        for place in range(len(state.steps)):
            state.go(place)
            picture = solve_picture(state)
            root = ElementTree.fromstring(picture.svg)
            assert root.findtext("{http://www.w3.org/2000/svg}desc") == picture.description
    assert 'fill="currentColor"' in SolveExplorer(state)._picture.value


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_a_block_and_its_root_path_hold_all_ancestors_and_are_solved_alone(tree: DraftTree) -> None:
    tree = preordered(tree)
    head = random_head(tree, seed=3)
    whole = head.verified().output[0]
    for path, block in closure_blocks(tree):
        assert is_closed(tree, (*path, *block))
        assert not path or not is_closed(tree, block)
        rows = torch.tensor((*path, *block))
        torch.testing.assert_close(head.verified_rows(rows).output[0], whole[rows], rtol=1e-9, atol=1e-12)


def test_blocks_need_depth_first_order() -> None:
    with pytest.raises(ValueError, match=r"tree\.reordered\(tree\.preorder\(\)\)"):
        closure_blocks(TREES["binary-31"])


def test_the_picture_of_a_block_marks_block_and_path() -> None:
    tree = best_first(40, 0)
    picture = closure_picture(tree, 1, lambda token: f"<{token}>")
    root = ElementTree.fromstring(picture.svg)
    assert root.findtext("{http://www.w3.org/2000/svg}desc") == picture.description
    path, block = closure_blocks(tree)[1]
    assert picture.svg.count('font-weight="bold">&lt;') == len(block)
    assert f"{len(path) + len(block)} rows" in picture.description


# Times.


def test_without_a_file_nothing_is_measured_and_the_paper_is_quoted(tmp_path: Path) -> None:
    file = tmp_path / "kernel_h200.json"
    assert own_times(file) is None
    card = times_card(file)
    assert "Own: not measured yet." in card.words
    for size, ratio in ((16, "1.5x"), (32, "2.7x"), (64, "4.6x"), (128, "7.1x")):
        assert f"nodes T: {size}, reported by the paper: recurrent over fused: {ratio}, own" in card.words
    assert card.html.count("not measured yet") == 1 + 3 * 4


def test_with_a_file_the_times_of_the_benchmark_stand_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kernel_h200.json"
    facts = {"device": "a GPU", "date": "2026-12-01", "commit": "abc", "threads": 1}
    monkeypatch.setattr("tfm_lab.bench.kernel_report.describe_run", lambda device: facts)

    def group(time: float, *others: Measurement) -> list[Measurement]:
        return [Measurement("fused verify+commit", Microseconds(time, time, time), 1e-3, 1e-6), *others]

    branches = Measurement("path-parallel torch", Microseconds(80.0, 80.0, 80.0), 1e-3, None)
    refused = Measurement("path-parallel torch", None, None, None, refusal="too slow")
    wide, narrow = (
        Measurement(f"SGLang recurrent BV={columns}", Microseconds(time, time, time), 1e-3, None)
        for columns, time in ((32, 58.0), (4, 29.0))
    )
    results = [
        (Setting("random", 17, 15, 1, "warm", 48), group(1.0)),
        (Setting("random", 17, 15, 1, "cold", 48), group(20.0, branches, wide, narrow)),
        (Setting("comb", 17, 15, 1, "cold", 48), group(3.0)),
        (Setting("random", 33, 15, 8, "cold", 12), group(4.0)),
        (Setting("random", 65, 15, 1, "cold", 48), group(30.0, refused)),
    ]
    save_kernel_bench(results, memory_table(LayerShape(), 48, [17]), {}, file)
    own = own_times(file)
    assert own is not None
    assert {size: time.fused for size, time in own.by_size.items()} == {16: 20.0, 64: 30.0}
    card = times_card(file)
    assert "a GPU, 2026-12-01, commit abc" in card.words
    assert "20.0 (random, 17 nodes)" in card.words
    assert "own: SGLang's recurrent over fused: 2.9x (BV=32), 1.4x (BV=4)" in card.words
    assert "own: replay in PyTorch over fused: 4x" in card.words
    assert card.words.count("not measured yet") == 3 + 2 + 3
    assert "Not comparable" in card.words


def test_the_file_of_the_notebook_can_be_read_if_it_is_there() -> None:
    card = times_card()
    assert RESULTS.name == "kernel_h200.json"
    assert ("not measured yet" in card.words) == (not RESULTS.exists())
