"""The published form of a comparison of bundles: tables, what one has to know about them, and three files."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from tfm_lab.evaluation.comparison import BundleRecords, ComparedSetting
from tfm_lab.evaluation.documents import BOOTSTRAP, gain_figures, publish, summary_to_dict
from tfm_lab.evaluation.records import DRAFTING
from tfm_lab.evaluation.tables import NOTHING, Table, bounds, number, percent, percent_bounds
from tfm_lab.provenance import describe_run

TITLE = "Bundles compared for one target"
WHAT = "mean accepted length of several bundles on the same contexts (bonus included; intervals over contexts)"


def bundle_table(bundles: Sequence[BundleRecords]) -> Table:
    """Every bundle with its fingerprints and where its records were made."""
    rows = [
        (
            bundle.name,
            *(bundle.fingerprints[model] or NOTHING for model in DRAFTING),
            str(len({record["context"] for record in bundle.records})),
            str(len(bundle.records)),
            "; ".join(bundle.devices),
            str(bundle.path),
        )
        for bundle in bundles
    ]
    note = f"The first bundle, {bundles[0].name}, is the reference. Models by fingerprint."
    return Table("Bundles", note, ("bundle", *DRAFTING, "texts", "records", "records made on", "file"), rows)


def comparison_table(compared: Sequence[ComparedSetting], reference: str) -> Table:
    """MAL of every bundle under every setting, and its gain over the reference."""
    mixed = len({c.summary.replayed for c in compared}) > 1
    rows = [
        (
            f"{c.summary.setting.temperature:g}",
            f"{c.summary.setting.label}, replayed" if mixed and c.summary.replayed else c.summary.setting.label,
            str(c.summary.setting.budget),
            c.bundle,
            str(c.summary.contexts),
            number(c.summary.interval.value, 3),
            bounds(c.summary.interval, 3),
            number(c.summary.macro.value, 3),
            bounds(c.summary.macro, 3),
            *_gain_cells(c),
        )
        for c in compared
    ]
    note = (
        f"Gain: relative gain in MAL over {reference}, paired by prompt, on the paired texts alone; MAL is over all "
        "texts of the bundle. Unpaired: texts that count for one of the two alone. The macro average is the mean of "
        "the MALs of the kinds of text. Percentile-bootstrap intervals of fewer than about 20 texts (per kind, for the "
        "macro average) are too narrow."
    )
    header = ("T", "method", "B", "bundle", "texts", "MAL", "95 % interval", "macro MAL", "95 % interval")
    header += ("paired texts", "unpaired", "gain", "95 % interval", "macro gain", "95 % interval")
    return Table(f"Gains over {reference}", note, header, rows)


def comparison_notes(bundles: Sequence[BundleRecords], compared: Sequence[ComparedSetting]) -> list[str]:
    """What one has to know to read the figures: dropped texts, devices, texts that are not the same."""
    reference = bundles[0].name
    notes = [
        f"{one.name} and {other.name} are the same bundle: all fingerprints agree."
        for one, other in combinations(bundles, 2)
        if one.fingerprints == other.fingerprints
    ]
    if len({device for bundle in bundles for device in bundle.devices}) > 1:
        told = "; ".join(f"{bundle.name}: {' and '.join(bundle.devices)}" for bundle in bundles)
        notes.append(f"The records were made on different devices ({told}), whose rounding may part texts.")
    for bundle in bundles[1:]:
        of_bundle = [c for c in compared if c.bundle == bundle.name and c.gain is not None]
        most, least = max(c.only_reference for c in of_bundle), max(c.only_bundle for c in of_bundle)
        if most or least:
            notes.append(
                f"Dropped from the pairing of {bundle.name} with {reference}, in the setting with the most: {most} "
                f"texts that only {reference} has, {least} that only {bundle.name} has."
            )
        for is_sampled in (False, True):
            alike = [c for c in of_bundle if (c.summary.setting.temperature > 0.0) == is_sampled]
            worst = max((c.other_lengths for c in alike), default=0)
            if worst:
                manner = "Sampled" if is_sampled else "Greedy"
                notes.append(
                    f"{manner} texts of {bundle.name} and {reference} are not all the same: in the setting with the "
                    f"most, {worst} pairs differ in length. They are paired by prompt all the same."
                )
    if any(c.gain is not None and not c.summary.replayed and c.summary.setting.temperature > 0.0 for c in compared):
        notes.append("Decoded above temperature 0, bundles may write different texts to a prompt; prompts are paired.")
    return notes


def write_comparison(bundles: Sequence[BundleRecords], compared: Sequence[ComparedSetting], path: Path) -> None:
    """Write ``path`` (JSON), and tables (``.md``) and a page (``.html``) beside it; all or nothing.

    Raises:
        OSError: if a file cannot be written.
    """
    reference = bundles[0]
    notes = comparison_notes(bundles, compared)
    setup = {name: value for name, value in reference.header.items() if name not in DRAFTING}
    document = {
        "what": WHAT,
        "provenance": describe_run("cpu"),
        "setup": {"reference": reference.name} | setup | {"bootstrap": BOOTSTRAP},
        "bundles": [_bundle_to_dict(bundle) for bundle in bundles],
        "notes": notes,
        "settings": [_compared_to_dict(c) for c in compared],
    }
    publish(path, TITLE, document, notes, [comparison_table(compared, reference.name), bundle_table(bundles)])


def _gain_cells(c: ComparedSetting) -> tuple[str, ...]:
    if c.gain is None:
        return (NOTHING,) * 6
    return (
        str(c.gain.contexts),
        str(c.only_reference + c.only_bundle),
        percent(c.gain.overall.value, signed=True),
        percent_bounds(c.gain.interval),
        percent(c.gain.macro.value, signed=True),
        percent_bounds(c.gain.macro),
    )


def _bundle_to_dict(bundle: BundleRecords) -> dict[str, Any]:
    made_on = {"records made on": bundle.devices}
    about = {"name": bundle.name, "file": str(bundle.path), "records": len(bundle.records)}
    return about | bundle.fingerprints | made_on


def _compared_to_dict(c: ComparedSetting) -> dict[str, Any]:
    dropped = {"only_reference": c.only_reference, "only_bundle": c.only_bundle, "other_lengths": c.other_lengths}
    gain = None if c.gain is None else gain_figures(c.gain) | dropped
    return {"bundle": c.bundle} | summary_to_dict(c.summary) | {"gain": gain}
