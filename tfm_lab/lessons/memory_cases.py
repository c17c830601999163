"""Small memories and trees that write into them: what notebook 08 computes with, and what its checks try."""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.lessons.memory_by_hand import system
from tfm_lab.tree import DraftTree

CLOSE = 1e-9


class MemoryTree(NamedTuple):
    """A tree whose nodes write into a memory of one head, float64.

    Attributes:
        name: for reports.
        tree: who descends from whom.
        query, key: normalised; one row per node.
        value: what each node stores.
        log_decay, beta: log alpha and writing strength of each node.
        state: S0, the memory before the root.
    """

    name: str
    tree: DraftTree
    query: Float[Tensor, "nodes key_dim"]
    key: Float[Tensor, "nodes key_dim"]
    value: Float[Tensor, "nodes value_dim"]
    log_decay: Float[Tensor, " nodes"]
    beta: Float[Tensor, " nodes"]
    state: Float[Tensor, "key_dim value_dim"]

    def inputs(self, nodes: Sequence[int] | None = None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        """Arguments of ``tfm_lab.gdn``, with an axis for the one head: all nodes, or those of a path in its order."""
        rows = list(range(len(self.tree))) if nodes is None else list(nodes)
        tokens = (self.query, self.key, self.value, self.log_decay, self.beta)
        return tuple(x.to(dtype)[None] for x in (*(x[rows] for x in tokens), self.state))

    def along(self, node: int) -> tuple[Tensor, Tensor]:
        """Output of a node and memory after it, by the recurrence along its own path as if nothing else existed."""
        output, state = gdn.delta_rule_recurrent(*self.inputs(self.tree.path(node)))
        return output[0, -1], state[0]


def memory_tree(
    parents: Sequence[int], seed: int, *, dims: tuple[int, int] = (4, 3), fading: float = 0.3, name: str = ""
) -> MemoryTree:
    """Random tokens on a tree.

    Args:
        parents: as in ``DraftTree``; every node's token is its own number.
        seed: of everything that is drawn.
        dims: key dim, value dim.
        fading: mean of minus log alpha.
        name: for reports.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    nodes, (key_dim, value_dim) = len(parents), dims
    query, key = gdn.normalise(normal(nodes, key_dim)), gdn.normalise(normal(nodes, key_dim))
    value, state = normal(nodes, value_dim), normal(key_dim, value_dim)
    log_decay = -fading * torch.rand(nodes, generator=generator, dtype=torch.float64) * 2
    beta = 0.2 + 0.8 * torch.rand(nodes, generator=generator, dtype=torch.float64)
    tree = DraftTree.from_parents(list(range(nodes)), parents)
    return MemoryTree(name, tree, query, key, value, log_decay, beta, state)


def random_parents(nodes: int, seed: int) -> list[int]:
    """A tree of this many nodes, root included: each new node hangs from any earlier one."""
    draws = Random(seed)
    return [-1, *(draws.randrange(node) for node in range(1, nodes))]


# What checks share.


def trees() -> list[MemoryTree]:
    """Fresh tensors each time, the simplest tree first; the last memory is square."""
    return [
        memory_tree((-1,), 31, name="the root alone"),
        memory_tree((-1, 0), 32, name="a root and its child"),
        memory_tree((-1, 0, 0), 33, name="two siblings"),
        memory_tree((-1, 0, 1, 2), 34, name="a chain of four"),
        memory_tree((-1, 0, 0, 1, 2, 2, 3), 35, dims=(3, 3), name="two branches"),
    ]


def forgetful() -> MemoryTree:
    """A sibling that forgets everything: the product of its decays is 0 in every dtype."""
    case = memory_tree((-1, 0, 0, 2), 36, name="a sibling that forgets everything")
    case.log_decay[1] = -800.0
    return case


def system_arguments(case: MemoryTree) -> tuple[Tensor, ...]:
    """Fresh arguments of ``memory_by_hand.system``."""
    return (*(x.clone() for x in (case.query, case.key, case.log_decay, case.beta)), case.tree.ancestors())


def solve_arguments(case: MemoryTree) -> tuple[Tensor, ...]:
    """Fresh arguments of ``memory_by_hand.solve``."""
    X, Y = system(case.query, case.key, case.log_decay, case.beta, case.tree.ancestors())
    from_root = (case.tree.ancestors().double() @ case.log_decay).exp()
    return (X, Y, from_root, *(x.clone() for x in (case.query, case.key, case.value, case.beta, case.state)))


def is_off(found: Any, wanted: Tensor) -> bool:
    """Whether an answer has another shape, or an entry that is further away than 1e-9 or no number."""
    found = torch.as_tensor(found, dtype=torch.float64)
    return found.shape != wanted.shape or not bool(((found - wanted).abs() <= CLOSE).all())


def told(values: Any) -> str:
    """Numbers for a complaint."""
    return str([round(float(value), 4) for value in torch.as_tensor(values).flatten()])
