"""Prompts for a target: questions it thinks up itself, word problems, functions to complete, pieces of documents.

What a drafter should see in training is text that its target writes in use. So the target gets prompts of the kinds
that it will meet and writes the rest itself (:mod:`tfm_lab.training.writing`). Prompts go to training or to the
held-out part by a hash of their key, as documents do.
"""

import ast
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from tfm_lab.bundle import TargetOnly
from tfm_lab.training.corpus import (
    Document,
    json_lines,
    read_docstrings,
    read_documentation,
    read_manuals,
    read_maths,
    read_packages,
    read_standard_library,
    source_files,
)
from tfm_lab.training.sampling import sample_texts

CHAT, MATHS, CODE, DOCSTRINGS = "chat", "maths", "code", "docstrings"
QUESTIONS = (CHAT, MATHS, DOCSTRINGS)
MARK = "[question]"
SHORTEST_FUNCTION, LONGEST_FUNCTION = 60, 1200
SHORTEST_QUESTION, LONGEST_QUESTION = 12, 400
PIECE, PIECES_APART = 160, 1600


def read_word_problems() -> Iterator[Document]:
    """The questions of :func:`read_maths`, without their answers."""
    for problem in read_maths():
        yield Document(MATHS, problem.key, problem.key)


def read_functions() -> Iterator[Document]:
    """Documented functions of the standard library and of installed packages, up to the end of the docstring."""
    for path, key in source_files():
        try:
            text = path.read_text(encoding="utf-8")
            module = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):
            continue
        lines = text.splitlines(keepends=True)
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
                head = "".join(lines[node.lineno - 1 : node.body[0].end_lineno])
                if SHORTEST_FUNCTION <= len(head) <= LONGEST_FUNCTION:
                    yield Document(CODE, f"{key}:{node.name}", head)


def read_docstring_questions() -> Iterator[Document]:
    """The questions of :func:`read_docstrings`, without their answers."""
    for question in read_docstrings():
        yield Document(DOCSTRINGS, question.key, question.key)


def pieces_of(documents: Iterable[Document]) -> Iterator[Document]:
    """Short pieces of documents, each from the start of a line, to go on from; they stay on their document's side."""
    for document in documents:
        text = document.text
        for place in range(0, len(text) - PIECE, PIECES_APART):
            start = text.rfind("\n", 0, place) + 1 if place else 0
            piece = text[start : start + PIECE]
            if piece.strip():
                yield Document(document.source, document.key, piece)


READERS: dict[str, Callable[[], Iterator[Document]]] = {
    MATHS: read_word_problems,
    CODE: read_functions,
    DOCSTRINGS: read_docstring_questions,
    "stdlib": lambda: pieces_of(read_standard_library()),
    "packages": lambda: pieces_of(read_packages()),
    "docs": lambda: pieces_of(read_documentation()),
    "manuals": lambda: pieces_of(read_manuals()),
}
"""Prompts that come from what is installed. Those of kind ``chat`` come from the target, when it writes."""


def save_prompts(path: Path, prompts: Sequence[Document]) -> None:
    """Write prompts as JSON lines, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    rows = ({"kind": prompt.source, "key": prompt.key, "text": prompt.text} for prompt in prompts)
    scratch.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    scratch.replace(path)


def load_prompts(path: Path) -> list[Document]:
    """Read what :func:`save_prompts` wrote.

    Raises:
        ValueError: if the file is missing or is something else.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist; collect the prompts first with 'tfm-lab train prompts'")
    try:
        rows = [json.loads(line) for line in json_lines(path)]
        return [Document(row["kind"], row["key"], row["text"]) for row in rows]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is not a file of prompts; collect them with 'tfm-lab train prompts'") from None


def tokens_of(models: TargetOnly, prompt: Document) -> list[int]:
    """A prompt as the target reads it: questions in its chat format, anything else as it stands."""
    return models.chat(prompt.text) if prompt.source in QUESTIONS else models.encode(prompt.text)


def think_up_questions(
    models: TargetOnly, count: int, generator: torch.Generator, *, temperature: float = 0.9, most: int = 1024
) -> list[str]:
    """Questions that the target writes itself, from its chat format alone: what a user says, up to the end of the turn.

    Different ones only; too short, too long and unfinished ones are left out.

    Args:
        generator: on the target's device.
        most: questions at a time.

    Raises:
        ValueError: if the target's chat format has no user turn to fill in, or it hardly ever finishes one.
    """
    before, after = _user_turn(models)
    batch = min(most, 2 * count + 8)
    prefix = torch.tensor([models.encode(before)] * batch, device=models.target.device)
    temperatures = torch.full((batch,), temperature, device=models.target.device)
    questions: dict[str, None] = {}
    rounds = 0
    while len(questions) < count:
        texts = sample_texts(models.target, prefix, 80, temperatures, generator)
        for tokens in texts[:, prefix.shape[1] :].tolist():
            question, found, _ = models.decode(tokens).partition(after)
            if found and SHORTEST_QUESTION <= len(question.strip()) <= LONGEST_QUESTION and "<|" not in question:
                questions[question.strip()] = None
        rounds += 1
        if len(questions) < min(count, rounds * batch // 50):
            raise ValueError(
                "the target hardly ever finishes a question of its own; leave the prompts of kind chat out"
            )
    return list(questions)[:count]


def _user_turn(models: TargetOnly) -> tuple[str, str]:
    """The chat format around what a user says: all before it, and the mark behind it."""
    before, _, behind = models.decode(models.chat(MARK)).partition(MARK)
    end = behind.strip().split("\n")[0]
    if not before or not end:
        raise ValueError("the target's chat format does not mark a user's turn; leave the prompts of kind chat out")
    return before, end
