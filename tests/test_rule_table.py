"""The table of rules and trees: 0 where the package promises it, refused elsewhere, and the refused ones are biased."""

import pytest

from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.exact import random_table
from tfm_lab.zoo import EXHIBITS
from tfm_lab.zoo.orphans import WORLD, next_choice_is_right
from tfm_lab.zoo.plots import symptom_picture
from tfm_lab.zoo.rule_table import TREES, rule_table

P, Q = random_table(3, 2, seed=21), random_table(3, 2, seed=22)
CONFIG = TreeConfig(budget=3, max_depth=2)
DRAWN = ("sampled chain", "DySpec slots")
IN_DISGUISE = "drawn, then pruned"


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(), SamplingConfig(temperature=0.7), SamplingConfig(top_k=2)], ids=str
)
def test_the_table_above_temperature_zero(sampling: SamplingConfig) -> None:
    for rule, line in rule_table(P, Q, CONFIG, 3, sampling).items():
        assert list(line) == list(TREES)
        for tree, ruling in line.items():
            promised = rule in ("target_sample", "traversal") or (
                rule == "rejection_swor" and tree in (*DRAWN, IN_DISGUISE)
            )
            assert ruling.is_refused is not promised, (rule, tree)
            lossless = promised and (tree != IN_DISGUISE or rule == "target_sample")
            assert ruling.bias <= 1e-12 if lossless else ruling.bias > 1e-2, (rule, tree)
            assert 1.0 < ruling.tokens <= 3.0


def test_at_temperature_zero_greedy_is_exact_on_every_tree() -> None:
    table = rule_table(P, Q, CONFIG, 3, SamplingConfig(temperature=0.0))
    assert all(not ruling.is_refused and ruling.bias <= 1e-12 for ruling in table["greedy"].values())


@pytest.mark.parametrize("name", ["unsampled_q", "bfloat16_draw"])
def test_a_symptom_has_a_still_picture_of_every_series(name: str) -> None:
    exhibit = EXHIBITS[name]
    evidence = exhibit.evidence()
    picture = symptom_picture(exhibit, evidence)
    assert picture.svg.startswith("<svg")
    assert f"Exhibit {exhibit.number}: {exhibit.title}" in picture.description
    assert all(f"{series.name}: " in picture.description for series in evidence.series)
    assert picture.figure is not None
    assert [trace.name for trace in picture.figure.data] == [series.name for series in evidence.series]


def test_below_a_sibling_the_rows_speak_about_another_token() -> None:
    shares = next_choice_is_right()
    assert set(shares) == {"on the spine", "below a sibling"}
    assert all(shares["on the spine"][depth] > 2 * share for depth, share in shares["below a sibling"].items())
    favourites = WORLD.transitions.argmax(1)
    reached = WORLD.stationary() * WORLD.transitions.max(1).values
    wanted = float(reached @ WORLD.transitions[favourites].max(1).values / reached.sum())
    assert shares["on the spine"][1.0] == pytest.approx(wanted, abs=1e-12)
