"""What the paper claims, and what this project can show for or against each claim.

``records`` (the vocabulary), ``paper`` (the claims), ``evidence`` (finds every number that a claim leans on, in the
stored outputs of a notebook or in a result file), ``referee`` (objections that a careful reader would raise), ``goals``
(what this project had set out to reach in the shape of the paper's model).
"""

from tfm_lab.claims.evidence import Found, find
from tfm_lab.claims.goals import Goal, goals
from tfm_lab.claims.paper import CLAIMS
from tfm_lab.claims.records import Claim, Examined, Finding, MetricLink, Outcome, ResultLink, SpeedLink
from tfm_lab.claims.referee import OBJECTIONS, objections

__all__ = [
    "CLAIMS",
    "OBJECTIONS",
    "Claim",
    "Examined",
    "Finding",
    "Found",
    "Goal",
    "MetricLink",
    "Outcome",
    "ResultLink",
    "SpeedLink",
    "find",
    "goals",
    "objections",
]
