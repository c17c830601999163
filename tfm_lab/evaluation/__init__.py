"""Mean accepted length on held-out text: contexts, runs that can be resumed, and summaries with standard errors."""

from tfm_lab.evaluation.contexts import HELD_OUT, Context, load_contexts
from tfm_lab.evaluation.runs import Evaluation, Setting, evaluate
from tfm_lab.evaluation.summary import Summary, markdown_table, summarise

__all__ = [
    "HELD_OUT",
    "Context",
    "Evaluation",
    "Setting",
    "Summary",
    "evaluate",
    "load_contexts",
    "markdown_table",
    "summarise",
]
