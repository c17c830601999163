"""The bundle that ships: small enough, read by transformers too, lossless on held-out text."""

import json
import tomllib
from functools import cache
from itertools import cycle

import pytest
import torch
import transformers
from models.oracle import oracle_logits, relative_error
from models.test_target import state_difference

from tfm_lab.bundle import SHIPPED, Bundle, load_bundle
from tfm_lab.decoding import DecodeConfig, DecodeSession, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.evaluation import HELD_OUT, load_contexts
from tfm_lab.methods import METHODS, make_speculator
from tfm_lab.models.config import evenly_spaced_taps
from tfm_lab.trace import DecodeTrace, StopReason
from tfm_lab.training.corpus import Document, conversation
from tfm_lab.training.recipe import load_recipe
from tfm_lab.training.tokenizer import END_OF_TEXT, MASK, SPECIAL_TOKENS, TURN_END, token_id

FOLDER = SHIPPED / "hybrid"
RESULTS = SHIPPED.parent / "results"
MEGABYTE = 10**6


@cache
def hybrid() -> Bundle:
    return load_bundle("hybrid")


@cache
def oracle() -> torch.nn.Module:
    """The target as transformers reads it."""
    model = transformers.Qwen3_5ForCausalLM.from_pretrained(FOLDER / "target", dtype=torch.float32)
    return model.eval()


def test_all_bundles_together_stay_below_120_megabytes() -> None:
    sizes = [path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()]
    assert 0 < sum(sizes) <= 120 * MEGABYTE


def test_the_bundle_holds_weights_and_text_alone() -> None:
    suffixes = {path.suffix for path in SHIPPED.rglob("*") if path.is_file()}
    assert suffixes <= {".safetensors", ".json", ".md"}


def test_target_drafter_and_weaver_are_what_the_recipe_describes() -> None:
    bundle, recipe = hybrid(), load_recipe("hybrid")
    stops = tuple(token_id(bundle.tokenizer, token) for token in (END_OF_TEXT, TURN_END))
    mask = token_id(bundle.tokenizer, MASK)
    target = recipe.target.config(bundle.tokenizer.get_vocab_size(), stops)
    assert bundle.target.config == target
    assert bundle.drafter.config == recipe.drafter.config(target, mask)
    assert bundle.drafter.config.tap_layers == evenly_spaced_taps(target.layers, recipe.drafter.taps)
    assert bundle.weaver is not None
    assert bundle.weaver.config == recipe.weaver.config(target, bundle.drafter.config.draft_depth)
    parameters = sum(parameter.numel() for parameter in bundle.target.parameters())
    assert 10e6 < parameters < 20e6


def test_transformers_reads_the_target_as_the_same_model() -> None:
    for context in load_contexts(limit=8):
        tokens = hybrid().encode(context.prompt)
        wanted = oracle_logits(oracle(), tokens)
        assert relative_error(hybrid().target(torch.tensor([tokens]))[0], wanted) < 1e-4
        assert relative_error(hybrid().target.prefill(tokens).logits, wanted[-1]) < 1e-4


