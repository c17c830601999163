"""The short causal convolution before the delta rule, along a text and along the branches of a draft tree.

Depthwise, W taps (4 in Qwen): y_i = sum over t < W of weight[:, t] * x_(i - W + 1 + t). What a text needs to go on is
the window of its last W - 1 inputs. In a tree the inputs before node i are its ancestors, and above the root that
window. No activation is applied here.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.gdn.inputs import at_least_float32


def causal_convolution(
    x: Float[Tensor, "*batch tokens channels"],
    weight: Float[Tensor, "channels width"],
    window: Float[Tensor, "*batch rows channels"],
) -> tuple[Float[Tensor, "*batch tokens channels"], Float[Tensor, "*batch rows channels"]]:
    """Convolve the tokens that follow ``window``.

    Args:
        x: inputs of the new tokens.
        weight: one filter per channel; the last column multiplies the token itself.
        window: the last ``width - 1`` inputs before ``x``, oldest first; zeros at the start of a text.

    Returns:
        ``(y, window)``: outputs in the dtype of x, summed in float32 or wider; the window after the last token.

    Raises:
        ValueError: if the shapes do not belong together.

    Example:
        >>> x, weight = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0, 1.0]])
        >>> y, window = causal_convolution(x, weight, torch.tensor([[5.0]]))
        >>> y.flatten().tolist(), window.flatten().tolist()
        ([51.0, 12.0, 23.0], [3.0])
    """
    extended = _extended(x, weight, window)
    tokens = x.shape[-2]
    taps = (extended.narrow(-2, tap, tokens) for tap in range(weight.shape[-1]))
    return _weighted_sum(taps, weight).to(x.dtype), extended.narrow(-2, tokens, window.shape[-2]).clone()


def tree_convolution(
    x: Float[Tensor, "*batch nodes channels"],
    weight: Float[Tensor, "channels width"],
    window: Float[Tensor, "*batch rows channels"],
    ancestors: Int[Tensor, "nodes width"],
) -> Float[Tensor, "*batch nodes channels"]:
    """Convolve every node along its own root path. On a chain this is :func:`causal_convolution` bit for bit.

    Args:
        x: inputs of the nodes, root first.
        weight: one filter per channel; the last column multiplies the node itself.
        window: the committed window, oldest first. It is only read.
        ancestors: :func:`convolution_ancestors` of this tree, on the device of x.

    Raises:
        ValueError: if the shapes do not belong together.
    """
    extended = _extended(x, weight, window)
    if list(ancestors.shape) != [x.shape[-2], weight.shape[-1]]:
        raise ValueError(
            f"the convolution's ancestors have shape {list(ancestors.shape)}; {x.shape[-2]} nodes and "
            f"{weight.shape[-1]} taps need [{x.shape[-2]}, {weight.shape[-1]}]"
        )
    taps = (extended.index_select(-2, column) for column in ancestors.unbind(-1))
    return _weighted_sum(taps, weight).to(x.dtype)


def convolution_ancestors(parents: Int[Tensor, " nodes"], width: int) -> Int[Tensor, "nodes width"]:
    """For every node the rows of ``[window; x]`` that its taps read, oldest first, the node itself last.

    It depends on the tree alone: compute it once per tree and use it in every layer.

    Args:
        parents: ``DraftTree.parents``: -1 at the root, else an index below the node's own.
        width: number of taps.

    Raises:
        ValueError: if ``width`` is below 1 or the parents are not those of a tree in topological order.

    Example (rows 0 to 2 are the window, node i is row 3 + i):
        >>> convolution_ancestors(torch.tensor([-1, 0, 0, 2]), width=4).tolist()
        [[0, 1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [2, 3, 5, 6]]
    """
    if width < 1:
        raise ValueError(f"a convolution needs a width of at least 1 tap, got {width}")
    index = torch.arange(parents.numel(), device=parents.device)
    if parents.numel() == 0 or bool(parents[0] != -1) or bool(((parents < 0) | (parents >= index))[1:].any()):
        raise ValueError("the first parent must be -1 and every other parent must come before its child")
    rows = width - 1
    previous = torch.cat([torch.arange(-1, rows - 1, device=parents.device), parents + rows])
    taps = [index + rows]
    for _ in range(rows):
        taps.append(previous[taps[-1]])
    return torch.stack(taps[::-1], dim=-1)


def commit_window(
    window: Float[Tensor, "*batch rows channels"],
    x: Float[Tensor, "*batch nodes channels"],
    path: Sequence[int] | Int[Tensor, " path"],
) -> Float[Tensor, "*batch rows channels"]:
    """The window after the nodes on ``path`` (root first): the last rows of the old window followed by theirs.

    Raises:
        ValueError: if ``path`` is empty or names a node that is not in ``x``.
    """
    nodes = torch.as_tensor(path, dtype=torch.int64, device=x.device)
    count = x.shape[-2]
    if nodes.numel() == 0 or bool(((nodes < 0) | (nodes >= count)).any()):
        raise ValueError(f"path {nodes.tolist()} must name at least the root, and only nodes from 0 to {count - 1}")
    extended = torch.cat([window, x.index_select(-2, nodes)], dim=-2)
    return extended.narrow(-2, nodes.numel(), window.shape[-2]).clone()


def _extended(x: Tensor, weight: Tensor, window: Tensor) -> Tensor:
    """``[window; x]`` along the token axis, after a check of the shapes."""
    expected = [*x.shape[:-2], weight.shape[-1] - 1, x.shape[-1]]
    if weight.ndim != 2 or weight.shape[0] != x.shape[-1] or list(window.shape) != expected:
        raise ValueError(
            f"inputs of shape {list(x.shape)} and a filter of shape {list(weight.shape)} (channels, width) need a "
            f"window of shape {expected}, got {list(window.shape)}"
        )
    return torch.cat([window, x], dim=-2)


def _weighted_sum(taps: Iterable[Tensor], weight: Float[Tensor, "channels width"]) -> Tensor:
    """Sum of taps times filter columns, always in this order, so that chain and tree round alike."""
    columns = at_least_float32(weight).unbind(-1)
    products = [at_least_float32(tap) * column for tap, column in zip(taps, columns, strict=True)]
    return sum(products[1:], start=products[0])
