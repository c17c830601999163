"""The Weaver: zero read-out is the drafter, nothing leaves the pool, branches never see each other."""

from typing import Any

import pytest
import torch
from models.oracle import VOCABULARY, random_tokens
from models.small import drafter_for, tiny_target, weaver_for

from tfm_lab.drafting import Marginals, OpenNode
from tfm_lab.models import TargetModel, Weaver, WeaverConfig, WeaverSession
from tfm_lab.training.initialise import new_weaver

FORMS: dict[str, dict[str, Any]] = {
    "learned-gelu": {},
    "shallow": {"max_depth": 5},
    "rotary-swiglu": {"positions": "rotary", "mlp": "swiglu"},
    "two-blocks": {"layers": 2},
}
TREE = [OpenNode(0, -1, 5, 0), OpenNode(1, 0, 8, 1), OpenNode(2, 0, 9, 1), OpenNode(3, 1, 7, 2), OpenNode(4, 3, 3, 3)]


def step_inputs(target: TargetModel) -> tuple[Marginals, torch.Tensor]:
    drafter = drafter_for(target)
    prefilled = target.prefill(random_tokens(12), drafter.config.tap_layers)
    context = drafter.extend_context(drafter.empty_context(), prefilled.taps)
    return drafter.propose(context, 5, target), prefilled.hidden


def session_for(weaver: Weaver, target: TargetModel, pool_size: int = 20) -> WeaverSession:
    marginals, hidden = step_inputs(target)
    return WeaverSession(weaver, target, marginals, hidden, pool_size)


@pytest.mark.parametrize("form", FORMS)
def test_a_fresh_weaver_is_the_drafter_restricted_to_its_pool(form: str) -> None:
    target = tiny_target()
    shape = {"layers": 1, "max_depth": 7} | FORMS[form]
    config = WeaverConfig(48, 32, attention_heads=2, mlp_width=24, **shape)
    weaver = new_weaver(config, target, 0).double()
    marginals, hidden = step_inputs(target)
    session = WeaverSession(weaver, target, marginals, hidden, pool_size=20)
    pool = marginals.pool(20)
    (root,) = session.expand(TREE[:1])
    (child,) = session.expand(TREE[1:2])
    for depth, proposal in enumerate((root, child)):
        assert torch.equal(proposal.tokens, pool.tokens[depth])
        wanted = torch.log_softmax(pool.logits[depth], dim=-1)
        assert torch.allclose(proposal.log_probs, wanted, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("form", FORMS)
def test_conditionals_in_a_tree_equal_the_training_form_along_each_path(form: str) -> None:
    target = tiny_target()
    weaver = weaver_for(target, **FORMS[form])
    marginals, hidden = step_inputs(target)
    session = WeaverSession(weaver, target, marginals, hidden, pool_size=20)
    proposals = [*session.expand(TREE[:1]), *session.expand(TREE[1:3]), *session.expand(TREE[3:4])]
    proposals += session.expand(TREE[4:5])
    pool = marginals.pool(20)
    for path in ([0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 3, 4]):
        tokens = torch.tensor([[TREE[node].token for node in path]])
        read_outs = weaver(hidden[None], marginals.hidden[None], target.model.embed_tokens(tokens))
        depth = len(path) - 1
        logits = pool.logits[depth] + target.head_weight[pool.tokens[depth]] @ read_outs[0, depth]
        wanted = torch.log_softmax(logits, dim=-1)
        assert torch.allclose(proposals[path[-1]].log_probs, wanted, atol=1e-10, rtol=0.0)


def test_a_weaver_can_do_without_the_targets_hidden_state() -> None:
    target = tiny_target()
    marginals, hidden = step_inputs(target)

    def root_proposal(sees_target: bool, hidden: torch.Tensor) -> torch.Tensor:
        weaver = weaver_for(target, sees_target=sees_target)
        return WeaverSession(weaver, target, marginals, hidden, 20).expand(TREE[:1])[0].log_probs

    assert torch.equal(root_proposal(False, hidden), root_proposal(False, -hidden))
    assert not torch.allclose(root_proposal(True, hidden), root_proposal(True, -hidden), atol=1e-6)


def warm_weaver(target: TargetModel, **changes: Any) -> Weaver:
    """A Weaver that sees temperatures, and says something else at each."""
    weaver = weaver_for(target, sees_temperature=True, **changes)
    assert weaver.temperature_emb is not None
    with torch.no_grad():
        weaver.temperature_emb.normal_(0.0, 1.0, generator=torch.Generator().manual_seed(3))
    return weaver


@pytest.mark.parametrize("layers", [1, 2])
def test_a_weaver_told_a_temperature_says_what_it_was_trained_to_say_at_it(layers: int) -> None:
    target = tiny_target()
    weaver = warm_weaver(target, layers=layers)
    marginals, hidden = step_inputs(target)
    tokens = torch.tensor([[TREE[node].token for node in (0, 1, 3, 4)]])
    pool = marginals.pool(20)
    said: list[torch.Tensor] = []
    for temperature in (0.0, 0.3, 1.0, 1.7):
        fixed = weaver.for_temperature(temperature)
        session = WeaverSession(fixed, target, marginals, hidden, pool_size=20)
        found = [session.expand([node])[0].log_probs for node in (TREE[0], TREE[1], TREE[3], TREE[4])]
        read_outs = weaver(
            hidden[None], marginals.hidden[None], target.model.embed_tokens(tokens), torch.tensor([temperature])
        )
        for depth, log_probs in enumerate(found):
            logits = pool.logits[depth] + target.head_weight[pool.tokens[depth]] @ read_outs[0, depth]
            assert torch.allclose(log_probs, torch.log_softmax(logits, dim=-1), atol=1e-10, rtol=0.0)
        said.append(torch.stack(found))
    assert not torch.allclose(said[0], said[1], atol=1e-3)
    assert not torch.allclose(said[1], said[2], atol=1e-3)
    assert torch.equal(said[2], said[3])


def test_a_weaver_that_sees_temperatures_wants_to_be_told_one() -> None:
    target = tiny_target()
    weaver = warm_weaver(target)
    marginals, hidden = step_inputs(target)
    with pytest.raises(ValueError, match=r"this Weaver knows temperatures: take models.at_temperature"):
        WeaverSession(weaver, target, marginals, hidden, 20)
    with pytest.raises(ValueError, match=r"this Weaver knows temperatures"):
        weaver(hidden[None], marginals.hidden[None], target.model.embed_tokens(torch.tensor([[5]])))
    with pytest.raises(ValueError, match=r"temperature must be 0 or more, got -0\.5"):
        weaver.for_temperature(-0.5)
    with pytest.raises(ValueError, match="needs learned positions"):
        WeaverConfig(48, 32, 1, 2, 24, positions="rotary", sees_temperature=True)
    plain = weaver_for(target)
    assert plain.for_temperature(0.3) is plain


def test_telling_a_weaver_the_temperature_leaves_it_and_its_weights_as_they_are() -> None:
    target = tiny_target()
    weaver = warm_weaver(target)
    before = {name: tensor.clone() for name, tensor in weaver.state_dict().items()}
    fixed = weaver.for_temperature(0.0)
    assert weaver.config.sees_temperature
    assert not fixed.config.sees_temperature
    assert "temperature_emb" not in fixed.state_dict()
    assert fixed.token_in.weight is weaver.token_in.weight
    assert before.keys() == weaver.state_dict().keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in weaver.state_dict().items())


