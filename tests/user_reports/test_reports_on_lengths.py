"""Reports 6 to 8: where a text ends, and what counts as a token of it."""

from dataclasses import replace

import pytest
from user_reports.worlds import GREEDY, WORLDS, World, decode_foreknowing, world

from tfm_lab.decoding import autoregressive_decode, speculative_decode
from tfm_lab.methods import make_speculator
from tfm_lab.models import FactorisedDrafter, TargetModel
from tfm_lab.trace import StopReason
from tfm_lab.verification import greedy

pytestmark = pytest.mark.unchecked


def with_context(where: World, positions: int) -> World:
    """The same models; the target's context is shorter."""
    shorter = TargetModel(replace(where.target.config, max_positions=positions)).to(where.target.dtype)
    shorter.load_state_dict(where.target.state_dict())
    return replace(where, target=shorter.requires_grad_(False).eval())


@pytest.mark.parametrize("name", WORLDS)
def test_every_token_of_a_text_can_be_the_one_that_stops_it(name: str) -> None:
    """Report 6: each token of a greedy text is declared the stop in turn, and the text ends at its first place."""
    where = world(name)
    prompt, plain = where.prompts[0], where.plain(8)
    inside = 0
    for stop in dict.fromkeys(plain):
        config = replace(where.config(8), stop_tokens=(stop,))
        traces = [speculative_decode(where.target, where.speculator(m), prompt, config) for m in ("chain", "tfm")]
        known = decode_foreknowing(where, [*prompt, *plain], len(prompt), config, greedy, is_right=True)
        for trace in (*traces, known):
            assert trace.tokens == plain[: plain.index(stop) + 1]
            assert trace.stop is StopReason.STOP_TOKEN
        inside += any(len(step.committed) <= step.accepted for step in known.steps)
    assert inside >= 3, "the stop never fell inside an accepted path"


@pytest.mark.parametrize("name", WORLDS)
def test_a_drafter_that_is_always_right_gets_no_token_more(name: str) -> None:
    """Report 7: limits from 0 to two more than the deepest tree and its bonus."""
    where = world(name)
    depth = min(5, where.drafter.config.draft_depth)
    prompt, plain = where.prompts[0], where.plain(depth + 4)
    tree = replace(where.tree, budget=depth, max_depth=depth)
    for limit in range(depth + 4):
        config = replace(where.config(limit), tree=tree)
        trace = decode_foreknowing(where, [*prompt, *plain], len(prompt), config, greedy, is_right=True)
        assert trace.tokens == plain[:limit]
        assert trace.stop is StopReason.LENGTH


@pytest.mark.parametrize("name", WORLDS)
def test_a_tree_deeper_than_what_is_left_gets_no_token_more(name: str) -> None:
    """Report 7: even a builder that ignores how deep it may go."""
    where = world(name)
    prompt, plain = where.prompts[0], where.plain(12)
    for limit in (3, 5):
        trace = decode_foreknowing(
            where, [*prompt, *plain], len(prompt), where.config(limit), greedy, is_right=True, depth=6
        )
        assert trace.steps[0].accepted == 6
        assert trace.tokens == plain[:limit]
        assert trace.stop is StopReason.LENGTH


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_a_prompt_that_leaves_little_room_gets_no_token_more(name: str, room: int) -> None:
    """Report 7: the end of the context is a limit, too."""
    where = world(name)
    prompt, plain = where.prompts[0], where.plain(8)
    narrow = with_context(where, len(prompt) + room)
    trace = decode_foreknowing(narrow, [*prompt, *plain], len(prompt), where.config(20), greedy, is_right=True)
    assert trace.tokens == plain[:room]
    assert trace.stop is StopReason.CONTEXT_FULL


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("method", ["chain", "tfm"])
def test_a_target_that_writes_the_mask_token_loses_nothing(name: str, method: str) -> None:
    """Report 8: the drafter's mask is a token that the target writes here, and one of the prompt's own."""
    where = world(name)
    plain = where.plain(8)
    drafter = FactorisedDrafter(replace(where.drafter.config, mask_token=plain[3])).to(where.target.dtype)
    drafter.load_state_dict(where.drafter.state_dict())
    speculator = make_speculator(method, drafter.requires_grad_(False).eval(), where.weaver, GREEDY)
    assert speculative_decode(where.target, speculator, where.prompts[0], where.config(8)).tokens == plain
    prompt = [*where.prompts[0], plain[3], plain[3]]
    wanted = autoregressive_decode(where.target, prompt, where.config(8))
    trace = speculative_decode(where.target, speculator, prompt, where.config(8))
    assert trace.tokens == wanted.tokens
    assert trace.prompt == tuple(prompt)
