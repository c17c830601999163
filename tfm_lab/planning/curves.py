"""Mean accepted length by budget: measured curves of the shipped models, typed ones, and what a width keeps of them."""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tfm_lab
from tfm_lab.drafting import TreeConfig, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.planning.costs import rule_width
from tfm_lab.theory import MarkovWorld
from tfm_lab.theory.worlds import perfect_source

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
        """MAL of a plan: 1 for ``ar``; TfM's is scaled by what the width keeps of it in the toy world.

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
    """MAL of a tree grown ``width`` nodes at a time over that of one grown node by node, in a toy world; exact.

    No result file varies the width, so the shape comes from the mean over the four most frequent contexts of a Markov
    world (32 tokens, concentration 0.1) with a drafter that knows its path.
    """
    return _toy_mal(budget, width) / _toy_mal(budget, 1)


@functools.cache
def _toy_mal(budget: int, width: int) -> float:
    world = MarkovWorld.dirichlet(32, 0.1, seed=1)
    transitions = world.transitions.tolist()
    total, contexts = 0.0, world.stationary().topk(4).indices.tolist()
    config = TreeConfig(budget=budget, max_depth=CHAIN_NODES, width=width, children=8)
    for context in contexts:
        tree = woven(context, perfect_source(world.at(context), CHAIN_NODES), config, SeededDraws(0)).tree
        tokens, parents, mass = tree.tokens.tolist(), tree.parents.tolist(), [1.0]
        for node in range(1, len(tree)):
            mass.append(mass[parents[node]] * transitions[tokens[parents[node]]][tokens[node]])
        total += sum(mass)
    return total / len(contexts)
