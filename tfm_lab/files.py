"""Files that belong together appear together, whole."""

from collections.abc import Mapping
from pathlib import Path


def write_together(files: Mapping[Path, str]) -> None:
    """Write texts in UTF-8; all files are complete on the disk before the first one takes its place.

    Links are followed, folders are made. What stood there before stays if anything fails.

    Raises:
        OSError: if a file cannot be written.
    """
    places = {path.resolve(): text for path, text in files.items()}
    scratch = {place: place.with_name(f".{place.name}.part") for place in places}
    try:
        for place, text in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            scratch[place].write_text(text, encoding="utf-8")
        for place, part in scratch.items():
            part.replace(place)
    finally:
        for part in scratch.values():
            part.unlink(missing_ok=True)
