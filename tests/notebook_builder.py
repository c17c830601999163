"""Small notebooks for the tests of the runner."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

IMPORTS = "import tfm_lab\nfrom tfm_lab.recording import record"
PARAMETERS = "BUDGET = 16  # proposed tokens"
METRIC = 'record("budget.doubled", BUDGET * 2, "exact")'


def notebook_of(*sources: str, parameters: str = PARAMETERS) -> NotebookNode:
    """A title, the imports, the parameters, then a code cell for each source; the ids are ``cell-0``, ``cell-1`` ..."""
    cells = [
        new_markdown_cell("# A notebook"),
        new_code_cell(IMPORTS),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        *(new_code_cell(source) for source in sources),
    ]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return new_notebook(cells=cells, metadata=metadata)


def write_notebook(folder: Path, *sources: str, name: str = "00_small", parameters: str = PARAMETERS) -> Path:
    """Write ``notebook_of(...)`` to ``folder/name.ipynb``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook_of(*sources, parameters=parameters), path)
    return path


EXPECTED = """
[00_small."budget.doubled"]
kind = "exact"
value = 32
why = "twice the default budget"
headline = "doubled budget"
"""
