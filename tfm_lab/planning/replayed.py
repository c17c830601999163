"""Speeds of whole decodes with replayed acceptance, with the error that the drawing leaves, and against a fit."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tfm_lab.planning.costs import PLAIN
from tfm_lab.planning.curves import RESULTS
from tfm_lab.planning.fitting import FittedCosts
from tfm_lab.planning.measured import NODES, Decode, FullModel

ANY = "any"
RECORDED = RESULTS / "smollm2_mal.json"


class SpeedUp(NamedTuple):
    """A speed over another one, with the standard error that comes from drawing how much each step accepts."""

    value: float
    error: float


def plain_decode(model: FullModel) -> Decode:
    """The faster of the plain decodes.

    Raises:
        ValueError: if there is none.
    """
    found = _of(model, PLAIN, ANY)
    if not found:
        raise ValueError("no plain decode was measured: measure one with tfm-lab bench model --replay-tokens")
    return max(found, key=lambda item: item.rate)


def speed_up(model: FullModel, suite: str, method: str, over: str = PLAIN, folder: Path = RESULTS) -> SpeedUp | None:
    """Speed of a method over another one on a kind of text; ``None`` if one of the two was not decoded.

    Args:
        model: the measurement.
        suite: kind of text.
        method, over: ``chain``, ``ddtree`` or ``tfm``, or ``ar`` for the faster way of plain decoding.
        folder: of the result files that acceptance was recorded in.

    Raises:
        ValueError: if the law of a decode is not where its record says.
    """
    found = [[plain_decode(model)] if name == PLAIN else _of(model, name, suite) for name in (method, over)]
    if not all(found):
        return None
    first, second = (items[0] for items in found)
    value = first.rate / second.rate
    errors = [drawn_error(item, model.temperature, folder) for item in (first, second)]
    return SpeedUp(value, value * math.hypot(*errors))


def drawn_error(decode: Decode, temperature: float, folder: Path = RESULTS) -> float:
    """Relative standard error of the tokens per step, because the accepted drafts of every step are drawn; 0 for plain.

    The variance is that of the law: E[A^2] is the sum of (2 d - 1) P(A >= d).

    Raises:
        ValueError: if the law is not where the record says.
    """
    if decode.plan.method == PLAIN:
        return 0.0
    wanted = (decode.suite, decode.plan.method, decode.recorded_budget)
    at_least = _law(*wanted, temperature, folder / decode.source)
    mean = sum(at_least)
    square = sum((2 * depth - 1) * share for depth, share in enumerate(at_least, start=1))
    return math.sqrt(max(square - mean**2, 0.0) / decode.steps) / (1.0 + mean)


def predicted_rate(fitted: FittedCosts, decode: Decode) -> float:
    """Tokens per second by the fitted steps: tokens per step over a step half way through the decode."""
    context = decode.context + decode.tokens // 2
    return decode.tokens / decode.steps / fitted.predict(decode.plan, context)


def recorded_length(suite: str, method: str, temperature: float, budget: int = NODES, file: Path = RECORDED) -> float:
    """Tokens per step that a trained model was recorded with, for decodes that were not measured.

    Raises:
        ValueError: if the file does not say.
    """
    return 1.0 + sum(_law(suite, method, budget, temperature, file))


def _of(model: FullModel, method: str, suite: str) -> list[Decode]:
    return [item for item in model.decodes if (item.plan.method, item.suite) == (method, suite)]


def _law(suite: str, method: str, budget: int, temperature: float, file: Path) -> tuple[float, ...]:
    """P(A >= d) for d = 1, 2, ..., A being the drafts that a step accepts."""
    wanted: Mapping[str, object] = {
        "kind": suite, "method": method, "budget": budget, "temperature": temperature, "shared_noise": False,
    }  # fmt: skip
    if file.is_file():
        for row in json.loads(file.read_text(encoding="utf-8"))["summaries"]:
            if all(row[name] == value for name, value in wanted.items()):
                return tuple(float(share) for share in row["acceptance"])
    raise ValueError(f"the acceptance of {method} on {suite} with {budget} nodes is not in {file.name}")
