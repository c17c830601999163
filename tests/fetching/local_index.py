"""A package index of one folder, and a catalogue entry that is fetched from it with the real pip."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tfm_lab.fetching import catalogue
from tfm_lab.fetching.cache import sha256_of
from tfm_lab.fetching.catalogue import Entry, Making
from tfm_lab.fetching.wheel import Wheel

FILE = "toy_prompts-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: toy-prompts\nVersion: 1.0\nRequires-Python: >=3.9\n"
TAGS = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, content: str = "hello") -> Path:
    """A wheel that pip accepts, with one data file."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"toy_prompts/data.txt": content}
    files |= {f"toy_prompts-1.0.dist-info/{name}": text for name, text in (("METADATA", METADATA), ("WHEEL", TAGS))}
    files["toy_prompts-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(folder / FILE, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return folder / FILE


def toy_wheel(path: Path) -> Wheel:
    return Wheel("toy-prompts", "1.0", FILE, sha256_of(path), path.stat().st_size, "MIT")


def copy_data(making: Making) -> None:
    with zipfile.ZipFile(making.wheels["toy-prompts"]) as archive:
        (making.folder / "data.txt").write_bytes(archive.read("toy_prompts/data.txt"))
    (making.folder / "second.txt").write_text("second")


def toy_entry(path: Path, make: Callable[[Making], None] = copy_data, needed_bytes: int = 1000) -> Entry:
    return Entry("toy", "a toy", "MIT", (toy_wheel(path),), needed_bytes, 1, lambda: None, make)


def offer(patch: pytest.MonkeyPatch, entry: Entry, index: Path | None) -> None:
    """Make ``entry`` the only one; pip sees the folder ``index`` alone, or an address where nobody answers."""
    patch.setattr(catalogue, "CATALOGUE", (entry,))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        patch.delenv(name)
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("PIP_NO_CACHE_DIR", "1")
    patch.setenv("PIP_RETRIES", "0")
    if index is None:
        patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    else:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(index))
