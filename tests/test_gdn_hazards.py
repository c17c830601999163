"""Places where tree verification of the delta rule goes wrong in practice, each as a test in float32.

The judge is the float64 recurrence, one dense state per node; errors are RMS ratios. float32 rounding alone is 1e-7.
"""

import pytest
import torch
from gdn_cases import Inputs, delta_inputs, error_ratio, oracle
from trees import chain, comb, random_tree, star

from tfm_lab import gdn
from tfm_lab.tree import DraftTree


def assert_accurate(inputs: Inputs, tree: DraftTree, bound: float = 1e-6) -> None:
    """Outputs of all nodes, and the state after the deepest path and after the root, in float32."""
    outputs, states = oracle(inputs, tree)
    single = inputs.to(torch.float32)
    output, writes = gdn.tree_verify(*single, tree.ancestors())
    assert error_ratio(outputs, output) < bound
    for node in (0, int(tree.depths.argmax())):
        state = gdn.commit_path(single.state, writes, tree.path(node))
        assert error_ratio(states[..., node, :, :], state) < bound


def test_a_sibling_that_forgot_hard():
    """exp(g_i - g_j) of a pair of siblings would be exp(+199) = inf here, and a mask of 0 makes it NaN."""
    inputs = delta_inputs(8, seed=0, dims=(16, 16))
    inputs.log_decay[..., 3] = -200.0
    assert_accurate(inputs, star(8))


def test_siblings_that_forget_and_keep_by_turns():
    inputs = delta_inputs(64, seed=1, dims=(16, 16))
    inputs.log_decay[..., 1::2], inputs.log_decay[..., 2::2] = -50.0, 0.0
    assert_accurate(inputs, star(64))


def test_gradients_beside_a_sibling_that_forgot_hard_are_finite():
    inputs = delta_inputs(64, seed=2, dims=(16, 16)).to(torch.float32)
    inputs.log_decay[..., 1::2], inputs.log_decay[..., 2::2] = -200.0, 0.0
    arguments = Inputs(*(tensor.clone().requires_grad_() for tensor in inputs))
    gdn.tree_verify(*arguments, star(64).ancestors()).output.square().sum().backward()
    for tensor in arguments:
        assert tensor.grad is not None
        assert bool(tensor.grad.isfinite().all())


def test_a_long_chain_of_strong_decay():
    """exp(g_i) exp(-g_j) would overflow from the 45th node on."""
    inputs = delta_inputs(64, seed=3, dims=(16, 16))
    inputs.log_decay[...] = -2.0
    assert_accurate(inputs, chain(64))


@pytest.mark.parametrize("log_decay", [-1e4, -torch.inf])
def test_all_nodes_forget_everything(log_decay):
    inputs = delta_inputs(48, seed=4, dims=(16, 16))
    inputs.log_decay[...] = log_decay
    assert_accurate(inputs, random_tree(48, seed=5))


@pytest.mark.parametrize("log_decay", [-200.0, -1e4, -torch.inf])
def test_some_nodes_forget_everything(log_decay):
    """Below such a node the small decays must keep their digits: 1e4 + 0.1 - 1e4 is 0.0996 in float32."""
    inputs = delta_inputs(64, seed=6, dims=(16, 16), decay=0.05)
    inputs.log_decay[..., ::9] = log_decay
    assert_accurate(inputs, comb(40, nodes=64))


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_extreme_writing_strength(beta):
    """0 writes nothing, 1 overwrites, 2 reflects (a negative eigenvalue)."""
    inputs = delta_inputs(48, seed=7, dims=(16, 16))
    inputs.beta[...] = beta
    assert_accurate(inputs, random_tree(48, seed=8))


def test_zero_keys():
    inputs = delta_inputs(48, seed=9, dims=(16, 16))
    inputs.key[...] = 0.0
    assert_accurate(inputs, random_tree(48, seed=10))


