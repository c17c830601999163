"""Tree verification and commit against one dense state per node, for every node of every tree."""

import pytest
import torch
from gdn_cases import HEADS, delta_inputs, oracle
from trees import TREES, chain, preordered, random_tree, shuffled, tree_of

from tfm_lab import gdn


@pytest.mark.parametrize("name", TREES)
def test_every_node_is_its_own_branch(name):
    tree = TREES[name]
    inputs = delta_inputs(len(tree), seed=len(tree), dims=(12, 10))
    output, writes = gdn.tree_verify(*inputs, tree.ancestors())
    outputs, states = oracle(inputs, tree)
    torch.testing.assert_close(output, outputs, rtol=0, atol=1e-12)
    for node in range(len(tree)):
        committed = gdn.commit_path(inputs.state, writes, tree.path(node))
        torch.testing.assert_close(committed, states[..., node, :, :], rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", HEADS)
def test_every_head_layout(heads):
    tree = random_tree(24, seed=1)
    inputs = delta_inputs(24, seed=2, heads=heads, batch=(2, 3))
    output, writes = gdn.tree_verify(*inputs, tree.ancestors())
    outputs, states = oracle(inputs, tree)
    torch.testing.assert_close(output, outputs, rtol=0, atol=1e-12)
    committed = gdn.commit_path(inputs.state, writes, tree.path(23))
    torch.testing.assert_close(committed, states[..., 23, :, :], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["comb-30-shuffled", "random-65"])
def test_every_leaf_path_is_the_recurrent_rule_along_it(name):
    tree = TREES[name]
    inputs = delta_inputs(len(tree), seed=3)
    output, writes = gdn.tree_verify(*inputs, tree.ancestors())
    for leaf in tree.leaves():
        path = list(tree.path(leaf))
        outputs, state = gdn.delta_rule_recurrent(*inputs.along(path))
        torch.testing.assert_close(output[..., path, :], outputs, rtol=0, atol=1e-12)
        torch.testing.assert_close(gdn.commit_path(inputs.state, writes, path), state, rtol=0, atol=1e-12)


def test_a_chain_is_the_chunked_rule():
    inputs = delta_inputs(64, seed=4)
    output, writes = gdn.tree_verify(*inputs, chain(64).ancestors())
    expected_output, expected_state = gdn.delta_rule_chunked(*inputs)
    torch.testing.assert_close(output, expected_output, rtol=0, atol=1e-12)
    committed = gdn.commit_path(inputs.state, writes, torch.arange(64))
    torch.testing.assert_close(committed, expected_state, rtol=0, atol=1e-12)


def test_verification_and_commit_leave_their_arguments_alone():
    tree = random_tree(12, seed=5)
    inputs = delta_inputs(12, seed=6)
    copies = [tensor.clone() for tensor in inputs]
    _, writes = gdn.tree_verify(*inputs, tree.ancestors())
    gdn.commit_path(inputs.state, writes, tree.path(11))
    for tensor, copy in zip(inputs, copies, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("changed", [1, 7, 30])
def test_changing_one_node_moves_its_subtree_alone(dtype, changed):
    tree = random_tree(40, seed=7)
    inputs = delta_inputs(40, seed=8).to(dtype)
    other = inputs._replace(**{name: getattr(inputs, name).clone() for name in ("key", "value", "log_decay", "beta")})
    other.key[..., changed, :] = other.key[..., changed, :].flip(-1)
    other.value[..., changed, :] += 5.0
    other.log_decay[..., changed] = -150.0
    other.beta[..., changed] = 0.5
    subtree = tree.ancestors()[:, changed]
    output, writes = gdn.tree_verify(*inputs, tree.ancestors())
    moved_output, moved_writes = gdn.tree_verify(*other, tree.ancestors())
    for before, after in ((output, moved_output), (writes.update, moved_writes.update)):
        assert torch.equal(before[..., ~subtree, :], after[..., ~subtree, :])
        assert (before[..., subtree, :] != after[..., subtree, :]).flatten(-1).any(-1).all()


@pytest.mark.parametrize(
    "reorder", [preordered, lambda tree: shuffled(tree, seed=9), lambda tree: shuffled(tree, seed=10)]
)
def test_the_order_of_siblings_changes_nothing(reorder):
    tree = random_tree(65, seed=11)
    other = reorder(tree)
    order = other.tokens.tolist()
    assert order != tree.tokens.tolist()
    inputs = delta_inputs(65, seed=12)
    output, writes = gdn.tree_verify(*inputs, tree.ancestors())
    other_output, other_writes = gdn.tree_verify(*inputs.along(order), other.ancestors())
    torch.testing.assert_close(other_output, output[..., order, :], rtol=0, atol=1e-13)
    place = {node: index for index, node in enumerate(order)}
    for node in (0, 40, 64):
        torch.testing.assert_close(
            gdn.commit_path(inputs.state, other_writes, other.path(place[node])),
            gdn.commit_path(inputs.state, writes, tree.path(node)),
            rtol=0,
            atol=1e-13,
        )


def test_gradients_are_those_of_the_recurrent_rule():
    tree = random_tree(12, seed=13)
    path = tree.path(max(tree.leaves(), key=lambda leaf: len(tree.path(leaf))))
    inputs = delta_inputs(12, seed=14, dims=(4, 3))
    inputs.log_decay[..., [node for node in range(12) if node not in path]] = -300.0
    gradients = []
    for along_tree in (False, True):
        arguments = type(inputs)(*(tensor.clone().requires_grad_() for tensor in inputs))
        if along_tree:
            output, writes = gdn.tree_verify(*arguments, tree.ancestors())
            output, state = output[..., path, :], gdn.commit_path(arguments.state, writes, path)
        else:
            output, state = gdn.delta_rule_recurrent(*arguments.along(path))
        (output.square().sum() + state.square().sum()).backward()
        gradients.append([tensor.grad for tensor in arguments])
    for expected, gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_bfloat16_inputs_are_solved_in_float32():
    tree = random_tree(20, seed=15)
    inputs = delta_inputs(20, seed=16).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, writes = gdn.tree_verify(*inputs, tree.ancestors())
        state = gdn.commit_path(inputs.state, writes, tree.path(19))
    wide_output, wide_writes = gdn.tree_verify(*inputs.to(torch.float32), tree.ancestors())
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, wide_output.bfloat16())
    assert writes.update.dtype == state.dtype == torch.float32
    assert torch.equal(writes.update, wide_writes.update)
    assert torch.equal(state, gdn.commit_path(inputs.state.float(), wide_writes, tree.path(19)))


def test_value_heads_must_be_a_multiple_of_key_heads():
    with pytest.raises(ValueError, match="3 value heads cannot share 2 key heads evenly"):
        gdn.tree_verify(*delta_inputs(3, seed=0, heads=(2, 3)), chain(3).ancestors())


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ((), "holds at least the root"),
        ((0, 3), "the one to node 3 is \\[0, 1, 3\\]"),
        ((1, 3), "the one to node 3 is \\[0, 1, 3\\]"),
        ((0, 2, 3), "is not a path of the verified tree"),
        ((0, 1, 1), "is not a path of the verified tree"),
        ((0, 4), "outside the tree; its 4 nodes are 0 to 3"),
        ((0, -1), "outside the tree"),
    ],
)
def test_a_path_must_be_whole(path, sentence):
    inputs = delta_inputs(4, seed=0)
    _, writes = gdn.tree_verify(*inputs, tree_of([-1, 0, 0, 1]).ancestors())
    with pytest.raises(ValueError, match=sentence):
        gdn.commit_path(inputs.state, writes, path)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("ancestors", "sentence"),
    [
        (torch.ones(3, 3, dtype=torch.bool), "parents must precede their children"),
        (torch.zeros(3, 3, dtype=torch.bool), "must hold every node itself"),
        (torch.eye(3, dtype=torch.bool), "and the root, node 0"),
        (torch.eye(4, dtype=torch.bool), "bool mask of shape \\[3, 3\\]"),
        (torch.ones(3, 3).tril(), "bool mask"),
    ],
)
def test_a_mask_that_is_no_tree_is_refused(ancestors, sentence):
    with pytest.raises(ValueError, match=sentence):
        gdn.tree_verify(*delta_inputs(3, seed=0), ancestors)


@pytest.mark.unchecked
def test_other_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="needs at least its root"):
        gdn.tree_verify(*delta_inputs(0, seed=0), torch.zeros(0, 0, dtype=torch.bool))
    with pytest.raises(ValueError, match="impl must be one of reference, triton, got 'cuda'"):
        gdn.tree_verify(*delta_inputs(3, seed=0), chain(3).ancestors(), impl="cuda")
