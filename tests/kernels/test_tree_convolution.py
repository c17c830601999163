"""The convolution kernels against the readable ones: in Triton's interpreter, or on the GPU where there is one."""

import pytest
import torch
from step_cases import accepted_paths, padded_parents
from tfm_kernels.tree_convolution import commit_windows as launch_commit
from tfm_kernels.tree_convolution import tree_convolution as launch
from torch import Tensor
from trees import chain, comb, preordered, random_tree

from tfm_lab.gdn import step
from tfm_lab.gdn.step_convolution import commit_windows, convolve_trees

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TREES = [preordered(random_tree(19, seed=1)), chain(1), preordered(comb(4))]


def cases(channels: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, step.TreeLayout]:
    """Inputs of two layers (a view of wider rows), filter, windows, slots and layout, on the CPU."""
    generator = torch.Generator().manual_seed(channels)
    x = torch.randn(2, 3, 19, channels + 8, generator=generator).to(dtype)[..., 4 : channels + 4]
    weight = torch.randn(channels, width, generator=generator)
    windows = torch.randn(2, 5, width - 1, channels, generator=generator).to(dtype)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32)
    return x, weight, windows, slots, step.tree_layout(padded_parents(TREES), width=width)


def on_device(layout: step.TreeLayout) -> step.TreeLayout:
    return step.TreeLayout(*(tensor.to(DEVICE) for tensor in layout))


@pytest.mark.parametrize(("channels", "width"), [(130, 4), (6, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_node_convolves_along_its_own_path(channels, width, dtype):
    x, weight, windows, slots, layout = cases(channels, width, dtype)
    arguments = (x[0], weight, windows[0], slots)
    exact = convolve_trees(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in arguments), layout)
    got = convolve_trees(*(tensor.to(DEVICE) for tensor in arguments), on_device(layout), impl="triton")
    assert got.dtype == dtype
    bound = {torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for request, tree in enumerate(TREES):
        own = slice(0, len(tree))
        torch.testing.assert_close(got[request, own].cpu().double(), exact[request, own], rtol=bound, atol=bound)


def test_without_the_activation_the_sum_is_the_reference_bit_by_bit():
    x, weight, windows, slots, layout = cases(130, 4, torch.float32)
    wanted = convolve_trees(x[0], weight, windows[0], slots, layout, silu=False)
    moved = (tensor.to(DEVICE) for tensor in (x[0], weight, windows[0], slots))
    got = convolve_trees(*moved, on_device(layout), silu=False, impl="triton").cpu()
    for request, tree in enumerate(TREES):
        own = slice(0, len(tree))
        if DEVICE == "cpu":
            assert torch.equal(got[request, own], wanted[request, own])
        else:  # compiled code contracts products and sums
            torch.testing.assert_close(got[request, own], wanted[request, own], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("leaves", [[18, -1, 4], [0, 0, 8]])
def test_windows_of_all_layers_move_past_the_path(width, dtype, leaves):
    x, _, windows, slots, _ = cases(130, width, dtype)
    accepted = accepted_paths(TREES, leaves)
    moved = windows.to(DEVICE, copy=True)
    commit_windows(x.to(DEVICE), moved, slots.to(DEVICE), accepted.to(DEVICE), impl="triton")
    commit_windows(x, windows, slots, accepted)
    assert torch.equal(moved.cpu(), windows)


@pytest.mark.unchecked
def test_unfit_arguments_are_refused():
    x, weight, windows, slots, layout = cases(6, 4, torch.float32)
    x, weight, windows, slots = (tensor.to(DEVICE) for tensor in (x, weight, windows, slots))
    taps = layout.taps.to(DEVICE)
    with pytest.raises(ValueError, match="taps has shape"):
        launch(x[0], weight, windows[0], slots, taps[:, :5], silu=True)
    with pytest.raises(ValueError, match=r"windows must be torch\.float32"):
        launch(x[0], weight, windows[0].double(), slots, taps, silu=True)
    with pytest.raises(ValueError, match=r"x must be .* in float32 or bfloat16"):
        launch(x[0].double(), weight, windows[0], slots, taps, silu=True)
    with pytest.raises(ValueError, match="windows must be contiguous"):
        launch(x[0], weight, windows[0].mT.contiguous().mT, slots, taps, silu=True)
    with pytest.raises(ValueError, match="windows has shape"):
        launch_commit(x, windows[:1], slots, accepted_paths(TREES, [0, 0, 0]).to(DEVICE))
    with pytest.raises(ValueError, match=r"accepted must be torch\.int32"):
        launch_commit(x, windows, slots, accepted_paths(TREES, [0, 0, 0]).to(DEVICE).long())
