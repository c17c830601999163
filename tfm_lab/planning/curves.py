"""Mean accepted length by budget: measured curves of the shipped models, typed ones, and what a width keeps of them."""

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tfm_lab
from tfm_lab.planning.costs import rule_width

RESULTS = Path(tfm_lab.__file__).parent / "results"
METHODS = ("chain", "ddtree", "tfm")
CHAIN_NODES, MOST_NODES = 15, 256
"""A chain ends with the drafter's block, whatever the budget; larger trees than the other are not planned."""

FORM = "write it like  chain 15: 2.6; tfm 16: 3.9, 32: 4.4, 64: 4.9"


@dataclass(frozen=True, slots=True)
class MalCurve:
    """Mean accepted length (MAL), bonus included.

    Attributes:
        name: for menus.
        source: where it comes from, device included.
        points: method -> budget -> MAL. TfM's are for the width ceil(budget / 16).

    Raises:
        ValueError: if a method is unknown, a budget is not in 1 to 256, or a MAL is below 1 or above what the nodes
            allow.
    """

    name: str
    source: str
    points: Mapping[str, Mapping[int, float]]

    def __post_init__(self) -> None:
        for method, points in self.points.items():
            if method not in METHODS:
                raise ValueError(f"there is no method {method!r}; use {', '.join(METHODS)}")
            for budget, mal in points.items():
                if not 1 <= budget <= MOST_NODES:
                    raise ValueError(f"a budget lies between 1 and {MOST_NODES} nodes, got {budget}")
                if not 1.0 <= mal <= budget + 1:
                    raise ValueError(
                        f"{method} with {budget} nodes cannot have a MAL of {mal:g}: it lies between 1 and {budget + 1}"
                    )

    def mal(self, method: str, budget: int, width: int = 0) -> float:
        """MAL of a plan: 1 for ``ar``; TfM's is scaled by what the width keeps of it (:func:`kept_by_width`).

        Raises:
            KeyError: if the curve has no such point.
        """
        if method == "ar":
            return 1.0
        mal = self.points[method][budget]
        if method != "tfm" or width in (0, rule_width(budget)):
            return mal
        return mal * kept_by_width(budget, width) / kept_by_width(budget, rule_width(budget))


def result_curves(folder: Path = RESULTS) -> dict[str, MalCurve]:
    """The curves in ``hybrid_mal.json`` and ``smollm2_mal.json``, one per temperature, by name."""
    curves = [
        _curve(json.loads((folder / f"{bundle}_mal.json").read_text()), bundle, temperature)
        for bundle in ("smollm2", "hybrid")
        for temperature in (0.0, 1.0)
    ]
    return {curve.name: curve for curve in curves}


def _curve(document: Mapping[str, Any], bundle: str, temperature: float) -> MalCurve:
    points: dict[str, dict[int, float]] = {}
    for row in document["summaries"]:
        is_wanted = row["kind"] == "all" and row["temperature"] == temperature and row["method"] in METHODS
        if not is_wanted or row.get("shared_noise"):
            continue
        budget = CHAIN_NODES if row["method"] == "chain" else row["budget"]
        points.setdefault(row["method"], {})[budget] = float(row.get("macro", row["mal"])["value"])
    facts = document["provenance"]
    device = document["setup"].get("records made on", facts["device"])
    source = f"tfm_lab/results/{bundle}_mal.json: {device}, {facts['date']}, commit {facts['commit']}"
    return MalCurve(f"{bundle}, temperature {temperature:g}", source, points)


def typed_curve(text: str) -> MalCurve:
    """A curve as somebody types it: methods with their points, separated by semicolons.

    Raises:
        ValueError: with the form, if the text has another one; with what is wrong with a point.
    """
    points: dict[str, dict[int, float]] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        method, _, rest = part.partition(" ")
        found = re.findall(r"(\d+)\s*:\s*(\d+(?:\.\d+)?)", rest)
        if not found or re.sub(r"\d+\s*:\s*\d+(?:\.\d+)?|[\s,]", "", rest):
            raise ValueError(f"{part!r} is not understood: {FORM}")
        points.setdefault(method.lower(), {}).update({int(budget): float(mal) for budget, mal in found})
    if not points:
        raise ValueError(f"nothing is typed: {FORM}")
    return MalCurve("typed", "typed by you", points)


@functools.cache
def kept_by_width(budget: int, width: int) -> float:
    """Share of a TfM tree's MAL that is left when it is grown ``width`` nodes at a time.

    A call adds one level at most, so a tree grown in c calls has no path longer than c, and what a decode accepts below
    that is cut off. The shares of steps that accept at least 1, 2, ... drafts are SmolLM2's at temperature 0, with the
    recorded budget nearest to this one. Nodes that long paths leave to others are not counted: of 64 nodes grown 8 and
    16 at a time this keeps .93 and .72 where .95 and .76 were measured (``smollm2_width.json``).
    """
    recorded = _accepted_at_least()
    nearest = min(recorded, key=lambda known: abs(math.log(known / budget)))
    at_least, calls = recorded[nearest], -(-budget // width)
    return (1.0 + sum(at_least[:calls])) / (1.0 + sum(at_least))


@functools.cache
def _accepted_at_least() -> Mapping[int, Sequence[float]]:
    """Budget of a TfM tree -> shares of steps that accept at least 1, 2, ... drafts."""
    rows = json.loads((RESULTS / "smollm2_mal.json").read_text(encoding="utf-8"))["summaries"]
    chosen = [row for row in rows if (row["kind"], row["method"], row["temperature"]) == ("all", "tfm", 0.0)]
    return {row["budget"]: row["acceptance"] for row in chosen}
