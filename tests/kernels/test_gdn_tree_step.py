"""The fused tree kernels against the float64 recurrence: in Triton's interpreter, or on the GPU where there is one."""

import os
import subprocess
import sys

import pytest
import torch
from gdn_cases import error_ratio
from step_cases import StepInputs, accepted_paths, new_pool, padded_parents, recurrence, step_inputs
from tfm_kernels.gdn_tree import Settings, accept_path, flush, gdn_tree_verify, settings_for
from tfm_kernels.launching import load_kernels
from trees import TREES, chain, comb, preordered, random_tree, star

from tfm_lab.gdn import step
from tfm_lab.gdn.step import StatePool
from tfm_lab.tree import DraftTree

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_interpreter = pytest.mark.skipif(DEVICE == "cuda", reason="about Triton's interpreter; a GPU is used here")
RAGGED = [preordered(random_tree(33, seed=1)), preordered(comb(15, 20)), chain(2)]


def on_device(pool: StatePool) -> StatePool:
    return StatePool(pool.states.to(DEVICE, copy=True), pool.slots.to(DEVICE))


def layout_of(trees: list[DraftTree], max_depth: int | None = None) -> step.TreeLayout:
    return step.tree_layout(padded_parents(trees).to(DEVICE), max_depth=max_depth, impl="triton")


