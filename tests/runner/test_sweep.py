"""Sweeps over parameters, several notebooks at a time, and comparisons with older runs."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from notebook_builder import EXPECTED, METRIC, write_notebook

from tfm_lab.recording import Metric
from tfm_lab.runner.execute import Execution, Limits
from tfm_lab.runner.expectations import Verdict
from tfm_lab.runner.history import append_history, check_comparable, differences, read_history, trail
from tfm_lab.runner.report import write_report
from tfm_lab.runner.series import NotebookJob, NotebookReport, run_notebooks
from tfm_lab.runner.sweep import prepare_jobs, sweep_tables

PARAMETERS = "BUDGET = 16\nRATE = 0.5\nWORDS = 'a'\nSIZES = [1, 2]"
READS = METRIC + "\nprint(RATE, WORDS, SIZES)"
RUN = {"time": "2026-01-01T00:00:00+00:00"}


def metric(name: str, value: float | str | bool, kind: Any = "exact") -> Metric:
    return Metric(name, value, kind, 100 if kind == "stat" else None)


def report_of(
    *metrics: Metric, failed: str = "", path: Path = Path("00_small.ipynb"), **parameters: object
) -> NotebookReport:
    verdicts = tuple(Verdict(item, None, "failed" if item.name == failed else "ok") for item in metrics)
    execution = Execution(None, "", (), 1.0, 1.0, 1)
    return NotebookReport(NotebookJob(path, parameters), execution, {m.name: m for m in metrics}, verdicts)


def history_of(folder: Path, *reports: NotebookReport, time: str = RUN["time"]) -> Path:
    append_history(reports, folder / "metrics.jsonl", {"time": time})
    return folder / "metrics.jsonl"


def test_lists_of_numbers_become_all_combinations_and_texts_stay_whole(tmp_path: Path) -> None:
    path = write_notebook(tmp_path, READS, parameters=PARAMETERS)
    jobs = prepare_jobs(path, {"BUDGET": "8, 16,32", "RATE": "0.5,1", "WORDS": "x,y", "SIZES": "[3,4]"})
    same: dict[str, object] = {"WORDS": "x,y", "SIZES": [3, 4]}
    assert [dict(job.parameters) for job in jobs] == [
        {"BUDGET": 8} | same,
        {"BUDGET": 8, "RATE": 1.0} | same,
        same,
        {"RATE": 1.0} | same,
        {"BUDGET": 32} | same,
        {"BUDGET": 32, "RATE": 1.0} | same,
    ]
    assert jobs[1].title == "00_small, BUDGET = 8, RATE = 1.0, WORDS = x,y, SIZES = [3, 4]"
    assert [job.parameters for job in prepare_jobs(path, {})] == [{}]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"BUDGET": "8,,9"}, "BUDGET 8,,9: a value is missing beside a comma"),
        ({"BUDGET": "8,8"}, "BUDGET 8,8: a value stands there twice"),
        ({"BUDGET": "8,x"}, "parameter BUDGET is of type int, got 'x'"),
        ({"BUGDET": "8,9"}, "no parameter BUGDET: did you mean BUDGET"),
        ({"BUDGET": ",".join(map(str, range(129))), "RATE": "1,2"}, "258 combinations are too many"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(given: dict[str, str], sentence: str, tmp_path: Path) -> None:
    path = write_notebook(tmp_path, READS, parameters=PARAMETERS)
    with pytest.raises(ValueError, match=sentence):
        prepare_jobs(path, given)


def test_a_sweep_is_one_table(tmp_path: Path) -> None:
    path = write_notebook(tmp_path, READS, parameters=PARAMETERS)
    reports = [
        report_of(metric("a", 1.0), metric("b", 2), path=path),
        report_of(metric("a", 3.0), path=path, BUDGET=8),
        report_of(metric("a", 5.0)),
    ]
    (table,) = sweep_tables(reports)
    assert table.lines == [("BUDGET", (16, 8)), ("a", (1.0, 3.0)), ("b", (2, None))]
    assert table.csv() == "BUDGET,a,b\n16,1.0,2\n8,3.0,\n"


def test_runs_at_a_time_come_back_in_order_and_one_failure_leaves_the_others(tmp_path: Path) -> None:
    wait = "import time\ntime.sleep(2 if BUDGET == 8 else 0)\nassert BUDGET != 9, 'no nine'\n"
    path = write_notebook(tmp_path, wait + METRIC)
    (tmp_path / "expected.toml").write_text(EXPECTED)
    jobs = prepare_jobs(path, {"BUDGET": "8,9,16"})
    finished: list[int] = []
    reports = run_notebooks(jobs, Limits(), 3, on_report=lambda index, report: finished.append(index))
    assert [report.passed for report in reports] == [True, False, True]
    assert [report.metrics["budget.doubled"].value for report in (reports[0], reports[2])] == [16, 32]
    assert "no nine" in reports[1].problems[0]
    assert sorted(finished) == [0, 1, 2]
    index = write_report(reports, tmp_path / "report")
    names = sorted(path.name for path in (tmp_path / "report").glob("00_small*"))
    assert names == ["00_small-1.html", "00_small-2.html", "00_small-3.html", "00_small-sweep.csv"]
    for words in ("1 of 3 failed", "Sweep of 00_small", "00_small, BUDGET = 8", "00_small-2.html"):
        assert words in index.read_text()
    assert index.read_text().count("</strong>doubled budget") == 1, "a headline may name the defaults"
    summary = (tmp_path / "report" / "summary.md").read_text()
    assert "| BUDGET | 8 | 9 | 16 |\n| budget.doubled | 16 |  | 32 |\n" in summary


def test_an_interruption_ends_every_run(tmp_path: Path) -> None:
    path = write_notebook(tmp_path, f"import time\ntime.sleep(86398)  # {os.getpid()}\n" + METRIC)
    jobs = prepare_jobs(path, {"BUDGET": "8,16,32"})
    started = time.monotonic()

    def interrupt(job: int, number: int) -> None:
        if number == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_notebooks(jobs, Limits(notebook_seconds=600), 2, on_cell=interrupt)
    assert time.monotonic() - started < 300, "the runs were not ended"


def test_comparison_finds_regressions_and_passes_over_what_the_history_does_not_know(tmp_path: Path) -> None:
    before = report_of(
        metric("exact", 1.0),
        metric("word", "yes"),
        metric("tiny", 1e-7, "identity"),
        metric("band", 2.0, "trained"),
        metric("seconds", 3.0, "info"),
        metric("gone", 1),
        metric("same", 1.0),
    )
    path = history_of(tmp_path, report_of(metric("older", 1)), time="2025-01-01T00:00:00+00:00")
    history_of(tmp_path, before, report_of(metric("failing", 1), failed="failing", BUDGET=8))
    now = report_of(
        metric("exact", 1.5),
        metric("word", "no"),
        metric("tiny", 3e-7, "identity"),
        metric("band", 1.0, "trained"),
        metric("seconds", 4.0, "info"),
        metric("fresh", 1),
        metric("same", 1.0 + 1e-12),
        failed="band",
    )
    found = {
        item.metric: (item.finding, item.is_regression)
        for item in differences([now, report_of(metric("exact", 9), BUDGET=32)], read_history(path))
    }
    assert found == {
        "exact": ("changed", True),
        "word": ("changed", True),
        "band": ("fails now", True),
        "seconds": ("moved", False),
        "fresh": ("new", False),
        "gone": ("gone", True),
    }
    assert differences([report_of(metric("failing", 1), failed="failing", BUDGET=8)], read_history(path)) == []


def test_a_trail_follows_one_metric_under_the_same_parameters(tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        path = history_of(tmp_path, report_of(metric("a", value)), report_of(metric("a", 9.0), BUDGET=8))
    assert trail(read_history(path), report_of(metric("a", 0.0)), "a", length=2) == (2.0, 3.0)


def project(root: Path, *folders: str) -> list[Path]:
    """A notebook of the same name in each folder of a project at ``root``."""
    root.mkdir()
    (root / "pyproject.toml").touch()
    return [write_notebook(root / folder, METRIC) for folder in folders]


def test_notebooks_of_one_name_in_two_folders_have_a_history_each(tmp_path: Path) -> None:
    one, other = project(tmp_path / "project", "one", "two/deep")
    for value in (1.0, 2.0):
        reports = [report_of(metric("a", value), path=one), report_of(metric("a", 10 * value), path=other)]
        path = history_of(tmp_path, *reports, time=f"2026-01-0{value:.0f}T00:00:00+00:00")
    history = read_history(path)
    assert [line.folder for line in history] == ["one", "two/deep"] * 2
    assert [trail(history, report, "a") for report in reports] == [(1.0, 2.0), (10.0, 20.0)]
    assert differences(reports, history) == []
    changed = [report_of(metric("a", 3.0), path=one), report_of(metric("a", 4.0), path=other)]
    found = [(item.notebook, item.before, item.after) for item in differences(changed, history)]
    assert found == [("one/00_small", 2.0, 3.0), ("two/deep/00_small", 20.0, 4.0)]
    assert [item.notebook for item in differences(changed[:1], history)] == ["00_small"], "one of that name is run"
    (third,) = project(tmp_path / "outside", ".")
    with pytest.raises(ValueError, match="holds no run to compare 00_small with"):
        check_comparable([NotebookJob(third, {})], history)


def test_sweeps_of_two_notebooks_of_one_name_are_a_table_and_a_file_each(tmp_path: Path) -> None:
    one, other = project(tmp_path / "project", "one", "two/deep")
    reports = [
        report_of(metric("a", value + budget), path=path, BUDGET=budget)
        for value, path in ((10.0, one), (20.0, other))
        for budget in (8, 32)
    ]
    assert [(table.notebook, table.stem) for table in sweep_tables(reports)] == [
        ("one/00_small", "00_small-sweep-1"),
        ("two/deep/00_small", "00_small-sweep-2"),
    ]
    index = write_report(reports, tmp_path / "report").read_text()
    texts = {path.name: path.read_text() for path in (tmp_path / "report").glob("*.csv")}
    assert texts == {
        "00_small-sweep-1.csv": "BUDGET,a\n8,18.0\n32,42.0\n",
        "00_small-sweep-2.csv": "BUDGET,a\n8,28.0\n32,52.0\n",
    }
    for words in ("Sweep of one/00_small<", "Sweep of two/deep/00_small<", *(f'href="{name}"' for name in texts)):
        assert words in index
    summary = (tmp_path / "report" / "summary.md").read_text()
    assert "Sweep of one/00_small\n" in summary
    assert "Sweep of two/deep/00_small\n" in summary


def test_a_history_goes_with_the_project_and_not_with_the_place_of_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = project(tmp_path / "here", "lessons")[0], project(tmp_path / "there", "lessons")[0]
    history = read_history(history_of(tmp_path, report_of(metric("a", 1.0), path=here)))
    (found,) = differences([report_of(metric("a", 2.0), path=there)], history)
    assert (found.before, found.after) == (1.0, 2.0)
    monkeypatch.chdir(here.parent)
    assert trail(history, report_of(metric("a", 2.0), path=Path(here.name)), "a") == (1.0,)
    alone = write_notebook(tmp_path / "no project", METRIC)
    path = history_of(tmp_path, report_of(metric("a", 1.0), path=alone))
    assert read_history(path)[-1].folder == alone.parent.as_posix()


def test_lines_of_a_history_that_name_no_folder_are_read_on(tmp_path: Path) -> None:
    """Histories of older versions named notebooks alone; their lines belong to every notebook of that name."""
    one, other = project(tmp_path / "project", "one", "two")
    path = history_of(tmp_path, report_of(metric("a", 1.0), path=one))
    line = {name: value for name, value in json.loads(path.read_text()).items() if name != "folder"}
    path.write_text(json.dumps(line) + "\n")
    reports = [report_of(metric("a", value), path=each) for value, each in ((2.0, one), (3.0, other))]
    history = read_history(path)
    assert history[0].folder is None
    check_comparable([reports[1].job], history)
    assert [item.before for item in differences(reports, history)] == [1.0, 1.0]
    history = read_history(history_of(tmp_path, *reports, time="2026-02-01T00:00:00+00:00"))
    assert [trail(history, report, "a") for report in reports] == [(1.0, 2.0), (1.0, 3.0)]
    assert differences(reports, history) == []


def test_a_comparison_with_nothing_is_refused(tmp_path: Path) -> None:
    history = read_history(history_of(tmp_path, report_of(metric("a", 1.0))))
    job = NotebookJob(Path("00_small.ipynb"), {})
    check_comparable([NotebookJob(Path("01_other.ipynb"), {}), job], history)
    with pytest.raises(ValueError, match="holds no run to compare 00_small, BUDGET = 8 with"):
        check_comparable([NotebookJob(job.path, {"BUDGET": 8})], history)


@pytest.mark.parametrize("line", ["{", "[]", "3", json.dumps({"notebook": "x"})])
def test_a_file_that_is_no_history_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = history_of(tmp_path, report_of(metric("a", 1.0)))
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: this is no line"):
        read_history(path)


def test_a_last_line_that_was_cut_off_is_passed_over_and_replaced(tmp_path: Path) -> None:
    path = history_of(tmp_path, report_of(metric("a", 1.0)))
    with path.open("a") as file:
        file.write('{"notebook": "00_sm')
    assert [line.value for line in read_history(path)] == [1.0]
    history_of(tmp_path, report_of(metric("a", 2.0)))
    assert [line.value for line in read_history(path)] == [1.0, 2.0]
