"""The autoregressive drafter: trained rows are drafted rows, branches never see each other, text stays the target's."""

from pathlib import Path

import pytest
import torch
from models.oracle import VOCABULARY, random_tokens
from models.small import autoregressive_for, drafter_for, tiny_target

from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import OpenNode, TreeConfig
from tfm_lab.drafting.batched import NodeBatch
from tfm_lab.methods import AUTOREGRESSIVE_METHODS, make_speculator
from tfm_lab.models import (
    AutoregressiveSession,
    load_autoregressive,
    load_drafter,
    save_autoregressive,
    save_drafter,
)
from tfm_lab.models.autoregressive import AutoregressiveBatch

TREE = [OpenNode(0, -1, 5, 0), OpenNode(1, 0, 8, 1), OpenNode(2, 0, 9, 1), OpenNode(3, 1, 7, 2), OpenNode(4, 3, 3, 3)]
PROMPT = random_tokens(14, seed=2)


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-grouped"])
def test_conditionals_in_a_tree_equal_the_training_form_along_each_path(name: str) -> None:
    target = tiny_target(name)
    drafter = autoregressive_for(target)
    prefilled = target.prefill(PROMPT, drafter.config.tap_layers)
    context = drafter.extend_context(drafter.empty_context(), prefilled.taps)
    session = AutoregressiveSession(drafter, target, context, pool_size=30)
    proposals = [*session.expand(TREE[:1]), *session.expand(TREE[1:3]), *session.expand(TREE[3:4])]
    proposals += session.expand(TREE[4:5])
    for path in ([0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 3, 4]):
        drafted = [TREE[node].token for node in path]
        text = torch.tensor([[*PROMPT, *drafted, *[0] * 7]])
        anchors = torch.tensor([[len(PROMPT)]])
        taps = target.features(text, drafter.config.tap_layers).taps
        hidden = drafter(taps, drafter.pack_blocks(text, anchors, target))[0, 0, len(path) - 1]
        wanted = target.logits(hidden).log_softmax(-1)
        found = proposals[path[-1]]
        assert torch.allclose(found.log_probs, wanted[found.tokens], atol=1e-10, rtol=0.0)
        assert set(found.tokens.tolist()) == set(wanted.topk(30).indices.tolist())


def test_a_pool_may_be_as_large_as_the_vocabulary_and_half_precision_is_left_before_the_softmax() -> None:
    target = tiny_target(dtype=torch.bfloat16)
    drafter = autoregressive_for(target)
    context = drafter.extend_context(drafter.empty_context(), target.prefill(PROMPT, drafter.config.tap_layers).taps)
    (single,) = AutoregressiveSession(drafter, target, context, VOCABULARY + 1).expand(TREE[:1])
    seen = drafter.read(target.features(torch.tensor([PROMPT]), drafter.config.tap_layers).taps)
    batch = AutoregressiveBatch(drafter, target, seen, torch.tensor([len(PROMPT)]), VOCABULARY + 1, budget=1)
    start = torch.zeros(1, 1, dtype=torch.long)
    tokens, log_probs = batch.expand(NodeBatch(start, start - 1, start + TREE[0].token, start, start == 0))
    for listed, found in ((single.tokens, single.log_probs), (tokens[0, 0], log_probs[0, 0])):
        assert sorted(listed.tolist()) == list(range(VOCABULARY))
        assert found.dtype == torch.float32
        assert float(found.exp().sum()) == pytest.approx(1.0, abs=1e-5)


def test_expanding_out_of_order_or_too_deep_is_refused() -> None:
    target = tiny_target()
    drafter = autoregressive_for(target)
    context = drafter.extend_context(drafter.empty_context(), target.prefill(PROMPT, drafter.config.tap_layers).taps)
    session = AutoregressiveSession(drafter, target, context, pool_size=30)
    session.expand(TREE[:1])
    for node in (OpenNode(2, 1, 5, 1), OpenNode(1, 0, 5, drafter.config.draft_depth), OpenNode(1, 0, 5, -1)):
        with pytest.raises(ValueError, match="cannot be expanded: its parent was not, or it is too deep"):
            session.expand([node])


def test_a_block_is_blind_to_everything_from_its_anchor_on_but_its_own_earlier_tokens() -> None:
    target = tiny_target()
    drafter = autoregressive_for(target)
    text, anchors = torch.tensor([random_tokens(30)]), torch.tensor([[6, 12]])
    taps = target.features(text, drafter.config.tap_layers).taps.requires_grad_()
    blocks = drafter.pack_blocks(text, anchors, target)
    rows = drafter(taps, blocks)
    (gradient,) = torch.autograd.grad(rows[0, 0].sum(), taps, retain_graph=True)
    assert gradient[0, :6].abs().sum() > 0
    assert gradient[0, 6:].eq(0).all()
    embedded = blocks.embedded.detach().requires_grad_()
    rows = drafter(taps, blocks._replace(embedded=embedded))
    (gradient,) = torch.autograd.grad(rows[0, 1, 2].sum(), embedded)
    own = gradient[0].abs().sum(-1).unflatten(0, (2, -1))
    assert own[0].eq(0).all()
    assert own[1, :3].gt(0).all()
    assert own[1, 3:].eq(0).all()


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-plain"])
@pytest.mark.parametrize("method", AUTOREGRESSIVE_METHODS)
@pytest.mark.parametrize("sampling", [SamplingConfig(0.0), SamplingConfig(1.0)])
def test_text_is_that_of_plain_decoding(name: str, method: str, sampling: SamplingConfig) -> None:
    target = tiny_target(name)
    config = DecodeConfig(16, sampling, TreeConfig(budget=12, max_depth=7, children=4, width=3, pool_size=20), seed=4)
    rule = None if sampling.is_greedy else "target_sample"
    speculator = make_speculator(method, drafter_for(target), None, sampling, rule, autoregressive_for(target))
    trace = speculative_decode(target, speculator, PROMPT, config)
    assert trace.tokens == autoregressive_decode(target, PROMPT, config).tokens
    assert any(len(step.tree) > 5 for step in trace.steps)
    for step in trace.steps:
        if method == "ard-chain":
            assert step.drafter_calls == step.tree.budget == step.tree.max_depth


def test_methods_without_their_drafter_are_refused() -> None:
    target = tiny_target()
    with pytest.raises(ValueError, match="needs an autoregressive drafter"):
        make_speculator("ard-tree", drafter_for(target), None, SamplingConfig(0.0))


def test_a_saved_drafter_is_read_again_and_not_taken_for_the_other_kind(tmp_path: Path) -> None:
    target = tiny_target(dtype=torch.float32)
    drafter = autoregressive_for(target)
    save_autoregressive(drafter, target, tmp_path / "autoregressive")
    save_drafter(drafter_for(target), target, tmp_path / "drafter")
    read = load_autoregressive(tmp_path / "autoregressive", target)
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(read.state_dict()[name], tensor.bfloat16().float())
    with pytest.raises(ValueError, match="holds an autoregressive drafter"):
        load_drafter(tmp_path / "autoregressive", target)
    with pytest.raises(ValueError, match="holds a factorised drafter"):
        load_autoregressive(tmp_path / "drafter", target)
