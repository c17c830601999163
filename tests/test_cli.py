"""The command line: help, one-sentence errors, exit statuses, and ``tfm-lab run`` from end to end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import click
import nbformat
import pytest
from notebook_builder import EXPECTED, METRIC, write_notebook

from tfm_lab.__main__ import start
from tfm_lab.cli import main as cli
from tfm_lab.environment import Finding, inspect_environment
from tfm_lab.runner.execute import Execution


def run(*words: str) -> int:
    """Exit status of the command line."""
    with pytest.raises(SystemExit) as exit_info:
        cli.main(words)
    return int(exit_info.value.code or 0)


def command_that(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Add a command ``fail`` that raises."""

    @click.command("fail")
    def command() -> None:
        """Fail."""
        raise error

    module = ModuleType("tfm_lab.cli.fail")
    module.command = command  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "tfm_lab.cli.fail", module)
    monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, "fail"))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_a_help_page_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name, "--help") == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"tfm-lab {name}" in text


def test_help_does_not_import_torch() -> None:
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); "
    code += "from tfm_lab.cli.main import main; main(['--help'])"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (ValueError("budget must be positive,\n  got -1."), 2, "Error: budget must be positive, got -1\n"),
        (FileNotFoundError("no bundle here: run make lab"), 2, "Error: no bundle here: run make lab\n"),
        (FileNotFoundError(2, "No such file or directory", "a.json"), 2, "Error: there is no file a.json\n"),
        (
            PermissionError(13, "Permission denied", "a.json"),
            2,
            "Error: cannot read or write a.json: Permission denied\n",
        ),
        (OSError(28, "No space left on device"), 2, "Error: reading or writing failed: No space left on device\n"),
        (ConnectionError("the index does not answer."), 2, "Error: the index does not answer\n"),
        (click.ClickException("cannot do that."), 1, "Error: cannot do that\n"),
        (KeyboardInterrupt(), 130, "Error: interrupted\n"),
    ],
)
def test_errors_are_one_sentence(
    error: BaseException,
    status: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command_that(monkeypatch, error)
    assert run("fail") == status
    captured = capsys.readouterr()
    assert captured.err.lstrip("\n") == sentence
    assert captured.out == ""


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    command_that(monkeypatch, KeyError("a defect"))
    with pytest.raises(KeyError, match="a defect"):
        cli.main(["fail"])


def test_the_traceback_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command_that(monkeypatch, ValueError("bad"))
    assert run("--traceback", "fail") == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["docter"], "No such command 'docter' (see tfm-lab --help)"),
        (["doctor", "--yaml"], "No such option '--yaml' (see tfm-lab doctor --help)"),
        (["run", "-p", "BUDGET"], "(see tfm-lab run --help)"),
        (["run", "--timeout", "long"], "(see tfm-lab run --help)"),
        (["run", "--timeout", "nan"], "time limits must be positive, got nan s"),
        (["run", "--out", "notes.txt/report"], "cannot write notes.txt/report/index.html: "),
        (["run", "elsewhere/99_nothing.ipynb"], "there is no notebook elsewhere/99_nothing.ipynb"),
        (["run", "--update", "-p", "BUDGET", "3"], "--update and --render need the default parameters"),
        (["run", "--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["run", "06", "-p", "BUDGET", "16", "-p", "BUDGET", "32"], "-p BUDGET was given twice: write several values"),
        (["run", "06", "-p", "BUDGET", "16,,32"], "BUDGET 16,,32: a value is missing beside a comma"),
        (["run", "--compare", "old.jsonl"], "there is no history old.jsonl: name the metrics.jsonl of an earlier"),
    ],
)
def test_bad_usage_is_one_sentence(
    words: Sequence[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("my notes")
    assert run(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("Error: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_a_closed_pipe_is_no_error() -> None:
    command = f"'{sys.executable}' -m tfm_lab run --help | true"
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert answer.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_under_standard_output_is_one_sentence() -> None:
    command = f"'{sys.executable}' -m tfm_lab run --help > /dev/full"
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr == "Error: reading or writing failed: No space left on device\n"


def test_ctrl_c_while_the_command_line_is_imported_ends_it_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pressed = ModuleType("tfm_lab.cli.main")
    pressed.__getattr__ = lambda name: signal.raise_signal(signal.SIGINT)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "tfm_lab.cli.main", pressed)
    with pytest.raises(SystemExit) as exit_info:
        start()
    assert exit_info.value.code == 130
    assert capsys.readouterr().err == ""


def test_doctor_finds_what_the_tests_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    findings = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    for name in ("torch", "triton mode", "widgets: anywidget", "widgets: jupyterlab_widgets", "memory", "disk"):
        assert findings[name]["level"] != "problem"
    assert all(item["remedy"] for item in findings.values() if item["level"] != "good")


def test_doctor_says_how_to_mend_a_problem(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    problem = Finding("disk", "0.1 GB free", "problem", "free some space")
    monkeypatch.setattr("tfm_lab.environment.inspect_environment", lambda: (problem,))
    assert run("doctor") == 1
    assert "problem disk: free some space" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "found", "level"), [("1", "interpreter", "good"), ("0", "compiler, without a GPU", "problem")]
)
def test_doctor_sees_a_wrong_triton_mode(
    variable: str, found: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("TRITON_INTERPRET", variable)
    (finding,) = (item for item in inspect_environment() if item.name == "triton mode")
    assert finding.value.startswith(found)
    assert finding.level == level


def test_run_update_render_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = tmp_path / "expected.toml"
    expected.write_text(EXPECTED.replace("32", "33"))
    path = write_notebook(tmp_path, METRIC)
    monkeypatch.chdir(tmp_path)
    assert run("run", path.name, "-p", "BUDGET", "8", "--out", "report") == 0
    history = Path("report/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["value"] for line in history] == [16]
    assert run("run", path.name, "--out", "report", "--update", "--render") == 0
    output = capsys.readouterr().out
    assert "1 changes" in output
    assert expected.read_text() == EXPECTED
    assert "Report: report/index.html" in output
    rendered = nbformat.read(path, as_version=4)
    assert rendered.cells[3].outputs[0].data["text/plain"] == "metric budget.doubled = 32  (exact)"


def test_run_prints_every_problem_on_a_line_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_notebook(tmp_path, METRIC)
    failed = Execution(None, "cell 5 of 5 (id cell-4, '[1]'): KeyError: 'gone'", (), 1.0, 1.0, 10**6)
    monkeypatch.setattr("tfm_lab.runner.series.execute", lambda *arguments: failed)
    monkeypatch.chdir(tmp_path)
    assert run("run", path.name, "--out", "report") == 1
    assert "failed 00_small: cell 5 of 5 (id cell-4, '[1]'): KeyError: 'gone'\n" in capsys.readouterr().out


def test_run_shows_names_and_values_as_they_are_and_refuses_a_broken_history_before_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_notebook(
        tmp_path, METRIC, "print(PROMPT)", name="odd [bold] #1", parameters='BUDGET = 16\nPROMPT = ""'
    )
    failed = Execution(None, "cell 1", (), 1.0, 1.0, 10**6)
    monkeypatch.setattr("tfm_lab.runner.series.execute", lambda *arguments: failed)
    monkeypatch.chdir(tmp_path)
    assert run("run", path.name, "-p", "PROMPT", "[/INST]", "-p", "BUDGET", "16,32", "--out", "report") == 1
    output = " ".join(capsys.readouterr().out.split())
    for words in ("failed odd [bold] #1, PROMPT = [/INST]: cell 1", "Sweep of odd [bold] #1"):
        assert words in output
    Path("report/metrics.jsonl").write_text("{}\n{}\n")
    assert run("run", path.name, "--out", "report") == 2
    assert "metrics.jsonl, line 1" in capsys.readouterr().err
