"""The fused tree kernels on a GPU: the whole list of shapes, bfloat16, many commits, CUDA graphs, every setting."""

import itertools

import pytest
import torch
from gdn_cases import error_ratio
from step_cases import StepInputs, accepted_paths, new_pool, padded_parents, recurrence, step_inputs
from tfm_kernels.gdn_tree import Settings, accept_path, flush, gdn_tree_verify
from trees import binary, chain, comb, preordered, random_tree, star

from tfm_lab.bench.kernel_trees import best_first
from tfm_lab.gdn import step
from tfm_lab.gdn.step import StatePool
from tfm_lab.gdn.step_convolution import commit_windows, convolve_trees
from tfm_lab.tree import DraftTree

pytestmark = pytest.mark.gpu

SIZES = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 512]
KINDS = {
    "chain": chain,
    "comb": lambda nodes: preordered(comb(min(15, nodes - 1), nodes)) if nodes > 2 else chain(nodes),
    "star": star,
    "binary": lambda nodes: preordered(binary(nodes)),
    "best-first": lambda nodes: best_first(nodes, 1),
    "random": lambda nodes: preordered(random_tree(nodes, seed=nodes)),
}


def on_gpu(pool: StatePool) -> StatePool:
    return StatePool(pool.states.to("cuda", copy=True), pool.slots.cuda())


def layout_of(trees: list[DraftTree], max_depth: int | None) -> step.TreeLayout:
    return step.tree_layout(padded_parents(trees).cuda(), max_depth=max_depth, impl="triton")


