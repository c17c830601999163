"""Read a notebook file, strictly: nbformat would repair missing or double cell ids in silence or with a warning."""

import json
from pathlib import Path

import nbformat
from nbformat import NotebookNode


def read_notebook(path: Path) -> NotebookNode:
    """The notebook at ``path``.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is no notebook of format 4.5, or its cell ids are missing or not unique.
    """
    try:
        text = path.read_text(encoding="utf-8")
        raw = json.loads(text)
        version, ids = (raw["nbformat"], raw["nbformat_minor"]), [cell.get("id") for cell in raw["cells"]]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise ValueError(f"{path.name} is not a notebook file") from None
    if version < (4, 5):
        raise ValueError(
            f"{path.name} has format {version[0]}.{version[1]}, it must be 4.5: there cells have stable ids"
        )
    if None in ids:
        raise ValueError(f"{path.name}: cell {ids.index(None) + 1} has no id, save the notebook in JupyterLab once")
    doubled = next((cell_id for cell_id in ids if ids.count(cell_id) > 1), None)
    if doubled is not None:
        raise ValueError(f"{path.name}: two cells have the id {doubled}, give one of them another")
    try:
        nbformat.validate(raw)
    except nbformat.ValidationError as error:
        raise ValueError(f"{path.name} is not a valid notebook: {error.message[:200]}") from None
    return nbformat.reads(text, as_version=4)
