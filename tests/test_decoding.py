"""The decoding loop: identical text, one committed state, honest stops, and no residue."""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle
from typing import Any

import pytest
import torch
from models.oracle import VOCABULARY, random_tokens
from models.small import drafter_for, tiny_target, weaver_for
from models.test_target import state_difference

from tfm_lab.decoding import DecodeConfig, DecodeSession, Speculator, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import Draft, DraftSource, TreeConfig, TreeKind
from tfm_lab.draws import Draws
from tfm_lab.methods import METHODS, make_speculator
from tfm_lab.models import FactorisedDrafter, TargetModel
from tfm_lab.trace import DecodeTrace, StopReason
from tfm_lab.tree import DraftTree
from tfm_lab.verification import RULES

GREEDY, SAMPLED = SamplingConfig(temperature=0.0), SamplingConfig(temperature=1.0)
TARGETS = ["hybrid-grouped", "llama-plain"]
PROMPT = random_tokens(14, seed=2)


def small_speculator(name: str, method: str, sampling: SamplingConfig, rule: str | None = None) -> Speculator:
    return speculator_for(tiny_target(name), method, sampling, rule)


def speculator_for(target: TargetModel, method: str, sampling: SamplingConfig, rule: str | None = None) -> Speculator:
    return make_speculator(method, drafter_for(target), weaver_for(target), sampling, rule)


def small_config(
    tokens: int = 12, sampling: SamplingConfig = GREEDY, budget: int = 12, **changes: object
) -> DecodeConfig:
    tree = TreeConfig(budget=budget, max_depth=7, children=4, width=3, pool_size=20)
    return replace(DecodeConfig(tokens, sampling, tree), **changes)


@cache
def plain_text(name: str, tokens: int) -> tuple[int, ...]:
    """What greedy decoding writes after ``PROMPT``."""
    return autoregressive_decode(tiny_target(name), PROMPT, small_config(tokens)).tokens


def with_context(target: TargetModel, positions: int) -> TargetModel:
    """The same target with a shorter context."""
    shorter = TargetModel(replace(target.config, max_positions=positions)).to(target.dtype)
    shorter.load_state_dict(target.state_dict())
    return shorter.requires_grad_(False).eval()


