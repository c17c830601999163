"""The bug zoo: twelve mistakes that people really make in speculative decoding. WRONG ON PURPOSE.

Nothing of the product imports this package (a contract of the import linter). Every exhibit holds a wrong piece of code
next to the right one, and an evidence tool that raises the alarm on the first and is silent on the second; both are
checked by the tests. Wrong code is named ``wrong_...`` or ``Wrong...`` and says which of its lines is the wrong one.

    >>> evidence = EXHIBITS["top_k_siblings"].evidence()
    >>> round(evidence.wrong, 3), round(evidence.right, 3), evidence.is_caught
    (0.2, 0.0, True)

The modules: ``exhibit`` (the records), ``laws`` (exact laws of the text, the tool for sampling bugs),
``sampling_rules``, ``trees``, ``orphans``, ``numerics``, ``state``, ``measuring`` (the exhibits), ``interpreted``
(Triton kernels for two of them), ``plots`` (``symptom_plot``, ``symptom_picture``) and ``line_ups`` (for exercises).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tfm_lab.zoo.exhibit import Evidence, Exhibit, Measurement, Series
from tfm_lab.zoo.measuring import INTERPRETER_BENCHMARK, SINGLE_TRACE
from tfm_lab.zoo.numerics import BFLOAT16_DRAW, INTERPRETED_BFLOAT16_DOT
from tfm_lab.zoo.orphans import ORPHAN_SUBTREES
from tfm_lab.zoo.sampling_rules import MATCH_A_SAMPLE, RESIDUAL_SKIPPED, UNSAMPLED_Q
from tfm_lab.zoo.state import HALF_PRECISION_ROLLBACK
from tfm_lab.zoo.trees import FIXED_ORDER_TRAVERSAL, PRUNE_AFTER_DRAWING, TOP_K_SIBLINGS

_IN_ORDER: tuple[Exhibit[Any], ...] = (
    UNSAMPLED_Q,
    BFLOAT16_DRAW,
    RESIDUAL_SKIPPED,
    MATCH_A_SAMPLE,
    TOP_K_SIBLINGS,
    PRUNE_AFTER_DRAWING,
    FIXED_ORDER_TRAVERSAL,
    HALF_PRECISION_ROLLBACK,
    ORPHAN_SUBTREES,
    SINGLE_TRACE,
    INTERPRETER_BENCHMARK,
    INTERPRETED_BFLOAT16_DOT,
)

EXHIBITS: Mapping[str, Exhibit[Any]] = MappingProxyType({exhibit.name: exhibit for exhibit in _IN_ORDER})
"""All exhibits by name, in their order."""

__all__ = ["EXHIBITS", "Evidence", "Exhibit", "Measurement", "Series"]
