"""Notebook 08: solutions by hand against the package, cases, counted bytes, and the two writes that can be swapped."""

from xml.etree import ElementTree

import pytest
import torch
from gdn_cases import Inputs, oracle
from models.small import tiny_target

from tfm_lab import gdn
from tfm_lab.lessons.memory_by_hand import commit, solve, system, update
from tfm_lab.lessons.memory_cases import forgetful, memory_tree, random_parents, solve_arguments, trees
from tfm_lab.lessons.state_bytes import layer_bytes
from tfm_lab.lessons.two_writes import ORDERS, TwoWritesExplorer, TwoWritesState, two_writes_picture, two_writes_svg
from tfm_lab.lessons.walks import accepted_picture
from tfm_lab.models.config import DeltaNetConfig
from tfm_lab.models.state import DeltaNetState, DeltaNetWrites
from tfm_lab.tree import DraftTree

CASES = [
    *trees(),
    forgetful(),
    *(memory_tree(random_parents(24, seed), seed, name=f"random {seed}") for seed in (1, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_tree_by_hand_is_the_packages(case):
    output, writes = gdn.tree_verify(*case.inputs(), case.tree.ancestors())
    own, found = solve(*solve_arguments(case))
    torch.testing.assert_close(own, writes.update[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found, output[0], rtol=0, atol=1e-12)
    for node in range(len(case.tree)):
        path = case.tree.path(node)
        wanted = gdn.commit_path(case.state[None], writes, path)[0]
        torch.testing.assert_close(commit(case.state, case.key, own, case.log_decay, path), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_update_by_hand_makes_the_packages_step(case):
    alpha, beta = float(case.log_decay[0].exp()), float(case.beta[0])
    written = alpha * case.state + torch.outer(case.key[0], update(case.state, case.key[0], case.value[0], alpha, beta))
    torch.testing.assert_close(written, case.along(0)[1], rtol=0, atol=1e-12)


def test_a_case_knows_what_each_path_alone_gives():
    case = memory_tree((-1, 0, 0, 1), 5)
    outputs, states = oracle(Inputs(*case.inputs()), case.tree)
    for node in range(4):
        output, state = case.along(node)
        torch.testing.assert_close(output, outputs[0, node], rtol=0, atol=1e-12)
        torch.testing.assert_close(state, states[0, node], rtol=0, atol=1e-12)
    assert case.inputs(dtype=torch.float32)[0].dtype == torch.float32
    assert bool((case.log_decay <= 0).all() & (case.beta > 0).all() & (case.beta <= 1).all())


def test_random_parents_come_first_and_differ_by_seed():
    assert random_parents(1, 0) == [-1]
    assert all(parent < node for node, parent in enumerate(random_parents(50, 3)))
    assert random_parents(50, 3) == random_parents(50, 3) != random_parents(50, 4)


def test_the_sibling_that_forgets_everything_is_a_hazard():
    case = forgetful()
    assert case.log_decay.exp()[1] == 0.0
    assert (-case.log_decay).exp().isinf().any()
    X, Y = system(case.query, case.key, case.log_decay, case.beta, case.tree.ancestors())
    assert bool(X.isfinite().all() & Y.isfinite().all())


def test_bytes_are_those_of_the_tensors_that_a_target_keeps():
    target = tiny_target("hybrid-grouped", torch.float32)
    config = target.config.delta_net
    assert config is not None
    state = target.prefill([1, 2, 3, 4]).state
    pending = target.verify_tree(state, DraftTree.from_parents([5, 1, 2, 3], [-1, 0, 0, 1])).pending
    counted = layer_bytes(config, memory_bytes=4, model_bytes=4)
    seen = 0
    for layer, writes in zip(state.layers, pending.layers, strict=True):
        if isinstance(layer, DeltaNetState) and isinstance(writes, DeltaNetWrites):
            seen += 1
            assert (layer.matrix.nbytes, layer.window.nbytes) == (counted.matrix, counted.window)
            kept = (writes.tree.key, writes.tree.update, writes.tree.log_decay, writes.convolution_inputs)
            assert sum(tensor.nbytes for tensor in kept) == 4 * counted.node
    assert seen > 0


def test_the_shape_of_a_large_hybrid_by_hand():
    large = layer_bytes(DeltaNetConfig(key_heads=16, value_heads=48, key_dim=128, value_dim=128, convolution_width=4))
    assert large.matrix == 3 * 2**20
    assert large.window == 3 * 10240 * 2
    assert large.node == 4 * (16 * 128 + 48 * 128 + 48) + 2 * 10240
    assert large.state == large.matrix + large.window


def test_writes_commute_when_keys_are_orthogonal_or_nothing_is_written():
    state = TwoWritesState()
    assert state.difference() > 0.1
    answers = state.answers()
    assert not torch.allclose(answers["A then B"], answers["A alone"])
    assert "leave memories that differ by up to 0.32" in state.describe()
    state.angle = 90.0
    assert state.difference() <= 1e-15
    assert torch.equal(state.answers()["A then B"], state.answers()["A alone"])
    assert "makes no difference" in state.describe()
    state.angle, state.beta = 30.0, 0.0
    assert state.difference() == 0.0


def test_the_last_write_under_a_key_wins_with_full_strength():
    state = TwoWritesState(beta=1.0)
    for angle in (0.0, 60.0, 150.0):
        state.angle = angle
        torch.testing.assert_close(state.answers()["B then A"], torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_sliders_and_order_move_the_picture():
    state = TwoWritesState()
    explorer = TwoWritesExplorer(state)
    before = explorer._picture.value
    explorer._order.value = "B then A"
    assert state.order == "B then A"
    assert explorer._picture.value != before
    explorer._angle.value = 90.0
    explorer._beta.value = 0.5
    assert (state.angle, state.beta) == (90.0, 0.5)
    assert "makes no difference" in explorer._words.value
    state.angle = 45.0
    assert explorer._angle.value == 45.0
    data, _ = explorer._repr_mimebundle_()
    assert data["image/svg+xml"] == two_writes_svg(state)
    assert data["text/plain"] == state.describe()
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("standalone", [True, False])
def test_the_two_writes_svg_shows_the_order_and_all_answers(order, standalone):
    state = TwoWritesState(order=order, angle=120.0)
    text = two_writes_svg(state, standalone=standalone)
    root = ElementTree.fromstring(text)
    assert root.findtext("{http://www.w3.org/2000/svg}desc") == state.describe()
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert f"▶ {order}" in shown
    assert sum(str(word).startswith("after ") for word in shown) == len(ORDERS[order])
    assert two_writes_picture(state).svg == two_writes_svg(state)
    assert ("#1f2328" in text) is standalone


def test_an_accepted_path_is_drawn_with_its_bonus_token():
    tree = DraftTree.from_parents([0, 1, 2, 3], [-1, 0, 0, 1])
    picture = accepted_picture(tree, ("The", "cat", "dog", "sat"), (0, 1, 3), "down")
    assert "2 on one path are accepted, 1 are not used" in picture.description
    assert "the target adds the bonus token 'down'" in picture.description
    assert picture.svg.count("accepted, q") == 2
