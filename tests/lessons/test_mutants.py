"""``tfm-lab exercises``: wrong answers under their checks, and a check that lets one through."""

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import assert_refused, run

from tfm_lab.lessons import EXERCISES, Misconception, Property
from tfm_lab.lessons.mutants import judge_mutants, mutants_markdown

COIN = EXERCISES["01.accept_prob"]
LENIENT = replace(COIN, name="01.lenient", properties=(Property("it is callable", lambda answer: ""),))
TWINS = replace(
    COIN,
    name="01.twins",
    misconceptions=(*COIN.misconceptions, Misconception("the | twin", COIN.misconceptions[0].answer)),
)


def test_every_wrong_answer_has_a_row_that_says_why() -> None:
    seen: list[str] = []
    rows = judge_mutants([COIN], seen.append)
    assert seen == [COIN.name]
    assert len(rows) == len(COIN.misconceptions)
    assert all(row.passed for row in rows)
    assert {row.rejected_by for row in rows} <= {item.claim for item in COIN.properties}


def test_a_check_that_rejects_nothing_and_a_twin_are_told() -> None:
    lenient, twins = judge_mutants([LENIENT]), judge_mutants([TWINS])
    assert not any(row.passed for row in lenient)
    assert [row.passed for row in twins] == [True] * len(COIN.misconceptions) + [False]
    table = mutants_markdown([*lenient, twins[-1]])
    assert table.count("**not rejected**") == len(lenient)
    assert "| the &#124; twin | " in table
    assert table.endswith("| **no** |\n")


def test_the_command_lists_judges_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("exercises", "01") == 0
    assert "01.accept_prob" in (listed := capsys.readouterr().out)
    assert "02." not in listed
    assert run("exercises", "01.accept_prob", "--mutants", "--out", "table.md") == 0
    written = Path("table.md").read_text()
    assert written.endswith("\n\n" + mutants_markdown(judge_mutants([COIN])))
    assert "commit" in written.splitlines()[2]
    assert "0 that a check does not recognise" in capsys.readouterr().out
    monkeypatch.setattr("tfm_lab.lessons.EXERCISES", {LENIENT.name: LENIENT})
    assert run("exercises", "--mutants") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["99"], "no exercise begins with 99: there are 01.accept_prob"),
        (["--out", "table.md"], "--out writes the table of --mutants: add --mutants"),
        (["01", "--mutants", "--out", "nowhere/else/table.md"], "nowhere/else/table.md"),
    ],
)
def test_bad_words_are_refused(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nowhere").write_text("a file, no folder")
    assert_refused(["exercises", *words], sentence, tmp_path, capsys)
