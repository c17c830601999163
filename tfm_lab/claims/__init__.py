"""What the paper claims, and what this project can show for or against each claim.

``records`` (the vocabulary), ``paper`` (the claims), ``evidence`` (finds every number that a claim leans on, in the
stored outputs of a notebook or in a result file), ``referee`` (objections that a careful reader would raise).
"""

from tfm_lab.claims.evidence import Found, find
from tfm_lab.claims.paper import CLAIMS
from tfm_lab.claims.records import Claim, Examined, Finding, MetricLink, Outcome, ResultLink
from tfm_lab.claims.referee import OBJECTIONS, objections

__all__ = [
    "CLAIMS",
    "OBJECTIONS",
    "Claim",
    "Examined",
    "Finding",
    "Found",
    "MetricLink",
    "Outcome",
    "ResultLink",
    "find",
    "objections",
]
