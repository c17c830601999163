"""Objections that a careful reader raises against an entry of the ledger, decided by rule."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tfm_lab.claims.records import Examined, Finding, Outcome

OBJECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "no evidence": "the claim is said to be examined, but no number stands behind it",
        "no proof": "it is called proved, but no number behind it is exact or an identity",
        "no device": "a measured number does not say what computed it",
        "no error": "a measured number comes without its error",
        "only computed": "it is said to hold, but comes from the paper's own numbers, which cannot confirm themselves",
        "falls short": "it is said to hold, but a number stays below what is claimed",
        "not asked": "it is called not reproduced, yet said to hold",
    }
)
PROOF_KINDS = ("exact", "identity")


def objections(examined: Examined, outcome: Outcome, findings: Sequence[Finding]) -> set[str]:
    """Names of all objections (keys of ``OBJECTIONS``) to one entry.

    Args:
        examined: how the claim was examined.
        outcome: what is said to have come of it.
        findings: the numbers behind it.
    """
    raised: set[str] = set()
    if examined is Examined.NOT_REPRODUCED:
        if outcome is not Outcome.OPEN:
            raised.add("not asked")
    elif not findings:
        raised.add("no evidence")
    elif examined is Examined.PROVED and not any(item.kind in PROOF_KINDS for item in findings):
        raised.add("no proof")
    if examined is Examined.COMPUTED and outcome is Outcome.HOLDS:
        raised.add("only computed")
    for item in findings:
        if item.kind == "measured" and not item.device:
            raised.add("no device")
        if item.kind == "measured" and item.error is None and not item.is_count:
            raised.add("no error")
        if outcome is Outcome.HOLDS and item.reaches is not None and item.value < item.reaches:
            raised.add("falls short")
    return raised
