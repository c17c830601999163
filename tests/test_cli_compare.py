"""``tfm-lab compare``: names and files, what is printed and written, and one sentence for everything else."""

import json
from pathlib import Path

import pytest
from command_line import assert_refused, examples_of, parse, run
from evaluation_samples import record, write_records

from tfm_lab.evaluation.contexts import Context, save_contexts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the records of two bundles and some that fit nothing."""
    monkeypatch.chdir(tmp_path)
    base = [record("a1", "tfm", 4, 2), record("b1", "tfm", 4, 4)]
    write_records(Path("base.jsonl"), base)
    write_records(Path("w=8.jsonl"), [record("a1", "tfm", 6, 2), record("b1", "tfm", 4, 2)], weaver="weaver-2")
    write_records(Path("elsewhere.jsonl"), base, target="target-2")
    write_records(Path("alone.jsonl"), [record("a1", "chain", 4, 2)])
    write_records(Path("records.json"), base)
    Path("cut.jsonl").write_bytes(Path("base.jsonl").read_bytes()[:50])
    Path("page/mal.html").mkdir(parents=True)
    return tmp_path


def test_the_examples_of_the_help_page_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", "--help") == 0
    examples = examples_of(capsys.readouterr().out)
    assert len(examples) == 2
    for words in examples:
        assert parse(words).params["files"]


def test_a_comparison_is_printed_and_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", "base=base.jsonl", "w8=w=8.jsonl", "--out", "new/wide.json") == 0
    output = capsys.readouterr().out
    assert "| 0 | tfm | 16 | w8 | 2 | 2.500 | 2.000 to 3.000 | 2.500 | – | 2 | 0 | +87.5 % |" in output
    assert "written: new/wide.json, new/wide.md and new/wide.html" in output
    document = json.loads(Path("new/wide.json").read_text())
    assert [(bundle["name"], bundle["weaver"]) for bundle in document["bundles"]] == [
        ("base", "weaver-1"),
        ("w8", "weaver-2"),
    ]


def test_without_out_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run("compare", "base=base.jsonl", "again=base.jsonl") == 0
    assert "\nbase and again are the same bundle: all fingerprints agree.\n" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_real_records_of_one_bundle_with_other_settings(
    tiny_work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    contexts = [Context("a", "code", "", "import os\n"), Context("b", "docs", "", "It is a file\n")]
    save_contexts(contexts, Path("contexts.jsonl"))
    common = ["evaluate", "--bundle", str(tiny_work / "model"), "--device", "cpu", "--contexts", "contexts.jsonl"]
    common += ["--replay", "--methods", "tfm", "--temperatures", "1", "--budgets", "4", "--max-new-tokens", "6"]
    assert run(*common, "--width", "auto,4", "--records", "a.jsonl") == 0
    assert run(*common, "--width", "auto,2", "--records", "b.jsonl") == 0
    assert run("compare", "a=a.jsonl", "b=b.jsonl", "--out", "out.json") == 0
    found = json.loads(Path("out.json").read_text())["settings"]
    assert [(s["bundle"], s["width"], s["gain"] and s["gain"]["gain"]) for s in found] == [
        ("a", None, None),
        ("b", None, 0.0),
        ("a", 4, None),
        ("b", 2, None),
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "a comparison takes at least two files, NAME=records.jsonl each, the reference first"),
        (["base=base.jsonl"], "a comparison takes at least two files"),
        (["base.jsonl", "b=base.jsonl"], "give every file as NAME=records.jsonl, got 'base.jsonl'"),
        (["=base.jsonl", "b=base.jsonl"], "give every file as NAME=records.jsonl, got '=base.jsonl'"),
        (["a=", "b=base.jsonl"], "give every file as NAME=records.jsonl, got 'a='"),
        (["a|b=base.jsonl", "b=base.jsonl"], "a name stands in a table and may hold no | and no line break"),
        (["a=base.jsonl", " a=base.jsonl"], "two files are named 'a'; give every file a name of its own"),
        (["a=base.jsonl", "b=none.jsonl"], "none.jsonl does not exist; run the evaluation first"),
        (["a=base.jsonl", "b=cut.jsonl"], "cut.jsonl is not an evaluation file, or a damaged one"),
        (["a=base.jsonl", "b=elsewhere.jsonl"], "b and a cannot be compared (target target-2 and target-1); evaluate"),
        (["a=base.jsonl", "b=alone.jsonl"], "b and a have no setting in common; evaluate both with at least one"),
        (["a=base.jsonl", "b=base.jsonl", "--out", "a.txt"], "--out takes the name of a .json file"),
        (["a=base.jsonl", "b=base.jsonl", "--out", "page/mal.json"], "cannot write page/mal.html"),
        (["a=base.jsonl", "b=records.json", "--out", "records.json"], "would overwrite the records in records.json"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["compare", *words], sentence, folder, capsys)
