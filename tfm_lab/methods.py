"""The drafting methods by name, each with the acceptance rule that suits its trees."""

from dataclasses import dataclass

from tfm_lab.decoding import Speculator
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeBuilder, TreeKind, best_first, chain, dyspec_slots, woven
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.weaver import Weaver
from tfm_lab.verification import RULES

AUTOREGRESSIVE = "ar"


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft.

    Attributes:
        title: for tables and plots.
        build_tree: grows the tree.
        kind: whether siblings are drawn.
        needs_weaver: whether the tree is grown from conditionals.
    """

    title: str
    build_tree: TreeBuilder
    kind: TreeKind
    needs_weaver: bool


METHODS: dict[str, Method] = {
    "chain": Method("DFlash chain", chain, TreeKind.FIXED, needs_weaver=False),
    "ddtree": Method("DDTree", best_first, TreeKind.FIXED, needs_weaver=False),
    "tfm": Method("TfM", woven, TreeKind.FIXED, needs_weaver=True),
    "dyspec": Method("TfM, sampled slots", dyspec_slots, TreeKind.SAMPLED, needs_weaver=True),
}
"""Every method but plain decoding, which has no drafter and goes by the name ``ar``."""


def make_speculator(
    name: str,
    drafter: FactorisedDrafter,
    weaver: Weaver | None,
    sampling: SamplingConfig,
    rule: str | None = None,
) -> Speculator:
    """The method ``name`` with its models and a rule.

    Args:
        rule: name of an acceptance rule; by default ``greedy`` at temperature 0, else ``target_sample`` for fixed and
            ``rejection_swor`` for sampled trees.

    Raises:
        ValueError: for an unknown method or rule, a missing Weaver, or a rule that is not lossless here.
    """
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; use {AUTOREGRESSIVE}, {', '.join(METHODS)}")
    method = METHODS[name]
    if method.needs_weaver and weaver is None:
        raise ValueError(f"method {name!r} needs a Weaver; load one, or use chain or ddtree")
    if rule is None:
        sampled = "rejection_swor" if method.kind is TreeKind.SAMPLED else "target_sample"
        rule = "greedy" if sampling.is_greedy else sampled
    if rule not in RULES:
        raise ValueError(f"there is no acceptance rule {rule!r}; use one of {', '.join(RULES)}")
    RULES[rule].supports(method.kind, sampling)
    needed = weaver if method.needs_weaver else None
    return Speculator(name, drafter, needed, method.build_tree, method.kind, RULES[rule])
