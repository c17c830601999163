"""Acceptance rules: which path of a draft tree to keep, and which token follows it.

Every rule is lossless: the tokens it emits have exactly the law of plain sampling from the target. That holds only for
the right kind of tree, so each rule refuses the kinds it would be biased on.

=============== ============ ========= ==================================================
rule            tree         sampling  source
=============== ============ ========= ==================================================
greedy          any          T = 0     the target's argmax, followed through the tree
target_sample   any          any       membership of the target's own sample in the tree
rejection_swor  sampled      any       Sequoia's rule, siblings without replacement, 2402.12374
traversal       any          any       Traversal Verification, leaf to root, 2505.12398
=============== ============ ========= ==================================================
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import SamplingConfig, TargetRows, first_argmax
from tfm_lab.drafting import Draft, TreeKind
from tfm_lab.draws import Draws
from tfm_lab.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What one verification keeps.

    Attributes:
        path: accepted node indices, root first. The root is always on it.
        bonus: the target's own token after ``path[-1]``.
    """

    path: tuple[int, ...]
    bonus: int

    def emitted(self, tree: DraftTree) -> tuple[int, ...]:
        """The new tokens, in order: the accepted proposals and the bonus token, so ``len(path)`` of them."""
        return (*tree.tokens[list(self.path[1:])].tolist(), self.bonus)


class AcceptanceRule(Protocol):
    """Chooses the accepted path of a draft. All rules share this call shape."""

    @property
    def name(self) -> str:
        """The rule's key in ``RULES``."""
        ...

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        """Return if the rule is lossless for this kind of tree and this sampling.

        Raises:
            ValueError: if it is not, naming a rule to use in its place.
        """
        ...

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        """Verify ``draft`` against the target's distributions, one row per node.

        Raises:
            ValueError: if the rule does not support the draft or if the draft and the rows do not fit together.
        """
        ...


@dataclass(frozen=True, slots=True)
class Greedy:
    """Follow the target's argmax through the tree. Draws nothing; only for temperature 0."""

    name: str = "greedy"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        if not sampling.is_greedy:
            raise ValueError(
                f"greedy follows the target's argmax, which is lossless only at temperature 0, and the temperature is "
                f"{sampling.temperature:g}: use target_sample"
            )

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        _check(self, draft, target)
        return _walk(draft.tree, lambda node: int(first_argmax(target.probabilities(node))))


@dataclass(frozen=True, slots=True)
class TargetSample:
    """Membership: sample the target at the current node; descend if a child carries the sample, else it is the bonus.

    One categorical draw per emitted token and no other, in the order of the text: with the same seed the text is that
    of plain sampling. Of all lossless rules for a fixed tree none accepts more (the tokens offered at a node are
    accepted with their whole target probability).
    """

    name: str = "target_sample"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        return

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        _check(self, draft, target)
        return _walk(draft.tree, lambda node: draws.categorical(target.probabilities(node)))


@dataclass(frozen=True, slots=True)
class RejectionSwor:
    """Try the children of a node in draw order; accept token x with probability min(1, p(x) / q(x)).

    After a rejection p becomes the normalised max(p - q, 0), q(x) becomes 0 and q is renormalised; when no child is
    left the bonus is drawn from what p has become (Sequoia, 2402.12374; 2302.01318 for one child).
    """

    name: str = "rejection_swor"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        _refuse_shared_noise(self, sampling)
        if kind is not TreeKind.SAMPLED:
            raise ValueError(
                "rejection_swor is lossless only for children drawn from the drafter, and this tree is fixed: "
                "use target_sample or traversal, or grow the tree with dyspec_slots"
            )

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        _check(self, draft, target)
        tokens, children = draft.tree.tokens.tolist(), draft.tree.children()
        path = [0]
        while True:
            visit = _Visit(path[-1], target, draft, children[path[-1]])
            accepted = None
            while accepted is None and visit.waiting:
                child = visit.next_child(draws)
                if draws.bernoulli(visit.ratio(tokens[child])):
                    accepted = child
                else:
                    visit.reject(tokens[child])
            if accepted is None:
                return Acceptance(tuple(path), draws.categorical(visit.p))
            path.append(accepted)


@dataclass(frozen=True, slots=True)
class Traversal:
    """Traversal Verification: judge whole paths, from the leaves to the root (2505.12398).

    A node's value is the probability of accepting the path down to it: 1 at the root, and
    min(value * p(x) / q(x), 1) for a child with token x. The walk goes down to a leaf and accepts its path with the
    leaf's value. Otherwise the leaf is cut off and its parent corrected:
    p becomes the normalised r = max(value * p - q, 0), the value s / (s + 1 - value) with s = sum r, q(x) becomes 0 and
    q is renormalised; then the walk goes on from the parent.

    On a sampled tree children are tried in draw order and q is the drafter's distribution. On a fixed tree q is
    the siblings' probabilities renormalised among themselves, and their order is drawn from q without replacement
    (Plackett-Luce); a fixed order would be biased. Order and acceptance are drawn only when they matter.
    """

    name: str = "traversal"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        _refuse_shared_noise(self, sampling)

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        _check(self, draft, target)
        tokens, children = draft.tree.tokens.tolist(), draft.tree.children()
        trail = [_Visit(0, target, draft, children[0])]
        while True:
            while trail[-1].value > 0.0 and trail[-1].waiting:
                child = trail[-1].next_child(draws)
                value = min(trail[-1].value * trail[-1].ratio(tokens[child]), 1.0)
                trail.append(_Visit(child, target, draft, children[child], value))
            leaf = trail[-1]
            if len(trail) == 1 or draws.bernoulli(leaf.value):
                return Acceptance(tuple(visit.node for visit in trail), draws.categorical(leaf.p))
            trail.pop()
            trail[-1].reject(tokens[leaf.node])


