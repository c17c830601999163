"""Text for training: who is held out, what is read, and what is said about what is missing."""

import random
import sys
from pathlib import Path

import pytest

from tfm_lab.training import corpus
from tfm_lab.training.corpus import (
    Document,
    conversation,
    json_lines,
    read_chat,
    read_docstrings,
    read_documentation,
    read_manuals,
    read_maths,
    read_packages,
    read_standard_library,
    sources,
    split,
)


def documents(count: int) -> list[Document]:
    return [Document("docs", f"key {number}", f"text {number}") for number in range(count)]


def test_the_split_is_the_same_on_every_machine() -> None:
    """Fixed by a hash, so these sides never change: results on held-out text stay comparable."""
    held_out = [document.key for document in documents(200) if document.is_held_out]
    assert held_out == ["key 42", "key 45", "key 77", "key 124", "key 132", "key 142", "key 194"]
    assert not Document("stdlib", "key 42", "").is_held_out


def test_about_three_documents_in_a_hundred_are_held_out() -> None:
    share = sum(document.is_held_out for document in documents(20_000)) / 20_000
    assert share == pytest.approx(0.03, abs=0.005)


def test_the_two_sides_are_disjoint_whole_and_in_an_order_of_their_own() -> None:
    everything = documents(500)
    train, held_out = split(everything)
    assert len(train) + len(held_out) == 500
    assert not {document.text for document in train} & {document.text for document in held_out}
    assert all(document.is_held_out for document in held_out)
    assert not any(document.is_held_out for document in train)
    random.Random(0).shuffle(everything)
    assert split(everything) == (train, held_out)


def test_a_later_addition_moves_nobody() -> None:
    fewer, more = split(documents(300)), split(documents(400))
    for before, after in zip(fewer, more, strict=True):
        assert [document for document in after if document in before] == before


def test_texts_about_the_same_thing_stay_on_one_side() -> None:
    answers = [
        Document("chat", f"question {number}", f"answer {i} to {number}") for number in range(300) for i in range(3)
    ]
    train, held_out = split(answers)
    assert held_out
    assert not {document.key for document in train} & {document.key for document in held_out}


def test_a_repeated_text_is_kept_once() -> None:
    """Whatever its key: otherwise a copy of a held-out text could be trained on."""
    copies = [Document("docs", f"key {number}", "the same") for number in range(200)]
    train, held_out = split(copies)
    assert len(train) + len(held_out) == 1


def test_a_conversation_is_in_the_format_of_the_tokenizers_template() -> None:
    text = conversation(" Why? ", "Because.\n")
    assert text == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\nBecause.<|im_end|>\n"


def test_the_standard_library_is_read_without_tests_and_without_paths_of_this_machine() -> None:
    read = list(read_standard_library())
    keys = {document.key for document in read}
    assert {"os.py", "json/decoder.py"} <= keys
    assert not any(key.startswith("/") or "test" in key.split("/") or "site-packages" in key for key in keys)
    assert all(200 <= len(document.text) <= 200_000 for document in read)


def test_packages_are_read_without_their_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CODE_PACKAGES", ("networkx", "click"))
    keys = [document.key for document in read_packages()]
    assert "networkx/classes/graph.py" in keys
    assert "click/core.py" in keys
    assert not any("tests" in key.split("/") for key in keys)


MODULE = '''
def add(left, right=1):
    """Return the sum of two numbers, the second one by default.

    Not part of the first paragraph.
    """

def _hidden():
    """A private function with a docstring long enough to count."""

def terse():
    """Too short."""

class Stack:
    """A last-in first-out collection of values."""

    def push(self, value):
        """Put a value on top of the stack
        and return nothing."""
'''


