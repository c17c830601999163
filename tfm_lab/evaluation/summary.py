"""Tables from evaluation records."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tfm_lab.metrics import Estimate, ratio_estimate


class Summary(NamedTuple):
    """One setting over all contexts, or over those of one kind.

    Attributes:
        mal: mean accepted length, bonus included, with its standard error over contexts.
        contexts: contexts that count.
        left_out: contexts left out because their plain continuation repeats itself.
        acceptance: share of steps that accepted at least d drafts, for d = 1, 2, ...
        calls_per_step: sequential Weaver calls per target call.
    """

    method: str
    budget: int
    temperature: float
    kind: str
    mal: Estimate
    contexts: int
    left_out: int
    target_calls: int
    acceptance: tuple[float, ...]
    calls_per_step: float


def summarise(records: Sequence[dict[str, Any]], *, by_kind: bool = False) -> list[Summary]:
    """One summary per setting, in the order in which settings first appear; with ``by_kind`` also one per kind."""
    settings = dict.fromkeys((r["temperature"], r["method"], r["budget"]) for r in records)
    kinds = ["all", *sorted({r["kind"] for r in records})] if by_kind else ["all"]
    summaries: list[Summary] = []
    for temperature, method, budget in sorted(settings, key=lambda s: (s[0], list(settings).index(s))):
        chosen = [r for r in records if (r["temperature"], r["method"], r["budget"]) == (temperature, method, budget)]
        for kind in kinds:
            group = [r for r in chosen if kind in ("all", r["kind"])]
            summaries.append(_summary(group, method, budget, temperature, kind))
    return summaries


def gain(records: Sequence[dict[str, Any]], better: str, baseline: str, budget: int, temperature: float) -> Estimate:
    """Relative gain in MAL of one method over another on the same contexts, with a paired standard error.

    The error is that of the ratio of two ratios, contexts as units, by the delta method.
    """
    pairs: dict[str, dict[str, dict[str, Any]]] = {}
    for record in records:
        if record["budget"] == budget and record["temperature"] == temperature and "left_out" not in record:
            pairs.setdefault(record["context"], {})[record["method"]] = record
    both = [pair for pair in pairs.values() if better in pair and baseline in pair]
    top, bottom = (
        ratio_estimate([p[m]["committed"] for p in both], [p[m]["target_calls"] for p in both])
        for m in (better, baseline)
    )
    if len(both) < 2:
        return Estimate(float("nan"), float("nan"))
    total = {m: sum(p[m]["target_calls"] for p in both) for m in (better, baseline)}
    influences = [
        (p[better]["committed"] - top.value * p[better]["target_calls"]) / (total[better] * top.value)
        - (p[baseline]["committed"] - bottom.value * p[baseline]["target_calls"]) / (total[baseline] * bottom.value)
        for p in both
    ]
    ratio = top.value / bottom.value
    spread = sum(influence**2 for influence in influences) * len(both) / (len(both) - 1)
    return Estimate(ratio - 1.0, ratio * spread**0.5)


def markdown_table(summaries: Iterable[Summary]) -> str:
    """The summaries as a Markdown table."""
    lines = [
        "| T | method | B | texts | MAL | standard error | target calls | Weaver calls / step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in summaries:
        label = s.method if s.kind == "all" else f"{s.method}, {s.kind}"
        lines.append(
            f"| {s.temperature:g} | {label} | {s.budget} | {s.contexts} | {s.mal.value:.3f} | "
            f"{s.mal.standard_error:.3f} | {s.target_calls} | {s.calls_per_step:.1f} |"
        )
    return "\n".join(lines) + "\n"


def _summary(records: Sequence[dict[str, Any]], method: str, budget: int, temperature: float, kind: str) -> Summary:
    counted = [r for r in records if "left_out" not in r]
    calls = [float(r["target_calls"]) for r in counted]
    steps = sum(calls)
    deepest = max((len(r["depths"]) for r in counted), default=0)
    accepted = [sum(r["depths"][d][1] for r in counted if d < len(r["depths"])) for d in range(deepest)]
    return Summary(
        method,
        budget,
        temperature,
        kind,
        ratio_estimate([float(r["committed"]) for r in counted], calls),
        len(counted),
        len(records) - len(counted),
        int(steps),
        tuple(count / steps for count in accepted) if steps else (),
        sum(r["drafter_calls"] for r in counted) / steps if steps else float("nan"),
    )
