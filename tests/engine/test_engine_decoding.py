"""The engine on a CPU writes the text of the readable path, token for token, and grows its trees, node for node."""

from typing import Any

import pytest
import torch
from models.small import drafter_for, tiny_target, weaver_for

from tfm_lab.bench.model_weights import fill_context, random_models, toy_shapes
from tfm_lab.bundle import Bundle, load_bundle
from tfm_lab.decoding import DecodeConfig, DecodeSession, autoregressive_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.engine import Engine, EngineConfig, EngineModels, capture
from tfm_lab.evaluation import load_contexts
from tfm_lab.methods import make_speculator
from tfm_lab.tree import DraftTree

BUDGETS = {"ar": 0, "chain": 16, "ddtree": 31, "tfm": 31}
GREEDY = SamplingConfig(temperature=0.0)


@pytest.fixture(scope="module")
def hybrid() -> Bundle:
    return load_bundle()


@pytest.fixture(scope="module")
def prompt(hybrid: Bundle) -> list[int]:
    return hybrid.encode(load_contexts(limit=1)[0].prompt)


def engine_for(hybrid: Bundle, method: str, **changes: object) -> Engine:
    settings = {"tree": TreeConfig(budget=BUDGETS[method]), "capacity": 256} | changes
    models = EngineModels(hybrid.target, hybrid.drafter, hybrid.weaver)
    return Engine(models, EngineConfig(method, **settings))  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def wanted(hybrid: Bundle, prompt: list[int]) -> tuple[int, ...]:
    return autoregressive_decode(hybrid.target, prompt, DecodeConfig(24)).tokens


@pytest.mark.parametrize("method", BUDGETS)
def test_the_text_is_that_of_plain_decoding(
    hybrid: Bundle, prompt: list[int], wanted: tuple[int, ...], method: str
) -> None:
    engine = engine_for(hybrid, method)
    engine.start([prompt])
    assert engine.decode(24) == [list(wanted)]
    assert int(engine.steps) == 23 if method == "ar" else int(engine.steps) < 20


def test_sampled_text_is_that_of_plain_sampling(hybrid: Bundle, prompt: list[int]) -> None:
    sampling = SamplingConfig(temperature=0.8)
    engine = engine_for(hybrid, "ddtree", sampling=sampling, seed=3)
    engine.start([prompt])
    sampled = autoregressive_decode(hybrid.target, prompt, DecodeConfig(12, sampling=sampling, seed=3)).tokens
    assert engine.decode(12) == [list(sampled)]


@pytest.mark.parametrize("method", ["chain", "ddtree", "tfm"])
def test_trees_are_those_of_the_readable_builders(hybrid: Bundle, prompt: list[int], method: str) -> None:
    engine, config = engine_for(hybrid, method), DecodeConfig(64, tree=TreeConfig(budget=BUDGETS[method]))
    speculator = make_speculator(method, hybrid.drafter, hybrid.weaver, GREEDY)
    session = DecodeSession(hybrid.target, speculator, prompt, config)
    engine.start([prompt])
    for _ in range(2):
        engine.step()
        grown, step = engine.grown, session.step()
        assert grown is not None
        if method == "ddtree":  # the same nodes; the engine lists them level by level
            assert paths(grown.tokens[0].tolist(), grown.parents[0].tolist()) == paths_of(step.tree)
        else:
            assert grown.tokens[0].tolist() == step.tree.tokens.tolist()
            assert grown.parents[0].tolist() == step.tree.parents.tolist()
        assert engine.tree is not None
        assert paths(engine.tree.tokens[0].tolist(), engine.tree.parents[0].tolist()) == paths_of(step.tree)


