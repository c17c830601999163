"""Replaying a text gives the steps of the decode that wrote it."""

import pytest
import torch
from models.oracle import random_tokens
from models.small import autoregressive_for, drafter_for, tiny_target, weaver_for

from tfm_lab.bundle import load_bundle
from tfm_lab.decoding import DecodeConfig, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.drafting.batched import TreeBatch
from tfm_lab.evaluation import load_contexts
from tfm_lab.methods import make_speculator
from tfm_lab.noise import noise_key
from tfm_lab.replay import REPLAYED, DraftModels, ReplayedStep, Text, _walk_texts, replay
from tfm_lab.trace import DecodeTrace, StopReason

TREE = TreeConfig(budget=12, max_depth=7, children=4, width=3, pool_size=20)


def models_for(name: str, *, sees_temperature: bool = False) -> DraftModels:
    target = tiny_target(name)
    weaver = weaver_for(target, sees_temperature=sees_temperature)
    return DraftModels(target, drafter_for(target), weaver, autoregressive_for(target))


def decode(models: DraftModels, method: str, prompt: list[int], config: DecodeConfig) -> DecodeTrace:
    speculator = make_speculator(
        method, models.drafter, models.weaver, config.sampling, autoregressive=models.autoregressive
    )
    return speculative_decode(models.target, speculator, prompt, config)


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-plain"])
@pytest.mark.parametrize("method", REPLAYED)
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(0.0),
        pytest.param(SamplingConfig(1.0), marks=pytest.mark.unchecked),
        pytest.param(SamplingConfig(0.7, shared_noise=True), marks=pytest.mark.unchecked),
    ],
    ids=str,
)
def test_the_steps_are_those_of_the_decode(name: str, method: str, sampling: SamplingConfig) -> None:
    models = models_for(name, sees_temperature=True)
    told = models.at_temperature(sampling.temperature)
    foreseen = sampling.temperature if sampling.shared_noise else None
    plain = DecodeConfig(24, sampling, TREE, seed=1)
    stops = decode(models, method, random_tokens(9, seed=1), plain).tokens[10:11]
    traces = [
        decode(models, method, random_tokens(length, seed), DecodeConfig(limit, sampling, TREE, stops, seed))
        for seed, (length, limit) in enumerate([(14, 20), (9, 24), (1, 13), (30, 1), (5, 2), (7, 0)])
    ]
    assert StopReason.STOP_TOKEN in {trace.stop for trace in traces}
    texts = [Text((*t.prompt, *t.tokens), len(t.prompt), t.max_new_tokens, noise_key(t.seed, t.prompt)) for t in traces]
    for batch in (1, 4, 64):
        replayed = replay(told, texts, method, TREE, batch, foreseen_temperature=foreseen)
        for trace, steps in zip(traces, replayed, strict=True):
            assert [step.committed for step in steps] == [len(step.committed) for step in trace.steps]
            for step, decoded in zip(steps, trace.steps, strict=True):
                if len(decoded.committed) == decoded.accepted + 1:  # not clipped at a stop token
                    assert step.accepted == decoded.accepted
                    assert step.could_go_on == bool((decoded.tree.parents == decoded.acceptance.path[-1]).any())


@pytest.mark.slow
@pytest.mark.unchecked
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_trained_drafter_is_replayed_step_by_step_too(temperature: float) -> None:
    """The shipped bundle, whose drafts are often accepted; in float64, so that no near tie decides differently.

    A chat whose drafts fail at times, and a word problem whose drafts are accepted at length.
    """
    bundle = load_bundle(dtype=torch.float64)
    models = DraftModels(bundle.target, bundle.drafter, bundle.weaver)
    config, sampling = TreeConfig(budget=32), SamplingConfig(temperature)
    for method in ("chain", "ddtree", "tfm"):
        traces = [
            decode(models, method, bundle.encode(context.prompt), DecodeConfig(32, sampling, config, seed=5))
            for context in load_contexts(limit=4)[::3]
        ]
        texts = [Text((*t.prompt, *t.tokens), len(t.prompt), t.max_new_tokens) for t in traces]
        for trace, steps in zip(traces, replay(models, texts, method, config), strict=True):
            assert [(s.accepted, s.committed) for s in steps] == [(s.accepted, len(s.committed)) for s in trace.steps]
        accepted = [step.accepted for trace in traces for step in trace.steps]
        assert sum(accepted) > 25
        assert max(accepted) > 6
        assert len(set(accepted)) >= 5, "paths of few lengths prove little"


