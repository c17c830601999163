"""The drafting methods by name, each with the acceptance rule that suits its trees."""

from dataclasses import dataclass
from enum import Enum

from tfm_lab.decoding import Speculator
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import (
    TreeBuilder,
    TreeKind,
    best_first,
    chain,
    conditional_chain,
    dyspec_slots,
    ranked_slots,
    woven,
)
from tfm_lab.models.autoregressive import AutoregressiveDrafter
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.weaver import Weaver
from tfm_lab.verification import RULES

AUTOREGRESSIVE = "ar"


class Source(Enum):
    """Where a method's distributions come from."""

    MARGINALS = "the factorised drafter alone"
    WEAVER = "the factorised drafter and the Weaver"
    AUTOREGRESSIVE_DRAFTER = "the autoregressive drafter"


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft.

    Attributes:
        title: for tables and plots.
        build_tree: grows the tree.
        kind: whether siblings are drawn.
        source: which models it draws on.
    """

    title: str
    build_tree: TreeBuilder
    kind: TreeKind
    source: Source


METHODS: dict[str, Method] = {
    "chain": Method("DFlash chain", chain, TreeKind.FIXED, Source.MARGINALS),
    "ddtree": Method("DDTree", best_first, TreeKind.FIXED, Source.MARGINALS),
    "tfm": Method("TfM", woven, TreeKind.FIXED, Source.WEAVER),
    "dyspec": Method("TfM, sampled slots", dyspec_slots, TreeKind.SAMPLED, Source.WEAVER),
}
"""Methods on a factorised drafter. Plain decoding has no drafter and goes by the name ``ar``."""

RANKED_METHODS: dict[str, Method] = {
    "ranked": Method("TfM, slots by rank", ranked_slots, TreeKind.SAMPLED, Source.WEAVER),
}
"""Sampled trees of a shape that is known beforehand."""

AUTOREGRESSIVE_METHODS: dict[str, Method] = {
    "ard-chain": Method(
        "autoregressive drafter, chain", conditional_chain, TreeKind.FIXED, Source.AUTOREGRESSIVE_DRAFTER
    ),
    "ard-tree": Method("autoregressive drafter, tree", woven, TreeKind.FIXED, Source.AUTOREGRESSIVE_DRAFTER),
    "ard-dyspec": Method(
        "autoregressive drafter, sampled slots", dyspec_slots, TreeKind.SAMPLED, Source.AUTOREGRESSIVE_DRAFTER
    ),
}
"""The same trees from an autoregressive drafter with a full-vocabulary head."""

ALL_METHODS = METHODS | RANKED_METHODS | AUTOREGRESSIVE_METHODS


def make_speculator(
    name: str,
    drafter: FactorisedDrafter,
    weaver: Weaver | None,
    sampling: SamplingConfig,
    rule: str | None = None,
    autoregressive: AutoregressiveDrafter | None = None,
) -> Speculator:
    """The method ``name`` with its models and a rule. A Weaver that sees the temperature gets that of ``sampling``.

    Args:
        rule: name of an acceptance rule; by default ``greedy`` at temperature 0, else ``target_sample`` for fixed and
            ``rejection_swor`` for sampled trees.
        autoregressive: the drafter of the ``ard-`` methods.

    Raises:
        ValueError: for an unknown method or rule, a missing model, or a rule that is not lossless here.
    """
    if name not in ALL_METHODS:
        raise ValueError(f"there is no method {name!r}; use {AUTOREGRESSIVE}, {', '.join(ALL_METHODS)}")
    method = ALL_METHODS[name]
    if method.source is Source.WEAVER and weaver is None:
        raise ValueError(f"method {name!r} needs a Weaver; load one, or use chain or ddtree")
    if method.source is Source.AUTOREGRESSIVE_DRAFTER and autoregressive is None:
        raise ValueError(f"method {name!r} needs an autoregressive drafter, and these models have none")
    if rule is None:
        sampled = "rejection_swor" if method.kind is TreeKind.SAMPLED else "target_sample"
        rule = "greedy" if sampling.is_greedy else sampled
    if rule not in RULES:
        raise ValueError(f"there is no acceptance rule {rule!r}; use one of {', '.join(RULES)}")
    RULES[rule].supports(method.kind, sampling)
    chosen = autoregressive if method.source is Source.AUTOREGRESSIVE_DRAFTER else drafter
    assert chosen is not None
    needed = weaver.for_temperature(sampling.temperature) if method.source is Source.WEAVER and weaver else None
    return Speculator(name, chosen, needed, method.build_tree, method.kind, RULES[rule])
