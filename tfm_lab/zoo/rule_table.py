"""Every acceptance rule on every kind of tree, judged exactly; refused pairs are forced, WRONG ON PURPOSE.

A rule refuses the trees on which it would be biased. Here the refusal is overridden, so that the same tool which says 0
for the pairs that are allowed also says by how much the others are wrong.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import SamplingConfig, TargetRows, first_argmax
from tfm_lab.drafting import (
    Draft,
    DraftSource,
    OpenNode,
    Proposal,
    TreeBuilder,
    TreeConfig,
    TreeKind,
    best_first,
    chain,
    dyspec_slots,
    woven,
)
from tfm_lab.draws import Draws
from tfm_lab.exact import Table, bias, emission_distribution, enumerate_drafts, enumerate_verdicts, expected_length
from tfm_lab.tree import DraftTree
from tfm_lab.verification import RULES, Acceptance, AcceptanceRule, greedy, target_sample
from tfm_lab.zoo.laws import draw, sampled_chain
from tfm_lab.zoo.trees import whole_marginals, wrong_label, wrong_pruning

Proposals = Callable[[DraftTree, DraftSource], dict[int, Proposal]]


class Grown(NamedTuple):
    """A way to grow trees.

    Attributes:
        builder: grows them.
        proposals: for fixed trees, what a careless caller would take for the distributions that siblings were drawn
            from; ``None`` where they really were drawn, or are said to be.
    """

    builder: TreeBuilder
    proposals: Proposals | None = None


class Ruling(NamedTuple):
    """One cell of the table.

    Attributes:
        is_refused: the rule does not take this tree; the figures are those of a forced run.
        bias: exact total variation distance between the emitted text and plain sampling.
        tokens: expected tokens per step, bonus included.
    """

    is_refused: bool
    bias: float
    tokens: float


def whole_conditionals(tree: DraftTree, source: DraftSource) -> dict[int, Proposal]:
    """For every node with children the autoregressive drafter's whole distribution there."""
    assert source.open_session is not None
    session, proposals = source.open_session(), {}
    rows = list(zip(tree.parents.tolist(), tree.tokens.tolist(), tree.depths.tolist(), strict=True))
    for node, children in enumerate(tree.children()):
        if children:
            (proposals[node],) = session.expand([OpenNode(node, *rows[node])])
    return proposals


TREES: Mapping[str, Grown] = MappingProxyType(
    {
        "argmax chain": Grown(chain, whole_marginals),
        "DDTree": Grown(best_first, whole_marginals),
        "TfM": Grown(woven, whole_conditionals),
        "sampled chain": Grown(sampled_chain(draw)),
        "DySpec slots": Grown(dyspec_slots),
        "drawn, then pruned": Grown(wrong_pruning),
    }
)
"""The columns. Nothing is drawn in the first three; the last one is WRONG and cannot be told from the one before."""


class WrongGreedy:
    """WRONG above temperature 0, where ``greedy`` refuses: it follows the argmax, whatever the temperature."""

    name = "wrong_greedy"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        return

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        return target_sample(draft, target, _Favourites())


class _Favourites:
    """Draws that are none: the likeliest outcome."""

    def categorical(self, weights: Float[Tensor, " outcomes"]) -> int:
        return int(first_argmax(weights))

    def bernoulli(self, probability: float) -> bool:
        return probability >= 0.5


def judge_pair(
    rule: AcceptanceRule, grown: Grown, p: Table, q: Table, config: TreeConfig, length: int, sampling: SamplingConfig
) -> Ruling:
    """The exact bias of a rule on the trees that ``grown`` grows; by force where the rule refuses them.

    Args:
        rule: judges against ``p``.
        grown: grows trees on ``q``.
        p, q: target and drafter.
        config: of the trees.
        length: tokens of text that are looked at.
        sampling: of the target.
    """
    drafts = enumerate_drafts(grown.builder, q, config)
    is_refused = _refuses(rule, drafts[0][1].kind, sampling)
    if is_refused and rule is greedy:
        rule = WrongGreedy()
    elif is_refused and grown.proposals is not None:
        drafts = enumerate_drafts(wrong_label(grown.builder, grown.proposals), q, config)
    verdicts = enumerate_verdicts(drafts, rule, p, sampling)
    law = emission_distribution(verdicts, p, length, sampling)
    return Ruling(is_refused, bias(law, p, sampling), expected_length(verdicts))


def rule_table(
    p: Table, q: Table, config: TreeConfig, length: int, sampling: SamplingConfig
) -> dict[str, dict[str, Ruling]]:
    """All rules of the package on all trees of ``TREES``: rulings by rule and tree. Args as :func:`judge_pair`."""
    with torch.no_grad():
        return {
            name: {tree: judge_pair(rule, grown, p, q, config, length, sampling) for tree, grown in TREES.items()}
            for name, rule in RULES.items()
        }


def _refuses(rule: AcceptanceRule, kind: TreeKind, sampling: SamplingConfig) -> bool:
    try:
        rule.supports(kind, sampling)
    except ValueError:
        return True
    return False
