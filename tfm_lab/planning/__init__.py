"""From accepted tokens to seconds: a cost model of a decode step, and what to choose by it.

``published`` (figures of the paper, and what follows from them), ``shapes`` (bytes and operations counted from
configs), ``costs`` (seconds of a step, part by part), ``curves`` (mean accepted length by budget), ``plans`` (speed,
break-even, the best plan), ``fitting`` (coefficients from a table of measured steps), ``measured`` (the steps of a
full-size model) and ``replayed`` (its decodes with replayed acceptance).
"""

from tfm_lab.planning.costs import (
    FIGURES,
    Hardware,
    ModelCosts,
    Plan,
    StepSeconds,
    paper_costs,
    paper_hardware,
    step_seconds,
)
from tfm_lab.planning.curves import MalCurve, result_curves, typed_curve
from tfm_lab.planning.fitting import FittedCosts, MeasuredStep, fit_costs, leave_one_out
from tfm_lab.planning.measured import FullModel, read_full_model
from tfm_lab.planning.plans import (
    Outcome,
    break_even_mal,
    fastest,
    fastest_by_method,
    fitted_outcomes,
    outcomes,
    tokens_per_second,
)
from tfm_lab.planning.published import Figure, step_ratio

__all__ = [
    "FIGURES",
    "Figure",
    "FittedCosts",
    "FullModel",
    "Hardware",
    "MalCurve",
    "MeasuredStep",
    "ModelCosts",
    "Outcome",
    "Plan",
    "StepSeconds",
    "break_even_mal",
    "fastest",
    "fastest_by_method",
    "fit_costs",
    "fitted_outcomes",
    "leave_one_out",
    "outcomes",
    "paper_costs",
    "paper_hardware",
    "read_full_model",
    "result_curves",
    "step_ratio",
    "step_seconds",
    "tokens_per_second",
    "typed_curve",
]
