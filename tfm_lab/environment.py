"""What this machine offers: versions, device, Triton's mode, the widget stack, threads, memory, disk, browser.

``inspect_environment`` looks; ``tfm-lab doctor`` and the first notebook show. Every finding that is not good says how
to mend it.
"""

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

import tfm_lab

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "networkx",
    "safetensors",
    "tokenizers",
    "jupyterlab",
    "ipykernel",
    "ipywidgets",
    "plotly",
    "papermill",
    "nbclient",
    "nbconvert",
)
LAB_EXTENSIONS = {
    "jupyterlab_widgets": "@jupyter-widgets/jupyterlab-manager",
    "anywidget": "anywidget",
    "plotly": "jupyterlab-plotly",
}
LOW_DISK_BYTES = 1 * 10**9
LOW_MEMORY_BYTES = 1 * 10**9
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")

Level = Literal["good", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        name: what was looked at.
        value: what was found, for a reader.
        level: ``note`` costs speed or an optional feature, ``problem`` stops something the notebooks need.
        remedy: how to mend it; empty when the level is good.
    """

    name: str
    value: str
    level: Level = "good"
    remedy: str = ""


def inspect_environment() -> tuple[Finding, ...]:
    """All findings, in reading order. Imports torch, and Triton where it is installed."""
    return (
        Finding("tfm_lab", tfm_lab.__version__),
        _python(),
        *(_package(name) for name in PACKAGES if name != "triton" or sys.platform == "linux"),
        _device(),
        _triton_mode(),
        *(_lab_extension(package, folder) for package, folder in LAB_EXTENSIONS.items()),
        _threads(),
        _wait_policy(),
        _memory(),
        _disk(),
        _chromium(),
    )


def find_chromium() -> str | None:
    """Path of an installed Chromium or Chrome, or None."""
    return next((path for path in map(shutil.which, CHROMIUM_NAMES) if path), None)


def _python() -> Finding:
    return Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _package(name: str) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, "missing", "problem", "run make lab, or pip install -c constraints.txt -e .")


def _device() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding("device", "cpu")
    properties = torch.cuda.get_device_properties(0)
    return Finding("device", f"cuda, {properties.name}, {properties.total_memory / 1e9:.0f} GB")


def _triton_mode() -> Finding:
    import torch

    try:
        from triton import knobs
    except ImportError:
        level = "problem" if sys.platform == "linux" else "note"
        return Finding("triton mode", "not installed", level, "the kernels need Linux; everything else works without")
    interpreted = bool(knobs.runtime.interpret)
    if interpreted and torch.cuda.is_available():
        return Finding(
            "triton mode", "interpreter, beside a GPU", "note", "unset TRITON_INTERPRET to compile the kernels"
        )
    if not interpreted and not torch.cuda.is_available():
        return Finding(
            "triton mode",
            "compiler, without a GPU",
            "problem",
            "unset TRITON_INTERPRET, and import tfm_lab before triton and before any torch optimizer is built",
        )
    return Finding("triton mode", "interpreter (float32 and float16 only)" if interpreted else "compiler")


def _lab_extension(package: str, folder: str) -> Finding:
    name = f"widgets: {package}"
    try:
        installed = version(package)
    except PackageNotFoundError:
        return Finding(name, "missing", "problem", f"pip install {package} in the environment that runs JupyterLab")
    if not (Path(sys.prefix) / "share" / "jupyter" / "labextensions" / folder).exists():
        remedy = f"JupyterLab cannot find it: reinstall with pip install --force-reinstall --no-deps {package}"
        return Finding(name, f"{installed}, without its JupyterLab part", "problem", remedy)
    return Finding(name, installed)


def _threads() -> Finding:
    import torch

    return Finding("threads", f"torch uses {torch.get_num_threads()} of {os.cpu_count()} processors")


def _wait_policy() -> Finding:
    value = os.environ.get("OMP_WAIT_POLICY", "not set")
    if value.upper() == "PASSIVE":
        return Finding("OMP_WAIT_POLICY", value)
    remedy = "set OMP_WAIT_POLICY=PASSIVE before Python starts: idle threads otherwise spin and slow down everything"
    return Finding("OMP_WAIT_POLICY", value, "note", remedy)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    value = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available"
    if memory.available < LOW_MEMORY_BYTES:
        return Finding("memory", value, "problem", "close other programs: a notebook needs about 1 GB")
    return Finding("memory", value)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    if free < LOW_DISK_BYTES:
        return Finding("disk", f"{free / 1e9:.1f} GB free", "problem", "free some space: reports and caches need 1 GB")
    return Finding("disk", f"{free / 1e9:.1f} GB free")


def _chromium() -> Finding:
    path = find_chromium()
    if path is None:
        return Finding("chromium", "not found", "note", "only the browser tests need it: apt install chromium")
    return Finding("chromium", Path(path).name)
