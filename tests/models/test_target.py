"""The target against transformers: whole texts, prompts, every path of a tree, and states after commits."""

from dataclasses import replace

import pytest
import torch
from models.oracle import HYBRIDS, LLAMAS, NAMES, VOCABULARY, oracle_logits, pair, random_tokens, relative_error
from trees import TREES

from tfm_lab.models import TargetModel, TargetState
from tfm_lab.tree import DraftTree

SMALL_TREES = ["root", "chain-17", "star-33", "binary-31", "comb-15", "random-65", "random-65-shuffled"]


def tree_case(name: str, seed: int = 0) -> DraftTree:
    """A tree of the shared table with distinct siblings drawn from the tiny vocabulary."""
    shape = TREES[name]
    tokens = [(7 * node + 3 * seed) % VOCABULARY for node in range(len(shape))]
    return DraftTree.from_parents(tokens, shape.parents.tolist())


def tensors_of(state: TargetState) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for layer in state.layers:
        tensors += layer.buffer.rows(state.length) if hasattr(layer, "buffer") else (layer.matrix, layer.window)
    return tensors


def state_difference(left: TargetState, right: TargetState) -> float:
    assert left.length == right.length
    pairs = zip(tensors_of(left), tensors_of(right), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 63, 64, 65, 130, 200])
def test_logits_of_whole_texts_equal_those_of_transformers(name: str, length: int) -> None:
    oracle, target = pair(name)
    tokens = random_tokens(length)
    wanted = oracle_logits(oracle, tokens)
    assert relative_error(target(torch.tensor([tokens]))[0], wanted) < 1e-4
    assert relative_error(target.prefill(tokens).logits, wanted[-1]) < 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tree_name", SMALL_TREES)
def test_every_path_of_a_tree_equals_a_plain_forward_of_prompt_and_path(name: str, tree_name: str) -> None:
    oracle, target = pair(name)
    prompt, tree = random_tokens(23), tree_case(tree_name)
    outputs = target.verify_tree(target.prefill(prompt).state, tree)
    for leaf in tree.leaves():
        path = tree.path(leaf)
        wanted = oracle_logits(oracle, prompt + list(tree.path_tokens(leaf)))[len(prompt) :]
        assert relative_error(outputs.logits[list(path)], wanted) < 1e-4


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-grouped"])
def test_committing_any_path_gives_the_state_of_plain_prefill(name: str) -> None:
    target = pair(name, torch.float64).target
    prompt, tree = random_tokens(9), tree_case("random-65")
    state = target.prefill(prompt).state
    pending = target.verify_tree(state, tree).pending
    for node in range(len(tree)):
        committed = target.commit(state, pending, tree.path(node))
        wanted = target.prefill(prompt + list(tree.path_tokens(node))).state
        assert state_difference(committed, wanted) < 1e-12


@pytest.mark.parametrize("name", ["hybrid-plain", "llama-plain"])
def test_verifying_and_committing_leave_older_states_as_they_were(name: str) -> None:
    target = pair(name, torch.float64).target
    prompt, tree = random_tokens(5), tree_case("binary-31")
    state = target.prefill(prompt).state
    before = [tensor.clone() for tensor in tensors_of(state)]
    pending = target.verify_tree(state, tree).pending
    first = target.commit(state, pending, tree.path(30))
    first_before = [tensor.clone() for tensor in tensors_of(first)]
    second = target.commit(state, pending, tree.path(17))
    target.verify_tree(second, tree)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors_of(state), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first_before, tensors_of(first), strict=True))
    assert state_difference(second, target.prefill(prompt + list(tree.path_tokens(17))).state) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_prefill_in_chunks_equals_prefill_at_once(name: str) -> None:
    target = pair(name, torch.float64).target
    tokens = random_tokens(300)
    whole = target.prefill(tokens, tap_layers=(0, 2), chunk=1000)
    for chunk in (1, 7, 64, 150):
        pieces = target.prefill(tokens, tap_layers=(0, 2), chunk=chunk)
        assert state_difference(pieces.state, whole.state) < 1e-12
        assert torch.allclose(pieces.logits, whole.logits, atol=1e-12, rtol=0.0)
        assert torch.allclose(pieces.taps, whole.taps, atol=1e-12, rtol=0.0)