def test_a_full_context_shortens_the_trees_as_it_does_in_a_decode() -> None:
    models = models_for("llama-plain")
    room = models.target.config.max_positions
    prompt = random_tokens(room - 7)
    for method in ("chain", "tfm"):
        trace = decode(models, method, prompt, DecodeConfig(40, tree=TREE))
        assert trace.stop is StopReason.CONTEXT_FULL
        (steps,) = replay(models, [Text((*prompt, *trace.tokens), len(prompt), 40)], method, TREE)
        assert [step.committed for step in steps] == [len(step.committed) for step in trace.steps]
        assert [step.could_go_on for step in steps] == [
            bool((step.tree.parents == step.acceptance.path[-1]).any()) for step in trace.steps
        ]


def test_a_walk_ends_with_its_text_and_trees_end_with_limit_and_room() -> None:
    """The filling behind the shorter text is not taken for text."""
    texts = [Text((5, 6, 7), 1, 6), Text((5, 6, 7, 0, 9), 1, 30)]
    tokens, depths = torch.tensor([[5, 6, 7, 0, 0], [5, 6, 7, 0, 9]]), list[list[int]]()

    def grow(active: torch.Tensor, root: torch.Tensor, deepest: torch.Tensor) -> TreeBatch:
        depths.append(deepest.tolist())
        drafted = torch.tensor([6, 7, 0, 9, 9]).expand(len(active), -1)
        return TreeBatch(drafted, torch.arange(-1, 4).expand_as(drafted), torch.full_like(active, 5))

    steps = _walk_texts(texts, tokens, grow, room=20)
    assert steps == [[ReplayedStep(1, 1, True)], [ReplayedStep(3, 3, True)]]
    assert depths == [[4, 17]]


def test_what_cannot_be_replayed_is_refused() -> None:
    models = models_for("llama-plain")
    text = Text((1, 2, 3), 2, 4)
    with pytest.raises(ValueError, match="cannot be replayed"):
        replay(models, [text], "dyspec", TREE)
    bare = DraftModels(models.target, models.drafter)
    with pytest.raises(ValueError, match="needs a Weaver"):
        replay(bare, [text], "tfm", TREE)
    with pytest.raises(ValueError, match="needs an autoregressive drafter"):
        replay(bare, [text], "ard-tree", TREE)
    with pytest.raises(ValueError, match="needs a factorised drafter"):
        replay(DraftModels(models.target, autoregressive=models.autoregressive), [text], "chain", TREE)
    noisy = Text((1, 2, 3), 2, 4, noise_key=5)
    with pytest.raises(ValueError, match="sample the texts with shared noise"):
        replay(models, [noisy, text], "chain", TREE, foreseen_temperature=1.0)
    for tokens, prompt, limit in (((1, 2, 3), 0, 4), ((1, 2, 3), 4, 4), ((1, 2, 3), 1, 1)):
        with pytest.raises(ValueError, match="does not fit a limit"):
            Text(tokens, prompt, limit)


def test_texts_do_not_depend_on_their_neighbours_in_a_batch() -> None:
    models = models_for("hybrid-grouped")
    texts = [Text(tuple(random_tokens(30 - 3 * seed, seed)), 5 + seed, 30) for seed in range(5)]
    together = replay(models, texts, "tfm", TREE)
    assert together == [replay(models, [text], "tfm", TREE)[0] for text in texts]
    assert torch.tensor([len(steps) for steps in together]).unique().numel() > 1
