"""Mean accepted length on held-out text: contexts and suites, runs that can be resumed, and figures with intervals."""

from tfm_lab.evaluation.contexts import HELD_OUT, Context, load_contexts
from tfm_lab.evaluation.replays import evaluate_replayed
from tfm_lab.evaluation.runs import evaluate
from tfm_lab.evaluation.settings import Evaluation, Setting, cross_settings
from tfm_lab.evaluation.suites import SUITES, load_suites
from tfm_lab.evaluation.summary import Gain, Summary, gains, summarise
from tfm_lab.evaluation.tables import markdown_table

__all__ = [
    "HELD_OUT",
    "SUITES",
    "Context",
    "Evaluation",
    "Gain",
    "Setting",
    "Summary",
    "cross_settings",
    "evaluate",
    "evaluate_replayed",
    "gains",
    "load_contexts",
    "load_suites",
    "markdown_table",
    "summarise",
]