def assert_step_accurate(
    trees: list[DraftTree],
    inputs: StepInputs,
    max_depth: int | None = None,
    bound: float = 2e-6,
    settings: Settings | None = None,
) -> None:
    """Outputs of all nodes, and the state after the deepest path of every request, by the kernels alone."""
    pool = new_pool(len(trees), inputs, seed=len(trees))
    held = on_device(pool)
    arguments = inputs.to(DEVICE)
    layout = layout_of(trees, max_depth)
    output, stash = gdn_tree_verify(*arguments, layout, held, output_dtype=torch.float32, settings=settings)
    assert torch.equal(held.states.cpu(), pool.states)
    leaves = [int(tree.depths.argmax()) for tree in trees]
    rows = 16 * (max(tree.max_depth for tree in trees) // 16 + 1)
    flush(held, accept_path(stash, accepted_paths(trees, leaves, rows).to(DEVICE)))
    states = held.states.cpu()
    for request, (tree, leaf) in enumerate(zip(trees, leaves, strict=True)):
        slot = int(pool.slots[request])
        outputs, exact = recurrence(inputs, request, tree, pool.states[slot])
        got = output[request].cpu()
        assert error_ratio(outputs, got[: len(tree)]) < bound
        assert not got[len(tree) :].any()
        assert error_ratio(exact[:, leaf], states[slot]) < bound
        pool.states[slot] = states[slot]
    assert torch.equal(states, pool.states), "a slot that belongs to nobody was written"


@pytest.mark.parametrize("max_depth", [16, None], ids=["blocks", "walk"])
def test_ragged_trees(max_depth):
    assert_step_accurate(RAGGED, step_inputs(3, 33, seed=1), max_depth)


@pytest.mark.parametrize("nodes", [1, 2, 15, 16, 17, 33])
def test_sizes_around_whole_blocks(nodes):
    tree = preordered(random_tree(nodes, seed=nodes))
    assert_step_accurate([tree], step_inputs(1, nodes, seed=nodes), 15)


@pytest.mark.parametrize("tree", [chain(34), preordered(comb(30, 40)), star(18)], ids=["chain", "comb", "star"])
def test_paths_of_several_tiles(tree):
    assert_step_accurate([tree], step_inputs(1, len(tree), seed=2))


@pytest.mark.parametrize(
    ("heads", "dims"), [((2, 2), (64, 32)), ((2, 4), (32, 64)), ((1, 3), (128, 128))], ids=["equal", "two", "three"]
)
@pytest.mark.parametrize("max_depth", [16, None], ids=["blocks", "walk"])
def test_head_layouts_and_sizes(heads, dims, max_depth):
    tree = preordered(random_tree(18, seed=3))
    assert_step_accurate([tree], step_inputs(1, 18, seed=4, heads=heads, dims=dims), max_depth)


@pytest.mark.parametrize(("correlation", "beta"), [(1.0, 7.0), (0.97, 3.0)])
@pytest.mark.parametrize("depth", [15, 30])
def test_repetitive_drafts(correlation, beta, depth):
    """Where inverting by squaring loses all digits but one, substitution keeps float32's."""
    tree = preordered(comb(depth))
    inputs = step_inputs(1, len(tree), seed=5, decay=0.0, correlation=correlation)
    inputs.b[...] = beta
    assert_step_accurate([tree], inputs, depth, bound=5e-6)


@pytest.mark.parametrize("forgets", [200.0, 1e4, torch.inf])
@pytest.mark.parametrize("max_depth", [16, None], ids=["blocks", "walk"])
def test_nodes_that_forget_everything(forgets, max_depth):
    """A sum from the root that holds such a node keeps no digit for what lies below it."""
    tree = preordered(comb(16, 34))
    inputs = step_inputs(1, 34, seed=6, decay=1.0)
    inputs.A_log[...] = 0.0
    inputs.a[...] = inputs.a * 0.3 - 3
    inputs.a[:, ::7] = forgets
    assert_step_accurate([tree], inputs, max_depth)


def test_zero_and_tiny_rows_and_gates_at_their_ends():
    tree = preordered(random_tree(20, seed=7))
    inputs = step_inputs(1, 20, seed=8)
    inputs.key[:, ::3] = 0.0
    inputs.key[:, 1::3] *= 1e-4
    inputs.query[:, 1::3] *= 1e-4
    inputs.b[:, ::4] = -90.0
    inputs.a[:, ::5] = -90.0
    inputs.a[:, 2::5] = 60.0
    inputs.A_log[...] = -4.6
    assert_step_accurate([tree], inputs, 15)


def test_small_gates_of_fast_heads():
    """softplus(-18) is 1.5e-8, which is lost beside 1, and here it decides the decay."""
    tree = preordered(random_tree(17, seed=23))
    inputs = step_inputs(1, 17, seed=24)
    inputs.A_log[...] = 17.0
    inputs.dt_bias[...] = 0.0
    inputs.a[...] = 0.1 * inputs.a - 18.0
    assert_step_accurate([tree], inputs, 15)


def test_padding_is_neither_read_nor_written_to_neighbours():
    inputs = step_inputs(3, 33, seed=1)
    for request, tree in enumerate(RAGGED):
        for rows in inputs[:5]:
            rows[request, len(tree) :] = torch.nan
    assert_step_accurate(RAGGED, inputs, 16)


@pytest.mark.parametrize("max_depth", [16, None], ids=["blocks", "walk"])
def test_changing_one_node_moves_its_subtree_alone(max_depth):
    tree = preordered(random_tree(34, seed=9))
    inputs = step_inputs(1, 34, seed=10).to(DEVICE)
    changed = 2
    other = StepInputs(*(tensor.clone() for tensor in inputs))
    for rows in other[1:5]:
        rows[:, changed] += 0.5
    pool = on_device(new_pool(1, inputs, seed=11))
    layout = layout_of([tree], max_depth)
    before, after = (gdn_tree_verify(*x, layout, pool)[0][0] for x in (inputs, other))
    subtree = tree.ancestors()[:, changed].to(DEVICE)
    assert 1 < subtree.sum() < 30
    assert torch.equal(before[~subtree], after[~subtree])
    assert (before[subtree] != after[subtree]).any(-1).all()


def test_programs_with_one_block_each_and_in_a_loop_agree_bit_for_bit():
    tree = preordered(random_tree(34, seed=25))
    inputs = step_inputs(1, 34, seed=26).to(DEVICE)
    pool, layout = on_device(new_pool(1, inputs, seed=27)), layout_of([tree], 15)
    settings = [Settings(16, groups) for groups in (3, 1, 2, 8)]
    alone, *others = (gdn_tree_verify(*inputs, layout, pool, settings=chosen) for chosen in settings)
    for output, stash in others:
        assert torch.equal(output, alone[0])
        assert torch.equal(stash.update, alone[1].update)


def test_the_order_of_siblings_changes_nothing_but_rounding():
    tree = random_tree(34, seed=12)
    mirrored = tree.reordered(_mirrored_preorder(tree))
    inputs = step_inputs(1, 34, seed=13).to(DEVICE)
    pool = on_device(new_pool(1, inputs, seed=14))
    order = mirrored.tokens.tolist()
    first = preordered(tree)
    own = [first.tokens.tolist().index(node) for node in order]
    shuffled = StepInputs(*(rows[:, own] for rows in inputs[:5]), *inputs[5:])
    one, _ = gdn_tree_verify(*inputs, layout_of([first], 15), pool)
    two, _ = gdn_tree_verify(*shuffled, layout_of([mirrored], 15), pool)
    assert own != list(range(34))
    assert error_ratio(one[:, own].cpu(), two.cpu()) < 1e-6


def _mirrored_preorder(tree: DraftTree) -> list[int]:
    order, stack, children = [], [0], tree.children()
    while stack:
        order.append(stack.pop())
        stack.extend(children[order[-1]])
    return order


def test_lagged_commits_end_where_immediate_and_sequential_ones_do():
    trees = [preordered(random_tree(18, seed=15)), preordered(comb(4))]
    pool = new_pool(2, step_inputs(2, 18, seed=0), seed=16)
    lagged, immediate, exact = on_device(pool), on_device(pool), pool.states.double()
    layout, pending = layout_of(trees, 15), None
    for number in range(3):
        inputs = step_inputs(2, 18, seed=number)
        output, stash = gdn_tree_verify(*inputs.to(DEVICE), layout, lagged, pending)
        at_once, stash_at_once = gdn_tree_verify(*inputs.to(DEVICE), layout, immediate)
        leaves = [(5 * number + 4) % 18, (0, -1, 6)[number]]
        accepted = accepted_paths(trees, leaves).to(DEVICE)
        pending = accept_path(stash, accepted)
        flush(immediate, accept_path(stash_at_once, accepted))
        assert torch.equal(output, at_once)
        for request, (tree, leaf) in enumerate(zip(trees, leaves, strict=True)):
            slot = int(pool.slots[request])
            outputs, states = recurrence(inputs, request, tree, exact[slot])
            assert error_ratio(outputs, output[request, : len(tree)].cpu()) < 2e-6
            exact[slot] = states[:, leaf] if leaf >= 0 else exact[slot]
    assert not torch.equal(lagged.states, immediate.states)
    flush(lagged, pending)
    assert torch.equal(lagged.states, immediate.states)
    assert error_ratio(exact, lagged.states.cpu()) < 2e-6


def test_all_layers_are_gathered_in_one_launch():
    """Stacked stashes, written in place by each layer, give the pending paths that each gives alone."""
    tree = preordered(random_tree(18, seed=17))
    layers = [step_inputs(1, 18, seed=layer, heads=(1, 2)).to(DEVICE) for layer in range(2)]
    layout, accepted = layout_of([tree], 15), accepted_paths([tree], [17]).to(DEVICE)
    keys = torch.stack([inputs.key for inputs in layers])
    rows = [torch.full((2, 1, 2, 18, *rest), torch.nan, device=DEVICE) for rest in ((32,), (), ())]
    alone = []
    for layer, inputs in enumerate(layers):
        pool = on_device(new_pool(1, inputs, seed=layer))
        into = step.Stash(inputs.key, *(tensor[layer] for tensor in rows))
        gdn_tree_verify(*inputs, layout, pool, into=into)
        alone.append(accept_path(gdn_tree_verify(*inputs, layout, pool)[1], accepted))
    together = accept_path(step.Stash(keys, *rows), accepted)
    for stacked, one, two in zip(together, *alone, strict=True):
        assert torch.equal(stacked, torch.stack([one, two]))


@pytest.mark.parametrize("name", ["root", "chain-17", "star-33", "random-65-preorder"])
def test_layouts_from_the_device_are_those_of_the_reference(name):
    parents = padded_parents([preordered(TREES[name]), *RAGGED[1:3]])
    for max_depth in (64, None):
        launched = step.tree_layout(parents.to(DEVICE), max_depth=max_depth, impl="triton")
        for got, wanted in zip(launched, step.tree_layout(parents, max_depth=max_depth), strict=True):
            assert torch.equal(got.cpu(), wanted)


@pytest.mark.parametrize("max_depth", [16, None], ids=["blocks", "walk"])
@pytest.mark.parametrize("changes", [{19: 3, 20: 18}, {20: 20}, {20: 33}, {20: 40}, {20: -1}, {20: -2}], ids=str)
def test_a_tree_in_another_order_gives_no_numbers(changes, max_depth):
    """Nobody waits for the device to refuse it: the block at fault is NaN, what came before it is right."""
    parents = padded_parents([chain(34)])
    for node, parent in changes.items():
        parents[0, node] = parent
    inputs = step_inputs(1, 34, seed=18).to(DEVICE)
    layout = step.tree_layout(parents.to(DEVICE), max_depth=max_depth, impl="triton")
    output, stash = gdn_tree_verify(*inputs, layout, on_device(new_pool(1, inputs, seed=19)))
    assert stash.update[0, :, 16:32].isnan().all()
    assert output[0, :16].isfinite().all()
    assert output[0, 16:32].isnan().all()


def test_a_tree_deeper_than_promised_gives_no_numbers():
    inputs = step_inputs(1, 34, seed=20).to(DEVICE)
    output, _ = gdn_tree_verify(*inputs, layout_of([chain(34)], 16), on_device(new_pool(1, inputs, seed=21)))
    assert output[0, :32].isfinite().all()
    assert output[0, 32:].isnan().all()


def test_the_step_of_the_package_takes_either_implementation():
    inputs = step_inputs(3, 33, seed=1)
    pool = new_pool(3, inputs, seed=22)
    held, layout, accepted = on_device(pool), layout_of(RAGGED, 16), accepted_paths(RAGGED, [32, 3, -1])
    wanted, stash = step.tree_step(*inputs, step.tree_layout(padded_parents(RAGGED)), pool)
    got, kernel_stash = step.tree_step(*inputs.to(DEVICE), layout, held, impl="triton")
    pending = step.accept_path(kernel_stash, accepted.to(DEVICE), impl="triton")
    for mine, theirs in zip(pending, step.accept_path(stash, accepted), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-5, atol=1e-5)
    step.flush(pool, step.accept_path(stash, accepted))
    step.flush(held, pending, impl="triton")
    assert error_ratio(wanted, got.cpu()) < 2e-6
    assert error_ratio(pool.states, held.states.cpu()) < 2e-6


@pytest.mark.parametrize("max_depth", [16, None], ids=["blocks", "walk"])
@needs_interpreter
def test_bfloat16_rows_with_a_split_state(monkeypatch, max_depth):
    """The interpreter cannot multiply bfloat16; with a product that can, the bfloat16 path keeps float32's accuracy."""
    import numpy as np
    from triton.runtime import interpreter

    def widened(handle):
        if handle.dtype.scalar.is_bf16():
            return (handle.data.astype(np.uint32) << 16).view(np.float32)
        return handle.data

    def product(self, a, b, d, *_):
        return interpreter.TensorHandle(np.matmul(widened(a), widened(b)) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", product)
    monkeypatch.setattr("tfm_kernels.gdn_tree.check_place", lambda *_, **__: None)
    rounded = [rows.bfloat16() for rows in step_inputs(3, 33, seed=1)[:5]]
    inputs = StepInputs(*rounded, *step_inputs(3, 33, seed=1)[5:])
    assert_step_accurate(RAGGED, inputs, max_depth, bound=2e-5)


def arguments(**changes: object) -> dict[str, object]:
    inputs = step_inputs(1, 3, seed=0, heads=(1, 2)).to(DEVICE)
    named = inputs._asdict() | {"tree": layout_of([chain(3)]), "pool": on_device(new_pool(1, inputs, seed=0))}
    return named | changes


def moved(*shape: int, **options: object) -> torch.Tensor:
    return torch.zeros(*shape, device=DEVICE, **options)  # pyright: ignore


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"query": moved(1, 3, 1, 64)}, "query has shape .* it must be \\[1, 3, 1, 32\\]"),
        ({"value": moved(1, 3, 2, 48)}, "takes head sizes 32, 64, 128, got 32 and 48"),
        ({"key": moved(1, 3, 1, 32, dtype=torch.float64)}, "all be float32 or all bfloat16"),
        ({"key": moved(1, 3, 32)}, "must be \\[batch, nodes, heads, dim\\]"),
        ({"value": moved(1, 3, 4, 32)}, "a has shape .* it must be \\[1, 3, 4\\]"),
        ({"key": moved(1, 3, 5, 32)}, "2 value heads cannot share 5 key heads evenly"),
        ({"key": moved(1, 3, 1, 32, requires_grad=True)}, "has no gradients"),
        ({"query": moved(1, 3, 1, 32)}, "query and key must have the same strides"),
        ({"value": moved(1, 3, 32, 2).mT}, "each node's part of value must be contiguous"),
        ({"pool": StatePool(moved(2, 2, 32, 32), moved(1))}, "slots must be torch.int32"),
        ({"pool": StatePool(moved(2, 2, 32, 32).mT, moved(1))}, "states must be a contiguous float32 tensor"),
        ({"settings": Settings(value_tile=24)}, "tiles of 24 and 16 do not divide 32 values"),
        ({"b": moved(1, 3, 2, dtype=torch.float64)}, "b must be torch.float32"),
    ],
)
def test_unfit_arguments_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        gdn_tree_verify(**arguments(**changes))  # pyright: ignore


