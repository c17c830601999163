"""Contexts of an evaluation: files, turns of the kinds, and how they are chosen."""

from pathlib import Path

import pytest

from tfm_lab.bundle import Bundle
from tfm_lab.evaluation import Context, load_contexts
from tfm_lab.evaluation.contexts import choose_contexts, save_contexts
from tfm_lab.training.corpus import conversation


def test_kinds_of_contexts_take_turns(tmp_path: Path) -> None:
    kinds = ["code", "code", "code", "chat", "docs", "chat"]
    save_contexts([Context(f"{i}", kind, "", "x") for i, kind in enumerate(kinds)], tmp_path / "contexts.jsonl")
    ordered = load_contexts(tmp_path / "contexts.jsonl")
    assert [(context.name, context.kind) for context in ordered] == [
        ("3", "chat"),
        ("0", "code"),
        ("4", "docs"),
        ("5", "chat"),
        ("1", "code"),
        ("2", "code"),
    ]
    assert load_contexts(tmp_path / "contexts.jsonl", limit=2) == ordered[:2]
    assert load_contexts(tmp_path / "contexts.jsonl", limit=100) == ordered


def test_contexts_come_back_as_saved(tmp_path: Path) -> None:
    contexts = [Context("one", "docs", "manuals: x", 'line\u2028separator, "quoted"\x85\n\tend 한국어 👋')]
    save_contexts(contexts, tmp_path / "contexts.jsonl")
    contexts.append(Context("two", "maths", "", "1 + 1?", is_question=True))
    save_contexts(contexts, tmp_path / "contexts.jsonl")
    assert sorted(load_contexts(tmp_path / "contexts.jsonl"), key=lambda context: context.name) == contexts
    assert '"is_question"' not in (tmp_path / "contexts.jsonl").read_text(encoding="utf-8").split("\n")[0]


def test_questions_are_put_into_the_chat_format_and_other_prompts_are_not(tiny_bundle: Bundle) -> None:
    question = Context("one", "chat", "", " Why? \n", is_question=True)
    assert (
        tiny_bundle.decode(question.tokens(tiny_bundle)) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    )
    raw = Context("one", "code", "", "def why():\n")
    assert tiny_bundle.decode(raw.tokens(tiny_bundle)) == "def why():\n"


LINE = '{"name": "a", "kind": "docs", "source": "", "prompt": "x"}'


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (LINE[:-3], r"contexts.jsonl is not a file of contexts: "),
        ('{"name": "a"}', "is not a file of contexts: every line holds name, kind, source and prompt"),
        (LINE[:-1] + ', "more": 1}', "every line holds name, kind, source and prompt"),
        (LINE.replace('"x"', "5"), "every line holds name, kind, source and prompt"),
        (LINE[:-1] + ', "is_question": "yes"}', "every line holds name, kind, source and prompt"),
        ("[1]", "is not a file of contexts"),
        ("\n\n", "holds no contexts"),
        (f"{LINE}\n{LINE}", "names two contexts 'a'; give each its own name"),
    ],
)
def test_a_damaged_file_of_contexts_is_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "contexts.jsonl").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        load_contexts(tmp_path / "contexts.jsonl")


def test_a_missing_file_and_a_limit_below_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist; give a JSON-lines file with name, kind, source and prompt"):
        load_contexts(tmp_path / "nowhere.jsonl")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not a file of contexts"):
        load_contexts(tmp_path / "binary.jsonl")
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"the limit must be at least 1 context, got {limit}"):
            load_contexts(limit=limit)


def texts_to_choose_from() -> list[tuple[str, str, str]]:
    lines = "".join(f"line {number} of a file with some words in it\n" for number in range(60))
    texts = [("stdlib", f"{n}.py", f"# {n}\n{lines}") for n in range(8)]
    texts += [("manuals", f"{n}.html", f"Page {n}\n{lines}") for n in range(8)]
    texts += [("docs", "short.rst", "short\n")]
    return texts + [
        (kind, f"{kind} {n}?", conversation(f"{kind} {n}?", "!")) for kind in ("chat", "maths") for n in range(8)
    ]


def test_chosen_contexts_are_openings_and_excerpts_of_held_out_texts() -> None:
    texts = texts_to_choose_from()
    whole = {f"{source}: {key}": text for source, key, text in texts}
    chosen = choose_contexts(texts, per_kind=5, seed=0, count_tokens=lambda text: len(text) // 3)
    assert [context.kind for context in chosen] == ["chat"] * 5 + ["maths"] * 5 + ["code"] * 5 + ["docs"] * 5
    assert len({context.name for context in chosen}) == len({context.prompt for context in chosen}) == 20
    for context in chosen:
        assert context.prompt in whole[context.source]
        if context.kind in ("chat", "maths"):
            assert context.prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
        else:
            assert 300 <= len(context.prompt) <= 760
            assert context.prompt.endswith("\n")
    assert chosen == choose_contexts(texts, 5, 0, lambda text: len(text) // 3)
    assert chosen != choose_contexts(texts, 5, 1, lambda text: len(text) // 3)


def test_contexts_longer_than_allowed_are_passed_over() -> None:
    chosen = choose_contexts(texts_to_choose_from(), 5, 0, count_tokens=len, longest=60)
    assert {context.kind for context in chosen} == {"chat", "maths"}
