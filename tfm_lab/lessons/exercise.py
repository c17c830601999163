"""What an exercise is: a task with hints, a tested solution, properties that an answer must have, and wrong ideas."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


class Todo:
    """What an exercise holds until somebody has solved it."""

    def __repr__(self) -> str:
        return "todo()"


TODO: Final = Todo()


def todo() -> Any:
    """The place of an answer that is still to be written: ``return todo()`` in a function, ``answer = todo()``."""
    return TODO


@dataclass(frozen=True, slots=True)
class Property:
    """Something that every right answer has.

    Attributes:
        claim: the property in words.
        complaint: takes an answer; returns the smallest case that breaks the property, in words, or an empty text.
            Whatever the answer raises counts as a complaint.
    """

    claim: str
    complaint: Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Misconception:
    """A plausible wrong answer. WRONG ON PURPOSE.

    Attributes:
        belief: the wrong idea behind it, and what to think of instead, in a sentence or two.
        answer: the wrong answer.
    """

    belief: str
    answer: Any


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise.

    Attributes:
        name: number of the notebook and a word: ``01.residual``.
        title: for headings.
        task: what to write, as HTML.
        difficulty, importance: 1 to 3.
        minutes: that it should take.
        reread: where to look again.
        hints: a nudge, the key identity, and nearly the solution, as HTML.
        solution: a right answer, from tested code.
        explanation: why it is right, as HTML.
        properties: what is checked, from the simplest to the hardest.
        behaviour: what an answer does, as numbers, tensors and the like; answers that behave like a misconception are
            told so.
        misconceptions: at least three wrong answers, all of which the properties reject.

    Raises:
        ValueError: if a grade is out of range, or there are too few hints, properties or misconceptions.
    """

    name: str
    title: str
    task: str
    difficulty: int
    importance: int
    minutes: int
    reread: str
    hints: tuple[str, str, str]
    solution: Any
    explanation: str
    properties: tuple[Property, ...]
    behaviour: Callable[[Any], Any]
    misconceptions: tuple[Misconception, ...]

    def __post_init__(self) -> None:
        if not (1 <= self.difficulty <= 3 and 1 <= self.importance <= 3 and self.minutes >= 1):
            raise ValueError(f"exercise {self.name}: difficulty and importance go from 1 to 3, minutes from 1")
        if len(self.hints) != 3 or not self.properties or len(self.misconceptions) < 3:
            raise ValueError(f"exercise {self.name} needs three hints, a property and three misconceptions")
