"""The exercises of one notebook while somebody works on it."""

import json
from pathlib import Path
from typing import Any

from tfm_lab.lessons.cards import Card, exercise_card, judgement_card, progress_card
from tfm_lab.lessons.catalogue import EXERCISES
from tfm_lab.lessons.exercise import Exercise
from tfm_lab.lessons.judging import Status, judge


class UnsolvedError(AssertionError):
    """With the solutions on, an answer did not pass its check."""


class Lesson:
    """Poses exercises, checks answers, and remembers how far one has come.

    Args:
        notebook: its number, with which the names of its exercises begin.
        solutions: put the reference solution in the place of every ``todo()``, and raise where a check fails. Off, a
            check never raises: cells below an unsolved exercise go on with the reference solution.

    Raises:
        ValueError: if the notebook has no exercises.
    """

    def __init__(self, notebook: str, *, solutions: bool) -> None:
        self.exercises = [item for name, item in EXERCISES.items() if name.partition(".")[0] == notebook]
        if not self.exercises:
            known = ", ".join(sorted({name.partition(".")[0] for name in EXERCISES}))
            raise ValueError(f"notebook {notebook!r} has no exercises; there are some for {known}")
        self.solutions = solutions
        self.states: dict[str, Status] = {}

    def pose(self, name: str) -> Card:
        """Task, hints and solution, to be shown as the last expression of a cell.

        Raises:
            ValueError: if this notebook has no such exercise.
        """
        return exercise_card(self._find(name))

    def check(self, name: str, answer: Any) -> Any:
        """Judge an answer and show a card; returns the answer if it is right, otherwise the reference solution.

        Raises:
            ValueError: if this notebook has no such exercise.
            UnsolvedError: with the solutions on, if the answer, or the solution in its place, is not right.
        """
        from IPython.display import display

        exercise = self._find(name)
        judgement = judge(exercise, answer)
        if self.solutions and judgement.status == "not attempted":
            answer = exercise.solution
            judgement = judge(exercise, answer)
        self.states[name] = judgement.status
        card = judgement_card(exercise, judgement, goes_on=not judgement.passed)
        display(card)
        if self.solutions and not judgement.passed:
            raise UnsolvedError(card.words)
        return answer if judgement.passed else exercise.solution

    def progress(self) -> Card:
        """The state of every exercise, as a table."""
        return progress_card(self.exercises, self.states)

    def save(self, path: str | Path) -> None:
        """Add the states to a JSON file, made if needed, that may hold those of other notebooks."""
        file = Path(path)
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | self.states, indent=2) + "\n")

    def load(self, path: str | Path) -> None:
        """Take the states of this notebook's exercises from a file that :meth:`save` wrote."""
        known = json.loads(Path(path).read_text())
        self.states |= {item.name: known[item.name] for item in self.exercises if item.name in known}

    def _find(self, name: str) -> Exercise:
        for exercise in self.exercises:
            if exercise.name == name:
                return exercise
        raise ValueError(f"there is no exercise {name!r} here: use {', '.join(e.name for e in self.exercises)}")
