"""What a reader sees of exercises, judgements and progress: plain HTML that also lives without a kernel, and words."""

import inspect
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tfm_lab.lessons.exercise import Exercise
from tfm_lab.lessons.judging import Judgement, Status
from tfm_lab.show.style import BLUE, GREEN, GREY, ORANGE, PURPLE

MARKS: Mapping[Status, str] = {"passed": "✓", "failed": "✗", "not attempted": "○"}
COLOURS: Mapping[Status, str] = {"passed": GREEN, "failed": ORANGE, "not attempted": GREY}
HINTS = ("Hint 1: a nudge", "Hint 2: the key identity", "Hint 3: nearly there")


class Card:
    """An HTML output with its plain words beside it."""

    def __init__(self, html: str, words: str) -> None:
        self.html, self.words = html, words

    def __str__(self) -> str:
        return self.words

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.words}


def table_card(note: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Card:
    """A table with a note above it; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    table = f"<table><caption>{escape(note)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    words = [note, *(", ".join(f"{title}: {cell}" for title, cell in zip(heads, row, strict=True)) for row in rows)]
    return Card(table, "\n".join(words))


def exercise_card(exercise: Exercise) -> Card:
    """Header, task, hints and solution; hints and solution are folded."""
    grades = (
        f"difficulty {_dots(exercise.difficulty)} · importance {_dots(exercise.importance)} · "
        f"about {exercise.minutes} minutes · read again: {escape(exercise.reread)}"
    )
    folded = [_folded(title, hint) for title, hint in zip(HINTS, exercise.hints, strict=True)]
    folded.append(_folded("Solution", exercise.explanation + _source(exercise.solution)))
    html = (
        f"{_box(BLUE)}<b>Exercise {escape(exercise.name)}: {escape(exercise.title)}</b>"
        f'<div style="font-size:12px">{grades}</div><p>{exercise.task}</p>{"".join(folded)}</div>'
    )
    return Card(html, f"Exercise {exercise.name}: {exercise.title} ({grades})")


def judgement_card(exercise: Exercise, judgement: Judgement, *, goes_on: bool) -> Card:
    """The properties with their marks, the smallest failing cases, and the misconception behind them.

    Args:
        goes_on: the notebook continues with the reference solution, and the card says so.
    """
    status = judgement.status
    rows = [f"<div>{_mark(f.complaint)} {escape(f.claim)}{_case(f.complaint)}</div>" for f in judgement.findings]
    if judgement.belief:
        rows.append(f"<p><b>It behaves like this idea:</b> {escape(judgement.belief)}</p>")
    if goes_on:
        rows.append("<div>The notebook goes on with the reference solution.</div>")
    stars = _stars() if judgement.passed else ""
    title = f"{MARKS[status]} {exercise.name}: {status}"
    html = f'{_box(COLOURS[status])}{stars}<b role="status">{escape(title)}</b>{"".join(rows)}</div>'
    words = [title, *(f"  {_mark(f.complaint)} {f.claim}{_words(f.complaint)}" for f in judgement.findings)]
    words += [f"  It behaves like this idea: {judgement.belief}"] if judgement.belief else []
    words += ["  The notebook goes on with the reference solution."] if goes_on else []
    return Card(html, "\n".join(words))


def progress_card(exercises: Sequence[Exercise], states: Mapping[str, Status]) -> Card:
    """All exercises of a notebook, with the state of each."""
    rows, words = "", []
    for exercise in exercises:
        state = states.get(exercise.name, "not attempted")
        cells = (f"{MARKS[state]} {state}", exercise.title, _dots(exercise.difficulty))
        rows += f'<tr><th scope="row">{exercise.name}</th>' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"
        words.append(f"{MARKS[state]} {exercise.name}: {state}")
    done = sum(states.get(exercise.name) == "passed" for exercise in exercises)
    caption = f"{done} of {len(exercises)} exercises passed"
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("exercise", "state", "title", "difficulty"))
    table = f"<table><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return Card(table, "\n".join([caption, *words]))


def _box(colour: str) -> str:
    return f'<div style="border-left:4px solid {colour};padding:6px 12px;margin:6px 0;max-width:52em">'


def _dots(grade: int) -> str:
    return "●" * grade + "○" * (3 - grade)


def _folded(title: str, html: str) -> str:
    return f"<details><summary>{title}</summary><div>{html}</div></details>"


def _source(solution: Any) -> str:
    if not callable(solution):
        return ""
    code = inspect.unwrap(solution)
    where = f"{code.__module__}.{code.__qualname__}"
    return f"<p>From <code>{escape(where)}</code>:</p><pre>{escape(inspect.getsource(code))}</pre>"


def _mark(complaint: str) -> str:
    return "✗" if complaint else "✓"


def _case(complaint: str) -> str:
    return f'<div style="margin-left:1.5em"><code>{escape(complaint)}</code></div>' if complaint else ""


def _words(complaint: str) -> str:
    return f": {complaint}" if complaint else ""


def _stars() -> str:
    """A small reward; the same every time."""
    spots = zip((8, 24, 40, 56, 72), (14, 6, 16, 7, 13), (GREEN, BLUE, ORANGE, PURPLE, GREEN), strict=True)
    stars = "".join(
        f'<path d="M{x} {y - 5} l2 4 5 1 -4 3 1 5 -4 -3 -4 3 1 -5 -4 -3 5 -1 Z" fill="{c}"/>' for x, y, c in spots
    )
    return f'<svg role="img" width="82" height="24" style="float:right"><title>solved</title>{stars}</svg>'
