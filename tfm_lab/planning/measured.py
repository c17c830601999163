"""What this package has measured of a full-size model, if it has."""

import json
from pathlib import Path

from tfm_lab.planning.curves import RESULTS

FULL_MODEL = RESULTS / "model_h200.json"
NOT_MEASURED = "The step of a model of the paper's size is not measured yet by this package."


def full_model_note(file: Path = FULL_MODEL) -> str:
    """Where the measured steps of a full-size model are, or that there are none.

    Only the provenance is read, which every result file has; the table itself is in the page beside the file.
    """
    if not file.exists():
        return NOT_MEASURED
    facts = json.loads(file.read_text())["provenance"]
    where = f"{facts['device']}, {facts['date']}, commit {facts['commit']}"
    return f"The step of a model of the paper's size, measured on {where}: see tfm_lab/results/{file.stem}.md."
