"""The ledger of claims: every number is where the ledger says, and the referee finds planted faults."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_output
from notebook_builder import METRIC, notebook_of

from tfm_lab.claims import (
    CLAIMS,
    OBJECTIONS,
    Claim,
    Examined,
    Finding,
    MetricLink,
    Outcome,
    ResultLink,
    SpeedLink,
    evidence,
    find,
    goals,
    objections,
)
from tfm_lab.planning import read_full_model
from tfm_lab.planning.replayed import speed_up
from tfm_lab.recording import METRIC_MIME

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
BLANK = Claim("blank", "It is so.", "", "nowhere", Examined.MEASURED, Outcome.HOLDS, "Because.")
GAIN = ResultLink("gains.json", ("gains", "way.name=tfm; budget=64", "gain"), "gain", ("error",), percent=True)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One result file in place of the shipped ones."""
    gains = [
        {"way": {"name": name}, "budget": budget, "gain": gain, "error": 0.01, "low": 0.1, "high": 0.4}
        for name, budget, gain in (("tfm", 32, 0.2), ("tfm", 64, 0.3), ("ddtree", 64, 0.4))
    ]
    made = {"device": "a CPU", "date": "2026-01-01", "commit": "abc", "command": "tfm-lab evaluate"}
    data: dict[str, Any] = {"provenance": made, "gains": gains}
    monkeypatch.setattr(evidence, "_result_file", lambda name: data)
    return data


def notebook_with(folder: Path, value: float, kind: str) -> None:
    notebook = notebook_of(METRIC)
    notebook.cells.insert(3, new_markdown_cell("## One heading\n\nwords\n\n### The last heading", id="words"))
    fields = {"name": "budget.doubled", "value": value, "kind": kind, "n": None}
    notebook.cells[4].outputs = [new_output("display_data", data={METRIC_MIME: fields, "text/plain": "m"})]
    nbformat.write(notebook, folder / "00_small.ipynb")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_every_number_of_the_ledger_is_there_and_nothing_is_overstated(claim: Claim) -> None:
    found = find(claim, NOTEBOOKS)
    assert len(found) == len(claim.evidence)
    assert objections(claim.examined, claim.outcome, [item.finding for item in found]) == set()
    if claim.outcome is Outcome.FALLS_SHORT and claim.threshold is not None:
        assert any(item.finding.value < claim.threshold for item in found), "it does not fall short"


def test_names_differ_and_gaps_are_admitted() -> None:
    assert max(Counter(claim.name for claim in CLAIMS).values()) == 1
    open_claims = {claim.name for claim in CLAIMS if claim.examined is Examined.NOT_REPRODUCED}
    assert open_claims == {"bfloat16-state", "per-data-set"}


def test_a_recorded_number_is_found_with_its_heading_and_code(tmp_path: Path) -> None:
    notebook_with(tmp_path, 1e-12, "identity")
    claim = replace(BLANK, evidence=(MetricLink("00_small", "budget.doubled", "a number"),))
    (found,) = find(claim, tmp_path)
    assert found.finding == Finding(1e-12, "identity", is_count=True)
    assert found.text == "below 1e-9"
    assert (found.place, found.href) == ("00, The last heading", "00_small.ipynb#The-last-heading")
    assert (found.cell, found.code) == ("cell-3", METRIC)
    notebook_with(tmp_path, 1e-3, "identity")
    evidence._cells.cache_clear()  # pyright: ignore[reportPrivateUsage]
    (found,) = find(claim, tmp_path)
    assert found.text == "0.001", "an identity that broke must not look like one that holds"


