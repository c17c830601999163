"""Notebook 11: the ledger as words, bars, table and list."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tfm_lab.claims import CLAIMS, Examined, Goal, Outcome
from tfm_lab.lessons.ledger import EVERYTHING, Ledger, LedgerExplorer, claim_card, goals_card, ledger_svg

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(NOTEBOOKS)


def test_counts_add_up_to_all_claims(ledger: Ledger) -> None:
    counts = ledger.counts()
    assert sum(row.total() for row in counts.values()) == len(CLAIMS)
    proved = [claim for claim in CLAIMS if claim.examined is Examined.PROVED and claim.outcome is Outcome.HOLDS]
    assert counts[Examined.PROVED][Outcome.HOLDS] == len(proved) > 0
    assert f"{len(CLAIMS)} claims. proved or enumerated: {len(proved)} holds;" in ledger.describe()
    texts = [item.text for item in ElementTree.fromstring(ledger_svg(ledger)).iter("{http://www.w3.org/2000/svg}text")]
    assert f"✓ {len(proved)}" in texts
    assert "not reproduced" in texts


def test_the_table_has_a_row_for_each_claim_with_links_or_a_reason(ledger: Ledger) -> None:
    rows = ledger.markdown().splitlines()[2:]
    assert len(rows) == len(CLAIMS)
    for claim, row in zip(CLAIMS, rows, strict=True):
        assert row.count(" | ") == 4, "five cells"
        assert all(f"]({item.href})" in row for item in ledger.found[claim.name])
        assert claim.evidence or claim.because in row


def test_filter_and_list_follow_each_other(ledger: Ledger) -> None:
    explorer = LedgerExplorer(ledger)
    chooser, listed, steps, card = explorer.children
    assert [name for _, name in listed.options] == [claim.name for claim in CLAIMS]
    chooser.value = Outcome.FALLS_SHORT.value
    names = [claim.name for claim in CLAIMS if claim.outcome is Outcome.FALLS_SHORT]
    assert [name for _, name in listed.options] == names
    assert listed.value == ledger.claim == names[0], "the first of the list opens"
    listed.value = names[-1]
    assert ledger.claim == names[-1]
    assert ledger.claims[names[-1]].statement in card.value
    steps.children[1].click()
    assert ledger.claim == names[-1], "there is no next one"
    steps.children[0].click()
    assert ledger.claim == names[-2]
    listed.value = names[-1]
    ledger.chosen = EVERYTHING
    assert (chooser.value, listed.value) == (EVERYTHING, names[-1])
    ledger.chosen = Examined.TRAINED.value
    assert ("No claim is of this kind." in card.value) == (ledger.listed() == [])
    ledger.claims.clear()
    ledger.chosen = EVERYTHING
    assert (listed.options, listed.value) == ((), None)
    assert "No claim is of this kind." in card.value


def test_a_card_shows_every_number_with_its_code(ledger: Ledger) -> None:
    ledger.claim = "length-over-ddtree"
    card = claim_card(ledger)
    assert card.count("<details>") == len(ledger.claims[ledger.claim].evidence)
    for words in ("✗ falls short here", "+32 %", "tfm-lab evaluate", "commit", "Objections by rule: none."):
        assert words in card
    ledger.claim = "masked-solve"
    assert "record(" in claim_card(ledger)


def test_goals_stand_in_a_table_with_what_came_of_them() -> None:
    card = goals_card([Goal("a step", 1.2, 1.3, remark="long"), Goal("a share", 0.06, 0.05, percent=True)], "a GPU")
    assert card.words.splitlines() == [
        "a GPU",
        "goal: a step, at most: 1.200, measured: 1.300, outcome: ✗ missed, remark: long",
        "goal: a share, at most: 6.0 %, measured: 5.0 %, outcome: ✓ met, remark: –",
    ]
    assert "✗ missed" in card.html


def test_unknown_names_are_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="there is no filter 'maybe'"):
        ledger.chosen = "maybe"
    with pytest.raises(ValueError, match="there is no claim 'maybe'"):
        ledger.claim = "maybe"


def test_a_still_page_shows_the_bars(ledger: Ledger) -> None:
    data, _ = LedgerExplorer(ledger)._repr_mimebundle_()
    assert data["image/svg+xml"] == ledger_svg(ledger)
    assert data["text/plain"] == ledger.describe()
