"""The bootstrap: it must start under old Pythons, refuse in one sentence, install once and start quickly afterwards."""

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from tfm_lab import bootstrap

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the two files that decide what is installed; its path holds a space."""
    root = tmp_path / "a project"
    root.mkdir()
    (root / "pyproject.toml").write_text("[project]\n")
    (root / "constraints.txt").write_text("numpy==1\n")
    return root


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been run; creating an environment leaves a Python that starts."""
    issued: list[list[str]] = []

    def pretend(command: list[str], cwd: str | None = None, **options: object) -> int:
        if command[1:] == ["-c", ""]:
            return 0
        issued.append(command)
        if "venv" in command:
            python = Path(command[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
        return 0

    monkeypatch.setattr(subprocess, "call", pretend)
    return issued


def test_the_source_is_python_3_6() -> None:
    ast.parse((ROOT / "tfm_lab" / "bootstrap.py").read_text(), feature_version=(3, 6))


def test_an_old_python_is_told_so() -> None:
    names = [f"python3.{minor}" for minor in range(6, 11)]
    old = next((name for name in names if shutil.which(name) and bootstrap.starts(name)), None)
    if old is None:
        pytest.skip("no Python from 3.6 to 3.10 here")
    command = [old, "-I", str(ROOT / "tfm_lab" / "bootstrap.py"), "setup"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert f"{old.replace('python', 'Python ')} is too old, Python 3.11 or newer is needed: " in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_too_old_a_python_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap.check_python((3, 11))
    bootstrap.check_python((4, 0))
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "python3.12" else None)
    monkeypatch.setattr(bootstrap, "starts", lambda python: True)
    with pytest.raises(bootstrap.SetupError, match=r"Python 3\.10 is too old.* with PYTHON=python3\.12 at its end"):
        bootstrap.check_python((3, 10))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(bootstrap.SetupError, match=r"PYTHON=/path/to/python"):
        bootstrap.check_python((3, 10))


def test_a_full_disk_is_refused() -> None:
    bootstrap.check_disk(5 * 10**9)
    with pytest.raises(bootstrap.SetupError, match=r"only 1\.2 GB are free .* need about 4 GB"):
        bootstrap.check_disk(1_200_000_000)


def test_a_python_without_venv_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap.check_modules()
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name)
    with pytest.raises(bootstrap.SetupError, match=r"no module ensurepip: install it .*python3-venv"):
        bootstrap.check_modules()


def test_packages_are_installed_once(project: Path, commands: list[list[str]]) -> None:
    python = bootstrap.prepare(project, "base")
    assert python == project / ".venv" / "bin" / "python"
    assert [command[2] for command in commands] == ["venv", "pip"]
    assert commands[1][-4:] == ["-c", "constraints.txt", "-e", "."]
    bootstrap.prepare(project, "base")
    assert len(commands) == 2, "a second start runs nothing"
    bootstrap.prepare(project, "dev")
    assert commands[2][-1] == ".[dev]"
    bootstrap.prepare(project, "base")
    bootstrap.prepare(project, "explorer")
    assert len(commands) == 3, "the tools of the tests include everything else"


def test_the_tests_bring_every_package_that_a_second_start_takes_for_granted() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, holders in bootstrap.ENOUGH.items():
        assert all(extra in ("base", holder) or f"tfm-lab[{extra}]" in extras[holder] for holder in holders)
    assert "tfm-lab[explorer]" in extras["dev"], "the explorer's page is tested in a browser"


def test_changed_pins_are_installed(project: Path, commands: list[list[str]]) -> None:
    bootstrap.prepare(project, "dev")
    (project / "constraints.txt").write_text("numpy==2\n")
    bootstrap.prepare(project, "dev")
    assert [command[2] for command in commands] == ["venv", "pip", "pip"]


def test_a_moved_project_is_installed_again(project: Path, commands: list[list[str]]) -> None:
    bootstrap.prepare(project, "base")
    moved = project.rename(project.with_name("moved"))
    bootstrap.prepare(moved, "base")
    assert [command[2] for command in commands] == ["venv", "pip", "pip"]


def test_a_failed_installation_is_tried_again(
    project: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend = subprocess.call
    monkeypatch.setattr(subprocess, "call", lambda command, **rest: 1 if "pip" in command else pretend(command, **rest))
    with pytest.raises(bootstrap.SetupError, match="packages could not be installed"):
        bootstrap.prepare(project, "base")
    monkeypatch.setattr(subprocess, "call", pretend)
    bootstrap.prepare(project, "base")
    assert "pip" in commands[-1]


def test_another_index_for_torch(project: Path) -> None:
    command = bootstrap.install_command(Path("python"), project, "base", "https://example.org/cpu")
    assert command[command.index("--extra-index-url") + 1] == "https://example.org/cpu"


@pytest.mark.parametrize("headless", [False, True])
@pytest.mark.parametrize("user", [0, 1000])
def test_the_lab_keeps_its_token_and_asks_nobody(headless: bool, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.os, "getuid", lambda: user)
    command = bootstrap.lab_command(Path("python"), Path("/a project"), 9999, headless)
    assert not any("token" in word or "password" in word for word in command)
    assert ("--no-browser" in command) is headless
    assert ("--allow-root" in command) is (user == 0)
    assert "--ServerApp.port=9999" in command
    assert "--LabApp.news_url=None" in command


def test_a_refusal_is_one_sentence_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "OLDEST_PYTHON", (9, 0))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert bootstrap.main(["setup"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("tfm_lab: ")
    assert error.count("\n") == 1


def test_pins_fit_the_ranges() -> None:
    """Every direct dependency has one exact pin that satisfies its range."""
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines)
    needed = project["dependencies"] + [item for extra in project["optional-dependencies"].values() for item in extra]
    for requirement in map(Requirement, needed):
        if requirement.name != project["name"]:
            assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement


@pytest.mark.parametrize("headless", [False, True])
def test_the_explorer_keeps_its_token_and_asks_nobody(headless: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    command = bootstrap.explorer_command(Path("python"), ROOT, 9999, headless)
    assert "--Voila.auto_token=True" in command
    assert "--Voila.ip=127.0.0.1" in command
    assert ("--no-browser" in command) is headless
    assert Path(command[3]).is_file()
    monkeypatch.setenv("JUPYTER_PATH", "/elsewhere")
    found, other = bootstrap.explorer_environment(ROOT)["JUPYTER_PATH"].split(bootstrap.os.pathsep)
    (template,) = (word.partition("=")[2] for word in command if word.startswith("--template"))
    page = Path(found) / "voila" / "templates" / template / "index.html.j2"
    assert "http" not in page.read_text()
    assert other == "/elsewhere"


def test_the_explorer_brings_its_own_packages(project: Path, commands: list[list[str]]) -> None:
    bootstrap.prepare(project, "base")
    bootstrap.prepare(project, "explorer")
    assert commands[-1][-1] == ".[explorer]"
    count = len(commands)
    bootstrap.prepare(project, "base")
    bootstrap.prepare(project, "explorer")
    assert len(commands) == count, "a second start runs nothing"


def test_binder_installs_what_the_constraints_name() -> None:
    """A version of its own may only say where torch is built for; Notebook 7 goes with one JupyterLab."""
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    lines = (ROOT / "binder" / "requirements.txt").read_text().splitlines()
    wanted = [line for line in lines if line and line[0] not in "#-"]
    assert {line.partition("==")[0] for line in wanted} == {"torch", "notebook"} <= set(pinned)
    assert [line for line in wanted if "==" in line] == [f"torch=={pinned['torch']}+cpu"]
    assert {"-c ../constraints.txt", "-e ."} <= set(lines)
