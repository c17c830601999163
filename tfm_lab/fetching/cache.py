"""The cache folder: what was fetched lies there whole, with a manifest that says so, or not at all."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout

from tfm_lab.fetching.progress import Tell

VARIABLE = "TFM_LAB_CACHE"
MANIFEST = "manifest.json"
LOCK = ".fetch.lock"


def cache_folder() -> Path:
    """The folder that ``TFM_LAB_CACHE`` names, else ``tfm_lab`` in the user's cache of this platform."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("tfm_lab", appauthor=False)


@contextmanager
def locked_cache(tell: Tell) -> Iterator[Path]:
    """The cache folder, made if need be, while no other fetch works in it. A killed process frees it."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        tell(f"waiting for another fetch into {cache}")
        lock.acquire()
    try:
        yield cache
    finally:
        lock.release()


def remove_stale(cache: Path, name: str) -> None:
    """Remove what a killed fetch of ``name`` left behind; call it with the cache locked."""
    for left in cache.glob(f".{name}.*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Record ``facts``, and size and sha256 of every file of ``folder``. The last thing written into it."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    (folder / MANIFEST).write_text(json.dumps({**facts, "files": files}, indent=2) + "\n", encoding="utf-8")


def is_whole(folder: Path, facts: Mapping[str, Any], *, thorough: bool) -> bool:
    """True if the manifest records just these facts and its files are there.

    Args:
        thorough: compare checksums too, not sizes alone.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest.pop("files")
        if manifest != dict(facts):
            return False
        return bool(files) and all(
            (folder / name).stat().st_size == recorded["bytes"]
            and (not thorough or sha256_of(folder / name) == recorded["sha256"])
            for name, recorded in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def sha256_of(path: Path) -> str:
    """Hexadecimal checksum of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
