"""Benchmark suites: what they hold, how the target reads them, and that training never saw the word problems."""

import json
from pathlib import Path

import pytest

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation import load_contexts, load_suites, suites
from tfm_lab.evaluation.suites import MATHS
from tfm_lab.training import corpus


@pytest.fixture
def fetched_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as ``tfm-lab fetch suites`` would leave it, with three prompts."""
    rows = {
        "chat.jsonl": [("mt-bench-81", "Why?"), ("mt-bench-82", "How?")],
        "code.jsonl": [("humaneval-0", "def one():\n")],
    }
    for name, prompts in rows.items():
        lines = [json.dumps({"name": n, "prompt": p, "source": name, "licence": "MIT"}) for n, p in prompts]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(suites, "fetched", lambda name: tmp_path)
    return tmp_path


def test_suites_alone_and_together(fetched_suites: Path) -> None:
    assert [c.name for c in load_suites(["chat"])] == ["mt-bench-81", "mt-bench-82"]
    assert [c.name for c in load_suites(["code"])] == ["humaneval-0"]
    assert len(load_suites(["math"])) == 200
    together = load_suites(["chat", "math", "code", "chat"], limit=5)
    assert [c.kind for c in together] == ["chat", "code", "maths", "chat", "maths"]
    assert len(load_suites(["chat", "math", "code"])) == 203


def test_questions_go_into_the_chat_format_and_code_stays_raw(tiny_bundle: Bundle, fetched_suites: Path) -> None:
    prompts = {c.kind: tiny_bundle.decode(c.tokens(tiny_bundle)) for c in load_suites(["chat", "math", "code"], 3)}
    assert prompts["chat"] == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert prompts["maths"].startswith("<|im_start|>user\n")
    assert prompts["maths"].endswith("?<|im_end|>\n<|im_start|>assistant\n")
    assert prompts["code"] == "def one():\n"


def test_the_word_problems_are_unlike_each_other_and_the_held_out_ones() -> None:
    questions = [context.prompt for context in load_suites(["math"])]
    assert len(set(questions)) == 200
    assert not any("final answer" in question for question in questions)
    held_out = [context.prompt for context in load_contexts()]
    assert not any(question in prompt for question in questions for prompt in held_out)
    rows = [json.loads(line) for line in MATHS.read_text(encoding="utf-8").splitlines()]
    assert {(row["source"], row["licence"]) for row in rows} == {
        ("gsm_symbolic, seed 4000000 (reasoning-gym 0.1.25)", "Apache-2.0")
    }


def test_training_never_saw_the_word_problems() -> None:
    """Only where reasoning-gym is installed."""
    pytest.importorskip("reasoning_gym")
    trained = {document.key for document in corpus.read_maths()}
    assert trained.isdisjoint(context.prompt for context in load_suites(["math"]))


def test_what_is_missing_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFM_LAB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ValueError, match="suites has not been fetched; run: tfm-lab fetch suites"):
        load_suites(["math", "code"])
    with pytest.raises(ValueError, match="there is no suite 'maths'; use chat, math, code"):
        load_suites(["maths"])
    with pytest.raises(ValueError, match="the limit must be at least 1 context, got 0"):
        load_suites(["math"], limit=0)