def largest_errors(
    trees: list[DraftTree], inputs: StepInputs, max_depth: int | None, settings: Settings | None = None
) -> tuple[float, float]:
    """Of the outputs in float32, and of the states after the deepest paths."""
    pool = new_pool(len(trees), inputs, seed=3)
    held = on_gpu(pool)
    arguments = inputs.to("cuda")
    layout = layout_of(trees, max_depth)
    output, stash = gdn_tree_verify(*arguments, layout, held, output_dtype=torch.float32, settings=settings)
    leaves = [int(tree.depths.argmax()) for tree in trees]
    rows = 16 * (max(tree.max_depth for tree in trees) // 16 + 1)
    flush(held, accept_path(stash, accepted_paths(trees, leaves, rows).cuda()))
    outputs, states = [], []
    for request, (tree, leaf) in enumerate(zip(trees, leaves, strict=True)):
        slot = int(pool.slots[request])
        exact, exact_states = recurrence(inputs, request, tree, pool.states[slot])
        outputs.append(error_ratio(exact, output[request, : len(tree)].cpu()))
        states.append(error_ratio(exact_states[:, leaf], held.states[slot].cpu()))
        assert not output[request, len(tree) :].any()
    return max(outputs), max(states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", SIZES)
def test_every_size_of_every_kind(nodes, kind, dtype):
    tree = KINDS[kind](nodes)
    inputs = step_inputs(1, nodes, seed=nodes, heads=(1, 3), dims=(128, 128))
    inputs = StepInputs(*(rows.to(dtype) for rows in inputs[:5]), *inputs[5:])
    for max_depth in {16 if tree.max_depth <= 16 else None, None}:
        output, state = largest_errors([tree], inputs, max_depth)
        assert output < 2e-5
        assert state < 1e-5


@pytest.mark.parametrize("batch", [3, 8])
@pytest.mark.parametrize(("heads", "dims"), [((2, 2), (64, 64)), ((2, 6), (128, 64)), ((1, 2), (32, 128))])
def test_ragged_batches(batch, heads, dims):
    trees = [preordered(random_tree(1 + 29 * request % 97, seed=request)) for request in range(batch)]
    inputs = step_inputs(batch, max(map(len, trees)), seed=batch, heads=heads, dims=dims)
    for rows in (inputs, StepInputs(*(tensor.bfloat16() for tensor in inputs[:5]), *inputs[5:])):
        output, state = largest_errors(trees, rows, 15)
        assert output < 2e-5
        assert state < 1e-5


@pytest.mark.parametrize(("correlation", "beta"), [(1.0, 7.0), (0.97, 3.0), (1.0, 40.0)])
@pytest.mark.parametrize("depth", [15, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repetitive_drafts(correlation, beta, depth, dtype):
    tree = preordered(comb(depth))
    inputs = step_inputs(1, len(tree), seed=5, heads=(1, 2), dims=(128, 128), decay=0.0, correlation=correlation)
    inputs.b[...] = beta
    inputs = StepInputs(*(rows.to(dtype) for rows in inputs[:5]), *inputs[5:])
    output, state = largest_errors([tree], inputs, depth)
    assert output < 2e-5
    assert state < 1e-5


@pytest.mark.parametrize("forgets", [200.0, 1e4, torch.inf])
@pytest.mark.parametrize("max_depth", [16, None])
def test_nodes_that_forget_everything(forgets, max_depth):
    tree = preordered(comb(16, 65))
    inputs = step_inputs(1, 65, seed=6, dims=(128, 128))
    inputs.A_log[...] = 0.0
    inputs.a[...] = inputs.a * 0.3 - 3
    inputs.a[:, ::7] = forgets
    assert max(largest_errors([tree], inputs, max_depth)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_hundred_lagged_commits(dtype):
    tree = preordered(random_tree(65, seed=7))
    pool = new_pool(1, step_inputs(1, 65, seed=0, heads=(1, 2), dims=(64, 64)), seed=8)
    held, exact, slot = on_gpu(pool), pool.states.double(), int(pool.slots[0])
    layout, pending = layout_of([tree], 15), None
    for number in range(200):
        inputs = step_inputs(1, 65, seed=number, heads=(1, 2), dims=(64, 64), decay=0.05)
        inputs = StepInputs(*(rows.to(dtype) for rows in inputs[:5]), *inputs[5:])
        _, stash = gdn_tree_verify(*inputs.to("cuda"), layout, held, pending)
        leaf = 37 * number % 65
        path = list(tree.path(leaf))
        pending = accept_path(stash, accepted_paths([tree], [leaf]).cuda())
        along = StepInputs(*(rows[:, path] for rows in inputs[:5]), *inputs[5:])
        exact[slot] = recurrence(along, 0, chain(len(path)), exact[slot])[1][:, -1]
    flush(held, pending)
    assert error_ratio(exact, held.states.cpu()) < 1e-5


@pytest.mark.parametrize("nodes", [17, 129])
@pytest.mark.parametrize("chained", [False, True])
def test_a_replayed_graph_is_bit_stable_and_follows_its_inputs(nodes, chained):
    """Layout, convolution, verification, acceptance, windows and fold, captured once; no part of it waits."""
    heads, width = (2, 6), 2 * 2 * 128 + 6 * 128
    tree = preordered(random_tree(nodes, seed=9))
    parents, accepted = padded_parents([tree]).cuda(), accepted_paths([tree], [nodes - 1]).cuda()
    inputs = step_inputs(1, nodes, seed=10, heads=heads, dims=(128, 128)).to("cuda")
    generator = torch.Generator("cuda").manual_seed(11)
    x = torch.randn(1, nodes, width, generator=generator, device="cuda").bfloat16()
    weight = torch.randn(width, 4, generator=generator, device="cuda")
    windows = torch.randn(1, 1, 3, width, generator=generator, device="cuda").bfloat16()
    states = 0.3 * torch.randn(1, 6, 128, 128, generator=generator, device="cuda")
    pool = StatePool(states, torch.zeros(1, dtype=torch.int32, device="cuda"))
    start = states.clone(), windows.clone()
    settings = Settings(chained=chained)

    def run() -> torch.Tensor:
        layout = step.tree_layout(parents, max_depth=15, impl="triton")
        mixed = convolve_trees(x, weight, windows[0], pool.slots, layout, impl="triton")
        query, key, value = mixed.split([256, 256, 768], dim=-1)
        rows = query.unflatten(-1, (2, 128)), key.unflatten(-1, (2, 128)), value.unflatten(-1, (6, 128))
        output, stash = gdn_tree_verify(*rows, *inputs[3:], layout, pool, settings=settings)
        pending = accept_path(stash, accepted)
        commit_windows(x[None], windows, pool.slots, accepted, impl="triton")
        second, _ = gdn_tree_verify(*rows, *inputs[3:], layout, pool, pending, settings=settings)
        return torch.stack([output, second])

    def again(call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        states.copy_(start[0])
        windows.copy_(start[1])
        result = call()
        return (outputs if result is None else result).clone(), states.clone(), windows.clone()

    eager = again(run)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run()
    for _ in range(1000):
        for got, wanted in zip(again(graph.replay), eager, strict=True):
            assert torch.equal(got, wanted)
    x.mul_(0.5)
    assert torch.equal(again(graph.replay)[0], again(run)[0])


@pytest.mark.parametrize("max_depth", [15, None])
def test_no_setting_changes_a_result_beyond_rounding(max_depth):
    tree = preordered(random_tree(65, seed=12))
    inputs = step_inputs(1, 65, seed=13, heads=(1, 2), dims=(128, 128))
    inputs = StepInputs(*(rows.bfloat16() for rows in inputs[:5]), *inputs[5:])
    for tile, warps, prepare, chained in itertools.product((16, 32, 64), (2, 4), ((1, 64), (2, 128), (4, 128)), (0, 1)):
        settings = Settings(tile, 2, warps, *prepare, fold_tile=16, chained=bool(chained))
        output, state = largest_errors([tree], inputs, max_depth, settings)
        assert output < 2e-5
        assert state < 1e-5


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_waits_for_nothing():
    tree = preordered(random_tree(65, seed=14))
    inputs = step_inputs(1, 65, seed=15, dims=(128, 128)).to("cuda")
    pool, accepted = on_gpu(new_pool(1, inputs, seed=16)), accepted_paths([tree], [64]).cuda()
    parents = padded_parents([tree]).cuda()

    def run() -> None:
        layout = step.tree_layout(parents, max_depth=15, impl="triton")
        _, stash = gdn_tree_verify(*inputs, layout, pool)
        pending = accept_path(stash, accepted)
        gdn_tree_verify(*inputs, layout, pool, pending)
        flush(pool, pending)

    run()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("default")  # what other projects' kernels warn of is no fault of ours
def test_the_benchmark_on_a_small_layer():
    from tfm_lab.bench.kernel import GraphStopwatch, measure
    from tfm_lab.bench.kernel_cases import LayerShape, make_case
    from tfm_lab.bench.kernel_variants import VARIANTS

    for kind, batch in ((best_first, 1), (lambda nodes, _: star(nodes), 3)):
        trees = [kind(33, seed) for seed in range(batch)]
        shape = LayerShape(2, 6, 128, 128)
        case = make_case(shape, trees, layers=3, cold=True, dtype=torch.bfloat16, device="cuda")
        for m in measure(case, VARIANTS, 3, GraphStopwatch()):
            assert m.time is not None, m
