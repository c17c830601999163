"""Judge an answer: every property of its exercise, and which wrong idea it behaves like."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tfm_lab.lessons.exercise import Exercise, Todo

CLOSE = 1e-9

Status = Literal["passed", "failed", "not attempted"]


class Finding(NamedTuple):
    """One property of the exercise; ``complaint`` is empty if the answer has it."""

    claim: str
    complaint: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an answer is worth.

    Attributes:
        name: of the exercise.
        status: ``not attempted`` if any part of it still is ``todo()``.
        findings: one for each property; none if the exercise was not attempted.
        belief: the misconception that the answer behaves like, empty if it is none of those that are known.
    """

    name: str
    status: Status
    findings: tuple[Finding, ...] = ()
    belief: str = ""

    @property
    def passed(self) -> bool:
        return self.status == "passed"


class NotAttemptedError(Exception):
    """The answer still holds a ``todo()``."""


def judge(exercise: Exercise, answer: Any) -> Judgement:
    """Hold an answer against its exercise. Nothing that it raises gets out."""
    watched = _watched(answer) if callable(answer) else answer
    try:
        if _is_open(answer):
            raise NotAttemptedError
        findings = tuple(Finding(item.claim, _complaint(item.complaint, watched)) for item in exercise.properties)
    except NotAttemptedError:
        return Judgement(exercise.name, "not attempted")
    if not any(finding.complaint for finding in findings):
        return Judgement(exercise.name, "passed", findings)
    return Judgement(exercise.name, "failed", findings, _belief(exercise, answer))


def alike(a: Any, b: Any) -> bool:
    """Equal, numbers within 1e-9 and NaN equal to NaN; tensors and sequences part by part."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0.0, atol=CLOSE, equal_nan=True)
    if _is_number(a) and _is_number(b):
        return abs(a - b) <= CLOSE or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and a == b


def _complaint(complaint: Any, answer: Any) -> str:
    try:
        return complaint(answer)
    except NotAttemptedError:
        raise
    except Exception as error:  # a learner's code may raise anything
        return f"it raised {type(error).__name__}: {error}"


def _belief(exercise: Exercise, answer: Any) -> str:
    shown = _behaviour(exercise, answer)
    wrong = (item for item in exercise.misconceptions if alike(shown, _behaviour(exercise, item.answer)))
    return next((item.belief for item in wrong), "")


def _behaviour(exercise: Exercise, answer: Any) -> Any:
    try:
        return exercise.behaviour(answer)
    except Exception as error:
        return f"raises {type(error).__name__}"


def _watched(answer: Any) -> Any:
    def call(*arguments: Any) -> Any:
        result = answer(*arguments)
        if _is_open(result):
            raise NotAttemptedError
        return result

    return update_wrapper(call, answer, assigned=(), updated=())  # checks that need the answer itself unwrap it


def _is_open(result: object) -> bool:
    parts: Sequence[object] = result if isinstance(result, list | tuple) else [result]
    return any(isinstance(part, Todo) for part in parts)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
