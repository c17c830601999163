"""SGLang's argument layout: arrays of children, any order of nodes, states of all nodes; and SGLang's own kernel."""

from itertools import pairwise

import pytest
import torch
from gdn_cases import error_ratio
from step_cases import StepInputs, new_pool, recurrence, step_inputs
from torch import Tensor
from trees import TREES, comb, preordered, random_tree, shuffled

from tfm_lab.bench.kernel_peers import installed_peers, sglang_update
from tfm_lab.gdn import step
from tfm_lab.gdn.sglang_layout import (
    LikeSGLang,
    accept_nodes,
    ancestors_of,
    depth_first_ranks,
    parents_of,
    verify_like_sglang,
)
from tfm_lab.tree import DraftTree

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAIR = [shuffled(random_tree(21, seed=1), seed=2), shuffled(comb(9, 21), seed=3)]


def parents_tensor(trees: list[DraftTree]) -> Tensor:
    return torch.stack([tree.parents for tree in trees])


def child_arrays(tree: DraftTree) -> tuple[Tensor, Tensor]:
    """First child and next sibling of every node."""
    first, following = torch.full((2, 1, len(tree)), -1)
    for node, children in enumerate(tree.children()):
        first[0, node] = children[0] if children else -1
        for child, sibling in pairwise(children):
            following[0, child] = sibling
    return first, following


def verify(trees: list[DraftTree], inputs: StepInputs, pool: step.StatePool, **options: object) -> LikeSGLang:
    own = inputs.to(DEVICE)
    return verify_like_sglang(
        own.A_log, own.a, own.dt_bias, 1.0, 20.0, own.query, own.key, own.value, own.b, pool.states, pool.slots,
        retrieve_parent_token=parents_tensor(trees).to(DEVICE), **options,
    )  # fmt: skip # pyright: ignore


@pytest.mark.parametrize("name", TREES)
def test_parents_and_depth_first_order_of_any_tree(name: str) -> None:
    tree = TREES[name]
    assert parents_of(*child_arrays(tree))[0].tolist() == tree.parents.tolist()
    ranks = depth_first_ranks(tree.parents[None])[0].tolist()
    assert sorted(range(len(tree)), key=ranks.__getitem__) == list(tree.preorder())
    assert torch.equal(ancestors_of(tree.parents[None])[0], tree.ancestors())


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize("packed", [False, True])
def test_outputs_and_states_of_all_nodes_are_those_of_the_recurrence(impl: str, packed: bool) -> None:
    inputs = step_inputs(2, 21, seed=5, heads=(1, 2))
    pool = new_pool(2, inputs, seed=6)
    held = step.StatePool(pool.states.to(DEVICE, copy=True), pool.slots.to(DEVICE))
    cache, places = torch.full((4, 22, 2, 32, 32), torch.nan, device=DEVICE), torch.tensor([3, 1], device=DEVICE)
    given = StepInputs(
        *(x.flatten(0, 1)[None] for x in inputs[:3]), *(x.flatten(0, 1) for x in inputs[3:5]), *inputs[5:]
    )
    verified = verify(
        PAIR, given if packed else inputs, held, impl=impl,
        intermediate_states_buffer=cache, intermediate_state_indices=places,
    )  # fmt: skip
    output = verified.output.reshape(2, 21, 2, 32)
    assert packed == (verified.output.shape[0] == 1)
    for request, tree in enumerate(PAIR):
        wanted, states = recurrence(inputs, request, tree, pool.states[int(pool.slots[request])])
        assert error_ratio(wanted, output[request].cpu()) < 2e-6
        assert error_ratio(states.transpose(0, 1), cache[int(places[request]), :21].cpu()) < 2e-6
    assert torch.equal(held.states.cpu(), pool.states)
    assert bool(cache[[0, 2]].isnan().all() & cache[:, 21].isnan().all()), "other slots and steps are left alone"