def test_texts_side_by_side_are_those_of_each_alone(hybrid: Bundle) -> None:
    prompts = [hybrid.encode(context.prompt) for context in load_contexts(limit=2)]
    assert len(prompts[0]) != len(prompts[1])
    together = engine_for(hybrid, "tfm", batch=2)
    together.start(prompts)
    texts = together.decode(5)
    for text, prompt in zip(texts, prompts, strict=True):
        assert text == list(autoregressive_decode(hybrid.target, prompt, DecodeConfig(5)).tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "products"},
        {"attention": "split 4"},
        {"attention": "tree"},
        {"folds": True},
        {"weaving": "triton"},
        {"weaving": "triton", "folds": True},
    ],
)
def test_other_ways_to_compute_give_the_same_step(changes: dict[str, Any]) -> None:
    models, tree = random_models(toy_shapes(), torch.float32, "cpu"), TreeConfig(budget=7, children=4, pool_size=32)
    changes |= {"draft_attention": changes["attention"]} if "attention" in changes else {}
    engines = [Engine(models, EngineConfig("tfm", tree, 2, 1024, **chosen)) for chosen in ({}, changes)]
    for engine in engines:
        fill_context(engine, 300)
        engine.schedule.fill_(2)
        engine.step()
        engine.step()
    torch.testing.assert_close(engines[1].hidden, engines[0].hidden, rtol=1e-4, atol=1e-4)
    assert torch.equal(engines[1].text, engines[0].text)
    assert engines[0].grown is not None
    assert engines[1].grown is not None
    assert torch.equal(engines[1].grown.parents, engines[0].grown.parents)
    assert torch.equal(engines[1].grown.tokens, engines[0].grown.tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("form", [{"positions": "rotary", "mlp": "swiglu"}, {"sees_temperature": True}], ids=str)
def test_a_llama_with_another_weaver_decodes_alike(form: dict[str, Any], temperature: float) -> None:
    target, sampling = tiny_target("llama-grouped"), SamplingConfig(temperature)
    drafter = drafter_for(target)
    weaver = weaver_for(target, layers=2, **form)
    tree = TreeConfig(budget=9, children=4, width=2, pool_size=20)
    config = EngineConfig("tfm", tree, capacity=128, sampling=sampling)
    engine = Engine(EngineModels(target, drafter, weaver), config)
    engine.start([[5, 3, 9, 2]])
    speculator = make_speculator("tfm", drafter, weaver, sampling)
    session = DecodeSession(target, speculator, [5, 3, 9, 2], DecodeConfig(64, sampling, tree))
    for _ in range(3):
        engine.step()
        tree_of_step = session.step().tree
        assert engine.grown is not None
        assert engine.grown.tokens[0].tolist() == tree_of_step.tokens.tolist()
        assert engine.grown.parents[0].tolist() == tree_of_step.parents.tolist()
    assert tuple(engine.tokens()) == session.trace().tokens


def test_weights_are_held_once(hybrid: Bundle) -> None:
    engine = engine_for(hybrid, "tfm")
    layer = engine.rows.layers[0].linear_attn
    assert engine.rows.inputs[0].data_ptr() == layer.in_proj_qkv.weight.data_ptr()
    assert engine_for(hybrid, "ar").rows.inputs[0].data_ptr() == engine.rows.inputs[0].data_ptr()
    assert hybrid.target.fingerprint() == load_bundle().target.fingerprint()


def test_what_it_cannot_do_is_refused_with_a_sentence(hybrid: Bundle, prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="no method 'dyspec'; use one of ar, chain, ddtree, tfm"):
        EngineConfig("dyspec", TreeConfig())
    with pytest.raises(ValueError, match="samples by temperature alone"):
        EngineConfig("ar", TreeConfig(), sampling=SamplingConfig(top_k=5))
    with pytest.raises(ValueError, match="a round of 8 nodes needs at least as many children"):
        EngineConfig("tfm", TreeConfig(budget=64, children=4, width=8))
    with pytest.raises(ValueError, match="needs a Weaver"):
        Engine(EngineModels(hybrid.target, hybrid.drafter), EngineConfig("tfm", TreeConfig()))
    with pytest.raises(ValueError, match="there is no attention 'split 4' for this cache"):
        engine_for(hybrid, "ar", attention="split 4")
    engine = engine_for(hybrid, "ar")
    with pytest.raises(ValueError, match="decodes 1 texts, got 2 prompts"):
        engine.start([prompt, prompt])
    with pytest.raises(ValueError, match="leaves no room in a cache of 256: raise the capacity"):
        engine.start([prompt * 20])
    with pytest.raises(ValueError, match="recorded on a CUDA GPU alone"):
        capture(engine)


def test_a_text_ends_with_the_context_of_the_model(hybrid: Bundle) -> None:
    most = hybrid.target.config.max_positions
    text = (hybrid.encode("one two three ") * most)[: most - 2]
    engine = engine_for(hybrid, "ar", capacity=2 * most)
    engine.start([text])
    assert engine.decode(2) == [list(autoregressive_decode(hybrid.target, text, DecodeConfig(8)).tokens)]
    with pytest.raises(ValueError, match=f"outgrown a context of {most} tokens: shorten the text"):
        engine.decode(4)
    with pytest.raises(ValueError, match=f"leaves no room in a context of {most} tokens"):
        engine.start([[*text, 1, 1]])


def paths(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    return paths_of(DraftTree.from_parents(tokens, parents))


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tree.path_tokens(node) for node in range(len(tree))}
