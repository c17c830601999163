"""What the explorer knows of a decode: plain records without models, so that looking at them costs no model call.

Nodes are named by the tokens below the root. The same path in the trees of several methods is therefore the same node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tfm_lab.drafting import GrowthRound
from tfm_lab.explorer.settings import Settings
from tfm_lab.show.views import Decode
from tfm_lab.trace import DecodeStep, DecodeTrace

TokenPath = tuple[int, ...]


class TokenShare(NamedTuple):
    """The probability of one next token by each of the three; ``label`` is its text."""

    label: str
    marginal: float
    weaver: float
    target: float


@dataclass(frozen=True, slots=True)
class NodeLaw:
    """The next token after a node.

    Attributes:
        shares: the tokens worth a bar, likeliest first over all three, and all others together at the end.
        marginal_target: TV distance of the drafter's marginal and the target; 1 - TV of its drafts are accepted.
        weaver_target: the same for the Weaver.
        marginal_weaver: TV distance of drafter and Weaver.
    """

    shares: tuple[TokenShare, ...]
    marginal_target: float
    weaver_target: float
    marginal_weaver: float


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node, as all three see it.

    Attributes:
        label: text of its token.
        marginal: the drafter's probability of the token at this depth.
        weaver: the Weaver's, given the path.
        target: the target's, given the path.
        weaver_path: product of ``weaver`` along the path: what best-first growth goes by.
        target_path: product of ``target`` along the path: what the node adds to the expected tokens of a step.
        law: the next token after it; ``None`` where the drafter's block ends.
    """

    label: str
    marginal: float
    weaver: float
    target: float
    weaver_path: float
    target_path: float
    law: NodeLaw | None


@dataclass(frozen=True, slots=True, eq=False)
class GrownTree:
    """The tree of one method in one context.

    Attributes:
        step: tree, accepted path and committed tokens.
        rounds: how it grew; the one pass of a chain counts as a round.
        paths: for every node its tokens below the root; the root's are ().
        expected: tokens per target call that the target expects of this tree: 1 + the sum of its path probabilities.
    """

    step: DecodeStep
    rounds: tuple[GrowthRound, ...]
    paths: tuple[TokenPath, ...]
    expected: float

    def node(self, path: TokenPath) -> int | None:
        """The node with this path, ``None`` if this tree does not have it."""
        return self.paths.index(path) if path in self.paths else None

    def nodes_after(self, growth: int) -> int:
        """Proposed nodes in the tree once the growth rounds 0 to ``growth`` are over."""
        return sum(len(growth_round.added) for growth_round in self.rounds[: growth + 1])

    def growth_with(self, nodes: int) -> int:
        """The last growth round after which the tree has at most ``nodes`` nodes, the first if there is none."""
        fitting = [g for g in range(len(self.rounds)) if self.nodes_after(g) <= nodes]
        return fitting[-1] if fitting else 0


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One target call of the decode.

    Attributes:
        trees: what each method drafts in this context; the tree of the decode itself is among them.
        facts: every node of these trees and some further candidates by path; () is the root.
    """

    trees: Mapping[str, GrownTree]
    facts: Mapping[TokenPath, NodeFacts]


@dataclass(frozen=True, slots=True, eq=False)
class Exploration:
    """A decode with everything that can be looked at.

    Attributes:
        trace: of the decode of ``settings.method``.
        rounds: one for every step of the trace.
        pieces: text of each new token.
        decode: text of a token id.
    """

    settings: Settings
    trace: DecodeTrace
    rounds: tuple[Round, ...]
    pieces: tuple[str, ...]
    decode: Decode