def test_unfit_pending_paths_are_refused():
    named = arguments()
    _, stash = gdn_tree_verify(**named)  # pyright: ignore
    for rows in (0, 12):
        with pytest.raises(ValueError, match="a multiple of 16 rows"):
            accept_path(stash, moved(1, rows, dtype=torch.int32))
    pending = accept_path(stash, moved(1, 16, dtype=torch.int32))
    wrong = pending._replace(weight=pending.weight[:, :1])
    with pytest.raises(ValueError, match=r"pending\.weight has shape"):
        gdn_tree_verify(**named, pending=wrong)  # pyright: ignore
    with pytest.raises(ValueError, match=r"pending\.weight has shape"):
        flush(named["pool"], wrong)  # pyright: ignore
    with pytest.raises(ValueError, match="the tensors of the stash must be contiguous"):
        accept_path(stash._replace(update=stash.update.mT.contiguous().mT), moved(1, 16, dtype=torch.int32))


@needs_interpreter
def test_bfloat16_is_refused_in_the_interpreter():
    inputs = step_inputs(1, 3, seed=0, heads=(1, 2)).to(torch.bfloat16)._asdict()
    with pytest.raises(ValueError, match="bit patterns of bfloat16 numbers; pass float32, or run on a GPU"):
        gdn_tree_verify(**(arguments() | inputs))  # pyright: ignore


