"""Fetching: once, whole, checked; whatever happens in between, nothing half done is taken for complete."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from fetching.local_index import FILE, copy_data, offer, toy_entry, toy_wheel, write_wheel
from filelock import FileLock

from tfm_lab.fetching import by_name, cache_folder, catalogue, fetch, fetched
from tfm_lab.fetching import wheel as wheel_module
from tfm_lab.fetching.cache import LOCK, MANIFEST
from tfm_lab.fetching.catalogue import Making, entry


@pytest.fixture
def pip_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and the entry ``toy``, which pip finds in the folder ``index``."""
    monkeypatch.setenv("TFM_LAB_CACHE", str(tmp_path / "cache"))
    offer(monkeypatch, toy_entry(write_wheel(tmp_path / "index")), tmp_path / "index")
    return tmp_path / "cache"


@pytest.fixture
def cache(pip_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with a copy in place of pip, which takes a second to start."""
    copy = lambda wheel, scratch: shutil.copy(tmp_path / "index" / wheel.file, scratch)  # noqa: E731
    monkeypatch.setattr(wheel_module, "_pip_download", copy)
    return pip_cache


def contents(cache: Path) -> set[str]:
    """All files and folders of the cache but the lock."""
    return {str(path.relative_to(cache)) for path in cache.rglob("*")} - {LOCK}


WHOLE = {"toy", "toy/data.txt", "toy/second.txt", f"toy/{MANIFEST}"}


def test_pip_downloads_the_files_are_made_and_a_manifest_records_them(pip_cache: Path) -> None:
    cache = pip_cache
    told: list[str] = []
    folder = fetch("toy", tell=told.append)
    assert folder == cache / "toy" == fetched("toy")
    assert (folder / "data.txt").read_text() == "hello"
    assert contents(cache) == WHOLE
    assert told[0].startswith("downloading toy-prompts 1.0 (")
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["sources"] == [{"file": FILE, "sha256": entry("toy").wheels[0].sha256, "licence": "MIT"}]
    assert manifest["files"]["second.txt"]["bytes"] == 6
    assert (folder.stat().st_mode & 0o777, (folder / "data.txt").stat().st_mode & 0o777) == (0o755, 0o644)


def test_a_second_fetch_verifies_and_downloads_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch("toy")
    before = (cache / "toy" / "data.txt").stat()
    monkeypatch.setattr(by_name, "obtain", refuse)
    told: list[str] = []
    assert fetch("toy", tell=told.append) == cache / "toy"
    assert told == ["already there, checksums verified"]
    assert (cache / "toy" / "data.txt").stat() == before


def test_force_makes_it_again(cache: Path) -> None:
    fetch("toy")
    before = (cache / "toy" / "data.txt").stat().st_ino, (cache / "toy").stat().st_ino
    fetch("toy", force=True)
    assert before != ((cache / "toy" / "data.txt").stat().st_ino, (cache / "toy").stat().st_ino)
    assert contents(cache) == WHOLE


def test_a_wheel_file_needs_no_network(pip_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, entry("toy"), None)
    renamed = (tmp_path / "index" / FILE).rename(tmp_path / "any name.zip")
    assert (fetch("toy", wheels=[renamed]) / "data.txt").read_text() == "hello"
    assert renamed.is_file()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "data.txt").write_text("jello"),
        lambda folder: (folder / "data.txt").unlink(),
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / MANIFEST).write_text("{"),
        lambda folder: (folder / MANIFEST).write_text("[]"),
        lambda folder: (folder / MANIFEST).write_text('{"files": {}}'),
    ],
    ids=["changed", "removed", "no manifest", "cut manifest", "other JSON", "empty manifest"],
)
def test_a_damaged_folder_is_made_again(cache: Path, damage: Callable[[Path], object]) -> None:
    fetch("toy")
    damage(cache / "toy")
    told: list[str] = []
    fetch("toy", tell=told.append)
    assert told[0].startswith("downloading")
    assert (cache / "toy" / "data.txt").read_text() == "hello"
    assert contents(cache) == WHOLE


def test_fetched_sees_what_is_missing_cut_or_old(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="toy has not been fetched; run: tfm-lab fetch toy"):
        fetched("toy")
    assert not cache.exists()
    fetch("toy")
    (cache / "toy" / "data.txt").write_text("cut")
    with pytest.raises(ValueError, match="toy is incomplete or of an older edition; run: tfm-lab fetch toy"):
        fetched("toy")
    fetch("toy")
    monkeypatch.setattr(catalogue, "CATALOGUE", (replace(entry("toy"), edition=2),))
    with pytest.raises(ValueError, match="older edition"):
        fetched("toy")


def refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise KeyboardInterrupt


def interrupted(patch: pytest.MonkeyPatch, point: str, stop: Callable[..., NoReturn]) -> None:
    """Let ``stop`` be called at a point of the next fetch."""
    if point in ("obtain", "write_manifest"):
        patch.setattr(by_name, point, stop)
    elif point == "make":
        patch.setattr(catalogue, "CATALOGUE", (replace(entry("toy"), make=lambda making: write_some(making, stop)),))
    else:
        rename, renames = Path.replace, []

        def replace_or_stop(path: Path, target: Path) -> Path:
            renames.append(path)
            return stop() if len(renames) == int(point.split()[1]) else rename(path, target)

        patch.setattr(Path, "replace", replace_or_stop)


def write_some(making: Making, stop: Callable[..., NoReturn]) -> NoReturn:
    copy_data(making)
    stop()


POINTS = ["obtain", "make", "write_manifest", "rename 1"]
POINTS_WHEN_FORCED = [*POINTS, "rename 2"]


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_fetch_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    with monkeypatch.context() as patch:
        interrupted(patch, point, refuse)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy")
    assert contents(cache) == set()
    fetch("toy")
    assert contents(cache) == WHOLE


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_forced_fetch_keeps_what_was_there(
    cache: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    fetch("toy")
    with monkeypatch.context() as patch:
        interrupted(patch, point, refuse)
        with pytest.raises(KeyboardInterrupt):
            fetch("toy", force=True)
    assert contents(cache) == WHOLE
    assert (fetched("toy") / "data.txt").read_text() == "hello"


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import pytest
from fetching.local_index import offer, toy_entry
from fetching.test_fetch import interrupted
from tfm_lab.fetching import fetch
wheel = Path({wheel!r})
for line in sys.stdin:
    force, point = line.rstrip().split(":")
    process = os.fork()
    if not process:
        patch = pytest.MonkeyPatch()
        offer(patch, toy_entry(wheel), wheel.parent)
        interrupted(patch, point, lambda *arguments, **options: os._exit(9))
        fetch("toy", wheels=[wheel], force=force == "forced")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
def test_a_killed_fetch_leaves_nothing_that_passes_for_complete(cache: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "index" / FILE
    script = KILLED.format(tests=str(Path(__file__).parent.parent), wheel=str(wheel))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for force, points in (("first", POINTS), ("forced", POINTS_WHEN_FORCED)):
            for point in points:
                if force == "first":
                    shutil.rmtree(cache, ignore_errors=True)
                process.stdin.write(f"{force}:{point}\n")
                assert process.stdout.readline().strip() == "9"
                assert any(name.startswith(".toy.") for name in contents(cache)), "scratch of the killed process"
                if force == "forced" and point != "rename 2":
                    assert (fetched("toy") / "data.txt").read_text() == "hello"
                else:
                    with pytest.raises(ValueError, match="has not been fetched"):
                        fetched("toy")
                fetch("toy", wheels=[wheel])
                assert contents(cache) == WHOLE
                assert (cache / "toy" / "data.txt").read_text() == "hello"


def test_remains_are_removed_and_the_files_of_others_are_not(cache: Path) -> None:
    for name in (".toy.download.abc", ".toy.old", ".toybox.abc", "other"):
        (cache / name).mkdir(parents=True)
        (cache / name / "file").write_text("x")
    (cache / ".toy.note").write_text("a file, not a scratch folder")
    fetch("toy")
    kept = {".toybox.abc", ".toybox.abc/file", "other", "other/file", ".toy.note"}
    assert contents(cache) == WHOLE | kept


def test_a_second_fetch_waits_for_the_first(cache: Path) -> None:
    cache.mkdir()
    told: list[str] = []
    waits = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        waits.set()

    with FileLock(cache / LOCK):
        second = threading.Thread(target=fetch, args=("toy",), kwargs={"tell": tell})
        second.start()
        assert waits.wait(60)
        assert told == [f"waiting for another fetch into {cache}"]
        assert contents(cache) == set()
    second.join(60)
    assert not second.is_alive()
    assert contents(cache) == WHOLE


def refused(sentence: str, cache: Path, **options: Any) -> None:
    before = contents(cache) if cache.exists() else set()
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        fetch("toy", **options)
    assert "\n" not in str(caught.value)
    assert (contents(cache) if cache.exists() else set()) == before


def test_another_file_under_the_same_name_is_refused(pip_cache: Path, tmp_path: Path) -> None:
    pinned = entry("toy").wheels[0].sha256
    found = toy_wheel(write_wheel(tmp_path / "index", "changed")).sha256
    refused(f"{FILE} from the package index has sha256 {found} instead of {pinned}; nothing was kept", pip_cache)


def test_without_a_network_pip_is_quoted_and_the_way_out_named(
    pip_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, entry("toy"), None)
    refused(
        "pip could not download toy-prompts==1.0 (No matching distribution found for toy-prompts==1.0); check the "
        f"network connection and try again, or get {FILE} on another machine and give it with --wheel",
        pip_cache,
    )


def test_a_python_without_pip_is_told(pip_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess([], 1, stdout="", stderr="/usr/bin/python3: No module named pip\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: answer)
    refused("pip could not download toy-prompts==1.0 (/usr/bin/python3: No module named pip)", pip_cache)


def test_a_wheel_file_that_is_none_is_refused(cache: Path, tmp_path: Path) -> None:
    wrong = write_wheel(tmp_path / "elsewhere", "changed")
    refused(f"which is not {FILE} (sha256 {entry('toy').wheels[0].sha256}); give that file", cache, wheels=[wrong])
    refused(f"there is no wheel {tmp_path / 'nosuch'}", cache, wheels=[tmp_path / "nosuch"])


def test_a_full_disk_is_seen_before_anything_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "CATALOGUE", (replace(entry("toy"), needed_bytes=10**18),))
    monkeypatch.setattr(by_name, "obtain", refuse)
    refused(f"are free in {cache} and 1000000000000 MB are needed; free some space, or name another folder", cache)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(errno.ENOSPC, "is full; nothing was kept: free some space"), (errno.EACCES, "cannot be used (")],
)
def test_a_disk_that_fails_half_way_is_told_in_one_sentence(
    cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, sentence: str
) -> None:
    def fail(making: Making) -> None:
        copy_data(making)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(catalogue, "CATALOGUE", (replace(entry("toy"), make=fail),))
    refused(sentence, cache)


def test_a_cache_that_is_a_file_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFM_LAB_CACHE", str(tmp_path / "index" / FILE))
    with pytest.raises(ValueError, match=r"cannot be used .*; name another one in TFM_LAB_CACHE"):
        fetch("toy")


def test_an_unknown_name_is_refused(cache: Path) -> None:
    for function in (fetch, fetched):
        with pytest.raises(ValueError, match="there is nothing called 'nosuch' to fetch; use toy"):
            function("nosuch")


def test_the_cache_is_the_users_unless_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFM_LAB_CACHE", "~/models")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "models"
    for value in (None, ""):
        monkeypatch.delenv("TFM_LAB_CACHE", raising=False) if value is None else monkeypatch.setenv("TFM_LAB_CACHE", "")
        assert cache_folder().name == "tfm_lab"
        assert cache_folder().is_absolute()


def test_pinned_entries_are_well_formed() -> None:
    for known in catalogue.CATALOGUE:
        assert known.needed_bytes > sum(wheel.size for wheel in known.wheels)
        for wheel in known.wheels:
            assert len(bytes.fromhex(wheel.sha256)) == 32
            assert wheel.file.startswith(f"{wheel.package.replace('-', '_')}-{wheel.version}-")
