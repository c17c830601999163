"""The ceiling of factorised drafting, against exact enumeration of all first drafts of a toy target."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.oracle import VOCABULARY, random_tokens
from models.small import autoregressive_for, drafter_for, tiny_target, weaver_for
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.drafting import OpenNode
from tfm_lab.evaluation import anchors
from tfm_lab.evaluation import ceiling as module
from tfm_lab.evaluation.anchors import Anchored, to_anchors
from tfm_lab.evaluation.ceiling import (
    AUTOREGRESSIVE,
    DRAFTER,
    ORACLE,
    POINT,
    POOL,
    WEAVER,
    leave_one_out,
    measure_ceiling,
)
from tfm_lab.models.autoregressive import AutoregressiveSession
from tfm_lab.models.weaver import WeaverSession

PROMPT = random_tokens(9, seed=4)
POOL_SIZE = 20


@pytest.fixture(scope="module", params=["hybrid-grouped", "llama-plain"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    """Random models in float64 over 97 tokens. Tokenizer and chat template play no part."""
    target = tiny_target(request.param)
    drafters = drafter_for(target), weaver_for(target), autoregressive_for(target)
    return Bundle("tiny", target, Tokenizer(BPE()), None, *drafters)


def exact_second_depth(bundle: Bundle, context: Sequence[int]) -> dict[str, float]:
    """Expected acceptance at depth 2, summed over all tokens that may come first."""
    target, drafter, weaver, ard = bundle.target, bundle.drafter, bundle.weaver, bundle.autoregressive
    assert weaver is not None
    assert ard is not None
    everything = torch.arange(VOCABULARY)
    rows = torch.cat([torch.tensor([context]).expand(VOCABULARY, -1), everything.unsqueeze(1)], dim=1)
    logits = target(rows)
    first, second = logits[0, -2].softmax(0), logits[:, -1].softmax(1)
    marginal = first @ second
    taps = sorted({*drafter.config.tap_layers, *ard.config.tap_layers})
    assert taps == list(drafter.config.tap_layers) == list(ard.config.tap_layers)
    prefilled = target.prefill(context[:-1], taps)
    proposed = drafter.propose(drafter.extend_context(drafter.empty_context(), prefilled.taps), context[-1], target)
    root = OpenNode(0, -1, context[-1], 0)
    children = [OpenNode(1 + token, 0, token, 1) for token in range(VOCABULARY)]

    def accepted(session: WeaverSession | AutoregressiveSession) -> float:
        session.expand([root])
        q = torch.stack([proposal.dense(VOCABULARY) for proposal in session.expand(children)])
        return mean(torch.minimum(q, second).sum(1))

    def mean(values: Tensor) -> float:
        return float(first @ values)

    pool = proposed.pool(POOL_SIZE).tokens[1]
    seen = ard.extend_context(ard.empty_context(), prefilled.taps)
    return {
        ORACLE: mean(torch.minimum(marginal, second).sum(1)),
        POINT: mean(second[:, marginal.argmax()]),
        DRAFTER: mean(torch.minimum(proposed.logits[1].softmax(0), second).sum(1)),
        WEAVER: accepted(WeaverSession(weaver, target, proposed, prefilled.hidden, POOL_SIZE)),
        AUTOREGRESSIVE: accepted(AutoregressiveSession(ard, target, seen, VOCABULARY)),
        POOL: mean(second[:, pool].sum(1)),
    }


@pytest.fixture
def fixed_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The anchor is the last token of the prompt."""
    monkeypatch.setattr(
        module, "to_anchors", lambda target, prompts, *_: [Anchored(i, list(p)) for i, p in enumerate(prompts)]
    )


@pytest.mark.usefixtures("fixed_anchor")
def test_the_estimates_at_depth_two_are_those_of_enumeration(bundle: Bundle) -> None:
    wanted = exact_second_depth(bundle, PROMPT)
    got = measure_ceiling(bundle, [PROMPT], continuations=1000, depth=2, pool_size=POOL_SIZE).by_anchor
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert got[name][0, 1] == pytest.approx(value, abs=0.02), name
    assert got[ORACLE][0, 0] == pytest.approx(1.0)


