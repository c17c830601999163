"""The decoding loop: identical text, one committed state, honest stops, and no residue."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from models.oracle import random_tokens
from models.small import drafter_for, tiny_target, weaver_for
from models.test_target import state_difference

from tfm_lab.decoding import DecodeConfig, DecodeSession, Speculator, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import Draft, DraftSource, TreeConfig, TreeKind
from tfm_lab.draws import Draws
from tfm_lab.methods import METHODS, make_speculator
from tfm_lab.trace import DecodeTrace, StopReason
from tfm_lab.tree import DraftTree
from tfm_lab.verification import RULES

GREEDY, SAMPLED = SamplingConfig(temperature=0.0), SamplingConfig(temperature=1.0)
TARGETS = ["hybrid-grouped", "llama-grouped"]
PROMPT = random_tokens(14, seed=5)


def small_speculator(name: str, method: str, sampling: SamplingConfig, rule: str | None = None) -> Speculator:
    target = tiny_target(name)
    return make_speculator(method, drafter_for(target), weaver_for(target), sampling, rule)


def small_config(
    tokens: int = 30, sampling: SamplingConfig = GREEDY, budget: int = 12, **changes: object
) -> DecodeConfig:
    tree = TreeConfig(budget=budget, max_depth=7, children=4, width=3, pool_size=20)
    return replace(DecodeConfig(tokens, sampling, tree), **changes)


def oracle_speculator(name: str, continuation: Sequence[int], prompt: Sequence[int] = PROMPT) -> Speculator:
    """A drafter that always proposes the true continuation: everything is accepted."""
    text = [*prompt, *continuation]

    def perfect(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
        assert session_length, "set by the test before each step"
        start = session_length[-1] + 1
        assert text[start - 1] == root
        tokens = [root, *text[start : start + min(config.budget, config.max_depth)]]
        return Draft(DraftTree.from_parents(tokens, list(range(-1, len(tokens) - 1))), TreeKind.FIXED)

    session_length: list[int] = []
    speculator = Speculator("oracle", drafter_for(tiny_target(name)), None, perfect, TreeKind.FIXED, RULES["greedy"])
    object.__setattr__(perfect, "__dict__", {"session_length": session_length})
    return speculator


def run_perfect(name: str, continuation: Sequence[int], config: DecodeConfig, prompt: Sequence[int]) -> DecodeTrace:
    speculator = oracle_speculator(name, continuation, prompt)
    session = DecodeSession(tiny_target(name), speculator, prompt, config)
    while not session.is_finished:
        speculator.build_tree.session_length.append(session.state.length)  # pyright: ignore
        session.step()
    return session.trace()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_is_that_of_plain_decoding(name: str, method: str) -> None:
    target, config = tiny_target(name), small_config()
    plain = autoregressive_decode(target, PROMPT, config)
    trace = speculative_decode(target, small_speculator(name, method, GREEDY), PROMPT, config)
    assert trace.tokens == plain.tokens
    assert len(trace.tokens) == 30
    assert trace.target_calls <= plain.target_calls == 29


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sampling", [SAMPLED, SamplingConfig(0.7, top_k=9), SamplingConfig(1.3, top_p=0.8)])
def test_target_sample_text_is_that_of_plain_sampling_with_the_same_seed(method: str, sampling: SamplingConfig) -> None:
    target = tiny_target("hybrid-grouped")
    for seed in range(3):
        config = small_config(sampling=sampling, seed=seed)
        plain = autoregressive_decode(target, PROMPT, config)
        speculator = small_speculator("hybrid-grouped", method, sampling, "target_sample")
        assert speculative_decode(target, speculator, PROMPT, config).tokens == plain.tokens


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("method", METHODS)
def test_state_and_context_after_mixed_budgets_equal_plain_prefill(name: str, method: str) -> None:
    target = tiny_target(name)
    speculator = small_speculator(name, method, GREEDY)
    session = DecodeSession(target, speculator, PROMPT, small_config(tokens=60))
    budgets = cycle([64, 0, 3, 0, 1, 8])
    while not session.is_finished:
        session.step(budget=next(budgets))
        text = [*PROMPT, *session.trace().tokens[:-1]]
        assert session.state.length == session.context.length == len(text)
    wanted = target.prefill(text, speculator.drafter.config.tap_layers)
    assert state_difference(session.state, wanted.state) < 1e-9
    context = speculator.drafter.extend_context(speculator.drafter.empty_context(), wanted.taps)
    for left, right in zip(session.context.layers, context.layers, strict=True):
        for a, b in zip(left.rows(len(text)), right.rows(len(text)), strict=True):
            assert torch.allclose(a, b, atol=1e-9, rtol=0.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [0, 1])
def test_budget_zero_is_plain_sampling_with_the_same_seed(method: str, seed: int) -> None:
    target = tiny_target("hybrid-grouped")
    config = small_config(sampling=SAMPLED, budget=0, seed=seed)
    plain = autoregressive_decode(target, PROMPT, config)
    trace = speculative_decode(target, small_speculator("hybrid-grouped", method, SAMPLED), PROMPT, config)
    assert trace.tokens == plain.tokens
    assert trace.target_calls == plain.target_calls
    assert trace.mean_accepted_length == 1.0


@pytest.mark.parametrize("method", ["chain", "tfm"])
def test_text_ends_at_the_first_stop_token_wherever_it_falls(method: str) -> None:
    target = tiny_target("hybrid-grouped")
    plain = autoregressive_decode(target, PROMPT, small_config()).tokens
    for position in range(len(plain)):
        stop = plain[position]
        wanted = plain[: plain.index(stop) + 1]
        config = small_config(stop_tokens=(stop,))
        assert autoregressive_decode(target, PROMPT, config).tokens == wanted
        trace = speculative_decode(target, small_speculator("hybrid-grouped", method, GREEDY), PROMPT, config)
        assert trace.tokens == wanted
        assert trace.stop is StopReason.STOP_TOKEN


@pytest.mark.parametrize("name", TARGETS)
def test_a_stop_token_inside_an_accepted_path_clips_text_and_state(name: str) -> None:
    target = tiny_target(name)
    plain = autoregressive_decode(target, PROMPT, small_config(tokens=40)).tokens
    for position in range(1, 12):
        config = small_config(tokens=40, budget=6, stop_tokens=(plain[position],))
        wanted = plain[: plain.index(plain[position]) + 1]
        assert run_perfect(name, plain, config, PROMPT).tokens == wanted


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_never_more_tokens_than_asked_for_even_when_everything_is_accepted(tokens: int) -> None:
    target = tiny_target("hybrid-grouped")
    plain = autoregressive_decode(target, PROMPT, small_config(tokens=40)).tokens
    trace = run_perfect("hybrid-grouped", plain, small_config(tokens, budget=7), PROMPT)
    assert trace.tokens == plain[:tokens]
    assert trace.stop is StopReason.LENGTH
    assert trace.target_calls == math.ceil(max(0, tokens - 1) / 8)


@pytest.mark.parametrize("room", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("method", ["ar", "chain", "tfm"])
def test_the_context_is_filled_and_never_overrun(room: int, method: str) -> None:
    target = tiny_target("llama-grouped")
    prompt = random_tokens(target.config.max_positions - room)
    config = small_config(tokens=20)
    if method == "ar":
        trace = autoregressive_decode(target, prompt, config)
    else:
        trace = speculative_decode(target, small_speculator("llama-grouped", method, GREEDY), prompt, config)
    assert len(trace.tokens) == room
    assert trace.stop is StopReason.CONTEXT_FULL


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    target = tiny_target("llama-grouped")
    for prompt, sentence in (([], "prompt is empty"), ([1] * 2305, "do not fit the target's context")):
        with pytest.raises(ValueError, match=sentence):
            autoregressive_decode(target, prompt, small_config())
        with pytest.raises(ValueError, match=sentence):
            speculative_decode(target, small_speculator("llama-grouped", "chain", GREEDY), prompt, small_config())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_decode_leaves_no_residue(method: str, sampling: SamplingConfig) -> None:
    target = tiny_target("hybrid-grouped")
    speculator = small_speculator("hybrid-grouped", method, sampling)
    config = small_config(sampling=sampling)
    first = speculative_decode(target, speculator, PROMPT, config)
    speculative_decode(target, speculator, random_tokens(31, seed=9), config)
    again = speculative_decode(target, speculator, PROMPT, config)
    assert _without_times(again) == _without_times(first)


def test_two_sessions_taken_in_turns_do_not_disturb_each_other() -> None:
    target = tiny_target("hybrid-grouped")
    speculator = small_speculator("hybrid-grouped", "tfm", GREEDY)
    prompts = [PROMPT, random_tokens(8, seed=3)]
    sessions = [DecodeSession(target, speculator, prompt, small_config()) for prompt in prompts]
    while not all(session.is_finished for session in sessions):
        for session in sessions:
            if not session.is_finished:
                session.step()
    for session, prompt in zip(sessions, prompts, strict=True):
        assert session.trace().tokens == autoregressive_decode(target, prompt, small_config()).tokens


def test_an_interrupted_decode_keeps_its_committed_steps() -> None:
    target = tiny_target("hybrid-grouped")
    speculator = small_speculator("hybrid-grouped", "tfm", GREEDY)
    whole = speculative_decode(target, speculator, PROMPT, small_config())
    seen: list[object] = []

    def break_off(step: object) -> None:
        seen.append(step)
        if len(seen) == 3:
            raise KeyboardInterrupt

    trace = speculative_decode(target, speculator, PROMPT, small_config(), on_step=break_off)
    assert trace.stop is StopReason.INTERRUPTED
    assert len(trace.steps) == 3
    assert trace.tokens == whole.tokens[: len(trace.tokens)]


def test_a_finished_session_refuses_another_step() -> None:
    session = DecodeSession(
        tiny_target("hybrid-grouped"), small_speculator("hybrid-grouped", "chain", GREEDY), PROMPT, small_config(1)
    )
    with pytest.raises(ValueError, match=r"has ended \(length\)"):
        session.step()


@pytest.mark.parametrize(
    ("method", "sampling", "rule", "sentence"),
    [
        ("tfm", SAMPLED, "greedy", "use target_sample"),
        ("tfm", SAMPLED, "rejection_swor", "use target_sample or traversal"),
        ("nosuch", GREEDY, None, "there is no method 'nosuch'"),
        ("tfm", GREEDY, "nosuch", "there is no acceptance rule 'nosuch'"),
    ],
)
def test_methods_and_rules_that_do_not_go_together_are_refused(
    method: str, sampling: SamplingConfig, rule: str | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        small_speculator("hybrid-grouped", method, sampling, rule)
    with pytest.raises(ValueError, match="needs a Weaver"):
        make_speculator("tfm", drafter_for(tiny_target()), None, GREEDY)


def test_a_trace_survives_json() -> None:
    target = tiny_target("hybrid-grouped")
    for method in METHODS:
        trace = speculative_decode(target, small_speculator("hybrid-grouped", method, GREEDY), PROMPT, small_config())
        reread = DecodeTrace.from_json(trace.to_json())
        assert reread.to_json() == trace.to_json()
        assert reread.tokens == trace.tokens
        assert reread.mean_accepted_length == trace.mean_accepted_length
        for left, right in zip(reread.steps, trace.steps, strict=True):
            assert torch.equal(left.tree.parents, right.tree.parents)
            assert left.rounds == right.rounds
            assert left.seconds == right.seconds
    for text in ("", "[]", "{}", '{"format":"tfm_lab.trace/1"}'):
        with pytest.raises(ValueError, match="not a decode trace"):
            DecodeTrace.from_json(text)


def test_every_emitted_token_is_counted_once() -> None:
    target = tiny_target("hybrid-grouped")
    trace = speculative_decode(target, small_speculator("hybrid-grouped", "tfm", GREEDY), PROMPT, small_config())
    assert len(trace.tokens) == 1 + sum(len(step.committed) for step in trace.steps)
    assert trace.mean_accepted_length == pytest.approx((len(trace.tokens) - 1) / trace.target_calls)
    for step in trace.steps:
        assert len(step.committed) <= step.accepted + 1
        assert step.seconds.total > 0.0


def _without_times(trace: DecodeTrace) -> list[object]:
    return [
        trace.first_token,
        trace.stop,
        *((s.tree.tokens.tolist(), s.tree.parents.tolist(), s.acceptance, s.committed) for s in trace.steps),
    ]
