"""The vocabulary of the ledger: how a claim was examined, what came of it, and where its numbers are."""

from dataclasses import dataclass
from enum import StrEnum


class Examined(StrEnum):
    """How a claim was examined, from the strongest evidence to none."""

    PROVED = "proved or enumerated"
    TOY = "exact in a toy world"
    COMPUTED = "computed from published numbers"
    MEASURED = "measured on other models or devices"
    TRAINED = "seen in a small training"
    NOT_REPRODUCED = "not reproduced"


class Outcome(StrEnum):
    """What came of it."""

    HOLDS = "holds"
    PARTLY = "holds in part"
    FALLS_SHORT = "falls short here"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class MetricLink:
    """A number that a notebook records.

    Attributes:
        notebook: file name without suffix.
        metric: name of the recorded number.
        what: what it is, in a few words.
    """

    notebook: str
    metric: str
    what: str


@dataclass(frozen=True, slots=True)
class ResultLink:
    """A number in a result file.

    Attributes:
        file: name below ``tfm_lab/results``, a JSON file with ``provenance``.
        path: keys from the top; a text with ``=`` chooses the one entry of a list that has these values, such as
            ``"plan.method=tfm; budget=64"``.
        what: what it is, in a few words.
        error: path of its standard error or of both ends of its interval, from the same parent; empty if it is a count.
        percent: whether the number is a share to be shown in per cent.
        over: path of a number of the same file that it is divided by; then ``error`` names both ends of both intervals,
            and those of the ratio are the widest that follow.
    """

    file: str
    path: tuple[str, ...]
    what: str
    error: tuple[str, ...] = ()
    percent: bool = False
    over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpeedLink:
    """A speed over another one, of whole decodes with replayed acceptance in the shape of the paper's model.

    Attributes:
        suite: kind of text.
        method, over: the faster and the slower, hopefully.
        what: what it is, in a few words.
    """

    suite: str
    method: str
    over: str
    what: str


Link = MetricLink | ResultLink | SpeedLink


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Attributes:
        name: short and unique, lower-case words with hyphens.
        statement: the claim in our words.
        figure: the number that is claimed; empty if there is none.
        source: where it is stated.
        examined: how it was examined here.
        outcome: what came of it.
        because: what was done and what it does not show; for a claim that was not reproduced, why not.
        evidence: where the numbers are.
        threshold: what the numbers in ``evidence`` that are shares or speeds of replayed decodes have to reach for the
            claim to hold; None if the claim has no such number.
    """

    name: str
    statement: str
    figure: str
    source: str
    examined: Examined
    outcome: Outcome
    because: str
    evidence: tuple[Link, ...] = ()
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One number behind a claim, as a referee sees it.

    Attributes:
        value: the number.
        kind: of a recorded number ``exact``, ``identity``, ``stat``, ``trained`` or ``info``; of a result ``measured``.
        error: standard error or half the width of the interval; None if there is none.
        is_count: whether it is a count or an exact value, which needs no error.
        device: what computed it; empty if that is not said.
        reaches: what the number has to reach, if the claim names something comparable; otherwise None.
    """

    value: float
    kind: str
    error: float | None = None
    is_count: bool = False
    device: str = ""
    reaches: float | None = None
