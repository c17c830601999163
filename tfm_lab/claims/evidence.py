"""Finds the numbers behind the claims: in the stored outputs of the notebooks, and in the result files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from tfm_lab.claims.records import Claim, Finding, Link, MetricLink, ResultLink, SpeedLink
from tfm_lab.planning import FullModel, read_full_model
from tfm_lab.planning.measured import FULL_MODEL
from tfm_lab.planning.replayed import speed_up
from tfm_lab.recording import METRIC_MIME


@dataclass(frozen=True, slots=True)
class Found:
    """A number with the place that it comes from.

    Attributes:
        link: what was looked for.
        finding: the number.
        text: value with its error, for a reader.
        place: notebook and heading, or result file.
        href: relative address from the folder of the notebooks.
        cell: id of the cell that records it; empty for a result file.
        code: source of that cell, or the command that made the result file.
        origin: device, date and commit of a result; empty for a notebook.
    """

    link: Link
    finding: Finding
    text: str
    place: str
    href: str
    cell: str
    code: str
    origin: str


def find(claim: Claim, notebooks: Path) -> list[Found]:
    """All numbers behind a claim.

    Args:
        claim: the claim.
        notebooks: folder of the series, with stored outputs.

    Raises:
        FileNotFoundError: if a notebook or result file is missing.
        ValueError: if a number is not where the claim says.
    """
    found: list[Found] = []
    for link in claim.evidence:
        match link:
            case MetricLink():
                found.append(_metric(link, notebooks))
            case SpeedLink():
                found.append(_speed(link, claim.threshold))
            case ResultLink():
                found.append(_result(link, claim.threshold))
    return found


def _metric(link: MetricLink, notebooks: Path) -> Found:
    path = notebooks / f"{link.notebook}.ipynb"
    if not path.is_file():
        raise FileNotFoundError(f"there is no notebook {path}: the ledger needs the stored outputs of the whole series")
    heading = link.notebook
    for cell in _cells(path):
        if cell.cell_type == "markdown":
            titles = [line.lstrip("# ").strip() for line in cell.source.splitlines() if line.startswith("#")]
            heading = titles[-1] if titles else heading
        for output in cell.get("outputs", []):
            fields = output.get("data", {}).get(METRIC_MIME, {})
            if fields.get("name") == link.metric:
                value, kind = fields["value"], fields["kind"]
                finding = Finding(float(value), kind, is_count=kind in ("exact", "identity"))
                shown = "below 1e-9" if kind == "identity" and value <= 1e-9 else _number(value)
                href = f"{link.notebook}.ipynb#{heading.replace(' ', '-')}"
                place = f"{link.notebook[:2]}, {heading}"
                return Found(link, finding, shown, place, href, cell["id"], cell.source, "")
    raise ValueError(
        f"{path.name} has no stored number {link.metric}: run it and store its outputs, tfm-lab run "
        f"{link.notebook[:2]} --render"
    )


def _result(link: ResultLink, threshold: float | None) -> Found:
    data = _result_file(link.file)
    parent = _follow(data, link.path[:-1], link)
    value = _follow(parent, link.path[-1:], link)
    ends = [_follow(parent, (end,), link) for end in link.error]
    if link.over:
        below = _follow(data, link.over[:-1], link)
        value /= _follow(below, link.over[-1:], link)
        low, high = (_follow(below, (end,), link) for end in link.error)
        ends = [ends[0] / high, ends[1] / low]
    scale, unit = (100, " %") if link.percent else (1, "")
    text = f"{scale * value:{'' if link.over else '+'}.1f}{unit}" if link.percent else _number(value)
    error = None
    if len(ends) == 2:
        error = (ends[1] - ends[0]) / 2
        form = ".4g" if link.over and not link.percent else ".3g"
        text += f" [{scale * ends[0]:{form}}, {scale * ends[1]:{form}}]"
    elif ends:
        error = ends[0]
        text += f" ± {scale * error:.2g}{unit}"
    made = data["provenance"]
    reaches = threshold if link.percent and not link.over else None
    finding = Finding(float(value), "measured", error, not link.error, made["device"], reaches)
    return _from_file(link, link.file, finding, text, made)


def _speed(link: SpeedLink, threshold: float | None) -> Found:
    model = _full_model()
    found = speed_up(model, link.suite, link.method, link.over)
    if found is None:
        raise ValueError(f"{FULL_MODEL.name} has no decode of {link.method} over {link.over} on {link.suite}")
    finding = Finding(found.value, "measured", found.error, device=model.device, reaches=threshold)
    text = f"{found.value:.2f} ± {found.error:.2f}"
    return _from_file(link, FULL_MODEL.name, finding, text, _result_file(FULL_MODEL.name)["provenance"])


def _from_file(link: Link, file: str, finding: Finding, text: str, made: Mapping[str, Any]) -> Found:
    origin = f"{made['device']}, {made['date']}, commit {made['commit']}"
    return Found(link, finding, text, file, f"../tfm_lab/results/{file}", "", made["command"], origin)


@cache
def _full_model() -> FullModel:
    return read_full_model()


@cache
def _cells(path: Path) -> Sequence[NotebookNode]:
    return nbformat.read(path, as_version=4).cells


@cache
def _result_file(name: str) -> Any:
    source = files("tfm_lab").joinpath("results", name)
    if not source.is_file():
        raise FileNotFoundError(f"there is no result file {name}: the ledger names one that is missing")
    return json.loads(source.read_text())


def _follow(data: Any, path: Sequence[str], link: ResultLink) -> Any:
    for step in path:
        if "=" in step:
            wanted = [(key.split("."), text) for key, _, text in (part.partition("=") for part in step.split("; "))]
            chosen = [item for item in data if all(str(_follow(item, key, link)) == text for key, text in wanted)]
            if len(chosen) != 1:
                raise ValueError(f"{link.file}: {len(chosen)} entries have {step}, and the ledger needs one")
            data = chosen[0]
        elif step in data:
            data = data[step]
        else:
            raise ValueError(f"{link.file} has no {' / '.join(link.path)}: {step} is missing")
    return data


def _number(value: float | str | bool) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
