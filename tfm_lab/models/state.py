"""What a target remembers of a text, and what a tree verification leaves behind for a commit.

States are values: verifying a tree does not change one, committing returns a new one and leaves the old one usable.
(Those of the tree kernels are not, and say so: :mod:`tfm_lab.models.delta_net_pool`.)
Keys and values live in a buffer that successive states share, so that a commit costs the new rows and not a copy.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.gdn import TreeWrites
from tfm_lab.models.delta_net_pool import PooledDeltaNetState, PooledDeltaNetWrites


class KeyValueBuffer:
    """Append-only keys and values shared by successive states.

    A state of length n reads rows 0..n-1 and never sees a change there. Appending to the newest state writes in place;
    appending to an older one (a second commit from the same state) first copies the rows it owns.
    """

    def __init__(self, keys: Float[Tensor, "batch heads rows size"], values: Float[Tensor, "batch heads rows size"]):
        self._keys, self._values = keys, values
        self._used = keys.shape[2]

    @classmethod
    def empty(cls, batch: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> "KeyValueBuffer":
        nothing = torch.zeros(batch, heads, 0, size, dtype=dtype, device=device)
        return cls(nothing, nothing)

    def rows(self, length: int) -> tuple[Tensor, Tensor]:
        """Views of the first ``length`` keys and values."""
        return self._keys[:, :, :length], self._values[:, :, :length]

    def with_scratch(self, length: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Views of the first ``length`` rows followed by ``keys`` and ``values``, which are not kept.

        The rows behind the newest state serve as scratch space; the views hold until the next call on this buffer.
        """
        if length != self._used:
            stored_keys, stored_values = self.rows(length)
            return torch.cat([stored_keys, keys], dim=2), torch.cat([stored_values, values], dim=2)
        end = length + keys.shape[2]
        self._reserve(end)
        self._keys[:, :, length:end], self._values[:, :, length:end] = keys, values
        return self.rows(end)

    def append(self, length: int, keys: Tensor, values: Tensor) -> "KeyValueBuffer":
        """The buffer in which rows ``length``.. are ``keys`` and ``values``: this one, or a copy if those are taken."""
        if length != self._used:
            stored_keys, stored_values = self.rows(length)
            return KeyValueBuffer(torch.cat([stored_keys, keys], dim=2), torch.cat([stored_values, values], dim=2))
        end = length + keys.shape[2]
        self._reserve(end)
        self._keys[:, :, length:end], self._values[:, :, length:end] = keys, values
        self._used = end
        return self

    def _reserve(self, rows: int) -> None:
        capacity = self._keys.shape[2]
        if rows <= capacity:
            return
        shape = list(self._keys.shape)
        shape[2] = max(rows, 2 * capacity, 64)
        keys, values = self._keys.new_zeros(shape), self._values.new_zeros(shape)
        keys[:, :, :capacity], values[:, :, :capacity] = self._keys, self._values
        self._keys, self._values = keys, values


@dataclass(frozen=True, slots=True, eq=False)
class AttentionState:
    """Rotated keys and values of the committed tokens."""

    buffer: KeyValueBuffer


@dataclass(frozen=True, slots=True, eq=False)
class DeltaNetState:
    """Recurrent matrix and convolution window of one Gated DeltaNet layer.

    Attributes:
        matrix: the associative memory S, float32 or wider.
        window: the last ``convolution_width - 1`` inputs of the short convolution, oldest first, in the model's dtype.
    """

    matrix: Float[Tensor, "batch value_heads key_dim value_dim"]
    window: Float[Tensor, "batch rows channels"]


LayerState = AttentionState | DeltaNetState | PooledDeltaNetState


@dataclass(frozen=True, slots=True, eq=False)
class TargetState:
    """The target after ``length`` committed tokens. Node 0 of the next tree sits at position ``length``."""

    length: int
    layers: tuple[LayerState, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionWrites:
    """Rotated keys and values of every tree node; a commit moves the accepted rows and never rotates again."""

    keys: Float[Tensor, "batch heads nodes size"]
    values: Float[Tensor, "batch heads nodes size"]


@dataclass(frozen=True, slots=True, eq=False)
class DeltaNetWrites:
    """What one Gated DeltaNet layer needs to commit any root path without another solve."""

    tree: TreeWrites
    convolution_inputs: Float[Tensor, "batch nodes channels"]


LayerWrites = AttentionWrites | DeltaNetWrites | PooledDeltaNetWrites


@dataclass(frozen=True, slots=True, eq=False)
class PendingWrites:
    """What a tree verification leaves for :meth:`TargetModel.commit`.

    Attributes:
        verified: the state that was verified, and the only one to which these writes can be committed.
        parents: of the tree's nodes.
        rows: for each node its row in ``layers``.
    """

    verified: TargetState
    parents: tuple[int, ...]
    layers: tuple[LayerWrites, ...]
    rows: tuple[int, ...]
