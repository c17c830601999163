"""Benchmark suites: MT-Bench questions, grade-school word problems and HumanEval functions.

The word problems ship with the package in ``tfm_lab/data/maths_suite.jsonl`` (Apache-2.0). They are questions of
reasoning-gym 0.1.25, ``create_dataset("gsm_symbolic", size=400, seed=4_000_000)``, without their request for a format:
the first 200 that differ from each other and from all 14,000 training problems. The generator seeds problem i with
``seed + i``, so neighbouring seeds share problems and the seed has to be far from training's 20260; a chance repetition
among so few templates has to be left out as well. Training knows the templates, not these questions.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tfm_lab.evaluation.contexts import Context, taking_turns
from tfm_lab.fetching import fetched
from tfm_lab.fetching.suites import CHAT, CODE
from tfm_lab.training.corpus import json_lines

MATHS = Path(__file__).parent.parent / "data" / "maths_suite.jsonl"
SUITES = ("chat", "math", "code")


def load_suites(names: Sequence[str], limit: int | None = None) -> list[Context]:
    """Prompts of the named suites, the kinds taking turns, so that any prefix is balanced.

    ``chat`` (80 first turns of MT-Bench) and ``math`` (200 word problems, kind ``maths``) are questions, put into the
    target's chat format; ``code`` (164 HumanEval functions) is raw text to complete.

    Args:
        limit: take only so many, at least one.

    Raises:
        ValueError: if there is no suite of that name, or it was not fetched.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"the limit must be at least 1 context, got {limit}")
    for name in names:
        if name not in SUITES:
            raise ValueError(f"there is no suite {name!r}; use {', '.join(SUITES)}")
    contexts: list[Context] = []
    for name in dict.fromkeys(names):
        kind = "maths" if name == "math" else name
        for line in json_lines(_path(name)):
            row = json.loads(line)
            contexts.append(Context(row["name"], kind, row["source"], row["prompt"], is_question=name != "code"))
    return taking_turns(contexts)[:limit]


def _path(name: str) -> Path:
    if name == "math":
        return MATHS
    return fetched("suites") / (CHAT if name == "chat" else CODE)
