"""Matrices that multiply the same rows, as one matrix: the parameters become views of it, nothing is stored twice."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn


def fuse(linears: Sequence[nn.Linear]) -> Float[Tensor, "outputs channels"]:
    """One matrix with the rows of all, in order; each layer's weight is a view of its part from now on.

    Names, values and checkpoints stay what they were. A second call finds the matrix again.

    Raises:
        ValueError: if a layer has a bias, which a product without one would lose.
    """
    if any(linear.bias is not None for linear in linears):
        raise ValueError("layers with a bias cannot be fused; add it behind the product")
    whole = _common(linears)
    if whole is not None:
        return whole
    fused = torch.cat([linear.weight.detach() for linear in linears])
    for linear, part in zip(linears, fused.split([linear.out_features for linear in linears]), strict=True):
        linear.weight.data = part
    return fused


def _common(linears: Sequence[nn.Linear]) -> Tensor | None:
    """The matrix that these weights are already views of, side by side."""
    first = linears[0].weight.detach()
    place, rows = first.data_ptr(), 0
    for linear in linears:
        weight = linear.weight
        if weight.data_ptr() != place or not weight.is_contiguous():
            return None
        place += weight.numel() * weight.element_size()
        rows += linear.out_features
    whole = rows * first.shape[1] * first.element_size()
    if first.untyped_storage().nbytes() - first.storage_offset() * first.element_size() < whole:
        return None
    return first.as_strided((rows, first.shape[1]), (first.shape[1], 1))
