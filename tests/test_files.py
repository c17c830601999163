"""Files that belong together are replaced together, or all stay as they were."""

from pathlib import Path
from typing import Any

import pytest

from tfm_lab.files import write_together


def test_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    first, second = tmp_path / "new" / "a.json", tmp_path / "b.md"
    write_together({first: "{}\n", second: "가\n"})
    assert first.read_bytes() == b"{}\n"
    assert second.read_bytes() == "가\n".encode()
    assert sorted(file.name for file in tmp_path.rglob("*") if file.is_file()) == ["a.json", "b.md"]


def test_a_link_goes_on_pointing_to_the_file(tmp_path: Path) -> None:
    place, link = tmp_path / "real.json", tmp_path / "link.json"
    place.write_text("old")
    link.symlink_to(place)
    write_together({link: "new"})
    assert link.is_symlink()
    assert place.read_text() == "new"


def test_all_stay_as_they_were_if_one_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.md", "c.html")]
    write_together(dict.fromkeys(paths, "old"))
    write_text = Path.write_text

    def full(file: Path, text: str, **options: Any) -> int:
        if ".c.html" in file.name:
            raise OSError(28, "No space left on device")
        return write_text(file, text, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            write_together(dict.fromkeys(paths, "new"))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {path.name: "old" for path in paths}