def test_a_node_depends_on_its_ancestors_and_not_on_its_siblings() -> None:
    target = tiny_target()
    weaver = weaver_for(target)

    def last_proposal(first_child: int, second_child: int) -> torch.Tensor:
        session = session_for(weaver, target)
        session.expand(TREE[:1])
        session.expand([OpenNode(1, 0, first_child, 1), OpenNode(2, 0, second_child, 1)])
        return session.expand(TREE[3:4])[0].log_probs

    base = last_proposal(8, 9)
    assert torch.equal(last_proposal(8, 30), base)
    assert not torch.allclose(last_proposal(30, 9), base)


def test_nothing_outside_the_pool_gets_probability() -> None:
    target = tiny_target()
    (proposal,) = session_for(weaver_for(target), target, pool_size=6).expand(TREE[:1])
    dense = proposal.dense(VOCABULARY)
    assert proposal.tokens.numel() == 6
    assert int((dense > 0).sum()) == 6
    assert float(dense.sum()) == pytest.approx(1.0, abs=1e-12)


def test_a_pool_larger_than_the_vocabulary_proposes_known_tokens_only() -> None:
    target = tiny_target()
    (proposal,) = session_for(weaver_for(target), target, pool_size=10_000).expand(TREE[:1])
    assert proposal.tokens.numel() == VOCABULARY
    assert int(proposal.tokens.max()) < VOCABULARY


def test_expanding_out_of_order_or_too_deep_is_refused() -> None:
    target = tiny_target()
    session = session_for(weaver_for(target), target)
    with pytest.raises(ValueError, match="node 3 cannot be expanded"):
        session.expand(TREE[3:4])
    session.expand(TREE[:1])
    with pytest.raises(ValueError, match="it is too deep"):
        session.expand([OpenNode(1, 0, 4, 7)])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attention_heads": 5}, "must split into 5 attention heads"),
        ({"positions": "absolute"}, "'learned' or 'rotary'"),
        ({"mlp": "relu"}, "'gelu' or 'swiglu'"),
    ],
)
def test_a_weaver_config_that_cannot_work_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        weaver_for(tiny_target(), **changes)


def test_a_weaver_for_another_target_is_refused() -> None:
    target = tiny_target()
    with pytest.raises(ValueError, match="its width is 64, the target's is 48"):
        Weaver(WeaverConfig(64, 32, 1, 2, 24)).check_target(target)


@pytest.mark.parametrize("form", FORMS)
def test_reading_the_prefix_gives_what_a_run_over_it_would_remember(form: str) -> None:
    target = tiny_target()
    weaver = weaver_for(target, **FORMS[form])
    marginals, hidden = step_inputs(target)
    prefix = weaver.prefix_tokens(hidden[None], marginals.hidden[None])
    length = prefix.shape[1]
    causal = torch.ones(1, length, length, dtype=torch.bool).tril()
    _, wanted = weaver.run(prefix, weaver.rotary(torch.arange(length), prefix.dtype), causal)
    for seen, want in zip(weaver.read_prefix(prefix), wanted, strict=True):
        assert all(torch.equal(*both) for both in zip(seen, want, strict=True))
