"""Bundles compared text by text: figures by hand, what is paired, what is refused, and the report."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from evaluation_samples import HEADER, record, write_records

from tfm_lab.evaluation.comparison import BundleRecords, ComparedSetting, compare, read_bundles
from tfm_lab.evaluation.comparison_report import bundle_table, comparison_notes, comparison_table, write_comparison
from tfm_lab.evaluation.settings import Setting
from tfm_lab.evaluation.summary import gain, paired_gain, summarise

TFM = Setting("tfm", 16, 0.0)
BASE = [
    record("a1", "tfm", 4, 2, [[2, 2]]),
    record("b1", "tfm", 4, 4),
    record("c1", "tfm", 0, 0, left_out="repeats itself"),
]
WIDE = [
    record("a1", "tfm", 6, 2, tokens=5),
    record("b1", "tfm", 4, 2),
    record("c1", "tfm", 0, 0, left_out="repeats itself"),
]
Records = Sequence[dict[str, Any]]


def bundles(folder: Path, *several: Records, **changes: Any) -> list[BundleRecords]:
    """Files read back, named base, other, third; the header of all but the first has the changes."""
    names = ("base", "other", "third")[: len(several)]
    return read_bundles(
        [
            (name, write_records(folder / f"{name}.jsonl", records, **(changes if name != "base" else {})))
            for name, records in zip(names, several, strict=True)
        ]
    )


def only(compared: Sequence[ComparedSetting], bundle: str) -> ComparedSetting:
    (found,) = (c for c in compared if c.bundle == bundle)
    return found


def test_a_gain_by_hand(tmp_path: Path) -> None:
    """10 / 4 against 8 / 6, as a gain within one file (there by hand, too): 7 / 8, error 1/4, resamples 1/2 to 1."""
    base, other = compare(bundles(tmp_path, BASE, WIDE, weaver="weaver-2"))
    assert (base.bundle, base.gain, str(base.summary)) == ("base", None, str(summarise(BASE)[0]))
    assert other.gain is not None
    assert other.summary.interval.value == 10 / 4
    assert other.gain.overall == (pytest.approx(0.875), pytest.approx(0.25))
    assert other.gain.interval == (pytest.approx(0.875), pytest.approx(0.5), pytest.approx(1.0))
    assert other.gain.macro.value == pytest.approx((3 + 2) / (2 + 1) - 1)
    assert (other.gain.contexts, other.only_reference, other.only_bundle, other.other_lengths) == (2, 0, 0, 0)
    as_chain = [r | {"method": "chain"} for r in BASE]
    assert str(tuple(other.gain)) == str(tuple(gain([*as_chain, *WIDE], TFM, Setting("chain", 16, 0.0)))[2:])


def test_every_bundle_is_compared_with_the_first(tmp_path: Path) -> None:
    worse = [record("a1", "tfm", 4, 4), record("b1", "tfm", 4, 8)]
    compared = compare(bundles(tmp_path, BASE, WIDE, worse))
    third = only(compared, "third").gain
    assert third is not None
    assert third.overall.value == pytest.approx(-1 / 2)
    assert [c.bundle for c in compared] == ["base", "other", "third"]


def test_texts_that_only_one_has_are_dropped_and_counted(tmp_path: Path) -> None:
    base = [*BASE, record("a2", "tfm", 9, 1), record("a3", "tfm", 9, 1)]
    wide = [*WIDE[:2], record("c1", "tfm", 9, 9), record("d1", "tfm", 1, 9), record("d2", "tfm", 1, 9)]
    files = bundles(tmp_path, base, wide)
    found = only(compare(files), "other")
    assert found.gain is not None
    assert str(found.gain) == str(only(compare(bundles(tmp_path, BASE, WIDE)), "other").gain)
    assert (found.only_reference, found.only_bundle) == (2, 3)
    assert found.summary.contexts == 5
    (note,) = comparison_notes(files, compare(files))[1:]
    assert note == (
        "Dropped from the pairing of other with base, in the setting with the most: 2 texts that only base has, "
        "3 that only other has."
    )


def test_a_setting_that_one_lacks_is_listed_without_a_gain(tmp_path: Path) -> None:
    wide = [record("a1", "tfm", 6, 2, width=4), *WIDE, record("a1", "ddtree", 5, 2, temperature=1.0)]
    base = [*BASE, record("a1", "chain", 3, 2, temperature=1.0), record("a1", "tfm", 6, 2, temperature=0.5)]
    compared = compare(bundles(tmp_path, base, wide))
    table = comparison_table(compared, "base")
    assert [(*row[:4], row[5], row[11]) for row in table.rows] == [
        ("0", "tfm", "16", "base", "1.333", "–"),
        ("0", "tfm", "16", "other", "2.500", "+87.5 %"),
        ("0", "tfm w=4", "16", "other", "3.000", "–"),
        ("0.5", "tfm", "16", "base", "3.000", "–"),
        ("1", "chain", "16", "base", "1.500", "–"),
        ("1", "ddtree", "16", "other", "2.500", "–"),
    ]


@pytest.mark.parametrize("change", [{"children": 8}, {"width": 2}, {"pool_size": 9}, {"max_depth": 3}, {"budget": 8}])
def test_every_number_of_a_setting_tells_settings_apart(tmp_path: Path, change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="other and base have no setting in common; evaluate both with at least one"):
        bundles(tmp_path, BASE, [r | change for r in WIDE])


def test_noise_and_temperature_tell_settings_apart(tmp_path: Path) -> None:
    sampled = [r | {"temperature": 1.0} for r in BASE]
    for other in ([r | {"shared_noise": True} for r in sampled], BASE):
        with pytest.raises(ValueError, match="no setting in common; evaluate"):
            bundles(tmp_path, sampled, other)


def test_decoded_and_replayed_records_are_not_paired(tmp_path: Path) -> None:
    replayed = [r | {"replayed": True} for r in WIDE]
    with pytest.raises(ValueError, match="in common \\(decoded and replayed records are not compared with each other"):
        bundles(tmp_path, BASE, replayed)
    compared = compare(bundles(tmp_path, [*BASE, *[r | {"replayed": True} for r in BASE]], replayed))
    labels = [(row[1], row[3], row[11]) for row in comparison_table(compared, "base").rows]
    assert labels == [("tfm", "base", "–"), ("tfm, replayed", "base", "–"), ("tfm, replayed", "other", "+87.5 %")]


def test_one_bundle_under_two_names_with_other_settings(tmp_path: Path) -> None:
    shared = [record("a1", "chain", 4, 2), record("b1", "chain", 4, 4)]
    files = bundles(tmp_path, [*shared, *BASE], [*shared, *[r | {"width": 1} for r in WIDE]])
    compared = compare(files)
    (chain,) = (c.gain for c in compared if c.gain is not None)
    assert (chain.overall.value, chain.interval) == (0.0, (0.0, 0.0, 0.0))
    assert comparison_notes(files, compared) == ["base and other are the same bundle: all fingerprints agree."]


def test_a_record_that_a_file_holds_twice_counts_once(tmp_path: Path) -> None:
    (_, once), (_, twice) = (compare(bundles(tmp_path, BASE, wide)) for wide in (WIDE, [*WIDE, *WIDE]))
    assert str(twice) == str(once)


def test_notes_tell_devices_and_texts_that_are_not_the_same(tmp_path: Path) -> None:
    base = [*BASE, *[record(name, "tfm", 6, 2, temperature=1.0) for name in ("a1", "b1", "b2")]]
    wide = [WIDE[0], WIDE[1] | {"tokens": 9, "device": "a card"}]
    wide += [record(name, "tfm", length, 2, temperature=1.0) for name, length in (("a1", 9), ("b1", 9), ("b2", 6))]
    files = bundles(tmp_path, base, wide, weaver="weaver-2")
    assert comparison_notes(files, compare(files)) == [
        "The records were made on different devices (base: a processor; other: a card and a processor), whose rounding "
        "may part texts.",
        "Greedy texts of other and base are not all the same: in the setting with the most, 1 pairs differ in length. "
        "They are paired by prompt all the same.",
        "Sampled texts of other and base are not all the same: in the setting with the most, 2 pairs differ in length. "
        "They are paired by prompt all the same.",
        "Decoded above temperature 0, bundles may write different texts to a prompt; prompts are paired.",
    ]


def test_nothing_is_noted_about_other_weavers_on_the_same_texts(tmp_path: Path) -> None:
    replayed = [r | {"replayed": True, "temperature": 1.0} for r in BASE]
    files = bundles(tmp_path, replayed, replayed, weaver="weaver-2", drafter="drafter-2")
    assert comparison_notes(files, compare(files)) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"target": "target-2"}, "target target-2 and target-1"),
        ({"dtype": "bfloat16"}, "dtype bfloat16 and float32"),
        ({"max_new_tokens": 32}, "max_new_tokens 32 and 64"),
        ({"seed": 1, "dtype": "float64"}, "dtype float64 and float32, seed 1 and 0"),
        ({"stop_tokens": [1]}, r"stop_tokens \[1\] and \[0\]"),
        ({"max_positions": 64}, "max_positions 64 and 256"),
        ({"least_distinct": 0.0}, "least_distinct 0.0 and 0.3"),
    ],
)
def test_what_makes_texts_differ_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=rf"^other and base cannot be compared \({told}\); evaluate both for the same"):
        bundles(tmp_path, BASE, WIDE, **change)


@pytest.mark.parametrize("change", [{"prompt": "<another>"}, {"kind": "docs"}])
def test_other_prompts_under_the_same_name_are_refused(tmp_path: Path, change: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be compared: context 'b1' has another prompt or kind in each"):
        bundles(tmp_path, BASE, [WIDE[0], WIDE[1] | change])


def test_files_without_a_common_context_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other and base have no context in common; evaluate both on the same"):
        bundles(tmp_path, BASE, [r | {"context": f"new-{r['context']}"} for r in WIDE])


def test_too_few_files_and_equal_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"takes at least two files, NAME=records\.jsonl each, the reference first"):
        bundles(tmp_path, BASE)
    path = tmp_path / "base.jsonl"
    with pytest.raises(ValueError, match="two files are named 'same'; give every file a name of its own"):
        read_bundles([("same", path), ("base", path), ("same", path)])


def test_a_cut_last_line_is_passed_over(tmp_path: Path) -> None:
    path = write_records(tmp_path / "cut.jsonl", WIDE[:2])
    whole = path.read_bytes()
    path.write_bytes(whole + json.dumps(record("a2", "tfm", 9, 1)).encode()[:-9])
    (_, found) = read_bundles([("base", write_records(tmp_path / "base.jsonl", BASE)), ("cut", path)])
    assert [r["context"] for r in found.records] == ["a1", "b1"]
    path.write_bytes(whole[: whole.index(b"\n") + 20])
    with pytest.raises(ValueError, match=r"cut.jsonl has no records yet; run the evaluation of cut again"):
        read_bundles([("base", tmp_path / "base.jsonl"), ("cut", path)])


DAMAGED = {
    "an empty file": "",
    "a cut header": json.dumps(HEADER)[:40],
    "a line cut inside": f"{json.dumps(HEADER)}\n{json.dumps(WIDE[0])[:30]}\n{json.dumps(WIDE[1])}\n",
    "no figures": f"{json.dumps(HEADER)}\n{json.dumps({n: v for n, v in WIDE[0].items() if n != 'depths'})}\n",
    "no kind": f"{json.dumps(HEADER)}\n{json.dumps({n: v for n, v in WIDE[0].items() if n != 'kind'})}\n",
    "words for numbers": f"{json.dumps(HEADER)}\n{json.dumps(WIDE[0] | {'committed': 'many'})}\n",
    "an impossible setting": f"{json.dumps(HEADER)}\n{json.dumps(WIDE[0] | {'budget': -1})}\n",
    "a list for a name": f"{json.dumps(HEADER)}\n{json.dumps(WIDE[0] | {'context': ['a1']})}\n",
    "no lines of ours": "[1]\n",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "damaged.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"damaged.jsonl is not an evaluation file, or a damaged one; choose another"):
        read_bundles([("base", write_records(tmp_path / "base.jsonl", BASE)), ("damaged", path)])


def test_a_missing_file_and_one_of_another_version_are_refused(tmp_path: Path) -> None:
    base = ("base", write_records(tmp_path / "base.jsonl", BASE))
    with pytest.raises(ValueError, match=r"none.jsonl does not exist; run the evaluation first"):
        read_bundles([base, ("none", tmp_path / "none.jsonl")])
    old = write_records(tmp_path / "old.jsonl", WIDE, format="tfm_lab.records/2")
    with pytest.raises(ValueError, match=r"old.jsonl is not an evaluation file of this version; run the evaluation"):
        read_bundles([base, ("old", old)])


def test_the_report_names_every_bundle_and_where_it_comes_from(tmp_path: Path) -> None:
    more = [record(name, "tfm", 5, 2, [[2, 1]], temperature=1.0) for name in ("a1", "b1")]
    files = bundles(tmp_path, [*BASE, more[0]], [*WIDE, *more], weaver="weaver-2")
    compared, path = compare(files), tmp_path / "new" / "wide.json"
    write_comparison(files, compared, path)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert document["provenance"].keys() >= {"command", "date", "commit", "device", "torch"}
    assert (document["setup"]["reference"], document["setup"]["target"]) == ("base", "target-1")
    assert "weaver" not in document["setup"]
    assert document["bundles"][1] == {
        "name": "other",
        "file": str(tmp_path / "other.jsonl"),
        "records": 5,
        "drafter": "drafter-1",
        "weaver": "weaver-2",
        "autoregressive": None,
        "records made on": ["a processor"],
    }
    first, second, third, fourth = document["settings"]
    assert (first["bundle"], first["gain"], first["mal"]["value"]) == ("base", None, pytest.approx(8 / 6))
    assert (second["bundle"], second["method"], second["budget"], second["left_out"]) == ("other", "tfm", 16, 1)
    assert second["gain"] == {
        "contexts": 2,
        "gain": pytest.approx(0.875),
        "standard_error": pytest.approx(0.25),
        "low": pytest.approx(0.5),
        "high": pytest.approx(1.0),
        "macro": {"value": pytest.approx(2 / 3), "low": None, "high": None},
        "only_reference": 0,
        "only_bundle": 0,
        "other_lengths": 0,
    }
    assert (third["mal"]["low"], fourth["gain"]["low"], fourth["gain"]["only_bundle"]) == (None, None, 1)
    text, page = path.with_suffix(".md").read_text(), path.with_suffix(".html").read_text()
    for table in (comparison_table(compared, "base"), bundle_table(files)):
        assert table.markdown() in text
        assert table.html() in page
    for note in document["notes"]:
        assert f"\n{note}\n" in text
    assert f"| other | drafter-1 | weaver-2 | – | 3 | 5 | a processor | {tmp_path / 'other.jsonl'} |" in text
    assert "target: target-1" in text
    assert "<script" not in page
    assert len(page) < 20_000


def test_a_pairing_without_texts_has_no_gain(tmp_path: Path) -> None:
    assert math.isnan(paired_gain([]).overall.value)
    wide = [WIDE[0] | {"left_out": "does not fit"}, WIDE[1] | {"left_out": "does not fit"}]
    found = only(compare(bundles(tmp_path, BASE, wide)), "other")
    assert comparison_table([found], "base").rows[0][4:] == ("0", *["–"] * 4, "0", "2", *["–"] * 4)
