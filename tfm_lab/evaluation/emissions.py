"""Tokens that speculative sampling emits at fixed places of real texts, as many as a statistical test asks for.

A step of a decode depends on the text so far and on its draws, on nothing else. So a place is set up once (the target's
state, the drafter's context and its marginals) and its step is repeated with fresh draws: a sampled tree is drawn anew
every time, a fixed one is the same. The trees of several repetitions are verified together, merged at their root, where
no branch sees another; conditionals of the Weaver are kept by path. The law of plain sampling comes from another
computation: the emitted texts, read from an empty state and without a tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.decoding import Speculator
from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting import ConditionalSession, Draft, DraftSource, OpenNode, Proposal, TreeConfig, TreeKind
from tfm_lab.draws import Draws, SeededDraws
from tfm_lab.evaluation.frequencies import ChiSquared, Classes, count_tokens
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import WeaverSession
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance, AcceptanceRule

TOGETHER = 32
"""Sampled trees verified in one call."""

READ_TOGETHER = 64
"""Texts read in one call."""

REDRAWN = "bonus redrawn"
"""What the names of the controls end with."""


@dataclass(frozen=True, slots=True)
class Redraws:
    """WRONG ON PURPOSE, the test's control: the bonus is drawn from p itself, not from what acceptance left of it.

    Accepts like the rule it spoils, so that only frequencies can betray it.
    """

    spoiled: AcceptanceRule

    @property
    def name(self) -> str:
        return f"{self.spoiled.name}, {REDRAWN}"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        self.spoiled.supports(kind, sampling)

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        accepted = self.spoiled(draft, target, draws)
        return Acceptance(accepted.path, draws.categorical(target.probabilities(accepted.path[-1])))


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to emit tokens.

    Attributes:
        speculator: method and rule; only its tree builder, kind and rule are used.
        is_biased: whether it is a control that the test has to reject.
    """

    speculator: Speculator
    is_biased: bool

    @property
    def name(self) -> str:
        return f"{self.speculator.name}, {self.speculator.rule.name}"


class Place:
    """A place in a text, set up for one step.

    Args:
        bundle: target, drafter and Weaver.
        text: the tokens so far, at least two; the last one is the root of all trees.
        tree: of the drafts.
    """

    def __init__(self, bundle: Bundle, text: Sequence[int], tree: TreeConfig) -> None:
        target, drafter, weaver = bundle.target, bundle.drafter, bundle.weaver
        if weaver is None:
            raise ValueError("these models have no Weaver; the test compares methods that need one")
        self.text, self._target, self._tree = tuple(text), target, tree
        before = target.prefill(self.text[:-1], drafter.config.tap_layers)
        context = drafter.extend_context(drafter.empty_context(), before.taps)
        marginals = drafter.propose(context, self.text[-1], target, min(tree.budget, tree.max_depth))
        self._state = before.state
        known = _Known(WeaverSession(weaver, target, marginals, before.hidden, tree.pool_size))
        self._source = DraftSource(marginals, lambda: _Recalling(known))

    def emit(
        self, contenders: Sequence[Contender], sampling: SamplingConfig, tokens: int, seed: int
    ) -> list[list[tuple[int, ...]]]:
        """Repeat the step until every contender emitted at least ``tokens`` tokens.

        Contenders must grow the same trees. Each draws from a stream of its own.

        Returns:
            What each contender emitted, step by step.
        """
        drafter_draws = SeededDraws(seed, f"draft {self.text}")
        streams = [SeededDraws(seed, f"{contender.name} {self.text}") for contender in contenders]
        emitted: list[list[tuple[int, ...]]] = [[] for _ in contenders]
        missing = [tokens for _ in contenders]
        one = contenders[0].speculator
        verified: list[tuple[Draft, TargetRows]] = []
        while max(missing) > 0:
            if one.kind is TreeKind.SAMPLED or not verified:
                count = TOGETHER if one.kind is TreeKind.SAMPLED else 1
                drafts = [one.build_tree(self.text[-1], self._source, self._tree, drafter_draws) for _ in range(count)]
                verified = self._verify(drafts, sampling)
            for draft, rows in verified:
                for index, contender in enumerate(contenders):
                    if missing[index] > 0:
                        step = contender.speculator.rule(draft, rows, streams[index]).emitted(draft.tree)
                        emitted[index].append(step)
                        missing[index] -= len(step)
        return emitted

    def _verify(self, drafts: Sequence[Draft], sampling: SamplingConfig) -> list[tuple[Draft, TargetRows]]:
        merged, places = merge_trees([draft.tree for draft in drafts])
        logits = self._target.verify_tree(self._state, merged).logits
        return [(draft, TargetRows(logits[nodes], sampling)) for draft, nodes in zip(drafts, places, strict=True)]


