"""Contexts, settings and hand-made records for the tests of the evaluation."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfm_lab.evaluation import Context, Evaluation, Setting
from tfm_lab.evaluation.records import RECORDS, read_records

CONTEXTS = [
    Context("code-001", "code", "stdlib: a.py", "import os\n"),
    Context("chat-001", "chat", "chat: Why?", "Why?", is_question=True),
]
GREEDY = (("ar", 0), ("chain", 16), ("chain", 32), ("ddtree", 6), ("tfm", 6))
SETTINGS = (
    *(Setting(*column, 0.0) for column in GREEDY),
    Setting("chain", 16, 1.0),
    Setting("tfm", 6, 1.0, children=2, width=3, pool_size=20, max_depth=4),
    Setting("dyspec", 6, 1.0),
)
EVALUATION = Evaluation(SETTINGS, max_new_tokens=6, least_distinct=0.0)


def without_times(path: Path) -> list[dict[str, Any]]:
    return [record | {"seconds": None} for record in read_records(path)]


def record(
    context: str,
    method: str,
    committed: int,
    calls: int,
    depths: Sequence[Sequence[int]] = (),
    temperature: float = 0.0,
    budget: int = 16,
    **changes: Any,
) -> dict[str, Any]:
    """A record of one context; its first letter is its kind."""
    about = {"context": context, "kind": context[0], "prompt": f"<{context}>"}
    about |= asdict(Setting(method, budget, temperature)) | {"replayed": False, "device": "a processor"}
    counts = {"tokens": committed + 1, "committed": committed}
    counts |= {"target_calls": calls, "drafter_calls": 3 * calls, "depths": depths}
    return about | counts | {"seconds": [0.5 * calls, 0.0, 0.0, 0.0, 0.0]} | changes


BY_HAND = [
    record("a1", "chain", 4, 2, [[2, 2], [2, 0]]),
    record("a1", "tfm", 6, 2, [[2, 2], [2, 1], [1, 1]]),
    record("b1", "chain", 4, 4, [[4, 0]]),
    record("b1", "tfm", 4, 2, [[2, 1], [1, 1]]),
    record("c1", "chain", 0, 0, left_out="repeats itself"),
    record("c1", "tfm", 0, 0, left_out="repeats itself"),
    record("a1", "tfm", 5, 5, temperature=1.0),
]

HEADER: dict[str, Any] = {
    "format": RECORDS,
    "target": "target-1",
    "dtype": "float32",
    "max_new_tokens": 64,
    "seed": 0,
    "stop_tokens": [0],
    "max_positions": 256,
    "drafter": "drafter-1",
    "weaver": "weaver-1",
    "autoregressive": None,
    "least_distinct": 0.3,
}


def write_records(path: Path, records: Sequence[dict[str, Any]], **changes: Any) -> Path:
    """A records file whose header differs from ``HEADER`` in ``changes``."""
    path.write_text("".join(json.dumps(line) + "\n" for line in [HEADER | changes, *records]))
    return path
