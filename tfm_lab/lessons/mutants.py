"""Every wrong answer of every exercise, held against the check that must reject it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import unescape

from tfm_lab.lessons.exercise import Exercise
from tfm_lab.lessons.judging import judge


@dataclass(frozen=True, slots=True)
class MutantRow:
    """One wrong answer under its check.

    Attributes:
        exercise: name of the exercise.
        title: of the exercise.
        belief: the misconception, in plain words.
        rejected_by: the first property that the answer lacks; empty if the check lets it pass.
        is_named: whether the check tells this misconception from the others.
    """

    exercise: str
    title: str
    belief: str
    rejected_by: str
    is_named: bool

    @property
    def passed(self) -> bool:
        """Whether the check did its work."""
        return bool(self.rejected_by) and self.is_named


def judge_mutants(
    exercises: Iterable[Exercise], on_exercise: Callable[[str], None] = lambda name: None
) -> list[MutantRow]:
    """A row for each misconception.

    Args:
        exercises: whose checks are tried.
        on_exercise: called with the name of each exercise before its mutants are judged.
    """
    rows = []
    for exercise in exercises:
        on_exercise(exercise.name)
        for item in exercise.misconceptions:
            verdict = judge(exercise, item.answer)
            failed = [finding.claim for finding in verdict.findings if finding.complaint]
            by = failed[0] if failed and not verdict.passed else ""
            rows.append(
                MutantRow(exercise.name, exercise.title, _plain(item.belief), _plain(by), verdict.belief == item.belief)
            )
    return rows


def mutants_markdown(rows: Sequence[MutantRow]) -> str:
    """The rows as a table."""
    lines = ["| exercise | the wrong idea | rejected because it lacks | told by name |", "|---|---|---|---|"]
    for row in rows:
        cells = (f"{row.exercise}: {row.title}", row.belief, row.rejected_by or "**not rejected**")
        named = "yes" if row.is_named else "**no**"
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} | {named} |")
    return "\n".join(lines) + "\n"


def _plain(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())
