"""One notebook's exercises at work: what a check shows and returns, progress, and that notebooks use them all."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tfm_lab.lessons import EXERCISES, Lesson, UnsolvedError, todo
from tfm_lab.lessons.cards import Card
from tfm_lab.lessons.interpreting import can_interpret
from tfm_lab.runner.freeze import ACTIVE_HTML
from tfm_lab.runner.parameters import declared_parameters
from tfm_lab.runner.reading import read_notebook

pytestmark = pytest.mark.unchecked

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Card]:
    """Cards that checks display."""
    cards: list[Card] = []
    monkeypatch.setattr("IPython.display.display", cards.append)
    return cards


def right(p: Any, q: Any, token: int) -> float:
    return min(1.0, float(p[token] / q[token]))


def wrong(p: Any, q: Any, token: int) -> float:
    return float(p[token] / q[token])


def test_a_stub_never_stops_and_the_reference_goes_on(shown: list[Card]) -> None:
    lesson = Lesson("01", solutions=False)
    answer = lesson.check("01.accept_prob", lambda p, q, token: todo())
    assert answer is EXERCISES["01.accept_prob"].solution
    assert lesson.states == {"01.accept_prob": "not attempted"}
    assert "not attempted" in shown[0].words
    assert "goes on with the reference solution" in shown[0].html


def test_a_right_answer_is_kept_and_rewarded(shown: list[Card]) -> None:
    lesson = Lesson("01", solutions=False)
    assert lesson.check("01.accept_prob", right) is right
    assert "<title>solved</title>" in shown[0].html
    assert "✗" not in shown[0].words
    assert "reference" not in shown[0].words


def test_a_wrong_answer_is_explained_and_replaced(shown: list[Card]) -> None:
    lesson = Lesson("01", solutions=False)
    assert lesson.check("01.accept_prob", wrong) is EXERCISES["01.accept_prob"].solution
    for text in (shown[0].words, shown[0].html):
        assert "p = 0.5, q = 0.1: got 5, not 1" in text
        assert "a probability ends at 1" in text
    assert "<title>solved</title>" not in shown[0].html


def test_with_the_solutions_on_every_check_passes_or_raises(shown: list[Card]) -> None:
    for notebook in sorted({name.partition(".")[0] for name in EXERCISES} - ({"09"} if not can_interpret() else set())):
        lesson = Lesson(notebook, solutions=True)
        for exercise in lesson.exercises:
            assert lesson.check(exercise.name, todo()) is exercise.solution
        assert set(lesson.states.values()) == {"passed"}
    with pytest.raises(UnsolvedError, match=r"✗ 01\.accept_prob: failed"):
        Lesson("01", solutions=True).check("01.accept_prob", wrong)


def test_a_reference_that_fails_is_not_passed_over(shown: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    broken = dict(EXERCISES) | {"01.accept_prob": replace(EXERCISES["01.accept_prob"], solution=wrong)}
    monkeypatch.setattr("tfm_lab.lessons.lesson.EXERCISES", broken)
    with pytest.raises(UnsolvedError):
        Lesson("01", solutions=True).check("01.accept_prob", todo())


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="notebook '99' has no exercises"):
        Lesson("99", solutions=False)
    with pytest.raises(ValueError, match=r"there is no exercise '07\.biased' here: use 01\.accept_prob"):
        Lesson("01", solutions=False).pose("07.biased")


def test_progress_is_counted_and_kept(shown: list[Card], tmp_path: Path) -> None:
    lesson, file = Lesson("01", solutions=False), tmp_path / "progress.json"
    lesson.check("01.accept_prob", right)
    assert "1 of 4 exercises passed" in lesson.progress().html
    file.write_text(json.dumps({"07.biased": "passed"}))
    lesson.save(file)
    assert json.loads(file.read_text()) == {"07.biased": "passed", "01.accept_prob": "passed"}
    again = Lesson("01", solutions=False)
    again.load(file)
    assert again.states == {"01.accept_prob": "passed"}
    assert "✓ 01.accept_prob: passed" in str(again.progress())


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES.keys())
def test_a_posed_exercise_has_three_folded_hints_and_a_folded_solution(exercise: Any) -> None:
    card = Lesson(exercise.name[:2], solutions=False).pose(exercise.name)
    assert card.html.count("<details>") == card.html.count("</details>") == 4
    assert all(hint in card.html and hint not in card.words for hint in exercise.hints)
    assert card.html.count("<div") == card.html.count("</div>")
    assert not ACTIVE_HTML.search(card.html), "it would not survive freezing"


@pytest.mark.parametrize("number", sorted({name.partition(".")[0] for name in EXERCISES}))
def test_a_notebook_poses_and_checks_all_its_exercises_in_order(number: str) -> None:
    (path,) = FOLDER.glob(f"{number}_*.ipynb")
    notebook = read_notebook(path)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    names = [name for name in EXERCISES if name.startswith(f"{number}.")]
    assert re.findall(r'lesson\.pose\("([\w.]+)"\)', code) == names
    assert re.findall(r'lesson\.check\("([\w.]+)"', code) == names
    assert code.count("todo()") >= len(names)
    assert declared_parameters(notebook)["SOLUTIONS"].default is False
    headings = {line.lstrip("# ") for cell in notebook.cells for line in cell.source.splitlines() if line[:1] == "#"}
    assert {EXERCISES[name].reread for name in names} <= headings
