"""A hybrid target that verifies trees through the fused kernels, in Triton's interpreter or on the GPU if there is one.

Its reference is the same target in plain PyTorch, which test_target.py holds against transformers.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from command_line import assert_refused
from models.oracle import pair, random_tokens, relative_error
from models.small import drafter_for, weaver_for
from trees import chain, random_tree, shuffled

from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.drafting import TreeConfig
from tfm_lab.methods import make_speculator
from tfm_lab.models import DeltaNetConfig, TargetModel, TargetState

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FITTING = DeltaNetConfig(key_heads=1, value_heads=2, key_dim=32, value_dim=32, convolution_width=4)
TAPS = (0, 2)


def random_target(delta_net: DeltaNetConfig, dtype: torch.dtype = torch.float32) -> TargetModel:
    shape = pair("hybrid-grouped").target.config
    layers = ("linear_attention", "full_attention", "linear_attention")
    torch.manual_seed(3)
    target = TargetModel(replace(shape, layer_types=layers, delta_net=delta_net)).eval().requires_grad_(False)
    for parameter in target.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return target.to(DEVICE, dtype)


@cache
def plain_and_fused() -> tuple[TargetModel, TargetModel]:
    """The same weights twice: PyTorch alone, and with the kernels."""
    plain, fused = random_target(FITTING), random_target(FITTING)
    fused.use_kernels("triton")
    return plain, fused


def assert_same_state(got: TargetState, wanted: TargetState) -> None:
    assert got.length == wanted.length
    compared = 0
    for left, right in zip(got.layers, wanted.layers, strict=True):
        if not hasattr(right, "buffer"):
            assert relative_error(left.matrix, right.matrix) < 1e-5
            assert relative_error(left.window, right.window) < 1e-5
            compared += 1
    assert compared == 2


def test_trees_and_commits_of_a_decode_are_those_of_the_reference() -> None:
    plain, fused = plain_and_fused()
    left, right = (target.prefill(random_tokens(11), TAPS).state for target in (plain, fused))
    for step, nodes in enumerate([18, 1, 33, 2]):
        tree = shuffled(random_tree(nodes, seed=step), seed=step)
        assert nodes < 3 or tree.preorder() != tuple(range(nodes)), "the order of the nodes is part of the test"
        wanted, got = plain.verify_tree(left, tree, TAPS), fused.verify_tree(right, tree, TAPS)
        for part in ("logits", "hidden", "taps"):
            assert relative_error(getattr(got, part), getattr(wanted, part)) < 1e-5
        path = tree.path(max(tree.leaves(), key=lambda leaf: int(tree.depths[leaf])))
        left, right = plain.commit(left, wanted.pending, path), fused.commit(right, got.pending, path)
        if step == 1:
            assert_same_state(right, left)  # with a path that no verification has folded in
    assert_same_state(right, left)


def test_reading_and_verifying_a_state_leave_it_as_it_is() -> None:
    plain, fused = plain_and_fused()
    prompt, tree = random_tokens(6, seed=1), shuffled(random_tree(9, seed=4), seed=0)
    state = fused.prefill(prompt).state
    state = fused.commit(state, fused.verify_tree(state, tree).pending, [0])
    wanted = plain.prefill([*prompt, 0]).state
    assert_same_state(state, wanted)
    for layer in state.layers:
        if not hasattr(layer, "buffer"):
            layer.window.zero_()  # what is read is a copy
            layer.matrix.zero_()
    assert_same_state(state, wanted)
    first = fused.verify_tree(state, tree)
    assert_same_state(state, wanted)
    again = fused.verify_tree(state, tree)
    assert torch.equal(first.logits, again.logits)
    state = fused.commit(state, first.pending, tree.path(8))
    assert_same_state(state, plain.prefill([*prompt, 0, *tree.path_tokens(8)]).state)


def test_plain_decoding_goes_on_from_a_committed_state() -> None:
    plain, fused = plain_and_fused()
    prompt, more = random_tokens(6, seed=2), torch.tensor([random_tokens(5, seed=3)], device=DEVICE)
    state = fused.prefill(prompt).state
    state = fused.commit(state, fused.verify_tree(state, chain(3)).pending, [0, 1])
    got, after = fused.extend(more, state)
    wanted, expected = plain.extend(more, plain.prefill([*prompt, 0, 1]).state)
    assert relative_error(got.hidden, wanted.hidden) < 1e-5
    assert_same_state(after, expected)
    assert_same_state(state, plain.prefill([*prompt, 0, 1]).state)


def test_a_state_that_was_overwritten_is_refused() -> None:
    _, fused = plain_and_fused()
    prefilled = fused.prefill(random_tokens(6)).state
    first = fused.verify_tree(prefilled, chain(2))
    older = fused.commit(prefilled, first.pending, [0])
    pending = fused.verify_tree(older, chain(2)).pending
    fused.commit(older, pending, [0, 1])
    told = "1 commits behind, and the tree kernels keep the newest alone"
    with pytest.raises(ValueError, match=told):
        fused.commit(older, pending, [0])
    with pytest.raises(ValueError, match=told):
        fused.verify_tree(older, chain(2))
    with pytest.raises(ValueError, match=told):
        fused.extend(torch.tensor([[1]], device=DEVICE), older)
    again = fused.verify_tree(prefilled, chain(2))
    assert torch.equal(again.logits, first.logits), "the state of a prefill is a value"


@pytest.mark.parametrize("method", ["chain", "ddtree", "tfm"])
def test_greedy_text_is_that_of_the_reference(method: str) -> None:
    plain, fused = plain_and_fused()
    config = DecodeConfig(5, tree=TreeConfig(budget=5))
    wanted = autoregressive_decode(plain, random_tokens(7), config).tokens
    speculator = make_speculator(method, drafter_for(fused), weaver_for(fused), config.sampling)
    trace = speculative_decode(fused, speculator, random_tokens(7), config)
    assert trace.tokens == wanted
    assert len(trace.steps) > 1


def test_targets_that_the_kernels_cannot_take_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no Gated DeltaNet layers"):
        pair("llama-plain").target.use_kernels("triton")
    with pytest.raises(ValueError, match="head sizes 32, 64, 128, and this target's are 32 and 24; use the reference"):
        random_target(replace(FITTING, value_dim=24)).use_kernels("triton")
    with pytest.raises(ValueError, match=r"float32 or bfloat16, and this target is torch\.float64; use the reference"):
        random_target(FITTING, torch.float64).use_kernels("triton")


@pytest.mark.skipif(DEVICE == "cuda", reason="about Triton's interpreter; a GPU is used here")
def test_the_interpreter_is_told_not_to_take_bfloat16() -> None:
    with pytest.raises(ValueError, match="pass float32, or run on a GPU"):
        random_target(FITTING, torch.bfloat16).use_kernels("triton")


def test_the_command_refuses_kernels_for_a_float64_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["decode", "x", "--kernels", "triton", "--dtype", "float64"]
    assert_refused(words, "the tree kernels take float32 or bfloat16", tmp_path, capsys)
    assert_refused([*words, "--method", "ar"], "verifies no trees: leave out --kernels", tmp_path, capsys)
