"""Line-ups for exercises: pairs of builder and rule under letters, some of them WRONG ON PURPOSE. Do not read on if you
are about to solve one."""

from collections.abc import Mapping
from types import MappingProxyType

from tfm_lab.drafting import best_first, dyspec_slots, woven
from tfm_lab.verification import rejection_swor, target_sample, traversal
from tfm_lab.zoo.laws import Pair, draw, sampled_chain
from tfm_lab.zoo.sampling_rules import UNSAMPLED_Q
from tfm_lab.zoo.trees import FIXED_ORDER_TRAVERSAL, PRUNE_AFTER_DRAWING, TOP_K_SIBLINGS, wrong_pruning

CHAINS: Mapping[str, Pair] = MappingProxyType(
    {
        "A": Pair(sampled_chain(draw), rejection_swor),
        "B": Pair(sampled_chain(draw), target_sample),
        "C": UNSAMPLED_Q.wrong,
        "D": UNSAMPLED_Q.right,
    }
)
"""Notebook 01: one of four is biased."""

TREES: Mapping[str, Pair] = MappingProxyType(
    {
        "A": TOP_K_SIBLINGS.wrong,
        "B": Pair(wrong_pruning, target_sample),
        "C": Pair(dyspec_slots, traversal),
        "D": PRUNE_AFTER_DRAWING.wrong,
        "E": Pair(woven, traversal),
        "F": FIXED_ORDER_TRAVERSAL.wrong,
        "G": Pair(best_first, target_sample),
    }
)
"""Notebook 07: three of seven are biased."""