def test_a_machine_without_triton_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ModuleNotFoundError, match="pip install triton, or use the PyTorch reference"):
        load_kernels("_gdn_tree")


def test_cpu_tensors_are_refused_without_the_interpreter():
    program = (
        "import torch; from tfm_lab.gdn.step import tree_layout\n"
        "try: tree_layout(torch.full((1, 1), -1, dtype=torch.int32), impl='triton')\n"
        "except ValueError as error: print(error)"
    )
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "the tensors are on cpu: move them to a GPU" in run.stdout


def test_an_empty_batch_needs_no_launch():
    inputs = step_inputs(0, 3, seed=0, heads=(1, 2)).to(DEVICE)
    pool = StatePool(moved(1, 2, 32, 32), moved(0, dtype=torch.int32))
    layout = step.tree_layout(moved(0, 3, dtype=torch.int32), impl="triton")
    output, stash = gdn_tree_verify(*inputs, layout, pool)
    assert output.shape == (0, 3, 2, 32)
    flush(pool, accept_path(stash, moved(0, 16, dtype=torch.int32)))


def test_settings_are_fit_for_every_size():
    for wide in (False, True):
        for dim in (32, 64, 128):
            for nodes, batch in ((1, 1), (129, 1), (65, 8)):
                chosen = settings_for(nodes, batch, dim, dim, wide=wide)
                assert dim % chosen.value_tile == dim % chosen.fold_tile == 0