def test_two_thousand_tokens_are_prefilled_in_a_handful_of_layer_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    target = pair("hybrid-grouped").target
    calls: list[int] = []
    extend = TargetModel.extend

    def counted(self: TargetModel, tokens: torch.Tensor, *arguments: object) -> object:
        calls.append(tokens.shape[1])
        return extend(self, tokens, *arguments)

    monkeypatch.setattr(TargetModel, "extend", counted)
    tokens = random_tokens(2000)
    prefilled = target.prefill(tokens)
    assert calls == [512, 512, 512, 464]
    assert relative_error(prefilled.logits, oracle_logits(pair("hybrid-grouped").oracle, tokens)[-1]) < 1e-4


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-plain"])
def test_taps_and_hidden_states_are_those_of_transformers(name: str) -> None:
    oracle, target = pair(name)
    tokens = random_tokens(12)
    with torch.no_grad():
        outputs = oracle(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    features = target.features(torch.tensor([tokens]), tap_layers=(0, 1))
    wanted = torch.cat([outputs.hidden_states[1], outputs.hidden_states[2]], dim=-1)
    assert relative_error(features.taps, wanted) < 1e-4
    assert relative_error(features.hidden, outputs.hidden_states[-1]) < 1e-4


def test_sibling_order_changes_no_logits_and_a_changed_branch_moves_only_its_subtree() -> None:
    target = pair("hybrid-grouped").target
    state = target.prefill(random_tokens(11)).state
    tree = tree_case("random-65")
    outputs = target.verify_tree(state, tree)
    shuffled_order = [0, *sorted(range(1, len(tree)), key=lambda node: (int(tree.depths[node]), -node))]
    reordered = target.verify_tree(state, tree.reordered(shuffled_order))
    assert relative_error(reordered.logits, outputs.logits[shuffled_order]) < 1e-5
    node = 5
    tokens = tree.tokens.tolist()
    tokens[node] = VOCABULARY - 1
    changed = target.verify_tree(state, DraftTree.from_parents(tokens, tree.parents.tolist()))
    below = tree.ancestors()[:, node]
    moved = (changed.logits - outputs.logits).abs().amax(-1)
    assert bool((moved[below] > 1e-4).all())
    assert bool((moved[~below] == 0.0).all())


def test_a_batch_extends_like_its_texts_one_by_one() -> None:
    target = pair("hybrid-grouped", torch.float64).target
    texts = torch.tensor([random_tokens(20, seed) for seed in range(3)])
    features, state = target.extend(texts, target.empty_state(3))
    features, _ = target.extend(texts[:, :1], state)
    for row in range(3):
        alone, alone_state = target.extend(texts[row : row + 1], target.empty_state())
        alone, _ = target.extend(texts[row : row + 1, :1], alone_state)
        assert torch.allclose(features.hidden[row], alone.hidden[0], atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("name", [next(iter(HYBRIDS)), next(iter(LLAMAS))])
def test_bad_input_gets_a_sentence(name: str) -> None:
    target = pair(name).target
    state = target.prefill([1, 2, 3]).state
    tree = tree_case("chain-17")
    pending = target.verify_tree(state, tree).pending
    with pytest.raises(ValueError, match="prompt is empty"):
        target.prefill([])
    with pytest.raises(ValueError, match="not in the target's vocabulary"):
        target.prefill([VOCABULARY])
    with pytest.raises(ValueError, match="do not fit the target's context of 2304"):
        target.prefill([1] * 2305)
    with pytest.raises(ValueError, match="starts at the root"):
        target.commit(state, pending, [])
    with pytest.raises(ValueError, match="starts at the root"):
        target.commit(state, pending, [0, 99])
    with pytest.raises(ValueError, match="node 2 is not a child of node 0"):
        target.commit(state, pending, [0, 2])
    with pytest.raises(ValueError, match="commit to the state that was verified"):
        target.commit(target.commit(state, pending, [0]), pending, [0])


def test_fingerprint_ignores_the_dtype_and_sees_a_changed_weight() -> None:
    target = pair("llama-grouped").target
    plain = target.fingerprint()
    clone = TargetModel(target.config)
    clone.load_state_dict(target.state_dict())
    assert clone.double().fingerprint() == plain
    with torch.no_grad():
        clone.model.norm.weight[0] += 1.0
    assert clone.fingerprint() != plain


def test_fingerprint_sees_the_end_of_large_tensors_and_the_config_but_not_how_it_is_served() -> None:
    target = pair("llama-grouped").target
    clone = TargetModel(target.config)
    clone.load_state_dict(target.state_dict())
    with torch.no_grad():
        clone.model.embed_tokens.weight[-1] += 1.0
    assert clone.model.embed_tokens.weight.numel() > 4096
    assert clone.fingerprint() != target.fingerprint()
    for changes, is_same in (
        ({"rope_theta": 5.0}, False),
        ({"rms_norm_epsilon": 0.1}, False),
        ({"stop_tokens": (7,), "max_positions": 9}, True),
    ):
        other = TargetModel(replace(target.config, **changes))
        other.load_state_dict(target.state_dict())
        assert (other.fingerprint() == target.fingerprint()) is is_same


def test_writes_of_another_text_of_the_same_length_are_not_committed() -> None:
    target, tree = pair("hybrid-plain").target, tree_case("binary-31")
    ours, theirs = (target.prefill(random_tokens(10, seed)).state for seed in (1, 2))
    pending = target.verify_tree(theirs, tree).pending
    with pytest.raises(ValueError, match="belong to another state"):
        target.commit(ours, pending, [0])
