"""The factorised drafter: its context cache, its blindness to the future, and its training form."""

import pytest
import torch
from models.oracle import VOCABULARY, random_tokens
from models.small import MASK, drafter_config, drafter_for, tiny_target

from tfm_lab.models import FactorisedDrafter


def test_context_extended_in_pieces_equals_context_extended_at_once() -> None:
    target = tiny_target()
    drafter = drafter_for(target)
    taps = target.prefill(random_tokens(30), drafter.config.tap_layers).taps
    whole = drafter.extend_context(drafter.empty_context(), taps)
    pieces = drafter.empty_context()
    for piece in taps.split([1, 7, 2, 20]):
        pieces = drafter.extend_context(pieces, piece)
    assert pieces.length == whole.length == 30
    for left, right in zip(pieces.layers, whole.layers, strict=True):
        for a, b in zip(left.rows(30), right.rows(30), strict=True):
            assert torch.allclose(a, b, atol=1e-12, rtol=0.0)


def test_proposing_leaves_the_context_and_depends_on_root_and_context() -> None:
    target = tiny_target()
    drafter = drafter_for(target)
    taps = target.prefill(random_tokens(12), drafter.config.tap_layers).taps
    context = drafter.extend_context(drafter.empty_context(), taps)
    first = drafter.propose(context, 5, target)
    assert first.logits.shape == (7, VOCABULARY)
    assert first.hidden.shape == (7, target.config.hidden_size)
    assert torch.equal(drafter.propose(context, 5, target).logits, first.logits)
    assert not torch.allclose(drafter.propose(context, 6, target).logits, first.logits)
    shorter = drafter.extend_context(drafter.empty_context(), taps[:11])
    assert not torch.allclose(drafter.propose(shorter, 5, target).logits, first.logits)


def test_training_form_gives_the_hidden_states_of_decoding_at_every_anchor() -> None:
    target = tiny_target()
    drafter = drafter_for(target)
    tokens = torch.tensor([random_tokens(40, seed=1), random_tokens(40, seed=2)])
    anchors = torch.tensor([[3, 17, 17], [1, 30, 32]])
    taps = target.features(tokens, drafter.config.tap_layers).taps
    trained = drafter(taps, drafter.pack_blocks(tokens, anchors, target))
    for row in range(2):
        for block in range(3):
            anchor = int(anchors[row, block])
            context = drafter.extend_context(drafter.empty_context(), taps[row, :anchor].detach())
            decoded = drafter.propose(context, int(tokens[row, anchor]), target)
            assert torch.allclose(trained[row, block], decoded.hidden, atol=1e-10, rtol=0.0)


def test_a_block_sees_nothing_at_or_after_its_anchor() -> None:
    target = tiny_target()
    drafter = drafter_for(target)
    tokens = torch.tensor([random_tokens(40)])
    anchors = torch.tensor([[10, 25]])
    taps = target.features(tokens, drafter.config.tap_layers).taps.detach().requires_grad_(True)
    hidden = drafter(taps, drafter.pack_blocks(tokens, anchors, target))
    (gradient,) = torch.autograd.grad(hidden[0, 0].square().sum(), taps)
    reach = gradient[0].abs().amax(-1)
    assert bool((reach[:10] > 0.0).all())
    assert bool((reach[10:] == 0.0).all())


def test_the_mask_token_is_an_input_like_any_other_and_may_be_proposed() -> None:
    target = tiny_target()
    drafter = drafter_for(target)
    context = drafter.extend_context(drafter.empty_context(), target.prefill([MASK, 3], (0, 1)).taps)
    marginals = drafter.propose(context, MASK, target)
    assert bool(torch.isfinite(marginals.logits[:, MASK]).all())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"vocab_size": VOCABULARY + 1}, "its vocabulary size is 98, the target's is 97"),
        ({"hidden_size": 64}, "its width is 64, the target's is 48"),
        ({"target_layers": 7}, "its number of target layers is 7, the target's is 5"),
    ],
)
def test_a_drafter_for_another_target_is_refused(changes: dict[str, int], sentence: str) -> None:
    target = tiny_target()
    with pytest.raises(ValueError, match=sentence):
        FactorisedDrafter(drafter_config(target, **changes)).check_target(target)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tap_layers": (0, 5)}, "must name layers of a target with 5 layers"),
        ({"tap_layers": ()}, "must name layers"),
        ({"mask_token": VOCABULARY}, "not in a vocabulary of 97 tokens"),
        ({"block_size": 1}, "the root and at least one draft"),
        ({"key_value_heads": 3}, "cannot be shared by 3"),
    ],
)
def test_a_drafter_config_that_cannot_work_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        drafter_config(tiny_target(), **changes)


def test_fewer_places_cost_nothing_but_their_logits() -> None:
    target = tiny_target()
    drafter = drafter_for(target)
    taps = target.prefill(random_tokens(6), drafter.config.tap_layers).taps
    context = drafter.extend_context(drafter.empty_context(), taps)
    whole, cut = drafter.propose(context, 5, target), drafter.propose(context, 5, target, 3)
    torch.testing.assert_close(cut.logits, whole.logits[:3])
    assert torch.equal(cut.hidden, whole.hidden)
    assert cut.max_depth == 3