def test_what_is_missing_is_named(tmp_path: Path, results: dict[str, Any]) -> None:
    notebook_with(tmp_path, 1.0, "exact")
    missing = replace(BLANK, evidence=(MetricLink("00_small", "other", "a number"),))
    with pytest.raises(ValueError, match=r"00_small\.ipynb has no stored number other: run it .* 00 --render"):
        find(missing, tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no notebook"):
        find(replace(BLANK, evidence=(MetricLink("07_none", "other", ""),)), tmp_path)
    with pytest.raises(ValueError, match=r"gains\.json: 2 entries have budget=64, and the ledger needs one"):
        find(replace(BLANK, evidence=(replace(GAIN, path=("gains", "budget=64", "gain")),)), tmp_path)
    with pytest.raises(ValueError, match=r"gains\.json has no gains / .* / profit: profit is missing"):
        find(replace(BLANK, evidence=(replace(GAIN, path=(*GAIN.path[:2], "profit")),)), tmp_path)


def test_a_result_comes_with_error_device_and_threshold(tmp_path: Path, results: dict[str, Any]) -> None:
    (found,) = find(replace(BLANK, evidence=(GAIN,), threshold=0.32), tmp_path)
    assert found.finding == Finding(0.3, "measured", 0.01, False, "a CPU", 0.32)
    assert (found.text, found.origin) == ("+30.0 % ± 1 %", "a CPU, 2026-01-01, commit abc")
    assert (found.code, found.href) == ("tfm-lab evaluate", "../tfm_lab/results/gains.json")
    (found,) = find(replace(BLANK, evidence=(replace(GAIN, error=("low", "high"), percent=False),)), tmp_path)
    assert found.finding.error == pytest.approx(0.15)
    assert found.text == "0.3 [0.1, 0.4]"
    assert found.finding.reaches is None
    results["provenance"]["device"] = ""
    (found,) = find(replace(BLANK, evidence=(replace(GAIN, error=()),)), tmp_path)
    assert objections(Examined.MEASURED, Outcome.HOLDS, [found.finding]) == {"no device"}


def test_a_ratio_of_two_results_has_the_widest_interval_that_follows(tmp_path: Path, results: dict[str, Any]) -> None:
    results["times"] = {
        "slow": {"median": 6.0, "p10": 5.0, "p90": 7.0},
        "fast": {"median": 3.0, "p10": 2.0, "p90": 4.0},
    }
    ratio = replace(
        GAIN, path=("times", "slow", "median"), error=("p10", "p90"), percent=False, over=("times", "fast", "median")
    )
    (found,) = find(replace(BLANK, evidence=(ratio,), threshold=9.0), tmp_path)
    assert found.text == "2 [1.25, 3.5]"
    assert found.finding == Finding(2.0, "measured", 1.125, False, "a CPU", None)
    (found,) = find(replace(BLANK, evidence=(replace(ratio, percent=True),), threshold=9.0), tmp_path)
    assert found.text == "200.0 % [125, 350]", "a share has no sign"


def test_a_speed_of_replayed_decodes_comes_with_its_error_and_threshold(tmp_path: Path) -> None:
    link = SpeedLink("chat", "tfm", "ddtree", "a speed")
    (found,) = find(replace(BLANK, evidence=(link,), threshold=1.1), tmp_path)
    wanted = speed_up(read_full_model(), "chat", "tfm", "ddtree")
    assert wanted is not None
    assert found.finding == Finding(wanted.value, "measured", wanted.error, device="NVIDIA H200", reaches=1.1)
    assert found.text == f"{wanted.value:.2f} ± {wanted.error:.2f}"
    assert found.href == "../tfm_lab/results/model_h200.json"
    assert found.code.startswith("tfm-lab bench model")
    with pytest.raises(ValueError, match=r"model_h200\.json has no decode of tfm over ar on maths"):
        find(replace(BLANK, evidence=(replace(link, suite="maths", over="ar"),)), tmp_path)


def test_goals_are_judged_by_the_measured_steps() -> None:
    model = read_full_model()
    chain, plain, share, sweep, head = goals(model)
    tree = model.step("tfm", 64).seconds.median
    assert chain.value == tree / model.step("chain", 16).seconds.median
    assert plain.value == tree / model.plain_step().seconds.median
    assert [goal.is_met for goal in (chain, plain, share, sweep, head)] == [True, True, False, True, False]
    assert share.shown(share.value) == "6.7 %"
    assert head.value / sweep.value == pytest.approx(
        (model.head.bytes / model.head.seconds) / (model.all_weights.bytes / model.all_weights.seconds)
    )
    assert "it is no floor" in sweep.remark


def test_a_result_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no result file nothing\.json"):
        find(replace(BLANK, evidence=(replace(GAIN, file="nothing.json"),)), tmp_path)


def test_every_objection_can_be_raised() -> None:
    measured = Finding(0.1, "measured", reaches=0.2)
    raised = objections(Examined.MEASURED, Outcome.HOLDS, [measured])
    raised |= objections(Examined.MEASURED, Outcome.HOLDS, [])
    raised |= objections(Examined.PROVED, Outcome.HOLDS, [Finding(1.0, "info")])
    raised |= objections(Examined.NOT_REPRODUCED, Outcome.HOLDS, [])
    raised |= objections(Examined.COMPUTED, Outcome.HOLDS, [Finding(1.0, "exact", is_count=True)])
    assert raised == set(OBJECTIONS)
