"""Held-out contexts: the beginnings of texts that training never saw."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tfm_lab.bundle import TargetOnly
from tfm_lab.training.corpus import json_lines

HELD_OUT = Path(__file__).parent.parent / "data" / "held_out.jsonl"
KINDS = ("chat", "maths", "code", "docs")
REQUIRED, OPTIONAL = {"name", "kind", "source", "prompt"}, {"is_question"}


@dataclass(frozen=True, slots=True)
class Context:
    """A prompt to continue.

    Attributes:
        name: unique within its file.
        kind: one of ``KINDS``.
        source: where the text comes from, for attribution.
        prompt: the text itself, chat markers included.
        is_question: the prompt is what a user asks, to be put into the target's own chat format.
    """

    name: str
    kind: str
    source: str
    prompt: str
    is_question: bool = False

    def tokens(self, models: TargetOnly) -> list[int]:
        """Token ids of the prompt as this target reads it."""
        return models.chat(self.prompt) if self.is_question else models.encode(self.prompt)


def load_contexts(path: Path = HELD_OUT, limit: int | None = None) -> list[Context]:
    """Contexts of a JSON-lines file, the kinds taking turns, so that any prefix is balanced.

    Args:
        limit: take only so many, at least one.

    Raises:
        ValueError: if the file is missing, is something else, is empty, or gives two contexts the same name.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"the limit must be at least 1 context, got {limit}")
    if not path.is_file():
        raise ValueError(f"{path} does not exist; give a JSON-lines file with name, kind, source and prompt")
    try:
        records = [json.loads(line) for line in json_lines(path)]
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a file of contexts: {error}") from None
    if not all(_is_context(record) for record in records):
        raise ValueError(f"{path} is not a file of contexts: every line holds name, kind, source and prompt")
    contexts = [Context(**record) for record in records]
    names = Counter(context.name for context in contexts)
    if not names:
        raise ValueError(f"{path} holds no contexts")
    if names.most_common(1)[0][1] > 1:
        raise ValueError(f"{path} names two contexts {names.most_common(1)[0][0]!r}; give each its own name")
    return taking_turns(contexts)[:limit]


def _is_context(record: object) -> bool:
    if not isinstance(record, dict) or record.keys() - OPTIONAL != REQUIRED:
        return False
    return all(isinstance(value, bool if name in OPTIONAL else str) for name, value in record.items())


def taking_turns(contexts: Sequence[Context]) -> list[Context]:
    """One context of each kind, then the next of each, so that any prefix is balanced."""
    kinds = sorted({context.kind for context in contexts})
    by_kind = [[context for context in contexts if context.kind == kind] for kind in kinds]
    return [group[index] for index in range(len(contexts)) for group in by_kind if index < len(group)]


def save_contexts(contexts: Sequence[Context], path: Path) -> None:
    """Write what :func:`load_contexts` reads."""
    rows = (asdict(context) for context in contexts)
    lines = (json.dumps({k: v for k, v in row.items() if k in REQUIRED or v}, ensure_ascii=False) for row in rows)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def choose_contexts(
    texts: Sequence[tuple[str, str, str]],
    per_kind: int,
    seed: int,
    count_tokens: Callable[[str], int],
    longest: int = 320,
) -> list[Context]:
    """Pick contexts from held-out documents.

    A conversation is cut where the assistant's answer begins; other text is cut at a line end after 300 to 700
    characters from a random line.

    Args:
        texts: (source, key, text) of the documents, sources as in :mod:`tfm_lab.training.corpus`.
        per_kind: how many of each kind.
        count_tokens: length of a text under the target's tokenizer.
        longest: contexts with more tokens are passed over.
    """
    generator = random.Random(seed)
    contexts: list[Context] = []
    sources = {"chat": ("chat",), "maths": ("maths",)}
    sources |= {"code": ("stdlib", "packages"), "docs": ("docs", "manuals")}
    for kind in KINDS:
        pool = [text for text in texts if text[0] in sources[kind]]
        generator.shuffle(pool)
        seen: set[str] = set()
        for source, key, text in pool:
            prompt = _opening(text) if kind in ("chat", "maths") else _excerpt(text, generator)
            if prompt and prompt not in seen and count_tokens(prompt) <= longest:
                seen.add(prompt)
                contexts.append(Context(f"{kind}-{len(seen):03d}", kind, f"{source}: {key}", prompt))
            if len(seen) == per_kind:
                break
    return contexts


def _opening(conversation: str) -> str:
    marker = "<|im_start|>assistant\n"
    return conversation[: conversation.index(marker) + len(marker)]


def _excerpt(text: str, generator: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    start = generator.randrange(max(1, len(lines) // 2))
    length = generator.randint(300, 700)
    excerpt = ""
    for line in lines[start:]:
        excerpt += line
        if len(excerpt) >= length:
            return excerpt
    return ""
