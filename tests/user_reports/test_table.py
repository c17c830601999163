"""Every report has tests, and every test that is named exists."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from user_reports.table import HERE, PROMISES, REPORTS

ROOT = Path(__file__).resolve().parents[2]
THREAD = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")


@cache
def names_in(file: str) -> frozenset[str]:
    """Names of the test functions of a file, read without running it."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_")


def test_every_report_from_1_to_17_is_answered() -> None:
    assert list(REPORTS) == list(range(1, 18))
    for report in REPORTS.values():
        assert re.fullmatch(r"[A-Z].*[.?]", report.symptom)
        assert THREAD.fullmatch(report.thread)
        assert report.tests


@pytest.mark.parametrize("number", REPORTS)
def test_the_tests_that_answer_a_report_exist(number: int) -> None:
    assert_all_exist(REPORTS[number].tests)


@pytest.mark.parametrize("promise", PROMISES)
def test_the_tests_that_keep_a_promise_exist(promise: str) -> None:
    assert_all_exist(PROMISES[promise])


def test_every_test_of_this_folder_answers_something() -> None:
    named = set(chain.from_iterable(report.tests for report in REPORTS.values()))
    named |= set(chain.from_iterable(PROMISES.values()))
    for path in (ROOT / HERE).glob("test_reports_*.py"):
        written = {f"{HERE}{path.name}::{name}" for name in names_in(f"{HERE}{path.name}")}
        assert written
        assert written <= named


def assert_all_exist(ids: Iterable[str]) -> None:
    for test in ids:
        file, _, name = test.partition("::")
        assert name in names_in(file), f"there is no test {test}"
