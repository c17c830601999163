"""The exact law of what a builder and a rule emit together, on tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting import Draft, TreeBuilder, TreeConfig
from tfm_lab.exact.enumeration import enumerate_outcomes
from tfm_lab.exact.tables import ROOT, Prefix, Table
from tfm_lab.verification import Acceptance, AcceptanceRule


@dataclass(frozen=True, slots=True)
class Verdict:
    """One way in which drafting and acceptance can go."""

    probability: float
    draft: Draft
    acceptance: Acceptance

    @property
    def emitted(self) -> tuple[int, ...]:
        """Accepted tokens and the bonus token."""
        return self.acceptance.emitted(self.draft.tree)


def target_rows(draft: Draft, p: Table, sampling: SamplingConfig) -> TargetRows:
    """What the target says at each node of the draft."""
    tree = draft.tree
    return TargetRows(torch.stack([p.rows[tree.path_tokens(node)[1:]] for node in range(len(tree))]), sampling)


def enumerate_drafts(builder: TreeBuilder, q: Table, config: TreeConfig) -> list[tuple[float, Draft]]:
    """Every tree that the builder can grow on the table, with its probability."""
    return enumerate_outcomes(lambda draws: builder(ROOT, q.source(config.max_depth), config, draws))


def enumerate_verdicts(
    drafts: Sequence[tuple[float, Draft]], rule: AcceptanceRule, p: Table, sampling: SamplingConfig
) -> list[Verdict]:
    """Every outcome of the rule on every draft.

    Raises:
        ValueError: if the rule refuses a draft.
    """
    verdicts: list[Verdict] = []
    for probability, draft in drafts:
        rows = target_rows(draft, p, sampling)
        outcomes = enumerate_outcomes(lambda draws, draft=draft, rows=rows: rule(draft, rows, draws))
        verdicts.extend(Verdict(probability * chance, draft, acceptance) for chance, acceptance in outcomes)
    return verdicts


def plain_distribution(p: Table, length: int, sampling: SamplingConfig, prefix: Prefix = ()) -> Float[Tensor, "..."]:
    """Joint law of the next ``length`` tokens of plain sampling: shape [vocab] * length, float64."""
    if length == 0:
        return torch.ones((), dtype=torch.float64)
    first = sampling.probabilities(p.rows[prefix])
    rest = [plain_distribution(p, length - 1, sampling, (*prefix, token)) for token in range(p.vocab)]
    return torch.stack([weight * law for weight, law in zip(first, rest, strict=True)])


def emission_distribution(
    verdicts: Sequence[Verdict], p: Table, length: int, sampling: SamplingConfig
) -> Float[Tensor, "..."]:
    """Joint law of the first ``length`` tokens of the text; what a step leaves open is filled by plain sampling."""
    law = torch.zeros((p.vocab,) * length, dtype=torch.float64)
    continuations: dict[Prefix, Tensor] = {}
    for verdict in verdicts:
        emitted = verdict.emitted[:length]
        if emitted not in continuations:
            continuations[emitted] = plain_distribution(p, length - len(emitted), sampling, emitted)
        law[emitted] += verdict.probability * continuations[emitted]
    return law


def exact_emission_distribution(
    builder: TreeBuilder,
    rule: AcceptanceRule,
    p: Table,
    q: Table,
    length: int,
    config: TreeConfig,
    sampling: SamplingConfig | None = None,
) -> Float[Tensor, "..."]:
    """Exact joint law of the first ``length`` emitted tokens, over tree draws, acceptance and bonus.

    Args:
        builder: grows trees on ``q``.
        rule: accepts a path against ``p``.
        p: the target; its rows must reach as deep as the trees and ``length - 1`` tokens.
        q: the drafter.
        config: budget, depth, children and width of the trees. Up to 7 nodes take well under a second.
        sampling: of the target; temperature 1 by default.

    Returns:
        float64, shape [vocab] * length, summing to 1.

    Raises:
        ValueError: if the rule refuses the trees.
    """
    sampling = sampling or SamplingConfig()
    verdicts = enumerate_verdicts(enumerate_drafts(builder, q, config), rule, p, sampling)
    return emission_distribution(verdicts, p, length, sampling)


def bias(law: Float[Tensor, "..."], p: Table, sampling: SamplingConfig | None = None) -> float:
    """Total variation distance between a joint law of tokens and plain sampling: 0 for a lossless pair."""
    plain = plain_distribution(p, law.dim(), sampling or SamplingConfig())
    return 0.5 * float((law - plain).abs().sum())


def expected_length(verdicts: Sequence[Verdict]) -> float:
    """Expected number of emitted tokens, bonus included."""
    return sum(verdict.probability * len(verdict.emitted) for verdict in verdicts)
