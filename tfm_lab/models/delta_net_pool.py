"""A Gated DeltaNet layer's part of a tree step through the fused Triton kernels, which write states in place.

Other states are values (:mod:`tfm_lab.models.state`). The kernels keep one state per text instead, in memory that
every step overwrites: an accepted path is folded in when the next tree is verified (the lagged commit), and the window
of the short convolution moves at once. So a text decodes along a line: after a commit the older state is gone, and
using it raises an error. The state before the first tree, that of a prefill, is a value and stays usable.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.gdn import step
from tfm_lab.gdn.step import BLOCK, Pending, Stash, StatePool, TreeLayout
from tfm_lab.gdn.step_convolution import commit_windows, convolve_trees
from tfm_lab.models.config import DeltaNetConfig


class DeltaNetPool:
    """The memory of one layer for one text: state and window as the kernels lay them out.

    Attributes:
        states: [1, value_heads, value_dim, key_dim], float32.
        windows: [1, rows, channels], in the model's dtype.
        slots: [1] int32: the only slot.
        version: number of commits so far.
        folded: whether the path of the last commit is in ``states`` already.
    """

    def __init__(
        self,
        matrix: Float[Tensor, "1 value_heads key_dim value_dim"],
        window: Float[Tensor, "1 rows channels"],
    ) -> None:
        self.states = matrix.mT.clone(memory_format=torch.contiguous_format)
        self.windows = window.clone()
        self.slots = torch.zeros(1, dtype=torch.int32, device=matrix.device)
        self.version = 0
        self.folded = True


@dataclass(frozen=True, slots=True, eq=False)
class PooledDeltaNetState:
    """The newest state of a pool: what ``version`` commits left.

    Attributes:
        pending: the path of the last commit, until it is folded in; ``None`` before the first.
    """

    pool: DeltaNetPool
    version: int
    pending: Pending | None

    @property
    def matrix(self) -> Float[Tensor, "batch value_heads key_dim value_dim"]:
        """The associative memory S, as a copy.

        Raises:
            ValueError: if a later commit has overwritten it.
        """
        pool = self.newest_pool()
        states = StatePool(pool.states.clone(), pool.slots)
        if self.pending is not None and not pool.folded:
            step.flush(states, self.pending, impl="triton")
        return states.states.mT

    @property
    def window(self) -> Float[Tensor, "batch rows channels"]:
        """The last inputs of the short convolution, oldest first, as a copy.

        Raises:
            ValueError: if a later commit has overwritten it.
        """
        return self.newest_pool().windows.clone()

    def take_pending(self) -> Pending | None:
        """What the next verification has to fold into the pool; ``None`` if that was done.

        Raises:
            ValueError: if a later commit has overwritten this state.
        """
        pool = self.newest_pool()
        pending = None if pool.folded else self.pending
        pool.folded = True
        return pending

    def newest_pool(self) -> DeltaNetPool:
        """The memory, as long as it still holds this state.

        Raises:
            ValueError: if a later commit has overwritten it.
        """
        if self.pool.version != self.version:
            raise ValueError(
                f"this state is {self.pool.version - self.version} commits behind, and the tree kernels keep the "
                "newest alone: go on from that one, or decode with use_kernels('reference')"
            )
        return self.pool


@dataclass(frozen=True, slots=True, eq=False)
class PooledDeltaNetWrites:
    """What one layer needs to commit one root path; the nodes are in depth-first order."""

    pooled: PooledDeltaNetState
    stash: Stash
    convolution_inputs: Float[Tensor, "batch nodes channels"]


def verify_pooled(
    convolution_inputs: Float[Tensor, "batch nodes channels"],
    a: Float[Tensor, "batch nodes value_heads"],
    b: Float[Tensor, "batch nodes value_heads"],
    convolution_weight: Float[Tensor, "channels width"],
    A_log: Float[Tensor, " value_heads"],
    dt_bias: Float[Tensor, " value_heads"],
    config: DeltaNetConfig,
    layout: TreeLayout,
    state: PooledDeltaNetState,
) -> tuple[Float[Tensor, "batch nodes value_heads value_dim"], PooledDeltaNetWrites]:
    """Convolve and verify one draft tree; the state's pending path is folded into its pool first.

    Args:
        convolution_inputs: queries, keys and values of all nodes, in depth-first order, before the convolution.
        a: input of the decay.
        b: input of the writing strength.
        layout: of the tree.

    Raises:
        ValueError: if ``state`` is not the newest of its pool, or the kernels cannot take the tensors.
    """
    pool, pending = state.newest_pool(), state.take_pending()
    mixed = convolve_trees(convolution_inputs, convolution_weight, pool.windows, pool.slots, layout, impl="triton")
    key_width = config.key_heads * config.key_dim
    parts = mixed.split([key_width, key_width, config.value_heads * config.value_dim], dim=-1)
    query, key, value = (
        part.unflatten(-1, (heads, -1))
        for part, heads in zip(parts, (config.key_heads, config.key_heads, config.value_heads), strict=True)
    )
    output, stash = step.tree_step(
        query, key, value, a, b, A_log, dt_bias, layout, StatePool(pool.states, pool.slots), pending, impl="triton"
    )
    return output, PooledDeltaNetWrites(state, stash, convolution_inputs)


def commit_pooled(writes: PooledDeltaNetWrites, path: Int[Tensor, " path"]) -> PooledDeltaNetState:
    """The state after the nodes on ``path`` (root first, depth-first numbering); the verified state is used up.

    Raises:
        ValueError: if another path of the same verification was committed already.
    """
    pool = writes.pooled.newest_pool()
    accepted = F.pad(path.to(torch.int32), (0, -path.numel() % BLOCK), value=-1)[None]
    pending = step.accept_path(writes.stash, accepted, impl="triton")
    commit_windows(writes.convolution_inputs[None], pool.windows[None], pool.slots, accepted, impl="triton")
    pool.version, pool.folded = pool.version + 1, False
    return PooledDeltaNetState(pool, pool.version, pending)