def test_transformers_reads_the_tokenizer_and_its_chat_template() -> None:
    bundle, tokenizer = hybrid(), transformers.AutoTokenizer.from_pretrained(FOLDER / "target")
    for context in load_contexts(limit=8):
        assert tokenizer.encode(context.prompt, add_special_tokens=False) == bundle.encode(context.prompt)
        assert tokenizer.decode(bundle.encode(context.prompt)) == context.prompt
    turns = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == conversation("Why?", "Because.")
    opening = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    assert bundle.encode(opening) == bundle.chat("Why?")
    assert [tokenizer.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert tokenizer.model_max_length == bundle.target.config.max_positions


def test_every_path_of_a_woven_tree_equals_transformers_plain_forward() -> None:
    bundle = hybrid()
    (context,) = load_contexts(limit=1)
    prompt, config = bundle.encode(context.prompt), DecodeConfig(24, tree=TreeConfig(budget=32))
    speculator = make_speculator("tfm", bundle.drafter, bundle.weaver, config.sampling)
    session = DecodeSession(bundle.target, speculator, prompt, config)
    session.step()
    text, state = [*prompt, *session.trace().tokens[:-1]], session.state
    tree = session.step().tree
    assert len(tree) == 33
    assert len(tree.leaves()) > 3
    outputs = bundle.target.verify_tree(state, tree)
    for leaf in tree.leaves():
        wanted = oracle_logits(oracle(), [*text, *tree.path_tokens(leaf)])[len(text) :]
        assert relative_error(outputs.logits[list(tree.path(leaf))], wanted) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_state_after_any_mixture_of_budgets_equals_plain_prefill(method: str) -> None:
    """In float64, committed branch by branch: no drift against reading the same text from the start."""
    bundle, config = load_bundle("hybrid", dtype=torch.float64), DecodeConfig(40, SamplingConfig(1.0), seed=3)
    speculator = make_speculator(method, bundle.drafter, bundle.weaver, config.sampling)
    (context,) = load_contexts(limit=1)
    session = DecodeSession(bundle.target, speculator, bundle.encode(context.prompt), config)
    budgets = cycle([64, 0, 3, 0, 1, 17])
    while not session.is_finished:
        session.step(budget=next(budgets))
    trace = session.trace()
    assert {step.tree.budget for step in trace.steps} >= {0, 1, 3}
    assert any(step.accepted for step in trace.steps)
    wanted = bundle.target.prefill([*trace.prompt, *trace.tokens[:-1]]).state
    assert state_difference(session.state, wanted) < 1e-9


def decoded(method: str, prompt: list[int], config: DecodeConfig) -> DecodeTrace:
    bundle = hybrid()
    if method == "ar":
        return autoregressive_decode(bundle.target, prompt, config)
    speculator = make_speculator(method, bundle.drafter, bundle.weaver, config.sampling)
    return speculative_decode(bundle.target, speculator, prompt, config)


@pytest.mark.slow
@pytest.mark.unchecked
def test_greedy_text_is_identical_for_all_methods_on_50_held_out_prompts() -> None:
    """In float32, 24 tokens each: every token is the likeliest one of a plain forward over the whole text.

    The first four prompts, one of each kind, are decoded by all methods and plainly too; then the methods take turns.
    Trees save target calls and change nothing else.
    """
    bundle, contexts, turns = hybrid(), load_contexts(limit=50), list(METHODS)
    config = DecodeConfig(24, tree=TreeConfig(budget=16), stop_tokens=bundle.target.config.stop_tokens)
    calls: dict[str, dict[int, int]] = {name: {} for name in ("ar", *METHODS)}
    stopped = set[str]()
    for number, context in enumerate(contexts):
        prompt, texts = bundle.encode(context.prompt), set[tuple[int, ...]]()
        for name in calls if number < 4 else (turns[(number + number // 4) % 4],):
            trace = decoded(name, prompt, config)
            wanted = bundle.target(torch.tensor([[*prompt, *trace.tokens]]))[0, len(prompt) - 1 : -1].argmax(-1)
            assert list(trace.tokens) == wanted.tolist(), f"{name} on {context.name}"
            *body, last = trace.tokens
            assert not set(body) & set(config.stop_tokens)
            if last in config.stop_tokens:
                assert trace.stop is StopReason.STOP_TOKEN
                stopped.add(name)
            else:
                assert (trace.stop, len(trace.tokens)) == (StopReason.LENGTH, 24)
            calls[name][number] = trace.target_calls
            texts.add(trace.tokens)
        assert len(texts) == 1, context.name
    assert len(contexts) == 50
    assert stopped == set(calls), "no text of some method ends with a stop token"
    assert all(len(calls[name]) >= 15 for name in METHODS)
    total = {name: sum(done[number] for number in range(4)) for name, done in calls.items()}
    assert total["ar"] > 2 * total["chain"]
    assert total["chain"] > total["ddtree"] > total["tfm"]


def test_held_out_contexts_are_many_and_fit() -> None:
    contexts = load_contexts()
    assert len(contexts) >= 100
    assert len({context.name for context in contexts}) == len({context.prompt for context in contexts}) == len(contexts)
    assert {context.kind for context in contexts} == {"chat", "maths", "code", "docs"}
    for context in contexts:
        tokens = hybrid().encode(context.prompt)
        assert 0 < len(tokens) <= 320
        assert hybrid().decode(tokens) == context.prompt
        assert context.source


def test_held_out_contexts_come_from_the_side_that_training_never_saw() -> None:
    """The sources of the corpus decide by hash; questions that were never asked are held out by not being asked."""
    for context in load_contexts(HELD_OUT):
        source, _, key = context.source.partition(": ")
        if source != "chat":
            assert Document(source, key, "").is_held_out, context.name


def test_the_package_brings_the_bundle_along() -> None:
    """Every file of the bundle and of the data matches a pattern of the package data."""
    root = SHIPPED.parent
    project = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["tfm_lab"]
    packed = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    shipped = [path for folder in ("bundles", "data", "recipes") for path in (root / folder).rglob("*")]
    assert {path for path in shipped if path.is_file()} <= packed


@pytest.mark.parametrize("name", ["hybrid_pool", "hybrid_width"])
def test_recorded_results_are_those_of_the_models_that_ship(name: str) -> None:
    recorded = json.loads((RESULTS / f"{name}.json").read_text())["setup"]
    weaver = hybrid().weaver
    assert weaver is not None
    assert recorded["weaver"] == weaver.fingerprint()
    assert recorded["drafter"] == hybrid().drafter.fingerprint()
    assert recorded["target"] == hybrid().target.fingerprint()
