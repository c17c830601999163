"""Where a number comes from: device, date, commit, command and versions, stored beside every published result."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

import tfm_lab


def describe_run(device: str) -> dict[str, str | int]:
    """Facts about this process that a published number has to carry.

    Args:
        device: the torch device that computed it.
    """
    return {
        "command": " ".join(["tfm-lab", *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "tfm_lab": tfm_lab.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def device_name(device: str) -> str:
    """Name of the GPU, or of the processor with its number of cores."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        models = [
            line.split(":", 1)[1].strip() for line in information.read_text().splitlines() if "model name" in line
        ]
        name = models[0] if models else name
    return f"{name}, {os.cpu_count()} cores"


def commit() -> str:
    """Commit of the checkout that this package runs from, with ``+`` for uncommitted changes; ``unknown`` elsewhere."""
    root = Path(__file__).resolve().parent.parent
    try:
        if Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root:
            return "unknown"  # installed somewhere below another project's checkout
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "tfm_lab/", "kernels/")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
