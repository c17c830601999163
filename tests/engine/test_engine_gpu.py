"""The engine on a GPU: a recorded step repeats the eager one, a thousand times, and writes the text of the CPU.

Functions whose shapes are checked at every call cannot be compiled: --noconftest, which checks nothing, runs all tests.
"""

import sys

import pytest
import torch

from tfm_lab.bench.kernel_peers import installed_peers
from tfm_lab.bench.model_clock import GraphClock
from tfm_lab.bench.model_peers import recurrent_builder
from tfm_lab.bench.model_steps import Configuration, Settings, choose_attention, measure_step
from tfm_lab.bench.model_weights import fill_context, random_models, toy_shapes
from tfm_lab.bundle import load_bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode
from tfm_lab.drafting import TreeConfig
from tfm_lab.engine import ENGINE_METHODS, Engine, EngineConfig, EngineModels, capture
from tfm_lab.evaluation import load_contexts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # torch.compile advises TF32, and a warning that raises would stop it
]

unchecked_alone = pytest.mark.skipif("runtime_types" in sys.modules, reason="compiles: run it with --noconftest")


def toy_engine(
    method: str, *, compiles: bool = False, implementation: str = "triton", weaving: str = "triton", capacity: int = 512
) -> Engine:
    models = random_models(toy_shapes(), torch.float32, "cuda")
    tree = TreeConfig(budget=15, children=4, pool_size=32)
    settings = {"batch": 2, "capacity": capacity, "gdn": implementation, "compiles": compiles, "weaving": weaving}
    engine = Engine(models, EngineConfig(method, tree, **settings))  # pyright: ignore[reportArgumentType]
    fill_context(engine, 40)
    return engine


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=unchecked_alone)], ids=["plain", "compiled"])
@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_a_recorded_step_repeats_the_eager_one(method: str, compiles: bool) -> None:
    eager, recorded = toy_engine(method), toy_engine(method, compiles=compiles)
    for engine in (eager, recorded):
        engine.schedule.fill_(3)
    replay = capture(recorded)
    for _ in range(10):
        eager.step()
        replay()
    assert recorded.fusing.failures == {}
    assert torch.equal(recorded.length, eager.length)
    if not compiles:
        assert torch.equal(recorded.text, eager.text)
    torch.testing.assert_close(recorded.hidden, eager.hidden, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("method", ["chain", "tfm"])
def test_a_thousand_replays_are_a_thousand_eager_steps(method: str) -> None:
    eager, recorded = (toy_engine(method, capacity=2048) for _ in range(2))
    for engine in (eager, recorded):
        engine.schedule.fill_(0)
    replay = capture(recorded)
    for _ in range(1000):
        replay()
    for _ in range(1000):
        eager.step()
    assert recorded.length.tolist() == eager.length.tolist() == [1040, 1040]
    assert torch.equal(recorded.text[:, :1041], eager.text[:, :1041])
    assert bool(recorded.hidden.isfinite().all())


@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_greedy_text_of_the_shipped_bundle_is_that_of_the_cpu(method: str) -> None:
    on_cpu, on_gpu = load_bundle(), load_bundle(device="cuda")
    prompt = on_cpu.encode(load_contexts(limit=1)[0].prompt)
    models = EngineModels(on_gpu.target, on_gpu.drafter, on_gpu.weaver)
    engine = Engine(models, EngineConfig(method, TreeConfig(budget=31), capacity=256, gdn="triton", weaving="triton"))
    engine.start([prompt])
    wanted = autoregressive_decode(on_cpu.target, prompt, DecodeConfig(24)).tokens
    assert engine.decode(24, capture(engine)) == [list(wanted)]


def test_the_kernels_of_a_round_grow_the_trees_of_pytorch() -> None:
    engines = [toy_engine("tfm", weaving=weaving) for weaving in ("torch", "triton")]
    for engine in engines:
        engine.schedule.fill_(3)
        for _ in range(20):
            engine.step()
    assert engines[0].grown is not None
    assert engines[1].grown is not None
    assert torch.equal(engines[0].grown.parents, engines[1].grown.parents)
    assert torch.equal(engines[0].grown.tokens, engines[1].grown.tokens)
    assert torch.equal(engines[0].text, engines[1].text)


def test_a_state_per_node_gives_the_same_steps() -> None:
    if "sglang" not in installed_peers():
        pytest.skip("needs SGLang: pip install --no-deps sglang==0.5.23")
    models = random_models(toy_shapes(), torch.float32, "cuda")
    layout = models.target.config.delta_net
    assert layout is not None
    builder = recurrent_builder(layout, torch.float32, torch.device("cuda"))
    config = EngineConfig("tfm", TreeConfig(budget=15, children=4, pool_size=32), capacity=512, gdn="masked")
    engines = [Engine(models, config, chosen) for chosen in (builder, None)]
    for engine in engines:
        fill_context(engine, 40)
        engine.schedule.fill_(3)
        for _ in range(3):
            engine.step()
    assert torch.equal(engines[0].text, engines[1].text)
    torch.testing.assert_close(engines[0].hidden, engines[1].hidden, rtol=1e-2, atol=1e-2)


def test_attention_is_chosen_among_those_that_are_right() -> None:
    like = torch.zeros(1, device="cuda", dtype=torch.bfloat16)
    assert choose_attention(GraphClock(), like, 1, 64, 8192, 24, 4, 256)


@unchecked_alone
@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_a_configuration_is_measured_stage_by_stage(method: str) -> None:
    shapes = toy_shapes()
    models = random_models(shapes, torch.bfloat16, "cuda")
    configuration = Configuration(method, 0 if method == "ar" else 15, 2, 100, "triton")
    record = measure_step(models, shapes, configuration, Settings(2, compiles=True, weaving="triton"), GraphClock())
    assert "refusal" not in record
    assert record["not_fused"] == {}
    assert record["peak_bytes"] > 0