def test_padding_rows_change_nothing():
    """Rows with k = q = v = 0, beta = 0 and no decay may be hung anywhere; a kernel pads its tiles with them."""
    tree = random_tree(21, seed=11)
    inputs = delta_inputs(21, seed=12, dims=(16, 16)).to(torch.float32)
    padded = Inputs(
        *(torch.cat([rows, rows.new_zeros(*rows.shape[:-2], 11, 16)], dim=-2) for rows in inputs[:3]),
        *(torch.cat([gate, gate.new_zeros(4, 11)], dim=-1) for gate in inputs[3:5]),
        inputs.state,
    )
    ancestors = torch.eye(32, dtype=torch.bool)
    ancestors[:21, :21], ancestors[21:, 0] = tree.ancestors(), True
    output, writes = gdn.tree_verify(*inputs, tree.ancestors())
    padded_output, padded_writes = gdn.tree_verify(*padded, ancestors)
    torch.testing.assert_close(padded_output[..., :21, :], output, rtol=0, atol=1e-6)
    torch.testing.assert_close(padded_writes.update[..., :21, :], writes.update, rtol=0, atol=1e-6)
    assert not padded_output[..., 21:, :].any()
    assert not padded_writes.update[..., 21:, :].any()


@pytest.mark.parametrize("depth", [15, 30])
@pytest.mark.parametrize(("correlation", "beta"), [(1.0, 0.999), (0.97, 0.95), (0.97, 0.999)])
def test_repetitive_drafts(depth, correlation, beta):
    """Equal or nearly equal keys down a comb: powers of X grow like binomials and cancel; substitution is unmoved."""
    tree = comb(depth)
    inputs = delta_inputs(len(tree), seed=depth, dims=(32, 32), decay=0.0, correlation=correlation)
    inputs.beta[...] = beta
    assert_accurate(inputs, tree, bound=2e-6)


def test_forced_rejections_do_not_let_the_state_drift():
    """200 rounds in which the root alone is committed, against plain decoding in float64."""
    errors = []
    exact = delta_inputs(1, seed=0, heads=(1, 2), dims=(16, 16)).state
    state = exact.float()
    for round_ in range(200):
        tree = random_tree(16, seed=round_)
        inputs = delta_inputs(16, seed=round_, heads=(1, 2), dims=(16, 16), decay=0.005)
        _, writes = gdn.tree_verify(*inputs.to(torch.float32)._replace(state=state), tree.ancestors())
        state = gdn.commit_path(state, writes, (0,))
        _, exact = gdn.delta_rule_recurrent(*inputs.along([0])._replace(state=exact))
        errors.append(error_ratio(exact, state))
    assert max(errors) < 1e-6
    assert errors[-1] < 3 * errors[24], "the error grows with the number of rounds, not with its root"


def test_lagged_immediate_and_sequential_commits_agree():
    """A commit may wait until the next verification; both equal the recurrence along the accepted tokens."""
    generator = torch.Generator().manual_seed(13)
    weight = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    sequential_window = immediate_window = lagged_window = torch.zeros(3, 6, dtype=torch.float64)
    sequential = immediate = lagged = delta_inputs(1, seed=13).state
    pending = None
    for round_, nodes in enumerate([20, 1, 33, 2, 1, 15, 40]):
        tree = random_tree(nodes, seed=round_)
        inputs = delta_inputs(nodes, seed=100 + round_)
        x = torch.randn(nodes, 6, generator=generator, dtype=torch.float64)
        path = tree.path(int(torch.randint(nodes, (), generator=generator)))

        output, writes = gdn.tree_verify(*inputs._replace(state=immediate), tree.ancestors())
        immediate = gdn.commit_path(immediate, writes, path)
        immediate_window = gdn.commit_window(immediate_window, x, path)

        if pending is not None:
            lagged = gdn.commit_path(lagged, *pending[:2])
            lagged_window = gdn.commit_window(lagged_window, pending[2], pending[1])
        lagged_output, lagged_writes = gdn.tree_verify(*inputs._replace(state=lagged), tree.ancestors())
        convolution_ancestors = gdn.convolution_ancestors(tree.parents, 4)
        y = gdn.tree_convolution(x, weight, lagged_window, convolution_ancestors)
        pending = (lagged_writes, path, x)
        assert torch.equal(lagged_output, output)

        expected, sequential = gdn.delta_rule_recurrent(*inputs.along(path)._replace(state=sequential))
        expected_y, sequential_window = gdn.causal_convolution(x[list(path)], weight, sequential_window)
        torch.testing.assert_close(output[..., path, :], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(immediate, sequential, rtol=0, atol=1e-12)
        assert torch.equal(y[list(path)], expected_y)
        assert torch.equal(immediate_window, sequential_window)
    assert torch.equal(gdn.commit_path(lagged, *pending[:2]), immediate)
