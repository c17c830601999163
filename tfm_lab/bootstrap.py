"""Prepare the project's own virtual environment and start JupyterLab, or the tree explorer as a page, in it.

This file runs before anything is installed, as ``python3 tfm_lab/bootstrap.py``. It therefore uses the standard library
alone and keeps to the syntax of Python 3.6, so that an old Python can be told in one sentence that it is too old.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)
NEEDED_BYTES = 4 * 10**9
START_PAGE = "/lab/tree/notebooks/00_start_here.ipynb"
# A second call is quick if the environment holds these packages or more.
ENOUGH = {"base": ("base", "explorer", "dev"), "explorer": ("explorer", "dev"), "dev": ("dev",)}


class SetupError(Exception):
    """The environment cannot be prepared; the message is one sentence that says what to do."""


def main(arguments: "list[str] | None" = None) -> int:
    """Run ``setup``, ``lab`` or ``explorer``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bootstrap.py", description="Prepare the project's virtual environment.")
    parser.add_argument("--torch-index", default="", help="extra package index to take torch from (its CPU build)")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    setup = commands.add_parser("setup", help="install the pinned packages into .venv")
    setup.add_argument("--dev", action="store_true", help="with the tools that the tests need")
    lab = commands.add_parser("lab", help="install what is missing, then open JupyterLab on the first notebook")
    explorer = commands.add_parser("explorer", help="install what is missing, then open the tree explorer as a page")
    for server in (lab, explorer):
        server.add_argument("--port", type=int, default=8888)
        server.add_argument("--headless", action="store_true", help="open no browser, print the address with its token")
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.error("say what to do: setup, lab or explorer")
    root = Path(__file__).resolve().parent.parent
    try:
        extras = "explorer" if options.command == "explorer" else "dev" if getattr(options, "dev", False) else "base"
        python = prepare(root, extras, options.torch_index)
    except SetupError as error:
        print("tfm_lab: {}".format(error), file=sys.stderr)
        return 1
    if options.command == "lab":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        command = lab_command(python, root, options.port, options.headless)
        print("JupyterLab opens on notebooks/00_start_here.ipynb; stop it with Ctrl-C.", flush=True)
        os.execv(command[0], command)
    if options.command == "explorer":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        os.environ.update(explorer_environment(root))
        command = explorer_command(python, root, options.port, options.headless)
        print("The tree explorer opens as a page; stop it with Ctrl-C.", flush=True)
        os.execv(command[0], command)
    return 0


def prepare(root: Path, extras: str, torch_index: str = "") -> Path:
    """Make sure that ``root/.venv`` holds the pinned packages; returns its Python.

    Args:
        root: the project folder (pyproject.toml, constraints.txt).
        extras: ``base`` for the packages that notebooks need, ``dev`` for those of the tests on top, ``explorer`` for
            those of the explorer's page.
        torch_index: address of an extra package index, or an empty string.

    Raises:
        SetupError: if this Python, the disk or the package installer cannot do it.
    """
    check_python(sys.version_info[:2])
    venv = root / ".venv"
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    key = environment_key(root)
    works = python.exists() and starts(str(python))
    stamps = [venv / "tfm_lab-{}.stamp".format(name) for name in ENOUGH[extras]]
    if works and any(read(stamp) == key for stamp in stamps):
        return python
    check_modules()
    check_disk(shutil.disk_usage(str(root)).free)
    if not works:
        print("Creating the virtual environment .venv", flush=True)
        run([sys.executable, "-m", "venv", "--clear", str(venv)], "the virtual environment .venv could not be created")
    print("Installing the pinned packages into .venv (once; a few minutes)", flush=True)
    run(
        install_command(python, root, extras, torch_index),
        "the packages could not be installed (the reason stands above); mend it, for example the network connection, "
        "and run the same command again",
        cwd=str(root),
    )
    quieten_lab(venv)
    (venv / "tfm_lab-{}.stamp".format(extras)).write_text(key)
    return python


