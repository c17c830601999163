"""The engine through the fused kernels (interpreted where there is no GPU), and through a kernel that keeps states."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.bench.model_peers import RecurrentMemories
from tfm_lab.bench.model_weights import fill_context, random_models, toy_shapes
from tfm_lab.drafting import TreeConfig
from tfm_lab.engine import Engine, EngineConfig
from tfm_lab.engine.engine import MemoryBuilder
from tfm_lab.models.config import FULL_ATTENTION, LINEAR_ATTENTION
from tfm_lab.planning.shapes import Shapes

SHAPES = toy_shapes()
TWO_LAYERS = Shapes(
    replace(SHAPES.target, layer_types=(LINEAR_ATTENTION, FULL_ATTENTION)),
    replace(SHAPES.drafter, target_layers=2, tap_layers=(0, 1)),
    SHAPES.weaver,
)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def decoded(method: str, budget: int, implementation: str, builder: MemoryBuilder | None = None) -> Engine:
    """Two steps of two texts, two drafts accepted in each."""
    models = random_models(TWO_LAYERS, torch.float32, DEVICE)
    tree = TreeConfig(budget=budget, children=2, pool_size=8, max_depth=4)
    engine = Engine(models, EngineConfig(method, tree, batch=2, capacity=80, gdn=implementation), builder)
    fill_context(engine, 20)
    engine.schedule.fill_(2)
    engine.step()
    engine.step()
    return engine


def assert_same(engine: Engine, reference: Engine) -> None:
    assert torch.equal(engine.length, reference.length)
    assert torch.equal(engine.text, reference.text)
    torch.testing.assert_close(engine.hidden, reference.hidden, rtol=1e-3, atol=1e-3)
    assert engine.rows.memories is not None
    assert reference.rows.memories is not None
    torch.testing.assert_close(engine.rows.memories.windows, reference.rows.memories.windows, rtol=1e-4, atol=1e-4)


def test_the_fused_kernels_give_the_same_steps_as_the_masked_form():
    fused, masked = decoded("tfm", 5, "triton"), decoded("tfm", 5, "masked")
    assert_same(fused, masked)
    assert fused.rows.memories is not None
    assert masked.rows.memories is not None
    torch.testing.assert_close(fused.rows.memories.states, masked.rows.memories.states, rtol=1e-4, atol=1e-4)


def test_plain_decoding_through_the_kernels_is_plain_decoding():
    kernels, plain = decoded("ar", 0, "triton"), decoded("ar", 0, "plain")
    assert_same(kernels, plain)


def test_a_state_per_node_gives_the_same_steps():
    reference = decoded("tfm", 5, "masked")
    layout = SHAPES.target.delta_net
    assert layout is not None

    def build(layers: int, batch: int, nodes: int, rows: int) -> RecurrentMemories:
        device = torch.device(DEVICE)
        return RecurrentMemories(layout, layers, batch, nodes, torch.float32, device, node_by_node)

    assert_same(decoded("tfm", 5, "masked", build), reference)


def node_by_node(
    *, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor,
    initial_state_source: Tensor, intermediate_states_buffer: Tensor, retrieve_parent_token: Tensor, **_: Any,
) -> Tensor:  # fmt: skip
    """What a recurrent kernel does: every node from its parent's state, and every state kept."""
    query, key = gdn.normalised_query_and_key(q.transpose(1, 2), k.transpose(1, 2))
    log_decay, beta = gdn.gates(a.mT, b.mT, A_log, dt_bias)
    value, output = v.transpose(1, 2), torch.zeros_like(v)
    for request, parents in enumerate(retrieve_parent_token.tolist()):
        for node, parent in enumerate(parents):
            before = initial_state_source[request] if parent < 0 else intermediate_states_buffer[request, parent]
            one = (request, slice(None), slice(node, node + 1))
            rows = query[one], key[one], value[one], log_decay[one], beta[one]
            read, state = gdn.delta_rule_recurrent(*rows, before.mT)
            output[request, node] = read[:, 0]
            intermediate_states_buffer[request, node] = state.mT
    return output