@pytest.mark.usefixtures("fixed_anchor")
def test_along_given_paths_all_figures_come_from_what_a_decode_would_draft(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four paths of seven tokens, exact: conditionals of the sessions that decode, one node at a time."""
    target, drafter, weaver, ard = bundle.target, bundle.drafter, bundle.weaver, bundle.autoregressive
    assert weaver is not None
    assert ard is not None
    paths = [random_tokens(7, seed=seed) for seed in range(4)]
    texts = torch.tensor([[*PROMPT, *path] for path in paths])
    monkeypatch.setattr(module, "sample_texts", lambda *_: texts)
    got = measure_ceiling(bundle, [PROMPT], continuations=4, depth=7, pool_size=POOL_SIZE).by_anchor
    prefilled = target.prefill(PROMPT[:-1], drafter.config.tap_layers)
    proposed = drafter.propose(drafter.extend_context(drafter.empty_context(), prefilled.taps), PROMPT[-1], target)
    seen = ard.extend_context(ard.empty_context(), prefilled.taps)
    pool = proposed.pool(POOL_SIZE).tokens
    wanted = {name: np.zeros(7) for name in (ORACLE, POINT, DRAFTER, WEAVER, AUTOREGRESSIVE, POOL)}
    every = target(texts)[:, len(PROMPT) - 1 : -1].softmax(-1)
    for index, (path, p) in enumerate(zip(paths, every, strict=True)):
        others = torch.cat([every[:index], every[index + 1 :]]).mean(0)
        wanted[ORACLE] += torch.minimum(others, p).sum(1).numpy() / 4
        wanted[POINT] += p[torch.arange(7), others.argmax(1)].numpy() / 4
        sessions = {
            WEAVER: WeaverSession(weaver, target, proposed, prefilled.hidden, POOL_SIZE),
            AUTOREGRESSIVE: AutoregressiveSession(ard, target, seen, VOCABULARY),
        }
        wanted[DRAFTER] += torch.minimum(proposed.logits.softmax(-1), p).sum(1).numpy() / 4
        wanted[POOL] += p.gather(1, pool).sum(1).numpy() / 4
        for depth, token in enumerate((PROMPT[-1], *path[:-1])):
            for name, session in sessions.items():
                (proposal,) = session.expand([OpenNode(depth, depth - 1, token, depth)])
                wanted[name][depth] += float(torch.minimum(proposal.dense(VOCABULARY), p[depth]).sum()) / 4
    for name, figures in wanted.items():
        assert got[name][0] == pytest.approx(figures, abs=1e-9), name


@pytest.mark.usefixtures("fixed_anchor")
def test_few_continuations_make_the_ceiling_too_low_and_never_too_high(bundle: Bundle) -> None:
    """Mean over 30 estimates each; the bias shrinks as continuations are added."""
    wanted = exact_second_depth(bundle, PROMPT)[ORACLE]
    means, errors = [], []
    for continuations in (2, 4, 24):
        rows = measure_ceiling(bundle, [PROMPT] * 30, continuations=continuations, depth=2).by_anchor[ORACLE][:, 1]
        means.append(rows.mean())
        errors.append(rows.std(ddof=1) / np.sqrt(30))
    assert means[0] < means[1] < means[2] < wanted + 3 * errors[2]
    assert means[0] < wanted - 3 * errors[0]


def test_an_average_with_the_path_itself_would_be_higher_by_a_known_amount() -> None:
    p = torch.rand(8, 30, dtype=torch.float64).softmax(1)
    honest = torch.minimum(leave_one_out(p), p).sum(1)
    flattered = torch.minimum(p.mean(0), p).sum(1)
    torch.testing.assert_close(flattered, honest + (1 - honest) / 8)
    for path in range(8):
        others = torch.cat([p[:path], p[path + 1 :]])
        torch.testing.assert_close(leave_one_out(p)[path], others.mean(0))


def test_anchors_lie_in_the_text_that_the_target_wrote(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [random_tokens(size, seed=size) for size in (5, 9, 30)] * 4
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(anchors, "TOGETHER", 5)
    found = list(to_anchors(bundle.target, prompts, 6, generator))
    assert sorted(anchored.prompt for anchored in found) == list(range(12))
    for index, context in found:
        assert context[: len(prompts[index])] == prompts[index]
        assert 1 <= len(context) - len(prompts[index]) <= 6
    assert len({len(context) - len(prompts[index]) for index, context in found}) > 2


def test_anchors_come_before_a_stop_token(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    config = bundle.target.config
    monkeypatch.setattr(bundle.target, "config", replace(config, stop_tokens=tuple(range(0, VOCABULARY, 3))))
    prompts = [random_tokens(8, seed=size) for size in range(20)]
    contexts = [found.tokens for found in to_anchors(bundle.target, prompts, 6, torch.Generator().manual_seed(0))]
    assert not any(token % 3 == 0 for context in contexts for token in context[8:])
    assert any(len(context) == 8 for context in contexts)


def test_intervals_are_over_anchors_and_depths_end_with_the_drafter(bundle: Bundle) -> None:
    done: list[int] = []
    prompts = [random_tokens(8, seed=seed) for seed in range(5)]
    ceiling = measure_ceiling(bundle, prompts, continuations=3, written=4, on_anchor=done.append)
    assert done == [1, 2, 3, 4, 5]
    assert (ceiling.anchors, ceiling.continuations) == (5, 3)
    figures = ceiling.figures()
    assert {name: len(column) for name, column in figures.items()} == dict.fromkeys(figures, 7)
    for name, column in figures.items():
        for depth, figure in enumerate(column):
            assert figure.value == pytest.approx(ceiling.by_anchor[name][:, depth].mean())
            assert figure.low <= figure.value <= figure.high
    for depth in range(7):
        assert (ceiling.by_anchor[WEAVER][:, depth] <= ceiling.by_anchor[POOL][:, depth] + 1e-12).all()


def test_without_weaver_and_autoregressive_drafter_their_columns_are_missing(bundle: Bundle) -> None:
    bare = Bundle("tiny", bundle.target, bundle.tokenizer, None, bundle.drafter, None)
    assert set(measure_ceiling(bare, [PROMPT], continuations=2).by_anchor) == {ORACLE, POINT, DRAFTER, POOL}


def test_a_shallow_autoregressive_drafter_has_a_short_column(bundle: Bundle) -> None:
    shallow = replace(bundle, autoregressive=autoregressive_for(bundle.target, block_size=3))
    found = measure_ceiling(shallow, [PROMPT], continuations=2, written=2).by_anchor
    lengths = {name: values.shape[1] for name, values in found.items()}
    assert lengths == dict.fromkeys((ORACLE, POINT, DRAFTER, WEAVER, POOL), 7) | {AUTOREGRESSIVE: 2}


def test_the_seed_decides_the_paths_and_a_prompt_may_just_fit(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"continuations": 3, "written": 4, "depth": 2}
    config = replace(bundle.target.config, max_positions=len(PROMPT) + 6)
    monkeypatch.setattr(bundle.target, "config", config)
    first, again, other = (measure_ceiling(bundle, [PROMPT], **shape, seed=s).by_anchor[DRAFTER] for s in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    with pytest.raises(ValueError, match="leaves no room for 6 more"):
        measure_ceiling(bundle, [[*PROMPT, 1]], **shape)


def test_what_cannot_be_measured_is_refused(bundle: Bundle) -> None:
    with pytest.raises(ValueError, match="at least 2 continuations per anchor, got 1"):
        measure_ceiling(bundle, [PROMPT], continuations=1)
    for prompts in ([], [[3]]):
        with pytest.raises(ValueError, match="prompts of at least 2 tokens"):
            measure_ceiling(bundle, prompts)
    with pytest.raises(ValueError, match="leaves no room for 79 more in a context of 2304"):
        measure_ceiling(bundle, [random_tokens(2300)])
