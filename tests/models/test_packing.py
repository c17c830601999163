"""Packed products against the plain layers: they agree, they are used, and they are left out where they are wrong."""

from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from models.oracle import pair, random_tokens, relative_error
from models.small import autoregressive_for, drafter_for, weaver_for
from torch import Tensor, nn
from trees import TREES

from tfm_lab import bundle
from tfm_lab.bench import wall_clock
from tfm_lab.bundle import Bundle, prepare_models
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import OpenNode, TreeConfig
from tfm_lab.methods import make_speculator
from tfm_lab.models import AutoregressiveSession, TargetModel, WeaverSession, packing
from tfm_lab.models.packing import MAX_ROWS, can_pack, pack, prepare_for_cpu, product, products
from tfm_lab.tree import DraftTree

pytestmark = pytest.mark.skipif(not can_pack(), reason="this processor has no packed products")
NAMES = ["llama-grouped", "llama-plain", "hybrid-grouped"]
AGREES = 1e-5
Model = TypeVar("Model", bound=nn.Module)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every packed product that was computed."""
    rows: list[int] = []
    call = packing.Packed.__call__
    monkeypatch.setattr(
        packing.Packed, "__call__", lambda self, x: rows.append(x.numel() // x.shape[-1]) or call(self, x)
    )
    return rows


def as_stored(model: Model) -> Model:
    """A float32 copy whose weights are those of a bfloat16 checkpoint."""
    return deepcopy(model).to(torch.bfloat16).float()


def prepared(model: Model) -> Model:
    model = deepcopy(model)
    prepare_for_cpu(model)
    return model


def linears(bias: bool) -> list[nn.Linear]:
    return [as_stored(nn.Linear(48, outputs, bias=bias)) for outputs in (32, 16, 80)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(48,), (1, 48), (1, 7, 48), (2, 32, 48)])
def test_a_packed_product_is_that_of_every_layer(used: list[int], bias: bool, shape: tuple[int, ...]) -> None:
    layers, x = linears(bias), torch.randn(shape)
    packed = pack(*layers)
    with torch.no_grad():
        results = products(x, packed, *layers)
        wanted = [layer(x) for layer in layers]
        assert used == [x.numel() // 48]
        for result, want in zip(results, wanted, strict=True):
            assert result.shape == want.shape
            assert relative_error(result, want) < AGREES
        assert relative_error(product(x, pack(layers[2]), layers[2]), wanted[2]) < AGREES


def test_many_rows_and_gradients_go_through_the_plain_layers(used: list[int]) -> None:
    (layer,) = linears(True)[:1]
    packed = pack(layer)
    with torch.no_grad():
        many = torch.randn(MAX_ROWS + 1, 48)
        assert torch.equal(product(many, packed, layer), layer(many))
    product(torch.randn(3, 48), packed, layer).sum().backward()
    assert layer.weight.grad is not None
    assert used == []


@pytest.mark.parametrize("value", [0.1, 1e-3, 70000.0, float("nan")])
def test_a_matrix_that_float16_cannot_hold_is_left_alone(value: float) -> None:
    first, second, _ = linears(False)
    assert pack(first, second) is not None
    with torch.no_grad():
        second.weight[3, 4] = value
    assert pack(first, second) is None


def test_small_bfloat16_weights_survive() -> None:
    """Below 2**-14 float16 loses digits: at most half of 2**-24."""
    (layer,) = linears(False)[:1]
    with torch.no_grad():
        layer.weight.copy_((torch.rand_like(layer.weight) * 2**-14).bfloat16().float())
        x = torch.rand(5, 48)
        assert pack(layer) is not None
        assert (product(x, pack(layer), layer) - layer(x)).abs().max() <= 48 * packing.ROUNDING


def step_of(target: TargetModel) -> list[Tensor]:
    """Logits of a prompt, of a tree and after a commit, and of plain decoding."""
    prompt, shape = random_tokens(23), TREES["binary-31"]
    tree = DraftTree.from_parents([7 * node % 97 for node in range(len(shape))], shape.parents.tolist())
    prefilled = target.prefill(prompt, (0, 1))
    outputs = target.verify_tree(prefilled.state, tree, (0, 1))
    state = target.commit(prefilled.state, outputs.pending, tree.path(17))
    with torch.no_grad():
        features, _ = target.extend(torch.tensor([[5]]), state)
        return [prefilled.logits, prefilled.taps, outputs.logits, outputs.taps, target.logits(features.hidden[0, -1])]


@pytest.mark.parametrize("name", NAMES)
def test_a_prepared_target_agrees_with_the_plain_one(used: list[int], name: str) -> None:
    plain = as_stored(pair(name).target)
    wanted = step_of(plain)
    assert used == []
    for result, want in zip(step_of(prepared(plain)), wanted, strict=True):
        assert relative_error(result, want) < AGREES
    assert {1, 23, 31} <= set(used)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", [{}, {"layers": 2}, {"positions": "rotary", "mlp": "swiglu"}])
def test_prepared_drafters_and_weavers_agree_with_the_plain_ones(name: str, form: dict[str, Any]) -> None:
    target = as_stored(pair(name).target)
    models = [
        as_stored(drafter_for(target)),
        as_stored(weaver_for(target, **form)),
        as_stored(autoregressive_for(target)),
    ]
    results: list[list[Tensor]] = []
    for drafter, weaver, autoregressive in (models, [prepared(model) for model in models]):
        prefilled = target.prefill(random_tokens(12), drafter.config.tap_layers)
        context = drafter.extend_context(drafter.empty_context(), prefilled.taps)
        marginals = drafter.propose(context, 5, target)
        context = autoregressive.extend_context(autoregressive.empty_context(), prefilled.taps)
        collected = [marginals.logits, marginals.hidden]
        for session in (
            WeaverSession(weaver, target, marginals, prefilled.hidden, 97),
            AutoregressiveSession(autoregressive, target, context, 97),
        ):
            proposals = [*session.expand([OpenNode(0, -1, 5, 0)])]
            proposals += session.expand([OpenNode(1, 0, 8, 1), OpenNode(2, 0, 9, 1)])
            collected += [torch.zeros(97).scatter(0, one.tokens, one.log_probs) for one in proposals]
        results.append(collected)
    for want, result in zip(*results, strict=True):
        assert relative_error(result, want) < AGREES


def test_preparing_changes_neither_names_nor_identity() -> None:
    plain = as_stored(pair("llama-grouped").target)
    packed = prepared(plain)
    assert packed.fingerprint() == plain.fingerprint()
    assert packed.state_dict().keys() == plain.state_dict().keys()


def test_models_that_are_not_float32_on_a_cpu_are_refused() -> None:
    target = pair("llama-grouped").target
    for other in (deepcopy(target).double(), deepcopy(target).to(torch.bfloat16), deepcopy(target).to("meta")):
        with pytest.raises(ValueError, match=r"only float32 models on a CPU can be prepared, and model\.embed_tokens"):
            prepare_for_cpu(other)


def test_without_packed_products_nothing_is_prepared(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (packing, bundle):
        monkeypatch.setattr(module, "can_pack", lambda: False)
    with pytest.raises(ValueError, match="torch has no packed product for this processor"):
        prepare_for_cpu(deepcopy(tiny_bundle.target))
    assert not prepare_models(tiny_bundle)


def test_other_dtypes_of_a_bundle_are_left_alone(tiny_bundle: Bundle, used: list[int]) -> None:
    double = replace(tiny_bundle, target=deepcopy(tiny_bundle.target).double())
    assert not prepare_models(double)
    double.target.prefill([1, 2, 3])
    assert used == []


def test_decoding_with_prepared_models_gives_the_same_text(tiny_bundle: Bundle, used: list[int]) -> None:
    assert tiny_bundle.weaver is not None
    models = [as_stored(model) for model in (tiny_bundle.target, tiny_bundle.drafter, tiny_bundle.weaver)]
    plain = replace(tiny_bundle, **dict(zip(("target", "drafter", "weaver"), models, strict=True)))
    packed = deepcopy(plain)
    assert prepare_models(packed)
    config = DecodeConfig(16, SamplingConfig(temperature=0.0), TreeConfig(budget=5))
    prompt = tiny_bundle.encode("import os\n")
    text = autoregressive_decode(plain.target, prompt, config).tokens
    packed.target.prefill([5])
    of_a_token = len(used)
    used.clear()
    assert autoregressive_decode(packed.target, prompt, config).tokens == text
    assert set(used) == {1, len(prompt)}
    assert used.count(1) == 1 + 15 * of_a_token  # the head of the prompt's last token, and every product of 15 steps
    for method in ("chain", "ddtree", "tfm"):
        speculator = make_speculator(method, packed.drafter, packed.weaver, config.sampling)
        assert speculative_decode(packed.target, speculator, prompt, config).tokens == text


def test_the_benchmark_loads_packed_weights_beside_every_dtype(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, used: list[int]
) -> None:
    monkeypatch.setattr(
        wall_clock,
        "load_bundle",
        lambda name, dtype=torch.float32: replace(tiny_bundle, target=as_stored(tiny_bundle.target).to(dtype)),
    )
    forms = wall_clock.load_forms("tiny", {"float32": torch.float32, "bfloat16": torch.bfloat16})
    assert list(forms) == ["float32", "bfloat16", wall_clock.PACKED]
    for form, models in forms.items():
        used.clear()
        models.target.prefill([1, 2])
        assert bool(used) == (form == wall_clock.PACKED)
    assert list(wall_clock.load_forms("tiny", {"bfloat16": torch.bfloat16})) == ["bfloat16"]