greedy = Greedy()
target_sample = TargetSample()
rejection_swor = RejectionSwor()
traversal = Traversal()

RULES: dict[str, AcceptanceRule] = {rule.name: rule for rule in (greedy, target_sample, rejection_swor, traversal)}


class _Visit:
    """A node under verification: what is left of p, of q and of its children after the rejections so far."""

    def __init__(
        self, node: int, target: TargetRows, draft: Draft, children: tuple[int, ...], value: float = 1.0
    ) -> None:
        self.node = node
        self.value = value
        self.waiting = list(children)
        self._target = target
        self._in_draw_order = draft.kind is TreeKind.SAMPLED
        self._tokens = draft.tree.tokens
        if not children:
            return
        if self._in_draw_order:
            self._q = _proposal(draft, node, target.vocab_size)
        else:
            self._q = _sibling_distribution(draft.tree, children, target.vocab_size)
            self.waiting = [child for child in children if self._q[self._tokens[child]] > 0.0]

    @cached_property
    def p(self) -> Float[Tensor, " vocab"]:
        """The target's distribution until a rejection replaces it; a rejected leaf never asks for it."""
        return self._target.probabilities(self.node)

    def next_child(self, draws: Draws) -> int:
        """Take the next child to try: the oldest one of a sampled tree, one drawn from q in a fixed tree."""
        if self._in_draw_order or len(self.waiting) == 1:
            return self.waiting.pop(0)
        return self.waiting.pop(draws.categorical(self._q[self._tokens[self.waiting]]))

    def ratio(self, token: int) -> float:
        """p(token) / q(token) under the current p and q."""
        q = float(self._q[token])
        if q <= 0.0:
            raise ValueError(
                f"a child of node {self.node} carries token {token}, which the node's proposal cannot have drawn: "
                "siblings of a sampled tree must be draws without replacement from it"
            )
        return float(self.p[token]) / q

    def reject(self, token: int) -> None:
        """Condition p, q and the value on the rejection of the child with this token."""
        excess = (self.value * self.p - self._q).clamp_min(0.0)
        mass = float(excess.sum())
        # Without excess nothing is left to correct: p equals q and only rounding rejected, or the value becomes 0.
        if mass > 0.0:
            self.p = excess / mass
        # A value of 1 stays 1; written as a quotient it would be 0 / 0 when there is no excess.
        if self.value < 1.0:
            self.value = mass / (mass + 1.0 - self.value)
        self._q[token] = 0.0
        left = float(self._q.sum())
        if left > 0.0:
            self._q /= left


def _walk(tree: DraftTree, next_token: Callable[[int], int]) -> Acceptance:
    """Descend from the root while a child carries the token that the target wants next."""
    tokens = tree.tokens.tolist()
    child_with = [{tokens[child]: child for child in children} for children in tree.children()]
    path = [0]
    while (token := next_token(path[-1])) in child_with[path[-1]]:
        path.append(child_with[path[-1]][token])
    return Acceptance(tuple(path), token)


def _refuse_shared_noise(rule: AcceptanceRule, sampling: SamplingConfig) -> None:
    if sampling.shared_noise:
        raise ValueError(
            f"{rule.name} judges drafts by chance, but under shared noise the drafts know what the target draws: "
            "use target_sample"
        )


def _check(rule: AcceptanceRule, draft: Draft, target: TargetRows) -> None:
    rule.supports(draft.kind, target.sampling)
    if target.nodes != len(draft.tree):
        raise ValueError(
            f"the target gave {target.nodes} rows for a tree of {len(draft.tree)} nodes: "
            "verify the tree that was drafted"
        )
    largest = int(draft.tree.tokens[1:].max()) if draft.tree.budget else -1
    if largest >= target.vocab_size:
        raise ValueError(
            f"the tree proposes token {largest}, but the target's vocabulary has {target.vocab_size} tokens: "
            "use a drafter made for this target"
        )


def _proposal(draft: Draft, node: int, vocab_size: int) -> Float[Tensor, " vocab"]:
    """The distribution that the children of ``node`` were drawn from."""
    if node not in draft.proposals:
        raise ValueError(
            f"node {node} of a sampled tree has children but no proposal: keep the distribution they were drawn from"
        )
    proposal = draft.proposals[node]
    if int(proposal.tokens.max()) >= vocab_size:
        raise ValueError(
            f"the proposal of node {node} lists token {int(proposal.tokens.max())}, but the target's vocabulary has "
            f"{vocab_size} tokens: use a drafter made for this target"
        )
    q = proposal.dense(vocab_size)
    return q / q.sum()


def _sibling_distribution(tree: DraftTree, children: tuple[int, ...], vocab_size: int) -> Float[Tensor, " vocab"]:
    """The siblings' probabilities renormalised among themselves.

    If all of them are 0 the shares are NaN, which no comparison calls positive: then no child is tried.
    """
    index = list(children)
    shares = torch.softmax(tree.log_probs[index].double(), dim=0)
    return torch.zeros(vocab_size, dtype=torch.float64).index_put_((tree.tokens[index],), shares)
