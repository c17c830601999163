"""Steps of a whole batch in the readable implementation: float64, against the recurrence and the one-tree functions."""

import pytest
import torch
from step_cases import accepted_paths, new_pool, padded_parents, recurrence, step_inputs
from trees import TREES, binary, chain, comb, preordered, random_tree

from tfm_lab import gdn
from tfm_lab.gdn import step
from tfm_lab.gdn.step_convolution import commit_windows, convolve_trees

RAGGED = [preordered(random_tree(20, seed=1)), chain(1), preordered(comb(9)), preordered(binary(15))]


def wide(pool: step.StatePool) -> step.StatePool:
    return pool._replace(states=pool.states.double())


def test_every_node_of_every_request_and_every_commit():
    """Three steps: lagged commits end where the recurrence along all accepted paths does."""
    layout = step.tree_layout(padded_parents(RAGGED))
    pool = wide(new_pool(4, step_inputs(4, 20, seed=0, heads=(2, 4)), seed=1))
    exact = pool.states.clone()
    pending = None
    for number in range(3):
        inputs = step_inputs(4, 20, seed=number, heads=(2, 4)).to(torch.float64)
        output, stash = step.tree_step(*inputs, layout, pool, pending)
        leaves = [(7 * number + 3) % len(tree) for tree in RAGGED]
        leaves[1] = -1 if number == 1 else 0
        for request, (tree, leaf) in enumerate(zip(RAGGED, leaves, strict=True)):
            slot = int(pool.slots[request])
            outputs, states = recurrence(inputs, request, tree, exact[slot])
            torch.testing.assert_close(output[request, : len(tree)], outputs, rtol=0, atol=1e-12)
            assert not output[request, len(tree) :].any()
            if leaf >= 0:
                exact[slot] = states[:, leaf]
        pending = step.accept_path(stash, accepted_paths(RAGGED, leaves))
    assert not torch.allclose(pool.states, exact)
    step.flush(pool, pending)
    torch.testing.assert_close(pool.states, exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", TREES)
def test_a_layout_says_who_descends_from_whom(name):
    tree = preordered(TREES[name])
    layout = step.tree_layout(tree.parents[None].to(torch.int32))
    mask = tree.ancestors()
    for node in range(len(tree)):
        block, word = node // 16, int(layout.words[0, node])
        path = layout.path[0, block].tolist()
        above = path[: (word >> 16) & 0x3FFF] + [block * 16 + bit for bit in range(16) if word >> bit & 1]
        assert [*above, node] == mask[node].nonzero().flatten().tolist()
        assert word >> 30 == 1
    assert torch.equal(layout.taps[0], gdn.convolution_ancestors(tree.parents, 4).to(torch.int32))
    assert not layout.words[0, len(tree) :].any()


@pytest.mark.parametrize(
    ("parents", "sentence"),
    [
        ([-1, 0, 0, 1], "node 3 has parent 1: nodes must be in depth-first order"),
        ([-1, 0, -2, 1], "node 2 has parent -2"),
        ([0, 0], "node 0 has parent 0"),
        ([-1, -1], "node 1 has parent -1"),
        ([-2, -2], "node 0 has parent -2"),
    ],
)
def test_other_orders_are_refused(parents, sentence):
    with pytest.raises(ValueError, match=sentence):
        step.tree_layout(torch.tensor([parents], dtype=torch.int32))


def test_a_broken_promise_of_depth_is_refused():
    parents = chain(34).parents[None].to(torch.int32)
    with pytest.raises(ValueError, match="node 32 lies at depth 32, deeper than max_depth promised"):
        step.tree_layout(parents, max_depth=15)
    assert step.tree_layout(parents, max_depth=33).path.shape == (1, 3, 48)


def test_windows_and_convolutions_are_those_of_one_tree():
    generator = torch.Generator().manual_seed(2)
    layout = step.tree_layout(padded_parents(RAGGED))
    x, weight = torch.randn(2, 4, 20, 6, generator=generator), torch.randn(6, 4, generator=generator)
    windows, slots = torch.randn(2, 5, 3, 6, generator=generator), torch.tensor([4, 0, 2, 1], dtype=torch.int32)
    before = windows.clone()
    y = convolve_trees(x[0], weight, windows[0], slots, layout, silu=False)
    leaves = [5, -1, 9, 0]
    commit_windows(x, windows, slots, accepted_paths(RAGGED, leaves))
    for request, (tree, leaf) in enumerate(zip(RAGGED, leaves, strict=True)):
        slot, own = int(slots[request]), slice(0, len(tree))
        taps = gdn.convolution_ancestors(tree.parents, 4)
        assert torch.equal(y[request, own], gdn.tree_convolution(x[0, request, own], weight, before[0, slot], taps))
        expected = before[:, slot] if leaf < 0 else gdn.commit_window(before[:, slot], x[:, request], tree.path(leaf))
        assert torch.equal(windows[:, slot], expected)
    assert torch.equal(windows[:, 3], before[:, 3])


def test_unknown_implementations_are_refused():
    with pytest.raises(ValueError, match="impl must be one of reference, triton, got 'cuda'"):
        step.is_triton("cuda")
