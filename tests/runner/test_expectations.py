"""Expectations: how each kind is judged, and which files are refused."""

from pathlib import Path

import pytest

from tfm_lab.recording import Metric
from tfm_lab.runner.expectations import Expectation, Verdict, compare, load_expectations
from tfm_lab.runner.update import update_expectations


def verdict_of(metric: Metric, expectation: Expectation, default_parameters: bool = True) -> Verdict:
    (verdict,) = compare({metric.name: metric}, {metric.name: expectation}, default_parameters)
    return verdict


@pytest.mark.parametrize(
    ("metric", "fields", "passes"),
    [
        (Metric("m", 3.5, "exact"), {"value": 3.5 + 1e-10}, True),
        (Metric("m", 3.5, "exact"), {"value": 3.5 + 1e-8}, False),
        (Metric("m", 3.0, "exact"), {"value": 3}, True),
        (Metric("m", 3, "exact"), {"value": 4}, False),
        (Metric("m", True, "exact"), {"value": True}, True),
        (Metric("m", True, "exact"), {"value": 1}, False),
        (Metric("m", "length", "exact"), {"value": "stop token"}, False),
        (Metric("m", 1e-13, "identity"), {"at_most": 1e-12}, True),
        (Metric("m", 1e-11, "identity"), {"at_most": 1e-12}, False),
        (Metric("m", 0.52, "stat", n=10_000), {"value": 0.5, "std": 0.5}, True),
        (Metric("m", 0.53, "stat", n=10_000), {"value": 0.5, "std": 0.5}, False),
        (Metric("m", 0.47, "stat", n=10_000), {"value": 0.5, "std": 0.5}, False),
        (Metric("m", 2.6, "trained"), {"at_least": 2.5}, True),
        (Metric("m", 2.4, "trained"), {"at_least": 2.5, "at_most": 2.8}, False),
        (Metric("m", 2.9, "trained"), {"at_least": 2.5, "at_most": 2.8}, False),
    ],
)
def test_kinds(metric: Metric, fields: dict[str, float], passes: bool) -> None:
    expectation = Expectation(name="m", kind=metric.kind, why="test", **fields)  # pyright: ignore[reportArgumentType]
    verdict = verdict_of(metric, expectation)
    assert verdict.status == ("ok" if passes else "failed")
    assert bool(verdict.sentence) is not passes


def test_info_is_kept_and_never_judged() -> None:
    assert verdict_of(Metric("m", 7.0, "info"), Expectation("m", "info", "time")).status == "kept"
    assert compare({"m": Metric("m", 7.0, "info")}, {}, True)[0].status == "kept"


def test_missing_undeclared_and_relabelled_metrics_fail() -> None:
    expected = {"m": Expectation("m", "exact", "test", value=1)}
    assert compare({}, expected, True)[0].sentence == "metric m was not recorded"
    assert "no entry in expected.toml" in compare({"m": Metric("m", 1, "exact")}, {}, True)[0].sentence
    assert "recorded as trained" in compare({"m": Metric("m", 1, "trained")}, expected, True)[0].sentence


def test_with_other_parameters_only_identities_are_compared() -> None:
    exact = Expectation("m", "exact", "test", value=1)
    identity = Expectation("m", "identity", "test", at_most=1e-12)
    assert verdict_of(Metric("m", 2, "exact"), exact, default_parameters=False).status == "not compared"
    assert verdict_of(Metric("m", 1e-3, "identity"), identity, default_parameters=False).status == "failed"
    assert compare({}, {"m": exact}, False) == [], "fewer depths, fewer numbers"
    assert [verdict.status for verdict in compare({}, {"m": identity}, False)] == ["failed"]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ('kind = "exact"\nvalue = 1', "write in 'why'"),
        ('kind = "exact"\nvalue = 1\nwhy = " "', "write in 'why'"),
        ('kind = "exact"\nwhy = "w"', "kind exact needs value"),
        ('kind = "exact"\nvalue = 1\ntolerance = 0.1\nwhy = "w"', "kind exact has no tolerance"),
        ('kind = "close"\nvalue = 1\nwhy = "w"', "kind must be one of"),
        ('kind = "identity"\nat_most = "small"\nwhy = "w"', "at_most must be a number"),
        ('kind = "stat"\nvalue = 1\nwhy = "w"', "kind stat needs std"),
        ('kind = "stat"\nvalue = 1\nstd = 0\nwhy = "w"', "std must be positive"),
        ('kind = "trained"\nwhy = "w"', "needs at_least or at_most"),
    ],
)
def test_entries_that_say_too_little_are_refused(entry: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(f'[00_small."m"]\n{entry}\n')
    with pytest.raises(ValueError, match=sentence):
        load_expectations(path)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text("[00_small")
    with pytest.raises(ValueError, match=r"expected\.toml is not valid TOML"):
        load_expectations(path)


def test_update_edits_values_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(
        "# the toy world\n"
        '[00_small."a"]\nkind = "exact"\nvalue = 1  # by hand\nwhy = "w"\n'
        '[00_small."gone"]\nkind = "exact"\nvalue = 5\nwhy = "w"\n'
        '[00_small."bound"]\nkind = "identity"\nat_most = 1e-12\nwhy = "w"\n'
    )
    metrics = [Metric("a", 2, "exact"), Metric("bound", 1e-3, "identity"), Metric("error", 3e-7, "identity")]
    metrics += [Metric("band", 2.5, "trained"), Metric("seconds", 1.0, "info")]
    changes = update_expectations(path, {"00_small": {metric.name: metric for metric in metrics}})
    assert {(change.metric, change.before, change.after) for change in changes} == {
        ("a", 1, 2),
        ("gone", 5, None),
        ("error", None, 1e-5),
    }
    text = path.read_text()
    assert text.startswith("# the toy world\n")
    assert "gone" not in text
    assert "band" not in text
    with pytest.raises(ValueError, match=r"00_small, error: write in 'why'"):
        load_expectations(path)
    path.write_text(text.replace('why = ""', 'why = "rounding"'))
    assert load_expectations(path)["00_small"]["a"].value == 2
    assert load_expectations(path)["00_small"]["bound"].at_most == 1e-12


def test_update_creates_the_file_and_leaves_a_good_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    metrics = {"00_small": {"m": Metric("m", 1, "exact")}}
    assert len(update_expectations(path, metrics)) == 1
    path.write_text(path.read_text().replace('why = ""', 'why = "w"'))
    before = path.read_text()
    assert update_expectations(path, metrics) == []
    assert path.read_text() == before
