"""The dense tree kernel against the float64 recurrence: in Triton's interpreter, or on the GPU where there is one."""

import os
import subprocess
import sys

import pytest
import torch
from gdn_cases import Inputs, delta_inputs, error_ratio, oracle
from tfm_kernels.gdn_tree_dense import MAX_NODES, gdn_tree_dense
from trees import chain, comb, random_tree, shuffled, star

from tfm_lab import gdn
from tfm_lab.tree import DraftTree

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_interpreter = pytest.mark.skipif(DEVICE == "cuda", reason="about Triton's interpreter; a GPU is used here")


def on_device(inputs: Inputs) -> Inputs:
    return Inputs(*(tensor.to(DEVICE, torch.float32) for tensor in inputs))


def assert_kernel_accurate(inputs: Inputs, tree: DraftTree, bound: float = 1e-6) -> None:
    """Outputs and updates of all nodes, and the state after the deepest path."""
    outputs, states = oracle(inputs, tree)
    exact = gdn.tree_verify(*inputs.to(torch.float64), tree.ancestors())
    single = on_device(inputs)
    output, writes = gdn.tree_verify(*single, tree.ancestors().to(DEVICE), impl="triton")
    deepest = int(tree.depths.argmax())
    state = gdn.commit_path(single.state, writes, tree.path(deepest))
    assert output.dtype == writes.update.dtype == torch.float32
    assert error_ratio(outputs, output.cpu()) < bound
    assert error_ratio(exact.writes.update, writes.update.cpu()) < bound
    assert error_ratio(states[..., deepest, :, :], state.cpu()) < bound


@pytest.mark.parametrize("nodes", [1, 2, 15, 16, 17, 33])
def test_random_trees(nodes):
    tree = random_tree(nodes, seed=nodes)
    assert_kernel_accurate(delta_inputs(nodes, seed=nodes, heads=(1, 2), dims=(32, 32)), tree)


@pytest.mark.parametrize("tree", [chain(33), star(18), shuffled(comb(15), seed=1)], ids=["chain", "star", "comb"])
def test_other_trees(tree):
    assert_kernel_accurate(delta_inputs(len(tree), seed=1, heads=(1, 1), dims=(16, 16)), tree)


@pytest.mark.parametrize(("heads", "dims"), [((2, 4), (16, 16)), ((1, 3), (20, 9)), ((2, 2), (40, 24))])
def test_head_layouts_batches_and_odd_dims(heads, dims):
    assert_kernel_accurate(delta_inputs(5, seed=2, heads=heads, dims=dims, batch=(2,)), random_tree(5, seed=3))


@pytest.mark.parametrize(("correlation", "beta"), [(1.0, 0.999), (0.97, 0.95)])
def test_repetitive_drafts(correlation, beta):
    """Where inverting by squaring loses all digits but one, substitution keeps float32's."""
    tree = comb(15)
    inputs = delta_inputs(len(tree), seed=4, heads=(1, 1), dims=(32, 16), decay=0.0, correlation=correlation)
    inputs.beta[...] = beta
    assert_kernel_accurate(inputs, tree)


@pytest.mark.parametrize("log_decay", [-200.0, -1e4, -torch.inf])
def test_nodes_that_forget_everything(log_decay):
    tree = comb(20, nodes=33)
    inputs = delta_inputs(33, seed=5, heads=(1, 1), dims=(16, 16), decay=0.05)
    inputs.log_decay[..., ::7] = log_decay
    assert_kernel_accurate(inputs, tree)


def test_changing_one_node_moves_its_subtree_alone():
    tree = random_tree(33, seed=6)
    inputs = on_device(delta_inputs(33, seed=7, heads=(1, 1), dims=(16, 16)))
    other = inputs._replace(value=inputs.value.clone())
    other.value[..., 2, :] += 1.0
    subtree = tree.ancestors()[:, 2].to(DEVICE)
    before, after = (gdn_tree_dense(*x, tree.ancestors().to(DEVICE))[0] for x in (inputs, other))
    assert torch.equal(before[..., ~subtree, :], after[..., ~subtree, :])
    assert (before[..., subtree, :] != after[..., subtree, :]).any(-1).all()


def test_an_empty_batch_needs_no_launch():
    output, update = gdn_tree_dense(*on_device(delta_inputs(3, seed=0, batch=(0,))), chain(3).ancestors().to(DEVICE))
    assert output.shape == update.shape == (0, 4, 3, 6)


