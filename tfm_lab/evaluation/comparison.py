"""Records of several bundles for one target, side by side: what an ablation of training gained, text by text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tfm_lab.evaluation.records import DRAFTING, Record, differences, key_of, read_evaluation
from tfm_lab.evaluation.settings import Setting
from tfm_lab.evaluation.summary import PairedGain, Summary, paired_gain, summarise

Manner = tuple[Setting, bool]
"""A setting, and whether it was replayed."""

TextName = tuple[str, str]
"""Name of a context and digest of its prompt."""


class BundleRecords(NamedTuple):
    """What one bundle's evaluation left.

    Attributes:
        header: of the file; its ``DRAFTING`` fields are the fingerprints.
        records: each key once.
    """

    name: str
    path: Path
    header: Record
    records: list[Record]

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """Of the models that draft; None for a model that the bundle has not."""
        return {model: self.header.get(model) for model in DRAFTING}

    @property
    def devices(self) -> list[str]:
        """Where the records were made."""
        return sorted({record["device"] for record in self.records})


class ComparedSetting(NamedTuple):
    """One setting of one bundle beside the same setting of the reference.

    Attributes:
        summary: over all texts that the bundle has.
        gain: over the reference, on texts that both have; None for the reference and where it lacks the setting.
        only_reference, only_bundle: texts that count for one of the two alone, dropped from the pairing.
        other_lengths: pairs whose texts have different lengths, so that the target did not write the same.
    """

    bundle: str
    summary: Summary
    gain: PairedGain | None
    only_reference: int = 0
    only_bundle: int = 0
    other_lengths: int = 0


def read_bundles(named: Sequence[tuple[str, Path]]) -> list[BundleRecords]:
    """Records files that may be compared, the reference first.

    Raises:
        ValueError: if there are fewer than two, two share a name, a file is missing, damaged or empty, or one does not
            fit the reference: made with another target, dtype, length or seed, on other prompts, or without a setting
            in common.
    """
    names = [name for name, _ in named]
    if len(named) < 2:
        raise ValueError("a comparison takes at least two files, NAME=records.jsonl each, the reference first")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two files are named {name!r}; give every file a name of its own")
    bundles = [_read(name, path) for name, path in named]
    for bundle in bundles[1:]:
        _check_pair(bundles[0], bundle)
    return bundles


def compare(bundles: Sequence[BundleRecords]) -> list[ComparedSetting]:
    """Every setting of every bundle, low temperatures first, the bundles in order for each setting.

    Args:
        bundles: from :func:`read_bundles`, the reference first.
    """
    reference = bundles[0]
    counted = {bundle.name: _counted(bundle.records) for bundle in bundles}
    summaries = {bundle.name: {(s.setting, s.replayed): s for s in summarise(bundle.records)} for bundle in bundles}
    manners = dict.fromkeys(manner for of_bundle in summaries.values() for manner in of_bundle)
    compared: list[ComparedSetting] = []
    for manner in sorted(manners, key=lambda manner: manner[0].temperature):
        for name, of_bundle in summaries.items():
            if manner not in of_bundle:
                continue
            if name == reference.name or manner not in summaries[reference.name]:
                compared.append(ComparedSetting(name, of_bundle[manner], None))
            else:
                texts, others = counted[name].get(manner, {}), counted[reference.name].get(manner, {})
                compared.append(_paired(name, of_bundle[manner], texts, others))
    return compared


def _paired(
    name: str, summary: Summary, texts: Mapping[TextName, Record], reference: Mapping[TextName, Record]
) -> ComparedSetting:
    pairs = [(record, reference[text]) for text, record in texts.items() if text in reference]
    return ComparedSetting(
        name,
        summary,
        paired_gain(pairs),
        len(reference) - len(pairs),
        len(texts) - len(pairs),
        sum(record["tokens"] != other["tokens"] for record, other in pairs),
    )


def _counted(records: Sequence[Record]) -> dict[Manner, dict[TextName, Record]]:
    """Records with figures, by setting and by text."""
    found: dict[Manner, dict[TextName, Record]] = {}
    for record in records:
        key = key_of(record)
        if "left_out" not in record:
            found.setdefault((key.setting, key.replayed), {})[key.context, key.prompt] = record
    return found


def _read(name: str, path: Path) -> BundleRecords:
    header, records = read_evaluation(path)
    if not records:
        raise ValueError(f"{path} has no records yet; run the evaluation of {name} again to complete it")
    return BundleRecords(name, path, header, list({key_of(record): record for record in records}.values()))


def _check_pair(reference: BundleRecords, bundle: BundleRecords) -> None:
    """Raise a ValueError unless texts of the two may be compared."""
    names = f"{bundle.name} and {reference.name}"
    different = [field for field in differences(reference.header, bundle.header) if field not in DRAFTING]
    if different:
        told = ", ".join(f"{f} {bundle.header.get(f)} and {reference.header.get(f)}" for f in different)
        raise ValueError(f"{names} cannot be compared ({told}); evaluate both for the same target in the same way")
    prompts, others = _prompts(bundle.records), _prompts(reference.records)
    for context in others:
        if context in prompts and not prompts[context] & others[context]:
            raise ValueError(
                f"{names} cannot be compared: context {context!r} has another prompt or kind in each; "
                "evaluate both on the same contexts"
            )
    if not prompts.keys() & others.keys():
        raise ValueError(f"{names} have no context in common; evaluate both on the same contexts")
    settings, of_reference = _manners(bundle.records), _manners(reference.records)
    if not settings & of_reference:
        is_manner_alone = {setting for setting, _ in settings} & {setting for setting, _ in of_reference}
        why = " (decoded and replayed records are not compared with each other)" if is_manner_alone else ""
        raise ValueError(f"{names} have no setting in common{why}; evaluate both with at least one setting alike")


def _prompts(records: Sequence[Record]) -> dict[str, set[tuple[str, str]]]:
    """Digest of the prompt and kind of text, by context."""
    found: dict[str, set[tuple[str, str]]] = {}
    for record in records:
        found.setdefault(record["context"], set()).add((record["prompt"], record["kind"]))
    return found


def _manners(records: Sequence[Record]) -> set[Manner]:
    return {(key.setting, key.replayed) for key in map(key_of, records)}
