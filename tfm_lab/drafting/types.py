"""What drafters hand to tree builders, and what tree builders hand to acceptance rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tfm_lab.draws import Draws
from tfm_lab.tree import DraftTree

MOST_NODES = 1024
"""Largest budget: the ancestor mask is dense, so that growing and verifying a tree cost the square of its nodes."""


class TreeKind(Enum):
    """How a tree came about; it decides which acceptance rules are lossless for it."""

    FIXED = "fixed"
    """Nothing was drawn: the tree is a function of the context (top-C children, argmax chains)."""
    SAMPLED = "sampled"
    """Siblings were drawn without replacement from the drafter, in index order, and every drawn token was kept."""


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """Size and shape of a draft tree.

    Attributes:
        budget: number of proposed nodes, root excluded, at most ``MOST_NODES``. 0 means plain decoding.
        max_depth: longest path in proposed tokens. A DFlash block of 16 holds the root and 15 drafts.
        children: most children of one node (C); only ``woven`` uses it. The paper's released code stops at 8, which
            costs acceptance where the next token is very open (temperature 1 and a large budget).
        width: nodes expanded in one drafter call (w); ``None`` means ceil(budget / 16). Only ``woven`` uses it.
        pool_size: candidate tokens per depth that the Weaver chooses from (K).

    Raises:
        ValueError: if a value is out of range.
    """

    budget: int = 64
    max_depth: int = 15
    children: int = 32
    width: int | None = None
    pool_size: int = 512

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise ValueError(f"budget must be 0 or more proposed nodes, got {self.budget}")
        if self.budget > MOST_NODES:
            raise ValueError(
                f"budget must be at most {MOST_NODES} proposed nodes, got {self.budget}: the cost of a larger tree "
                "grows with the square of its nodes, and hardly any of them would be accepted"
            )
        for name in ("max_depth", "children", "pool_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width is not None and self.width < 1:
            raise ValueError(f"width must be at least 1 node per drafter call, got {self.width}")

    @property
    def expand_width(self) -> int:
        """Nodes per drafter call: ``width`` if given, else ceil(budget / 16), so that 16 calls suffice."""
        return self.width if self.width is not None else max(1, -(-self.budget // 16))


class CandidatePool(NamedTuple):
    """For each depth the drafter's best tokens, best first."""

    tokens: Int[Tensor, "depth pool"]
    logits: Float[Tensor, "depth pool"]


class Marginals(NamedTuple):
    """What one pass of a factorised drafter gives. Row d speaks about the token d + 1 places after the root.

    Attributes:
        logits: for as many places as were asked for.
        hidden: of the whole block, whose logits may be fewer.
    """

    logits: Float[Tensor, "depth vocab"]
    hidden: Float[Tensor, "block channels"]

    @property
    def max_depth(self) -> int:
        return self.logits.shape[0]

    def pool(self, size: int, ranking: Float[Tensor, "depth vocab"] | None = None) -> CandidatePool:
        """The ``size`` best tokens of each row (the whole vocabulary if it is smaller) and their logits.

        Args:
            ranking: what to rank tokens by; the logits themselves by default.
        """
        ranked = self.logits if ranking is None else ranking
        tokens = ranked.topk(min(size, ranked.shape[-1]), dim=-1).indices
        return CandidatePool(tokens, self.logits.gather(1, tokens))


class Proposal(NamedTuple):
    """A drafter's distribution over the next token at one node; tokens not listed have probability 0.

    The log-probabilities may sum to less than one where they are those of a larger vocabulary; whoever draws from a
    proposal, or judges what was drawn, normalises it first.
    """

    tokens: Int[Tensor, " pool"]
    log_probs: Float[Tensor, " pool"]

    def dense(self, vocab_size: int) -> Float[Tensor, " vocab"]:
        """The listed probabilities at their places in the whole vocabulary, float64, on the CPU."""
        probabilities = torch.zeros(vocab_size, dtype=torch.float64)
        return probabilities.index_put_((self.tokens.cpu(),), self.log_probs.detach().to("cpu", torch.float64).exp())


@dataclass(frozen=True, slots=True)
class OpenNode:
    """A node about to be expanded. ``parent`` is -1 for the root."""

    index: int
    parent: int
    token: int
    depth: int


class ConditionalSession(Protocol):
    """An autoregressive drafter at work on one tree: it gives q(. | path) for nodes whose parents it has seen."""

    @property
    def max_depth(self) -> int:
        """Deepest node that may be proposed; nodes of this depth cannot be expanded."""
        ...

    def expand(self, nodes: Sequence[OpenNode]) -> Sequence[Proposal]:
        """One drafter call for all of ``nodes``; every parent must have been expanded in an earlier call.

        Returns:
            One proposal per node, in order, all listing equally many tokens.
        """
        ...


@dataclass(frozen=True, slots=True)
class DraftSource:
    """Everything a tree builder may draw on in one decoding step.

    Attributes:
        marginals: the factorised drafter's output for this step, or ``None`` where there is no such drafter.
        open_session: starts an autoregressive drafter on a fresh tree, or ``None`` where there is no such drafter.
    """

    marginals: Marginals | None
    open_session: Callable[[], ConditionalSession] | None = None


class Candidate(NamedTuple):
    """A token offered as a child of ``parent``; ``score`` is the log-probability of its whole path."""

    parent: int
    token: int
    score: float


@dataclass(frozen=True, slots=True)
class GrowthRound:
    """One round of growth, kept for drawing.

    Attributes:
        expanded: nodes that the drafter was called on before this round's nodes were chosen; empty without a call.
        offered: candidates that joined the frontier: first children of the expanded nodes, then the next sibling of
            every node that was added; empty for sampled trees, whose slots have no token yet.
        added: nodes taken from the frontier, best first.
    """

    expanded: tuple[int, ...]
    offered: tuple[Candidate, ...]
    added: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A grown tree and what an acceptance rule has to know about it.

    Attributes:
        tree: the proposed tokens.
        kind: whether siblings were drawn.
        proposals: for sampled trees, the distribution that each node's children were drawn from, by node index.
        rounds: how the tree grew, in order; empty for a chain.
        drafter_calls: sequential calls of the autoregressive drafter (0 for trees built on marginals alone).
    """

    tree: DraftTree
    kind: TreeKind
    proposals: Mapping[int, Proposal] = field(default_factory=dict)
    rounds: tuple[GrowthRound, ...] = ()
    drafter_calls: int = 0


class TreeBuilder(Protocol):
    """Grows a tree below ``root``. All builders share this call shape."""

    def __call__(self, root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft: ...
