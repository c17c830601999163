"""Language models as tables: small enough that everything about them can be enumerated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.drafting import DraftSource, Marginals, OpenNode, Proposal

ROOT = 0
"""Token at the root of every tree on a table; the rows speak about what follows it."""

Prefix = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Logits of the next token after every prefix, the root left out; it serves as target and as drafter.

    Attributes:
        vocab: number of tokens.
        rows: float64 logits [vocab] by prefix.
    """

    vocab: int
    rows: Mapping[Prefix, Tensor]

    @classmethod
    def fill(cls, vocab: int, depth: int, row: Callable[[Prefix], Tensor]) -> "Table":
        """``row(prefix)`` gives the probabilities, on any scale, after each prefix of up to ``depth`` tokens."""
        prefixes = [prefix for length in range(depth + 1) for prefix in product(range(vocab), repeat=length)]
        return cls(vocab, {prefix: row(prefix).double().log() for prefix in prefixes})

    def probabilities(self, prefix: Prefix) -> Float[Tensor, " vocab"]:
        """The distribution after a prefix, float64."""
        return self.rows[prefix].softmax(0)

    def true_marginals(self, depth: int) -> Float[Tensor, "depth vocab"]:
        """Law of the token at each of the next ``depth`` places, the earlier ones summed out."""
        beliefs: dict[Prefix, float] = {(): 1.0}
        rows: list[Tensor] = []
        for _ in range(depth):
            after = {prefix: chance * self.probabilities(prefix) for prefix, chance in beliefs.items()}
            rows.append(torch.stack(list(after.values())).sum(0))
            beliefs = {
                (*prefix, token): float(weights[token])
                for prefix, weights in after.items()
                for token in range(self.vocab)
            }
        return torch.stack(rows)

    def marginals(self, depth: int) -> Marginals:
        """A factorised reading of the table: its rows along the path 0, 0, 0, ... (any marginals must do)."""
        return Marginals(torch.stack([self.rows[(0,) * place] for place in range(depth)]), torch.zeros(depth, 1))

    def source(self, depth: int) -> DraftSource:
        """The table as a drafter of ``depth`` places: factorised and autoregressive."""
        return DraftSource(self.marginals(depth), lambda: TableSession(self, depth))


class TableSession:
    """The table as an autoregressive drafter; implements :class:`tfm_lab.drafting.ConditionalSession`.

    Attributes:
        calls: node indices of each call so far.
    """

    def __init__(self, table: Table, max_depth: int) -> None:
        self._table = table
        self._max_depth = max_depth
        self._prefixes: dict[int, Prefix] = {}
        self.calls: list[tuple[int, ...]] = []

    @property
    def max_depth(self) -> int:
        return self._max_depth

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        """The rows of the nodes' prefixes.

        Raises:
            ValueError: if a builder breaks the protocol: a node twice, too deep, or before its parent.
        """
        prefixes = {node.index: self._prefix(node) for node in nodes}
        self._prefixes.update(prefixes)
        self.calls.append(tuple(prefixes))
        everything = torch.arange(self._table.vocab)
        return [Proposal(everything, self._table.rows[prefix].log_softmax(0)) for prefix in prefixes.values()]

    def _prefix(self, node: OpenNode) -> Prefix:
        if node.index in self._prefixes or node.depth >= self._max_depth:
            raise ValueError(f"node {node.index} cannot be expanded: it was already, or it is too deep")
        if node.index == 0:
            return ()
        if node.parent not in self._prefixes or len(self._prefixes[node.parent]) + 1 != node.depth:
            raise ValueError(f"node {node.index} cannot be expanded: its parent was not, or its depth is wrong")
        return (*self._prefixes[node.parent], node.token)


def random_table(vocab: int, depth: int, seed: int, spread: float = 1.5) -> Table:
    """Softmax of normal logits."""
    generator = torch.Generator().manual_seed(seed)
    return Table.fill(
        vocab, depth, lambda _: (spread * torch.randn(vocab, generator=generator, dtype=torch.float64)).softmax(0)
    )


def sparse_table(vocab: int, depth: int, seed: int) -> Table:
    """Small whole weights: many zeros, ties and one-hot rows."""
    generator = torch.Generator().manual_seed(seed)

    def row(_: Prefix) -> Tensor:
        weights = torch.randint(0, 3, (vocab,), generator=generator)
        weights[torch.randint(vocab, (), generator=generator)] += 1
        return weights

    return Table.fill(vocab, depth, row)


def one_hot_table(vocab: int, depth: int, seed: int) -> Table:
    """All probability on one token, another one after each prefix."""
    generator = torch.Generator().manual_seed(seed)
    return Table.fill(
        vocab, depth, lambda _: torch.nn.functional.one_hot(torch.randint(vocab, (), generator=generator), vocab)
    )


def uniform_table(vocab: int, depth: int) -> Table:
    """Nothing but ties."""
    return Table.fill(vocab, depth, lambda _: torch.ones(vocab))