class PerfectBuilder:
    """Proposes the true continuation of a text, so that everything is accepted.

    Attributes:
        position: place of the next root in the text; set it before each step.

    Args:
        text: prompt and continuation.
        has_branches: grow two wrong nodes beside every true one, before it in the tree's order.
    """

    def __init__(self, text: Sequence[int], has_branches: bool) -> None:
        self.position = 0
        self._text = list(text)
        self._has_branches = has_branches

    def __call__(self, root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
        assert self._text[self.position] == root
        true = self._text[self.position + 1 : self.position + 1 + min(config.budget, config.max_depth)]
        tokens, parents, last = [root], [-1], 0
        for token in true:
            if self._has_branches:
                wrong = (token + 1) % VOCABULARY
                parents += [last, len(tokens)]
                tokens += [wrong, wrong]
            parents.append(last)
            last = len(tokens)
            tokens.append(token)
        return Draft(DraftTree.from_parents(tokens, parents), TreeKind.FIXED)


def run_perfect(
    target: TargetModel, text: Sequence[int], prompt: int, config: DecodeConfig, *, has_branches: bool = False
) -> DecodeTrace:
    """Decode after the first ``prompt`` tokens of a text whose continuation the drafter knows."""
    builder = PerfectBuilder(text, has_branches)
    speculator = Speculator("perfect", drafter_for(target), None, builder, TreeKind.FIXED, RULES["greedy"])
    session = DecodeSession(target, speculator, text[:prompt], config)
    while not session.is_finished:
        builder.position = session.state.length
        session.step()
    return session.trace()


@pytest.mark.parametrize("name", TARGETS)
def test_the_texts_compared_here_are_varied(name: str) -> None:
    """A target that repeats one token would make every comparison below an easy one."""
    assert len(set(plain_text(name, 20))) >= 12


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_is_that_of_plain_decoding(name: str, method: str) -> None:
    target, config = tiny_target(name), small_config(tokens=20)
    trace = speculative_decode(target, small_speculator(name, method, GREEDY), PROMPT, config)
    assert trace.tokens == plain_text(name, 20)
    assert len(trace.tokens) == 20
    assert trace.target_calls <= 19


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sampling", [SAMPLED, SamplingConfig(0.7, top_k=9), SamplingConfig(1.3, top_p=0.8)])
def test_target_sample_text_is_that_of_plain_sampling_with_the_same_seed(method: str, sampling: SamplingConfig) -> None:
    target = tiny_target("hybrid-grouped")
    for seed in range(2):
        config = small_config(sampling=sampling, seed=seed)
        plain = autoregressive_decode(target, PROMPT, config)
        speculator = small_speculator("hybrid-grouped", method, sampling, "target_sample")
        assert speculative_decode(target, speculator, PROMPT, config).tokens == plain.tokens


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("method", METHODS)
def test_state_and_context_after_mixed_budgets_equal_plain_prefill(name: str, method: str) -> None:
    target = tiny_target(name)
    speculator = small_speculator(name, method, GREEDY)
    session = DecodeSession(target, speculator, PROMPT, small_config(tokens=32))
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


@pytest.mark.parametrize("method", ["ar", "chain", "tfm"])
def test_text_ends_at_the_first_stop_token_wherever_it_falls(method: str) -> None:
    target, plain = tiny_target("hybrid-grouped"), plain_text("hybrid-grouped", 12)
    for stop in plain:
        config = small_config(stop_tokens=(stop,))
        if method == "ar":
            trace = autoregressive_decode(target, PROMPT, config)
        else:
            trace = speculative_decode(target, small_speculator("hybrid-grouped", method, GREEDY), PROMPT, config)
        assert trace.tokens == plain[: plain.index(stop) + 1]
        assert trace.stop is StopReason.STOP_TOKEN


@pytest.mark.parametrize("name", TARGETS)
def test_a_stop_token_inside_an_accepted_path_clips_text_and_state(name: str) -> None:
    target, plain = tiny_target(name), plain_text(name, 20)
    inside = 0
    for position in range(1, 12):
        stop = plain[position]
        text = [*PROMPT, *plain]
        trace = run_perfect(target, text, len(PROMPT), small_config(20, budget=6, stop_tokens=(stop,)))
        assert trace.tokens == plain[: plain.index(stop) + 1]
        assert trace.stop is StopReason.STOP_TOKEN
        inside += len(trace.steps[-1].committed) <= trace.steps[-1].accepted
    assert inside >= 5


@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_never_more_tokens_than_asked_for_even_when_everything_is_accepted(tokens: int) -> None:
    target, plain = tiny_target("hybrid-grouped"), plain_text("hybrid-grouped", 20)
    trace = run_perfect(target, [*PROMPT, *plain], len(PROMPT), small_config(tokens, budget=7))
    assert trace.tokens == plain[:tokens]
    assert trace.stop is StopReason.LENGTH
    assert trace.target_calls == math.ceil(max(0, tokens - 1) / 8)


@pytest.mark.parametrize("name", TARGETS)
def test_branches_beside_a_chain_take_nothing_from_it(name: str) -> None:
    target, text = tiny_target(name), [*PROMPT, *plain_text(name, 20)]
    chain, tree = (
        run_perfect(target, text, len(PROMPT), small_config(13, budget=4), has_branches=has_branches)
        for has_branches in (False, True)
    )
    assert [step.accepted for step in chain.steps] == [4, 4, 1]
    assert [step.committed for step in tree.steps] == [step.committed for step in chain.steps]
    assert [len(step.tree) for step in tree.steps] == [13, 13, 4]


@pytest.mark.parametrize("method", ["chain", "tfm"])
def test_a_text_that_holds_the_mask_token_loses_nothing(method: str) -> None:
    """Lengths are counted; no token is taken for padding."""
    target, plain = tiny_target("hybrid-grouped"), plain_text("hybrid-grouped", 12)
    for mask in (plain[2], plain[5]):
        drafter = drafter_for(target, mask_token=mask)
        speculator = make_speculator(method, drafter, weaver_for(target), GREEDY)
        assert speculative_decode(target, speculator, [mask, *PROMPT], small_config()).tokens == (
            autoregressive_decode(target, [mask, *PROMPT], small_config()).tokens
        )
        assert speculative_decode(target, speculator, PROMPT, small_config()).tokens == plain


@pytest.mark.parametrize("room", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("method", ["ar", "chain", "tfm", "perfect"])
def test_the_context_is_filled_and_never_overrun(room: int, method: str) -> None:
    plain = plain_text("llama-plain", 20)
    target = with_context(tiny_target("llama-plain"), len(PROMPT) + room)
    config = small_config(tokens=20, budget=7)
    if method == "ar":
        trace = autoregressive_decode(target, PROMPT, config)
    elif method == "perfect":
        trace = run_perfect(target, [*PROMPT, *plain], len(PROMPT), config)
        assert trace.target_calls == math.ceil(max(0, room - 1) / 8)
    else:
        trace = speculative_decode(target, speculator_for(target, method, GREEDY), PROMPT, config)
    assert trace.tokens == plain[:room]
    assert trace.stop is StopReason.CONTEXT_FULL


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    target = with_context(tiny_target("llama-plain"), 20)
    for prompt, sentence in (([], "prompt is empty"), ([1] * 21, "do not fit the target's context of 20")):
        with pytest.raises(ValueError, match=sentence):
            autoregressive_decode(target, prompt, small_config())
        with pytest.raises(ValueError, match=sentence):
            speculative_decode(target, speculator_for(target, "chain", GREEDY), prompt, small_config())


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


@cache
def small_trace_as_json() -> str:
    speculator = small_speculator("hybrid-grouped", "tfm", GREEDY)
    return speculative_decode(tiny_target("hybrid-grouped"), speculator, PROMPT, small_config()).to_json()


def change(fields: dict[str, Any], place: tuple[str | int, ...], value: object) -> None:
    for key in place[:-1]:
        fields = fields[key]  # pyright: ignore[reportArgumentType]
    fields[place[-1]] = value  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        (("steps",), {}, "steps must be a list"),
        (("steps",), ["a"], "steps must be a list"),
        (("steps", 0, "path"), [0, 99], "node 99 is not in a tree"),
        (("steps", 0, "path"), [], r"\[\] is no path"),
        (("steps", 0, "path"), [1], r"\[1\] is no path"),
        (("steps", 0, "committed"), [1, 2, 3, 4, 5, 6, 7, 8, 9], "are not those of the accepted path"),
        (("steps", 0, "committed"), [], "are not those of the accepted path"),
        (("steps", 0, "tokens", 1), 2**70, "tokens must be a whole number"),
        (("steps", 0, "tokens", 0), 1, "the root of step 0 is not the last token of the text so far"),
        (("steps", 0, "parents", 1), 0.5, "parents must be a whole number"),
        (("steps", 0, "log_probs"), "abc", "log_probs must be a list"),
        (("steps", 0, "kind"), "q", "'q' is not a valid TreeKind"),
        (("steps", 0, "rounds"), 3, "rounds must be a list"),
        (("steps", 0, "rounds", 0, "added"), [99], "names nodes that a tree of"),
        (("steps", 0, "rounds", 0, "offered"), [[1]], "not a decode trace"),
        (("steps", 0, "seconds", "draft"), -1.0, "draft must be a number of seconds, got -1.0"),
        (("prompt",), "abc", "prompt must be a list"),
        (("prompt",), [True], "prompt must be a list of the right items"),
        (("seed",), "x", "seed must be a whole number, got 'x'"),
        (("method",), 5, "method must be a text, got 5"),
        (("max_new_tokens",), 3, "new tokens, but max_new_tokens is 3"),
        (("first_token",), None, "the root of step 0"),
        (("sampling", "temperature"), "x", "temperature and top_p must be"),
        (("tree", "budget"), "x", "budget must be a whole number in range, got 'x'"),
        (("tree", "budget"), 5000, "a larger tree"),
        (("tree",), [], "tree must be an object"),
        (("sampling",), [], "not a decode trace"),
        (("steps", 0, "seconds"), [], "not a decode trace"),
        (("stop",), "never", "'never' is not a valid StopReason"),
        (("prefill_seconds",), float("nan"), "prefill_seconds must be a number of seconds, got nan"),
    ],
)
def test_a_trace_whose_parts_do_not_fit_is_refused(place: tuple[str | int, ...], value: object, sentence: str) -> None:
    fields = json.loads(small_trace_as_json())
    change(fields, place, value)
    with pytest.raises(ValueError, match=sentence):
        DecodeTrace.from_json(json.dumps(fields))