def test_docstrings_become_questions_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text(MODULE)
    (tmp_path / "_private.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("def (:")
    monkeypatch.setattr(corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(corpus, "CODE_PACKAGES", ())
    answers = {document.key: document.text for document in read_docstrings()}
    assert answers == {
        "What does `pack.add` do?": conversation(
            "What does `pack.add` do?",
            "`add(left, right=1)`: Return the sum of two numbers, the second one by default.",
        ),
        "What does `pack.Stack` do?": conversation(
            "What does `pack.Stack` do?", "`Stack`: A last-in first-out collection of values."
        ),
        "What does `pack.Stack.push` do?": conversation(
            "What does `pack.Stack.push` do?",
            "`Stack.push(self, value)`: Put a value on top of the stack and return nothing.",
        ),
    }


PAGE = """<html><head><title>Not text</title><style>p {color: red}</style></head><body>
<div class="navheader">Up  Next</div><h1>SELECT &amp; friends</h1>
<p>Reads <code>rows</code>
   from    a table.</p><nav>skipped</nav><script>var skipped;</script>
<pre>SELECT  a,
       b</pre><ul><li>one</li><li>two</li></ul>
<div class="navfooter">Prev Home</div></body></html>"""


def test_a_page_of_a_manual_is_reduced_to_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.html").write_text(PAGE.replace("table.", "table." + " More words." * 20))
    (tmp_path / "short.html").write_text("<h1>Short</h1>")
    monkeypatch.setattr(corpus, "MANUALS", {"a-manual": tmp_path})
    (document,) = read_manuals()
    assert document.key == "a-manual/page.html"
    lines = document.text.replace(" More words." * 20, "").splitlines()
    assert [line for line in lines if line] == [
        "SELECT & friends",
        "Reads rows from a table.",
        "SELECT  a,",
        "       b",
        "one",
        "two",
    ]


def test_maths_problems_are_conversations_that_end_with_the_answer() -> None:
    pytest.importorskip("reasoning_gym")
    problems = read_maths()
    first, second = next(problems), next(problems)
    assert first != second
    assert first.key in first.text
    assert "Give the result as your final answer" not in first.text
    assert first.text.startswith("<|im_start|>user\n")
    assert first.text.endswith("<|im_end|>\n")


def test_sources_that_are_not_installed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "DOCUMENTATION", tmp_path / "nowhere")
    monkeypatch.setattr(corpus, "MANUALS", {"sqlite3-doc": tmp_path / "nowhere"})
    monkeypatch.setattr(corpus, "CODE_PACKAGES", ("no-such-package",))
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    for read, sentence in (
        (read_documentation, "install Debian's package python3.11-doc"),
        (read_manuals, "install Debian's package sqlite3-doc"),
        (read_packages, "the package no-such-package is not installed; install the 'dev' and 'train' extras"),
        (read_maths, "reasoning-gym is not installed; install the 'train' extra"),
        (lambda: read_chat(tmp_path / "chat.jsonl"), "chat.jsonl does not exist; write it with 'tfm-lab train chat'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            next(read())


@pytest.mark.parametrize("damage", ['{"prompt": "Why', '{"prompt": "Why?"}', "[1, 2]", "5"])
def test_a_damaged_line_of_conversations_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text('{"prompt": "Who?", "response": "Nobody."}\n' + damage + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .*chat.jsonl is not a JSON object with 'prompt' and 'response'"):
        list(read_chat(path))


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('"one\u2028two\x85three\x0b"\n\n"four"\n', encoding="utf-8")
    assert json_lines(tmp_path / "lines.jsonl") == ['"one\u2028two\x85three\x0b"', '"four"']


def test_conversations_are_a_source_only_when_given(tmp_path: Path) -> None:
    assert "chat" not in sources(None)
    (tmp_path / "chat.jsonl").write_text('{"prompt": "Who?", "response": "Nobody."}\n')
    assert list(sources(tmp_path / "chat.jsonl")["chat"].read()) == [
        Document("chat", "Who?", conversation("Who?", "Nobody."))
    ]


def test_every_source_says_where_it_comes_from_and_under_which_licence(tmp_path: Path) -> None:
    table = sources(tmp_path / "chat.jsonl")
    assert sum(source.weight for source in table.values()) == pytest.approx(1.0)
    assert all(source.origin and source.licence for source in table.values())
