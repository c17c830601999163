"""A step never waits for the device and has no shape that depends on data; a planted wait is found.

Tensors on the meta device have shapes and no numbers: whatever would read one back to the host raises there. What only
a GPU would wait for (indices by truth values, lists of positions) is refused operation by operation.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tfm_lab.bench.model_weights import fill_context, meta_models, random_models, toy_shapes
from tfm_lab.drafting import TreeConfig
from tfm_lab.engine import ENGINE_METHODS, Engine, EngineConfig, EngineModels

aten = torch.ops.aten
WAITING = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class NoWaits(TorchDispatchMode):
    """Raises at the first operation that a GPU would have to be waited for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITING:
            raise AssertionError(f"{func} waits for the device")
        if func in INDEXING and any(x is not None and x.dtype == torch.bool for x in args[1]):
            raise AssertionError(f"{func} with truth values waits for the device")
        return func(*args, **(kwargs or {}))


def engine_of(models: EngineModels, method: str, **changes: Any) -> Engine:
    tree = TreeConfig(budget=5, children=4, width=2, pool_size=32)
    return Engine(models, EngineConfig(method, tree, batch=2, capacity=100, **changes))


@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_a_step_reads_nothing_back(method: str) -> None:
    engine = engine_of(meta_models(toy_shapes(), torch.bfloat16), method)
    engine.step()
    engine.step()
    assert engine.text.is_meta


@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_a_step_has_no_operation_that_waits(method: str) -> None:
    engine = engine_of(random_models(toy_shapes(), torch.float32, "cpu"), method)
    fill_context(engine, 40)
    with NoWaits():
        engine.step()
        engine.step()
    assert (engine.length >= 42).all()


PLANTED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "list": lambda x: x.tolist(),
    "condition": lambda x: bool((x > 0).any()),
    "positions": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_wait_is_found(name: str) -> None:
    found = 0
    for models in (meta_models(toy_shapes(), torch.bfloat16), random_models(toy_shapes(), torch.float32, "cpu")):
        engine = engine_of(models, "chain")
        if not engine.length.is_meta:
            fill_context(engine, 40)
        engine.accept = lambda engine=engine: PLANTED[name](engine.length)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            with NoWaits():
                engine.step()
        except (AssertionError, RuntimeError, NotImplementedError):
            found += engine.tree is not None  # everything before the planted place went through
    assert found


def test_every_function_between_the_products_can_be_traced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo follows each of them without a break: what remains for a GPU is to write the kernels."""
    asked: list[str] = []

    def traced(function: Callable[..., Any], *, fullgraph: bool, dynamic: bool) -> Callable[..., Any]:
        assert fullgraph
        assert not dynamic
        asked.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", traced)
    engine = engine_of(random_models(toy_shapes(), torch.float32, "cpu"), "tfm", compiles=True)
    fill_context(engine, 40)
    engine.step()
    assert engine.fusing.failures == {}
    assert {"norm", "add_norm", "gated", "gated_norm", "gated_attention_inputs", "_expand_nodes", "add"} <= set(asked)


def test_a_function_that_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def fails(*arguments: Any) -> Any:
            raise RuntimeError("no compiler here\nat all")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    models = random_models(toy_shapes(), torch.float32, "cpu")
    engines = [engine_of(models, "chain", compiles=compiles) for compiles in (True, False)]
    for engine in engines:
        fill_context(engine, 40)
        engine.step()
    assert engines[0].fusing.failures["add_norm"] == "no compiler here"
    assert torch.equal(engines[0].text, engines[1].text)