def check_python(version: "tuple[int, int]") -> None:
    """Raise SetupError if ``version`` (major, minor) is older than the project allows."""
    if version >= OLDEST_PYTHON:
        return
    newer = ["python3.{}".format(minor) for minor in range(14, OLDEST_PYTHON[1] - 1, -1)]
    found = [name for name in newer if shutil.which(name) and starts(name)]
    advice = (
        "run the same command with PYTHON={} at its end".format(found[0])
        if found
        else "install one and run the same command with PYTHON=/path/to/python at its end"
    )
    raise SetupError("Python {}.{} is too old, Python 3.11 or newer is needed: {}".format(*version, advice))


def check_modules() -> None:
    """Raise SetupError if this Python cannot create virtual environments."""
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            "this Python has no module {}: install it (on Debian and Ubuntu: apt install python3-venv) "
            "and run the same command again".format(" and no module ".join(missing))
        )


def check_disk(free_bytes: int) -> None:
    """Raise SetupError if the disk is too full for the packages."""
    if free_bytes < NEEDED_BYTES:
        raise SetupError(
            "only {:.1f} GB are free on this disk and the packages need about {:.0f} GB "
            "(8 GB with the CUDA build of torch): free some space and run the same command again".format(
                free_bytes / 1e9, NEEDED_BYTES / 1e9
            )
        )


def environment_key(root: Path) -> str:
    """Hash of everything that decides what is installed and where."""
    digest = hashlib.sha256(str(root).encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def install_command(python: Path, root: Path, extras: str, torch_index: str) -> "list[str]":
    """The pip command that installs the project with its pinned packages."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-c", "constraints.txt"]
    if torch_index:
        command += ["--extra-index-url", torch_index]
    return [*command, "-e", "." if extras == "base" else ".[{}]".format(extras)]


def lab_command(python: Path, root: Path, port: int, headless: bool) -> "list[str]":
    """The command that serves JupyterLab on the first notebook: with its token, asking nobody for news or updates."""
    command = [
        str(python),
        "-m",
        "jupyterlab",
        "--ServerApp.root_dir={}".format(root),
        "--ServerApp.port={}".format(port),
        "--LabApp.default_url={}".format(START_PAGE),
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    if headless:
        command.append("--no-browser")
    if hasattr(os, "getuid") and os.getuid() == 0:
        command.append("--allow-root")
    return command


def explorer_command(python: Path, root: Path, port: int, headless: bool) -> "list[str]":
    """The command that serves the tree explorer through Voila: with its token, asking nobody for anything."""
    command = [
        str(python),
        "-m",
        "voila",
        str(root / "notebooks" / "explorer" / "explorer.ipynb"),
        "--port={}".format(port),
        "--Voila.ip=127.0.0.1",
        "--Voila.auto_token=True",
        "--template=lecture",
        # Notebook 7, which the tests bring, extends JupyterLab and cannot load here.
        "--VoilaConfiguration.extension_denylist=@jupyter-notebook/lab-extension",
    ]
    if headless:
        command.append("--no-browser")
    return command


def explorer_environment(root: Path) -> "dict[str, str]":
    """Where Voila finds the page's template, which asks no public server for an icon font."""
    folders = [str(root / "notebooks" / "explorer")] + [path for path in [os.environ.get("JUPYTER_PATH")] if path]
    return {"JUPYTER_PATH": os.pathsep.join(folders)}


def quieten_lab(venv: Path) -> None:
    """Settings of the environment's JupyterLab: no question about news, no look for updates."""
    settings = venv / "share" / "jupyter" / "lab" / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    notification = {"fetchNews": "false", "checkForUpdates": False}
    overrides = {"@jupyterlab/apputils-extension:notification": notification}
    (settings / "overrides.json").write_text(json.dumps(overrides, indent=2))


def starts(python: str) -> bool:
    """True if this Python can run a program."""
    return subprocess.call([python, "-c", ""], stderr=subprocess.DEVNULL) == 0


def run(command: "list[str]", sentence: str, cwd: "str | None" = None) -> None:
    """Run a command; raise SetupError with ``sentence`` if it fails."""
    if subprocess.call(command, cwd=cwd) != 0:
        raise SetupError(sentence)


def read(path: Path) -> str:
    """Text of a file, empty if there is none."""
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