class _Known:
    """Conditionals by path from the root, asked of the drafter once."""

    def __init__(self, session: ConditionalSession) -> None:
        self.max_depth = session.max_depth
        self._session = session
        self._nodes: dict[tuple[int, ...], tuple[int, Proposal]] = {}

    def at(self, before: tuple[int, ...], token: int) -> Proposal:
        """q(. | path) for the path that ends in ``token``; ``before`` was asked for earlier, or is empty."""
        path = (*before, token)
        if path not in self._nodes:
            parent = self._nodes[before][0] if before else -1
            node = OpenNode(len(self._nodes), parent, token, len(before))
            self._nodes[path] = node.index, self._session.expand([node])[0]
        return self._nodes[path][1]


class _Recalling:
    """One tree's view of what is known; implements :class:`tfm_lab.drafting.ConditionalSession`."""

    def __init__(self, known: _Known) -> None:
        self._known = known
        self._paths: dict[int, tuple[int, ...]] = {-1: ()}

    @property
    def max_depth(self) -> int:
        return self._known.max_depth

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        """The proposals of these nodes, in order."""
        proposals = []
        for node in nodes:
            before = self._paths[node.parent]
            self._paths[node.index] = (*before, node.token)
            proposals.append(self._known.at(before, node.token))
        return proposals


def merge_trees(trees: Sequence[DraftTree]) -> tuple[DraftTree, list[list[int]]]:
    """One tree that holds all of them, which share their root token, and the node of every node of each.

    Raises:
        ValueError: if their roots differ.
    """
    roots = {int(tree.tokens[0]) for tree in trees}
    if len(roots) != 1:
        raise ValueError(f"only trees with one root can be merged, and these have {len(roots)}")
    tokens, parents, places = [roots.pop()], [-1], []
    node_of: dict[tuple[int, int], int] = {}
    for tree in trees:
        nodes = [0]
        for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
            key = nodes[parent], token
            if key not in node_of:
                node_of[key] = len(tokens)
                tokens.append(token)
                parents.append(nodes[parent])
            nodes.append(node_of[key])
        places.append(nodes)
    return DraftTree.from_parents(tokens, parents), places


@torch.no_grad()
def plain_laws(
    target: TargetModel, text: Sequence[int], behind: Sequence[tuple[int, ...]], sampling: SamplingConfig
) -> Float[Tensor, "places vocab"]:
    """Law of plain sampling after ``text`` and each of ``behind``, read as whole texts from an empty state."""
    inner = {more[:end] for more in behind for end in range(len(more))}
    whole = [more for more in behind if more not in inner]
    longest = max(map(len, whole))
    rows = [[*text, *more, *[0] * (longest - len(more))] for more in whole]
    hidden = torch.cat(
        [target.features(part).hidden for part in torch.tensor(rows, device=target.device).split(READ_TOGETHER)]
    )
    held_by = {more[:end]: row for row, more in enumerate(whole) for end in range(len(more) + 1)}
    places = [(held_by[more], len(text) + len(more) - 1) for more in behind]
    return torch.stack([sampling.probabilities(target.logits(hidden[place])) for place in places])


def count_emissions(
    test: ChiSquared,
    classes: Classes,
    target: TargetModel,
    text: Sequence[int],
    emitted: Sequence[tuple[int, ...]],
    sampling: SamplingConfig,
) -> None:
    """Add all tokens that were emitted after ``text`` to a test."""
    behind = sorted({step[:place] for step in emitted for place in range(len(step))})
    row_of = {more: row for row, more in enumerate(behind)}
    tokens = [(row_of[step[:place]], token) for step in emitted for place, token in enumerate(step)]
    test.add(*count_tokens(classes, plain_laws(target, text, behind, sampling), tokens))
