"""The report folder and the rendering into a notebook, from an execution made by hand."""

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from nbformat.v4 import new_output
from notebook_builder import EXPECTED, METRIC, write_notebook

from tfm_lab.recording import METRIC_MIME
from tfm_lab.runner.execute import Execution
from tfm_lab.runner.expectations import load_expectations
from tfm_lab.runner.hygiene import notebook_problems
from tfm_lab.runner.report import render_into_source, write_report
from tfm_lab.runner.series import NotebookReport, find_notebooks, judge, prepare_job


def report_of(
    folder: Path, value: int = 32, given: dict[str, object] | None = None, failure: str = "", name: str = "00_small"
) -> NotebookReport:
    folder.mkdir(exist_ok=True)
    (folder / "expected.toml").write_text(EXPECTED)
    path = write_notebook(folder, METRIC, name=name)
    executed = nbformat.read(path, as_version=4)
    metric = {"name": "budget.doubled", "value": value, "kind": "exact", "n": None}
    executed.cells[3].outputs = [
        new_output("display_data", data={METRIC_MIME: metric, "text/plain": f"metric {value}"})
    ]
    executed.cells[3].execution_count = 4
    execution = Execution(executed, failure, (), wall_seconds=2.0, cpu_seconds=1.0, peak_bytes=10**8)
    return judge(prepare_job(path, given or {}), execution)


def test_a_report_shows_headlines_results_and_reasons(tmp_path: Path) -> None:
    index = write_report([report_of(tmp_path / "notebooks")], tmp_path / "report")
    text = index.read_text()
    for words in ("all 1 passed", "<strong>32</strong>doubled budget", "twice the default budget", "00_small.html"):
        assert words in text
    assert "metric 32" in (tmp_path / "report" / "00_small.html").read_text()
    frozen = nbformat.read(tmp_path / "report" / "notebooks" / "00_small.ipynb", as_version=4)
    assert frozen.cells[3].execution_count is None


def test_links_to_a_notebook_with_an_odd_name_work(tmp_path: Path) -> None:
    index = write_report([report_of(tmp_path / "notebooks", name="50% #1")], tmp_path / "report")
    links = re.findall(r'href="([^"]+)"', index.read_text())
    assert {unquote(urlsplit(link).path) for link in links} >= {"50% #1.html", "notebooks/50% #1.ipynb"}


def test_problems_are_listed_and_escaped(tmp_path: Path) -> None:
    failure = "cell 4 of 4 (id cell-3, 'x'): ValueError: <b>"
    text = write_report([report_of(tmp_path / "notebooks", failure=failure)], tmp_path / "report").read_text()
    assert "1 of 1 failed" in text
    assert "ValueError: &lt;b&gt;" in text


def test_no_metric_and_a_missing_metric_fail(tmp_path: Path) -> None:
    (tmp_path / "expected.toml").write_text(EXPECTED)
    path = write_notebook(tmp_path, METRIC)
    execution = Execution(nbformat.read(path, as_version=4), "", ("a strange line",), 1.0, 1.0, 1)
    assert judge(prepare_job(path, {}), execution).problems == (
        "unexpected standard error: a strange line",
        "metric budget.doubled was not recorded",
        "no metric was recorded: end the notebook with record(name, value, kind)",
    )


def test_history_is_appended(tmp_path: Path) -> None:
    for value in (32, 31):
        write_report([report_of(tmp_path / "notebooks", value)], tmp_path / "report")
    lines = [json.loads(line) for line in (tmp_path / "report" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["metric"], line["value"], line["status"]) for line in lines] == [
        ("budget.doubled", 32, "ok"),
        ("budget.doubled", 31, "failed"),
    ]


def test_the_report_draws_the_trail_of_each_of_two_notebooks_of_one_name(tmp_path: Path) -> None:
    for value in (32, 31):
        reports = [report_of(tmp_path / "one", value), report_of(tmp_path / "two", value - 10)]
        index = write_report(reports, tmp_path / "report")
    trails = re.findall(r"<title>(\d.*?)</title>", index.read_text())
    assert trails == ["32, 31", "22, 21"]


def test_rendering_makes_a_notebook_clean(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    expected = load_expectations(report.job.expected_file)["00_small"]
    assert notebook_problems(report.job.path, expected) != []
    render_into_source(report)
    assert notebook_problems(report.job.path, expected) == []
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize("options", [{"value": 31}, {"given": {"BUDGET": 8}}, {"failure": "cell 1 failed"}])
def test_only_a_passed_default_run_is_rendered(options: dict[str, object], tmp_path: Path) -> None:
    report = report_of(tmp_path, **options)  # pyright: ignore[reportArgumentType]
    before = report.job.path.read_bytes()
    with pytest.raises(ValueError, match="00_small is not rendered"):
        render_into_source(report)
    assert report.job.path.read_bytes() == before


def test_notebooks_are_found_by_the_beginning_of_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfm_lab.__file__", str(tmp_path / "installed" / "tfm_lab" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder notebooks here"):
        find_notebooks([])
    names = ("00_start", "06_growing", "06_spare")
    paths = [write_notebook(tmp_path / "notebooks", METRIC, name=name) for name in names]
    assert find_notebooks([]) == paths
    assert find_notebooks(["00", "00_start.ipynb"]) == paths[:1]
    assert find_notebooks([str(paths[1])]) == paths[1:2]
    with pytest.raises(ValueError, match="06 fits 2 notebooks: 06_growing, 06_spare"):
        find_notebooks(["06"])
    with pytest.raises(FileNotFoundError, match="no notebook begins with 07: there are 00_start"):
        find_notebooks(["07"])
    with pytest.raises(FileNotFoundError, match="there is no notebook"):
        find_notebooks(["elsewhere/00_start.ipynb"])


def test_bad_notebooks_are_refused_before_anything_runs(tmp_path: Path) -> None:
    path = write_notebook(tmp_path, "print(1)")
    with pytest.raises(ValueError, match=r"00_small\.ipynb: parameter BUDGET has no effect"):
        prepare_job(path, {})
    path = write_notebook(tmp_path, METRIC)
    with pytest.raises(ValueError, match=r"00_small\.ipynb: the notebook has no parameter BUGDET"):
        prepare_job(path, {"BUGDET": 1})
    (tmp_path / "expected.toml").write_text('[00_small."m"]\nkind = "exact"\nvalue = 1\n')
    with pytest.raises(ValueError, match="write in 'why'"):
        prepare_job(path, {})
    (tmp_path / "expected.toml").unlink()
    assert prepare_job(path, {"BUDGET": "16"}).parameters == {}, "a value equal to the default changes nothing"
