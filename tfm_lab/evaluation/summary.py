"""Figures from evaluation records: MAL with intervals, macro averages, acceptance by depth, paired gains."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tfm_lab.evaluation.records import Record, key_of
from tfm_lab.evaluation.runs import REPEATS
from tfm_lab.evaluation.settings import Setting
from tfm_lab.evaluation.statistics import UNKNOWN, Bounded, Counts, gain_of_ratios, mean_ratio
from tfm_lab.metrics import Estimate, ratio_estimate

ALL = "all"
BASELINES = ("ddtree", "chain", "ard-tree", "ard-chain")
COMPARED = ("tfm", "dyspec", "ranked")


class Summary(NamedTuple):
    """One setting over all contexts, or over those of one kind.

    Attributes:
        replayed: whether texts written beforehand were replayed; nothing was decoded then.
        mal: mean accepted length, bonus included, with its standard error over contexts.
        interval: the same with its bootstrap interval over contexts.
        macro: mean of the MALs of the kinds of text, resampled kind by kind; unknown for a single kind.
        contexts: contexts that count.
        left_out: contexts left out because their plain continuation repeats itself.
        too_long: contexts left out because they do not fit the target's context.
        acceptance: share of steps that accepted at least d drafts, for d = 1, 2, ...
        conditional: the same share among the steps whose tree had a node of that depth below the accepted path.
        calls_per_step: sequential calls of Weaver or autoregressive drafter per target call (NaN if replayed).
        tokens_per_second: tokens over time in steps, prefill left out (NaN if replayed, or on several devices).
    """

    setting: Setting
    replayed: bool
    kind: str
    mal: Estimate
    interval: Bounded
    macro: Bounded
    contexts: int
    left_out: int
    too_long: int
    target_calls: int
    acceptance: tuple[float, ...]
    conditional: tuple[float, ...]
    calls_per_step: float
    tokens_per_second: float


class PairedGain(NamedTuple):
    """Relative gain in MAL on the same contexts.

    Attributes:
        contexts: pairs that count.
        overall: relative gain in MAL, with its standard error.
        interval: the same with its bootstrap interval, contexts resampled in pairs.
        macro: relative gain in the macro average, contexts resampled kind by kind.
    """

    contexts: int
    overall: Estimate
    interval: Bounded
    macro: Bounded


class Gain(NamedTuple):
    """TfM against a baseline with trees of the same size, on the same contexts.

    Attributes:
        baseline: another method, or TfM with its usual numbers.
        contexts, overall, interval, macro: as in :class:`PairedGain`.
    """

    setting: Setting
    baseline: Setting
    contexts: int
    overall: Estimate
    interval: Bounded
    macro: Bounded


def summarise(records: Sequence[Record], *, by_kind: bool = False) -> list[Summary]:
    """One summary per setting, in the order in which settings first appear; with ``by_kind`` also one per kind."""
    groups: dict[tuple[Setting, bool], list[Record]] = {}
    for record in records:
        key = key_of(record)
        groups.setdefault((key.setting, key.replayed), []).append(record)
    kinds = [ALL, *sorted({record["kind"] for record in records})] if by_kind else [ALL]
    return [
        _summary([r for r in chosen if kind in (ALL, r["kind"])], setting, replayed, kind)
        for (setting, replayed), chosen in sorted(groups.items(), key=lambda group: group[0][0].temperature)
        for kind in kinds
    ]


def gains(records: Sequence[Record]) -> list[Gain]:
    """Every setting of TfM against the baselines whose trees have the same size, and against its usual numbers.

    A setting has usual numbers if nothing but its budget, temperature and noise were chosen. TfM's sampled trees are
    compared with its fixed ones as well.
    """
    settings = dict.fromkeys(key_of(record).setting for record in records)
    found: list[Gain] = []
    compared = (setting for setting in settings if setting.method in COMPARED)
    for setting in sorted(compared, key=lambda s: (s.temperature, COMPARED.index(s.method))):
        for name in (*BASELINES, *(() if setting.method == COMPARED[0] else COMPARED[:1])):
            baseline = replace(setting, method=name).essential
            if baseline in settings:
                found.append(gain(records, setting, baseline))
        usual = Setting(
            setting.method, setting.budget, setting.temperature, shared_noise=setting.shared_noise
        ).essential
        if usual != setting and usual in settings:
            found.append(gain(records, setting, usual))
    return found


def gain(records: Sequence[Record], better: Setting, baseline: Setting) -> Gain:
    """Relative gain in MAL of one setting over another on the contexts that both have, decoded or replayed alike."""
    pairs: dict[tuple[str, str, bool], dict[Setting, Record]] = {}
    for record in records:
        key = key_of(record)
        if key.setting in (better, baseline) and "left_out" not in record:
            pairs.setdefault((key.context, key.prompt, key.replayed), {})[key.setting] = record
    return Gain(better, baseline, *paired_gain([(p[better], p[baseline]) for p in pairs.values() if len(p) == 2]))


def paired_gain(pairs: Sequence[tuple[Record, Record]]) -> PairedGain:
    """Relative gain in MAL of the first records over the second, each pair of one context and with figures.

    The standard error is that of the ratio of two ratios, contexts as units, by the delta method.
    """
    counts = np.array(
        [[top["committed"], top["target_calls"], low["committed"], low["target_calls"]] for top, low in pairs],
        dtype=np.float64,
    ).reshape(-1, 4)
    kinds = [top["kind"] for top, _ in pairs]
    interval, macro = gain_of_ratios([counts]), gain_of_ratios(_by_kind(counts, kinds))
    return PairedGain(len(pairs), Estimate(interval.value, _gain_error(counts)), interval, macro)


def _gain_error(counts: Counts) -> float:
    texts, total = len(counts), counts.sum(axis=0)
    if texts < 2 or not total.all():
        return math.nan
    top, low = total[0] / total[1], total[2] / total[3]
    influence = (counts[:, 0] - top * counts[:, 1]) / total[0] - (counts[:, 2] - low * counts[:, 3]) / total[2]
    return float(top / low * math.sqrt((influence**2).sum() * texts / (texts - 1)))


def _summary(records: Sequence[Record], setting: Setting, replayed: bool, kind: str) -> Summary:
    counted = [record for record in records if "left_out" not in record]
    repeating = sum(record.get("left_out") == REPEATS for record in records)
    pairs = [[record["committed"], record["target_calls"]] for record in counted]
    counts = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    steps = int(counts[:, 1].sum())
    deepest = max((len(record["depths"]) for record in counted), default=0)
    reached, accepted = (
        [sum(r["depths"][depth][column] for r in counted if depth < len(r["depths"])) for depth in range(deepest)]
        for column in (0, 1)
    )
    calls = [record["drafter_calls"] for record in counted]
    macro = mean_ratio(_by_kind(counts, [r["kind"] for r in counted])) if kind == ALL else UNKNOWN
    return Summary(
        setting,
        replayed,
        kind,
        ratio_estimate(counts[:, 0].tolist(), counts[:, 1].tolist()),
        mean_ratio([counts]),
        macro if len({record["kind"] for record in counted}) > 1 else UNKNOWN,
        len(counted),
        repeating,
        len(records) - len(counted) - repeating,
        steps,
        tuple(count / steps for count in accepted) if steps else (),
        tuple(a / r if r else math.nan for a, r in zip(accepted, reached, strict=True)),
        sum(calls) / steps if steps and None not in calls else math.nan,
        math.nan if replayed else _speed(counted),
    )


def _speed(records: Sequence[Record]) -> float:
    seconds = sum(sum(record["seconds"]) for record in records)
    if seconds == 0.0 or len({record["device"] for record in records}) > 1:
        return math.nan
    return sum(record["committed"] for record in records) / seconds


def _by_kind(counts: Counts, kinds: Sequence[str]) -> list[Counts]:
    return [counts[[other == kind for other in kinds]] for kind in sorted(set(kinds))]