def arguments(**changes: torch.Tensor) -> list[torch.Tensor]:
    named = on_device(delta_inputs(3, seed=0, dims=(16, 16)))._asdict() | {"ancestors": chain(3).ancestors().to(DEVICE)}
    return list((named | {name: tensor.to(DEVICE) for name, tensor in changes.items()}).values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"query": torch.zeros(2, 3, 8)}, "query has shape \\[2, 3, 8\\]; .* must be \\[2, 3, 16\\]"),
        ({"state": torch.zeros(4, 16, 8)}, "state has shape"),
        ({"ancestors": torch.zeros(3, 4, dtype=torch.bool)}, "ancestors has shape"),
        ({"ancestors": torch.zeros(3, 3)}, "ancestors must be torch.bool"),
        ({"beta": torch.zeros(4, 3, dtype=torch.float64)}, "beta must be torch.float32"),
        ({"key": torch.zeros(2, 3, 16, dtype=torch.float64)}, "all be float32 or all bfloat16"),
        ({"value": torch.zeros(3, 3, 16)}, "3 value heads cannot share 2 key heads evenly"),
        ({"query": torch.zeros(3, 16)}, "at least three axes"),
        ({"value": torch.zeros(4, 3, 512)}, "dims of 1 to 256, got 16 and 512"),
        ({"value": torch.zeros(4, 3, 16, requires_grad=True)}, "has no gradients"),
    ],
)
def test_unfit_arguments_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        gdn_tree_dense(*arguments(**changes))


@pytest.mark.parametrize("nodes", [0, MAX_NODES + 1])
def test_too_small_and_too_large_trees_are_refused(nodes):
    inputs = delta_inputs(nodes, seed=0).to(torch.float32)
    with pytest.raises(ValueError, match=f"takes 1 to 128 nodes, got {nodes}"):
        gdn_tree_dense(*inputs, torch.eye(nodes, dtype=torch.bool))


def test_float64_is_refused_through_tree_verify():
    with pytest.raises(ValueError, match="the PyTorch reference takes any dtype"):
        gdn.tree_verify(*delta_inputs(3, seed=0), chain(3).ancestors(), impl="triton")


@needs_interpreter
def test_bfloat16_is_refused_in_the_interpreter():
    with pytest.raises(ValueError, match="bit patterns of bfloat16 numbers; pass float32, or run on a GPU"):
        gdn.tree_verify(*delta_inputs(3, seed=0).to(torch.bfloat16), chain(3).ancestors(), impl="triton")


def test_a_machine_without_triton_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ModuleNotFoundError, match="pip install triton, or use the PyTorch reference"):
        gdn_tree_dense(*arguments())


def test_cpu_tensors_are_refused_without_the_interpreter():
    program = (
        "import torch; from tfm_kernels.gdn_tree_dense import gdn_tree_dense\n"
        "one = torch.ones(1, 1, 16)\n"
        "try: gdn_tree_dense(one, one, one, one[..., 0], one[..., 0], torch.ones(1, 16, 16), one[0, :, :1] > 0)\n"
        "except ValueError as error: print(error)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "the tensors are on cpu: move them to a GPU" in run.stdout
    assert "set TRITON_INTERPRET=1" in run.stdout


def test_importing_the_launcher_does_not_import_triton():
    program = "import sys, tfm_lab.gdn, tfm_kernels.gdn_tree_dense; print('triton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.gpu
@pytest.mark.parametrize("nodes", [17, 65, 128])
def test_qwen_sized_layer_on_a_gpu(nodes):
    tree = random_tree(nodes, seed=8)
    assert_kernel_accurate(delta_inputs(nodes, seed=9, heads=(16, 48), dims=(128, 128), decay=0.3), tree)


@pytest.mark.gpu
def test_bfloat16_rows_on_a_gpu():
    tree = random_tree(65, seed=10)
    inputs = delta_inputs(65, seed=11, heads=(2, 6), dims=(128, 128))
    rounded = [tensor.bfloat16() for tensor in inputs[:3]]
    wide = Inputs(*(tensor.double() for tensor in rounded), *inputs[3:])
    outputs, _ = oracle(wide, tree)
    gates = (tensor.to("cuda", torch.float32) for tensor in inputs[3:])
    output, _ = gdn_tree_dense(*(tensor.cuda() for tensor in rounded), *gates, tree.ancestors().cuda())
    assert error_ratio(outputs, output.cpu()) < 1e-6
