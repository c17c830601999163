"""The test harness itself: poisoned memory and checked shapes must be able to fail a test."""

import pytest
import torch
from jaxtyping import TypeCheckError

from tfm_lab.distributions import residual


def _call_from(module: str, expression: str) -> torch.Tensor:
    return eval(expression, {"torch": torch, "__name__": module})


@pytest.mark.parametrize("module", ["tfm_lab.gdn", "tfm_kernels.gdn_tree"])
@pytest.mark.parametrize(
    "expression",
    [
        "torch.empty(3)",
        "torch.empty_like(torch.ones(3))",
        "torch.empty_strided((3,), (1,))",
        "torch.ones(1).new_empty(3)",
    ],
)
def test_uninitialised_memory_is_nan_for_the_package(module: str, expression: str) -> None:
    assert _call_from(module, expression).isnan().all()


def test_integers_are_poisoned_with_an_index_out_of_range() -> None:
    assert (_call_from("tfm_lab.tree", "torch.empty(3, dtype=torch.int64)") == torch.iinfo(torch.int64).max).all()


def test_other_callers_are_left_alone() -> None:
    assert _call_from("another_package", "torch.empty(0)").numel() == 0
    linear = torch.nn.Linear(4, 4)
    assert linear.weight.isfinite().all()


def test_shapes_are_checked() -> None:
    with pytest.raises(TypeCheckError):
        residual(torch.ones(3), torch.ones(4))
