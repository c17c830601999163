"""A throw-away server of JupyterLab and Notebook 7, with the options of ``make lab``, and a page for one notebook."""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from playwright.sync_api import Browser, Page, sync_playwright

from tfm_lab.bootstrap import explorer_command, explorer_environment, lab_command
from tfm_lab.environment import find_chromium

START_SECONDS = 90
CHROMIUM_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# JupyterLab and Notebook 7, by the addresses at which one server has them.
FRONT_ENDS = {"lab": "lab/tree", "notebook": "notebooks"}
# All outputs stay in the page, also those far below.
TRACKER_SETTINGS = {"@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"}}


@dataclass(frozen=True)
class LabServer:
    """Address and token of a running server."""

    url: str
    token: str


@contextmanager
def lab_server(root: Path, state: Path) -> Iterator[LabServer]:
    """Serve ``root``; configuration, workspaces and logs stay in ``state``.

    Raises:
        RuntimeError: if the server does not answer in time; the message holds its log.
    """
    for name, values in TRACKER_SETTINGS.items():
        file = state / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    server = LabServer(f"http://127.0.0.1:{_free_port()}", secrets.token_hex(16))
    command = lab_command(Path(sys.executable), root, int(server.url.rpartition(":")[2]), headless=True)
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", "--expose-app-in-browser"]
    command += ["--JupyterNotebookApp.expose_app_in_browser=True"]
    with _running(command, state, {"JUPYTER_TOKEN": server.token}) as (process, log):
        _wait(process, log, lambda: _answers(f"{server.url}/api/status?token={server.token}"))
        yield server


@contextmanager
def explorer_server(root: Path, state: Path) -> Iterator[LabServer]:
    """Serve the tree explorer of the project at ``root`` as a page, the way ``make explorer`` does.

    Raises:
        RuntimeError: if the server does not answer in time; the message holds its log.
    """
    command = explorer_command(Path(sys.executable), root, _free_port(), headless=True)
    with _running(command, state, explorer_environment(root)) as (process, log):
        _wait(process, log, lambda: _address(log) is not None)
        server = _address(log)
        assert server is not None
        yield server


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(), headless=True, args=list(CHROMIUM_OPTIONS)
        )
        yield browser
        browser.close()


@dataclass
class WatchedPage:
    """A page of a server, with everything suspicious that the browser noticed.

    Attributes:
        page: the browser page.
        outside: requests that went to another server.
        console: warnings and errors of the console and the page.
    """

    page: Page
    outside: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, browser: Browser, server: LabServer) -> Self:
        """An empty page that is watched from now on."""
        watched = cls(browser.new_page(viewport={"width": 1400, "height": 1000}))
        page = watched.page
        page.set_default_timeout(60_000)
        own = (server.url, server.url.replace("http", "ws"), "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(own) else watched.outside.append(request.url))
        page.on(
            "console",
            lambda message: watched.console.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: watched.console.append(str(error)))
        return watched


@dataclass
class NotebookPage(WatchedPage):
    """One notebook opened in a front end.

    Attributes:
        name: file name.
    """

    name: str = ""

    def run_all_cells(self, seconds: float) -> None:
        """Run every cell and wait until the last one is done."""
        self.page.evaluate(
            """() => {
                window.allCellsRan = false;
                const panel = window.jupyterapp.shell.currentWidget;
                Promise.all([panel.context.ready, panel.sessionContext.ready])
                    .then(() => window.jupyterapp.commands.execute('notebook:run-all-cells'))
                    .then(() => { window.allCellsRan = true; });
            }"""
        )
        self.page.wait_for_function("() => window.allCellsRan", timeout=1000 * seconds)
        self.page.wait_for_timeout(500)  # the last outputs reach the page

    def code_cells(self) -> list[dict[str, Any]]:
        """The code cells as JupyterLab holds them, in the notebook format."""
        cells = self.page.evaluate(
            "() => [...window.jupyterapp.shell.currentWidget.content.model.cells].map(cell => cell.toJSON())"
        )
        return [cell for cell in cells if cell["cell_type"] == "code"]

    def errors(self) -> list[str]:
        """Name and message of every error that a cell shows."""
        outputs = [output for cell in self.code_cells() for output in cell["outputs"]]
        return [f"{item['ename']}: {item['evalue']}" for item in outputs if item["output_type"] == "error"]

    def executed_cells(self) -> list[bool]:
        """For each code cell whether it has run."""
        return [cell["execution_count"] is not None for cell in self.code_cells()]

    def close(self) -> None:
        """Shut the kernel down and close the page."""
        self.page.evaluate("async () => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        self.page.close()


def open_notebook(
    browser: Browser, server: LabServer, name: str, front_end: str = "lab", script: str = ""
) -> NotebookPage:
    """Open a notebook of the server's folder in a fresh page and wait for its kernel.

    Args:
        browser: where the page opens.
        server: what serves it.
        name: file name.
        front_end: a key of ``FRONT_ENDS``.
        script: runs in the page before anything else.
    """
    notebook = NotebookPage.of(browser, server)
    notebook.name, page = name, notebook.page
    page.add_init_script(script)
    page.goto(f"{server.url}/{FRONT_ENDS[front_end]}/{name}?token={server.token}&reset", wait_until="domcontentloaded")
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=90_000)
    page.wait_for_function(
        "() => window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=90_000,
    )
    return notebook


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def _running(command: list[str], state: Path, more: dict[str, str]) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """A server process that keeps everything below ``state``, and the file of its log."""
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    environment = os.environ | {name: str(state / folder) for name, folder in folders.items()} | more
    environment |= {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
    log = state / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait(30)


def _wait(process: "subprocess.Popen[bytes]", log: Path, is_there: Callable[[], bool]) -> None:
    """Wait for a server until ``is_there``."""
    deadline = time.monotonic() + START_SECONDS
    while not is_there():
        if time.monotonic() > deadline or process.poll() is not None:
            raise RuntimeError(f"the server did not answer:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def _address(log: Path) -> LabServer | None:
    """The address with its token, as the server prints it."""
    found = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=(\w+)", log.read_text())
    return LabServer(*found.groups()) if found else None
