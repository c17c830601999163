"""Where a number comes from: the facts, and the commit of this checkout and of no other."""

import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

import tfm_lab
from tfm_lab import provenance
from tfm_lab.provenance import commit, describe_run, device_name

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that holds the package, as :func:`commit` sees it."""
    root = tmp_path / "checkout"
    (root / "tfm_lab").mkdir(parents=True)
    (root / "kernels").mkdir()
    (root / "tfm_lab" / "provenance.py").write_text("one\n")
    (root / "README.md").write_text("one\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "first")
    monkeypatch.setattr(provenance, "__file__", str(root / "tfm_lab" / "provenance.py"))
    return root


def test_a_run_is_described_by_what_it_ran_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/tfm-lab", "evaluate", "--limit", "3"])
    facts = describe_run("cpu")
    assert facts["command"] == "tfm-lab evaluate --limit 3"
    assert facts["commit"] == commit()
    assert facts["device"] == device_name("cpu")
    assert facts["threads"] == torch.get_num_threads()
    assert (facts["tfm_lab"], facts["torch"]) == (tfm_lab.__version__, torch.__version__)
    assert facts["python"] == platform.python_version()
    date = datetime.strptime(str(facts["date"]), "%Y-%m-%d").replace(tzinfo=UTC)
    assert timedelta(0) <= datetime.now(UTC) - date < timedelta(days=2)


def test_the_processor_is_named_with_its_cores() -> None:
    name, _, cores = device_name("cpu").rpartition(", ")
    assert name
    assert cores.endswith(" cores")
    assert int(cores.split()[0]) >= 1


@pytest.mark.gpu
def test_a_gpu_is_named() -> None:
    assert device_name("cuda") == torch.cuda.get_device_name(0)


@needs_git
def test_the_commit_is_that_of_the_checkout(checkout: Path) -> None:
    assert commit() == git(checkout, "rev-parse", "HEAD")[:12]


@needs_git
@pytest.mark.parametrize(
    ("changed", "mark"), [("tfm_lab/provenance.py", "+"), ("README.md", ""), ("tfm_lab/new.py", "")]
)
def test_changes_of_the_code_that_are_not_committed_are_marked(checkout: Path, changed: str, mark: str) -> None:
    (checkout / changed).write_text("two\n")
    assert commit() == git(checkout, "rev-parse", "HEAD")[:12] + mark


@needs_git
def test_an_installation_below_another_projects_checkout_is_not_taken_for_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checkout / ".venv" / "site-packages" / "tfm_lab"
    installed.mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(installed / "provenance.py"))
    assert commit() == "unknown"


def test_without_a_repository_or_without_git_the_commit_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "tfm_lab" / "provenance.py"))
    assert commit() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == "unknown"