def test_an_accepted_path_is_folded_in_by_the_next_verification() -> None:
    inputs, after = step_inputs(2, 21, seed=7, heads=(1, 2)), step_inputs(2, 21, seed=8, heads=(1, 2))
    after = StepInputs(*after[:5], *inputs[5:])
    pool = new_pool(2, inputs, seed=9)
    held = step.StatePool(pool.states.to(DEVICE, copy=True), pool.slots.to(DEVICE))
    nodes = [17, 20]
    paths = [tree.path(node) for tree, node in zip(PAIR, nodes, strict=True)]
    longest = max(map(len, paths))
    accepted = torch.tensor([[*path, *[-1] * (longest - len(path))] for path in paths], device=DEVICE)
    pending = accept_nodes(verify(PAIR, inputs, held, impl="reference"), accepted, impl="reference")
    output = verify(PAIR, after, held, pending=pending, impl="reference").output
    for request, (tree, node) in enumerate(zip(PAIR, nodes, strict=True)):
        slot = int(pool.slots[request])
        _, states = recurrence(inputs, request, tree, pool.states[slot])
        assert error_ratio(states[:, node], held.states[slot].cpu()) < 2e-6
        wanted, _ = recurrence(after, request, tree, states[:, node])
        assert error_ratio(wanted, output[request].cpu()) < 2e-6


def test_without_parents_the_nodes_are_a_chain() -> None:
    inputs = step_inputs(1, 5, seed=1)
    pool = new_pool(1, inputs, seed=1)
    chain = verify([shuffled(preordered(TREES["chain-17"]).first_nodes(4), seed=0)], inputs, pool, impl="reference")
    bare = verify_like_sglang(
        inputs.A_log, inputs.a, inputs.dt_bias, 1.0, 20.0, inputs.query, inputs.key, inputs.value, inputs.b,
        pool.states, pool.slots, impl="reference",
    )  # fmt: skip
    assert torch.equal(bare.output, chain.output)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scale": 1.0}, r"scale queries by key_dim \*\* -0.5, so leave scale out; got 1.0"),
        ({"use_qk_l2norm_in_kernel": False}, "use_qk_l2norm_in_kernel=False"),
        ({"intermediate_states_buffer": torch.zeros(1, 21, 1, 32, 32)}, "give both or none"),
    ],
)
def test_options_that_the_kernels_lack_are_refused(options: dict[str, object], sentence: str) -> None:
    inputs = step_inputs(2, 21, seed=1)
    with pytest.raises(ValueError, match=sentence):
        verify(PAIR, inputs, new_pool(2, inputs, seed=1), impl="reference", **options)


@pytest.mark.skipif("sglang" not in installed_peers(), reason="SGLang is not installed (pip install --no-deps sglang)")
def test_sglangs_own_kernel_gives_the_same_on_the_same_arguments() -> None:
    inputs = step_inputs(2, 21, seed=11, heads=(1, 2))
    pool = new_pool(2, inputs, seed=12)
    own, held = inputs.to(DEVICE), step.StatePool(pool.states.to(DEVICE), pool.slots.to(DEVICE))
    cache, cached = torch.zeros(2, 2, 21, 2, 32, 32, device=DEVICE)
    places = torch.tensor([1, 0], dtype=torch.int32, device=DEVICE)
    arguments = {
        "A_log": own.A_log, "a": own.a, "dt_bias": own.dt_bias, "softplus_beta": 1.0, "softplus_threshold": 20.0,
        "q": own.query, "k": own.key, "v": own.value, "b": own.b, "initial_state_source": held.states,
        "initial_state_indices": held.slots, "use_qk_l2norm_in_kernel": True, "intermediate_state_indices": places,
        "retrieve_parent_token": parents_tensor(PAIR).to(DEVICE, torch.int32),
    }  # fmt: skip
    theirs = sglang_update(32)(**arguments, intermediate_states_buffer=cache, disable_state_update=True, cache_steps=21)
    ours = verify_like_sglang(**arguments, intermediate_states_buffer=cached, max_depth=15)
    assert error_ratio(theirs.double().cpu(), ours.output.cpu()) < 2e-6
    assert error_ratio(cache.double().cpu(), cached.cpu()) < 2e-6