def test_a_text_nested_too_deeply_is_no_trace() -> None:
    with pytest.raises(ValueError, match="not a decode trace"):
        DecodeTrace.from_json("[" * 100_000)


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


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("where", ["verify_tree", "commit", "extend_context"])
def test_a_step_broken_off_anywhere_can_be_taken_again(
    where: str, sampling: SamplingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_target("hybrid-grouped")
    speculator, config = small_speculator("hybrid-grouped", "dyspec", sampling), small_config(sampling=sampling)
    wanted = speculative_decode(target, speculator, PROMPT, config)
    session = DecodeSession(target, speculator, PROMPT, config)
    owner = FactorisedDrafter if where == "extend_context" else TargetModel
    real, calls = getattr(owner, where), [0]

    def breaks_off(*arguments: object) -> object:
        calls[0] += 1
        result = real(*arguments)
        if calls[0] % 3 == 2:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, where, breaks_off)
    while not session.is_finished:
        with contextlib.suppress(KeyboardInterrupt):
            session.step()
    trace = session.trace()
    assert calls[0] > len(trace.steps)
    assert trace.tokens == wanted.tokens
    assert [step.committed for step in trace.steps] == [step.committed for step in wanted.steps]
    assert trace.stop is wanted.stop


def test_an_interrupted_trace_is_of_no_use_to_who_needs_a_whole_one() -> None:
    target = tiny_target("llama-plain")
    session = DecodeSession(target, small_speculator("llama-plain", "chain", GREEDY), PROMPT, small_config())
    session.step()
    assert session.trace().uninterrupted().stop is StopReason.UNFINISHED
    session.interrupt()
    with pytest.raises(KeyboardInterrupt):
        session.trace().uninterrupted()
