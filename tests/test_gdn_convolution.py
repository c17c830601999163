"""The short convolution along a text and along the branches of a tree."""

import pytest
import torch
import torch.nn.functional as F
from trees import TREES, binary, chain, random_tree, shuffled

from tfm_lab import gdn


def inputs(tokens, width=4, channels=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, tokens, channels), (channels, width), (2, width - 1, channels))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("tokens", [0, 1, 2, 9])
def test_causal_convolution_is_conv1d(tokens, width):
    x, weight, window = inputs(tokens, width)
    y, new_window = gdn.causal_convolution(x, weight, window)
    extended = torch.cat([window, x], dim=1)
    if tokens:
        expected = F.conv1d(extended.mT, weight[:, None], groups=x.shape[-1]).mT
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-13)
    assert y.shape == x.shape
    assert torch.equal(new_window, extended[:, tokens:])


def test_a_text_in_pieces_is_the_whole_text():
    x, weight, window = inputs(11)
    y, last = gdn.causal_convolution(x, weight, window)
    pieces = []
    for piece in x.split([1, 2, 5, 3], dim=1):
        part, window = gdn.causal_convolution(piece, weight, window)
        pieces.append(part)
    assert torch.equal(torch.cat(pieces, dim=1), y)
    assert torch.equal(window, last)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_every_node_convolves_along_its_own_path(name, width):
    tree = TREES[name]
    x, weight, window = inputs(len(tree), width)
    y = gdn.tree_convolution(x, weight, window, gdn.convolution_ancestors(tree.parents, width))
    for leaf in tree.leaves():
        path = list(tree.path(leaf))
        expected, new_window = gdn.causal_convolution(x[:, path], weight, window)
        assert torch.equal(y[:, path], expected)
        assert torch.equal(gdn.commit_window(window, x, path), new_window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chain_is_bit_identical_in_any_dtype(dtype):
    x, weight, window = inputs(40, dtype=dtype)
    expected, _ = gdn.causal_convolution(x, weight, window)
    y = gdn.tree_convolution(x, weight, window, gdn.convolution_ancestors(chain(40).parents, 4))
    assert y.dtype == dtype
    assert torch.equal(y, expected)


def test_bfloat16_is_summed_in_float32():
    x, weight, window = inputs(6, dtype=torch.bfloat16)
    y, new_window = gdn.causal_convolution(x, weight, window)
    wide, _ = gdn.causal_convolution(x.float(), weight.float(), window.float())
    assert torch.equal(y, wide.bfloat16())
    assert new_window.dtype == torch.bfloat16


def test_changing_one_node_moves_three_generations_below_it():
    tree = binary(63)
    x, weight, window = inputs(63)
    ancestors = gdn.convolution_ancestors(tree.parents, 4)
    y = gdn.tree_convolution(x, weight, window, ancestors)
    x[:, 1] += 1.0
    moved = (gdn.tree_convolution(x, weight, window, ancestors) != y).any(-1).any(0)
    below = tree.ancestors()[:, 1] & (tree.depths <= tree.depths[1] + 3)
    assert torch.equal(moved, below)
    assert below.sum() == 15


def test_the_order_of_siblings_changes_nothing():
    tree = random_tree(30, seed=2)
    other = shuffled(tree, seed=3)
    order = other.tokens.tolist()
    x, weight, window = inputs(30)
    y = gdn.tree_convolution(x, weight, window, gdn.convolution_ancestors(tree.parents, 4))
    shuffled_y = gdn.tree_convolution(x[:, order], weight, window, gdn.convolution_ancestors(other.parents, 4))
    assert torch.equal(shuffled_y, y[:, order])


def test_a_kept_window_does_not_keep_the_text():
    x, weight, window = inputs(50)
    for kept in (gdn.causal_convolution(x, weight, window)[1], gdn.commit_window(window, x, range(50))):
        assert kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()


@pytest.mark.unchecked
def test_bad_arguments_are_refused():
    x, weight, window = inputs(4)
    ancestors = gdn.convolution_ancestors(chain(4).parents, 4)
    with pytest.raises(ValueError, match="need a window of shape \\[2, 3, 5\\], got \\[2, 2, 5\\]"):
        gdn.causal_convolution(x, weight, window[:, 1:])
    with pytest.raises(ValueError, match="4 nodes and 4 taps need \\[4, 4\\]"):
        gdn.tree_convolution(x, weight, window, ancestors[:3])
    for path in ([], [0, 4], [-1]):
        with pytest.raises(ValueError, match="only nodes from 0 to 3"):
            gdn.commit_window(window, x, path)
    for parents in ([], [0, 0], [-1, 1], [-1, -1]):
        with pytest.raises(ValueError, match="every other parent must come before its child"):
            gdn.convolution_ancestors(torch.tensor(parents, dtype=torch.int64), 4)
    with pytest.raises(ValueError, match="at least 1 tap"):
        gdn.convolution_ancestors(chain(2).parents, 0)
