"""Drafting: from a drafter's distributions to a draft tree."""

from tfm_lab.drafting.conditional_trees import MarginalSession, conditional_chain, dyspec_slots, woven
from tfm_lab.drafting.marginal_trees import best_first, chain
from tfm_lab.drafting.ranked_slots import ranked_slots
from tfm_lab.drafting.types import (
    Candidate,
    CandidatePool,
    ConditionalSession,
    Draft,
    DraftSource,
    GrowthRound,
    Marginals,
    OpenNode,
    Proposal,
    TreeBuilder,
    TreeConfig,
    TreeKind,
)

__all__ = [
    "Candidate",
    "CandidatePool",
    "ConditionalSession",
    "Draft",
    "DraftSource",
    "GrowthRound",
    "MarginalSession",
    "Marginals",
    "OpenNode",
    "Proposal",
    "TreeBuilder",
    "TreeConfig",
    "TreeKind",
    "best_first",
    "chain",
    "conditional_chain",
    "dyspec_slots",
    "ranked_slots",
    "woven",
]
