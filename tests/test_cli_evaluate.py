"""``tfm-lab evaluate``: settings from comma lists, suites, replays, the ceiling, and what a report is made of."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import assert_refused, run

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation import runs, suites
from tfm_lab.evaluation.contexts import Context, save_contexts
from tfm_lab.evaluation.records import read_records


@pytest.fixture
def evaluate(tiny_work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command with the tiny bundle, run in a folder of its own that holds two contexts."""
    monkeypatch.chdir(tmp_path)
    contexts = [Context("a", "code", "", "import os\n"), Context("b", "docs", "", "It is a file\n")]
    save_contexts(contexts, Path("contexts.jsonl"))
    options = ["--bundle", str(tiny_work / "model"), "--device", "cpu", "--max-new-tokens", "6"]
    return ["evaluate", *options, "--records", "new/records.jsonl"]


def test_comma_lists_are_crossed_where_they_matter(evaluate: list[str]) -> None:
    command = [*evaluate, "--contexts", "contexts.jsonl", "--limit", "1", "--temperatures", "1", "--budgets", "4"]
    command += ["--methods", "chain,tfm", "--children", "2,32", "--width", "auto,1", "--pool-size", "9"]
    assert run(*command, "--max-depth", "3") == 0
    found = [
        (r["method"], r["children"], r["width"], r["pool_size"], r["max_depth"])
        for r in read_records(Path("new/records.jsonl"))
    ]
    assert found == [
        ("chain", 32, None, 512, 3),
        ("tfm", 2, None, 9, 3),
        ("tfm", 2, 1, 9, 3),
        ("tfm", 32, None, 9, 3),
        ("tfm", 32, 1, 9, 3),
    ]


def test_noise_is_crossed_where_there_is_any(evaluate: list[str]) -> None:
    command = [*evaluate, "--contexts", "contexts.jsonl", "--limit", "1", "--temperatures", "0,1", "--budgets", "4"]
    assert run(*command, "--methods", "ar,chain", "--noise", "own,shared", "--replay") == 2
    assert run(*command, "--methods", "ar,chain", "--noise", "own,shared") == 0
    found = [(r["method"], r["temperature"], r["shared_noise"]) for r in read_records(Path("new/records.jsonl"))]
    assert found == [
        *((method, 0.0, False) for method in ("ar", "chain")),
        *((method, 1.0, shared) for shared in (False, True) for method in ("ar", "chain")),
    ]
    assert run(*command, "--noise", "loud") == 2


def test_a_replayed_suite_with_a_ceiling_becomes_a_report(
    evaluate: list[str], tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "chat.jsonl": [("mt-bench-81", "Why?"), ("mt-bench-82", "How much? " * 100)],
        "code.jsonl": [("humaneval-0", "def one():\n")],
    }
    for name, prompts in rows.items():
        lines = [json.dumps({"name": n, "prompt": p, "source": "a source", "licence": "MIT"}) for n, p in prompts]
        Path(name).write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(suites, "fetched", lambda name: Path())
    command = [*evaluate, "--suite", "chat,code", "--replay", "--batch", "2", "--budgets", "4", "--temperatures", "0,1"]
    command += ["--ceiling", "2", "--continuations", "3", "--best-tree", "2", "--out", "new/mal.json"]
    assert run(*command) == 0
    output = capsys.readouterr().out
    assert "left out: 1 contexts that do not fit the target's context" in output
    assert "| depth | oracle marginal | oracle point mass | drafter's marginal | Weaver |" in output
    assert "| B | tree | texts | anchors | tokens of a step | over DDTree |" in output
    assert "| T | B | method | over | texts | gain |" in output
    assert "written: new/mal.json and new/mal.md, with figures in new/mal.html" in output
    records = read_records(Path("new/records.jsonl"))
    assert len(records) == 3 * 3 * 2
    assert all(record["replayed"] for record in records)
    document = json.loads(Path("new/mal.json").read_text())
    assert document["setup"]["contexts"] == "suites chat, code: a source"
    assert document["setup"]["drafter"] == tiny_bundle.drafter.fingerprint()
    assert {s["too_long"] for s in document["summaries"] if s["kind"] == "all"} == {1}
    assert document["ceiling"]["anchors"] == 2
    wanted = {"ddtree", "chain", "tfm", "best tree"}
    assert {entry["method"] for entry in document["best_trees"] if entry["anchors"] == 2} == wanted
    assert "every setting was replayed" in Path("new/mal.md").read_text()
    assert "1 contexts are left out because prompt and new tokens do not fit" in Path("new/mal.html").read_text()
    before = Path("new/records.jsonl").read_bytes()
    assert run(*command) == 0
    assert Path("new/records.jsonl").read_bytes() == before


def test_ctrl_c_exits_with_130_and_the_command_goes_on_later(
    evaluate: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*evaluate, "--contexts", "contexts.jsonl", "--temperatures", "1", "--budgets", "4", "--methods", "chain"]
    decode = runs.speculative_decode
    calls = 0

    def pressed(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            signal.raise_signal(signal.SIGINT)
        return decode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "speculative_decode", pressed)
        assert run(*command) == 130
    captured = capsys.readouterr()
    assert captured.err.strip() == "Error: interrupted"
    assert [record["context"] for record in read_records(Path("new/records.jsonl"))] == ["a"]
    assert run(*command) == 0
    assert [record["context"] for record in read_records(Path("new/records.jsonl"))] == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--suite", "chat,maths"], "there is no suite 'maths'; use chat, math, code"),
        (["--suite", "code"], "suites has not been fetched; run: tfm-lab fetch suites"),
        (["--suite", "math", "--contexts", "contexts.jsonl"], "--suite and --contexts exclude each other"),
        (["--width", "wide"], "--width takes a comma-separated list of numbers, and 'wide' is none"),
        (["--width", "0"], "width must be at least 1 node per drafter call, got 0"),
        (["--pool-size", "0"], "pool_size must be at least 1, got 0"),
        (["--max-depth", "0"], "max_depth must be at least 1, got 0"),
        (["--replay", "--methods", "dyspec"], "method 'dyspec' cannot be replayed; use chain, ddtree, tfm"),
        (["--replay", "--batch", "0"], "--batch at least 1"),
        (["--ceiling", "-1"], "--ceiling and --best-tree take 0 or more anchors"),
        (["--best-tree", "-1"], "--ceiling and --best-tree take 0 or more anchors"),
        (["--best-tree", "3", "--contexts", "contexts.jsonl"], "--best-tree 3 needs as many contexts that fit"),
        (["--best-tree", "1", "--methods", "dyspec"], "a best tree needs a method with fixed trees"),
        (["--ceiling", "2", "--continuations", "1"], "--continuations at least 2"),
        (["--ceiling", "3", "--contexts", "contexts.jsonl"], "--ceiling 3 needs as many contexts that fit"),
        (["--out", "page/mal.json"], "cannot write page/mal.html"),
    ],
)
def test_bad_input_is_one_sentence(
    evaluate: list[str],
    tmp_path: Path,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TFM_LAB_CACHE", str(tmp_path / "empty"))
    Path("page/mal.html").mkdir(parents=True)
    assert_refused([*evaluate, "--limit", "2", *words], sentence, tmp_path, capsys)
