"""Drafters and Weaver for a target that exists already: prompts, the texts it writes after them, and the stages."""

import json
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
import torch
from training.tiny import short_recipe

from tfm_lab.bundle import TargetOnly, load_bundle, load_target_only
from tfm_lab.chat_template import ChatTemplate
from tfm_lab.training import prompts, writing
from tfm_lab.training.corpus import Document
from tfm_lab.training.data import load_packed, load_written
from tfm_lab.training.pipeline import (
    Work,
    collect_prompts,
    prepare_corpus,
    train_autoregressive,
    train_drafter,
    train_target,
    train_weaver,
    write_text,
)
from tfm_lab.training.prompts import (
    CHAT,
    CODE,
    MATHS,
    load_prompts,
    pieces_of,
    read_functions,
    read_word_problems,
    save_prompts,
    think_up_questions,
    tokens_of,
)
from tfm_lab.training.recipe import Recipe
from tfm_lab.training.writing import prompt_openings


@pytest.fixture(scope="module")
def models(tiny_work: Path) -> TargetOnly:
    return load_target_only(str(tiny_work / "model" / "target"))


def existing_recipe(target: Path, **changes: object) -> Recipe:
    recipe = short_recipe()
    text = replace(recipe.text, **({"prompts": (CODE,), "prompt_tokens": 40} | changes))
    return replace(recipe, corpus=None, target=None, fetched=str(target), text=text)


@pytest.fixture(scope="module")
def functions() -> list[Document]:
    """Heads of all functions that are installed; reading and parsing them takes a while."""
    return list(read_functions())


def test_functions_are_cut_behind_their_docstring(functions: list[Document]) -> None:
    found = {document.key: document.text for document in functions}
    head = found["bisect.py:insort_right"]
    assert head.startswith("def insort_right(a, x, lo=0, hi=None, *, key=None):\n")
    assert head.rstrip().endswith('"""')
    assert len(found) > 1000
    assert all(60 <= len(text) <= 1200 for text in found.values())


def test_heads_of_functions_that_are_documented_and_do_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = 'def kept(a,\n         b):\n    """Says what it does in two lines.\n\n    The second one is here.\n    """\n'
    text = f"import os\n\n\n{head}    c = a + b\n    return c\n\n\n"
    text += head.replace("kept", "without_body") + "\n\n" + "def undocumented(a):\n    b = a\n    return b\n\n\n"
    text += f'def short():\n    """Do."""\n    return 1\n\n\ndef long():\n    """{"x" * 1200}"""\n    return 1\n'
    (tmp_path / "good.py").write_text(text)
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    files = [(tmp_path / name, f"key/{name}") for name in ("latin.py", "broken.py", "good.py")]
    monkeypatch.setattr(prompts, "source_files", lambda: files)
    assert list(read_functions()) == [Document(CODE, "key/good.py:kept", head)]


def test_pieces_start_where_a_line_does_and_stay_on_their_documents_side() -> None:
    text = "".join(f"line {number:03} {'word ' * 13}\n" for number in range(60))
    long, short = Document("docs", "a.rst", text), Document("docs", "b.rst", "too short")
    pieces = list(pieces_of([long, short, Document("docs", "c.rst", " " * 400)]))
    assert [(piece.source, piece.key, len(piece.text)) for piece in pieces] == [("docs", "a.rst", 160)] * 3
    assert [piece.text[:8] for piece in pieces] == ["line 000", "line 021", "line 042"]  # 75 characters a line
    assert all(piece.is_held_out is long.is_held_out for piece in pieces)


def test_questions_about_functions_come_without_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Document("docstrings", "What does `a.b` do?", "What does `a.b` do? It adds.")
    monkeypatch.setattr(prompts, "read_docstrings", lambda: iter([question]))
    found = list(prompts.READERS["docstrings"]())
    assert found == [Document("docstrings", "What does `a.b` do?", "What does `a.b` do?")]


def test_word_problems_come_without_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "read_maths", lambda: iter([Document("maths", "How many?", "How many? Five.")]))
    assert list(read_word_problems()) == [Document(MATHS, "How many?", "How many?")]


def test_prompts_survive_a_file_and_anything_else_is_refused(tmp_path: Path) -> None:
    written = [Document(CODE, "a:b", "def b():\n"), Document(MATHS, "How many?\u2028", "How many?\u2028")]
    save_prompts(tmp_path / "prompts.jsonl", written)
    assert load_prompts(tmp_path / "prompts.jsonl") == written
    with pytest.raises(ValueError, match="collect the prompts first with 'tfm-lab train prompts'"):
        load_prompts(tmp_path / "none.jsonl")
    for content in ("{", "[]\n", '{"kind": "code"}\n'):
        (tmp_path / "prompts.jsonl").write_text(content)
        with pytest.raises(ValueError, match="is not a file of prompts"):
            load_prompts(tmp_path / "prompts.jsonl")


def test_questions_go_into_the_chat_format_and_code_stays_as_it_is(models: TargetOnly) -> None:
    assert tokens_of(models, Document(MATHS, "k", "Why?")) == models.chat("Why?")
    assert tokens_of(models, Document(CODE, "k", "def f():")) == models.encode("def f():")


def test_questions_are_what_the_target_says_in_the_users_turn(
    models: TargetOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [
        "What is a database?<|im_end|>\n<|im_start|>assistant\nA",
        "  What is a database? <|im_end|>",
        "Why is the sky blue?<|im_end|>",
        "Too short<|im_end|>",
        "This one has more letters than a question may<|im_end|>",
        "This one never comes to an end",
        "A mark <|im_start|> inside of it<|im_end|>",
        "Why do cats sleep so much?<|im_end|>",
    ]
    seen: list[str] = []

    def scripted(target: object, prefix: torch.Tensor, new_tokens: int, *_: object) -> torch.Tensor:
        seen.append(models.decode(prefix[0].tolist()))
        rows = [models.encode(turn)[:new_tokens] for turn in turns]
        filled = torch.tensor([[*row, *[0] * (new_tokens - len(row))] for row in rows])
        return torch.cat([prefix[: len(rows)], filled], dim=1)

    monkeypatch.setattr(prompts, "sample_texts", scripted)
    monkeypatch.setattr(prompts, "LONGEST_QUESTION", 40)
    questions = think_up_questions(models, 3, torch.Generator(), most=len(turns))
    assert questions == ["What is a database?", "Why is the sky blue?", "Why do cats sleep so much?"]
    assert think_up_questions(models, 2, torch.Generator(), most=len(turns)) == questions[:2]
    assert set(seen) == {"<|im_start|>user\n"}


def test_a_target_that_asks_nothing_is_refused(models: TargetOnly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "sample_texts", lambda target, prefix, *_: prefix.repeat(1, 3))
    with pytest.raises(ValueError, match="hardly ever finishes a question of its own"):
        think_up_questions(models, 3, torch.Generator().manual_seed(0), most=64)


def test_a_chat_format_without_turns_has_no_questions(models: TargetOnly) -> None:
    bare = replace(models, chat_template=ChatTemplate("{{ messages[0]['content'] }}", "here"))
    with pytest.raises(ValueError, match="chat format does not mark a user's turn"):
        think_up_questions(bare, 3, torch.Generator())


def test_prompts_of_every_kind_are_chosen_by_kind_and_length(
    models: TargetOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def thought_up(models: object, count: int, generator: object, *, most: int) -> list[str]:
        asked.append(count)
        assert most == short_recipe().text.batch
        return ["Why?"]

    monkeypatch.setattr(writing, "think_up_questions", thought_up)
    fitting = models.decode(models.encode("import os, sys, re, json, math\n" * 5)[:40])
    assert len(models.encode(fitting)) == 40
    collected = [Document(CODE, "a", fitting), Document(CODE, "b", f"{fitting} = [0]\n"), Document(CODE, "c", "")]
    collected.append(Document(MATHS, "d", "How many?"))
    text, notes = replace(short_recipe().text, prompts=(CHAT, CODE), prompt_tokens=40), list[str]()
    kinds = writing.encode_prompts(models, collected, text, 5, seed=0, note=notes.append)
    assert kinds == {CHAT: [models.chat("Why?")], CODE: [models.encode(fitting)]}
    assert asked == [3]
    assert notes[1] == "1 prompts of kind code, 2 left out as too long"


def test_later_epochs_and_other_seeds_choose_other_prompts_in_other_batches() -> None:
    """25 texts of two kinds are 13 of each; batches are not sorted by length."""
    kinds = {CHAT: [[1] * n for n in range(1, 100)], CODE: [[2] * n for n in range(1, 100)]}
    text = replace(short_recipe().text, batch=4)

    def epochs(seed: int) -> list[list[list[int]]]:
        openings = prompt_openings(kinds, text, 25, seed)
        return [[next(openings)[1].tolist() for _ in range(7)] for _ in range(2)]

    first, second = epochs(0)
    assert len(list(chain.from_iterable(first))) == 26
    assert sorted(chain.from_iterable(first)) != sorted(chain.from_iterable(second))
    assert sorted(chain.from_iterable(first)) != sorted(chain.from_iterable(epochs(1)[0]))
    assert sorted(first) != first


def test_windows_of_a_corpus_go_on_from_batch_to_batch(tiny_work: Path) -> None:
    corpus, text = load_packed(tiny_work / "corpus.npz"), short_recipe().text
    openings = writing.corpus_openings(corpus, text, 3)
    for step in range(2):
        tokens, lengths = next(openings)
        assert torch.equal(tokens, corpus.batch(step, 3, text.prompt_tokens, text.seed))
        assert lengths.tolist() == [text.prompt_tokens] * 3


def test_kept_texts_are_those_whose_own_part_is_varied(models: TargetOnly, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 3 and 2 tokens; the first text of every batch repeats itself behind a varied prompt."""
    temperatures: list[list[float]] = []
    rows = [[1, 2, 3, 9, 9, 9, 9, 9], [2, 1, 4, 5, 6, 7, 8, 3]]

    def scripted(target: object, prompts: object, new_tokens: int, heat: torch.Tensor, *_: object) -> torch.Tensor:
        assert new_tokens == 5
        temperatures.append(heat.tolist())
        return torch.tensor(rows)

    monkeypatch.setattr(writing, "sample_texts", scripted)
    opening = torch.tensor([[1, 2, 3], [2, 1, 0]]), torch.tensor([3, 2])
    text = replace(short_recipe().text, length=8, prompt_tokens=3, least_distinct=0.5, temperatures=(0.5, 1.0))
    written = writing.continue_prompts(models.target, repeat(opening), text, 3, lambda message: None)
    assert written.tokens.tolist() == [rows[1]] * 3
    assert written.written_from.tolist() == [2, 2, 2]
    assert written.temperatures is not None
    assert written.temperatures.tolist() == [1.0] * 3
    assert temperatures == [[0.5, 1.0]] * 3


def test_another_seed_writes_other_texts(models: TargetOnly) -> None:
    opening = torch.tensor([[5, 6, 7]] * 4), torch.tensor([3] * 4)
    text = replace(short_recipe().text, length=20, least_distinct=0.0, temperatures=(1.0,))
    first, again, other = (
        writing.continue_prompts(models.target, repeat(opening), replace(text, seed=seed), 4, lambda message: None)
        for seed in (0, 0, 1)
    )
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)


def test_batches_hold_prompts_of_about_one_length_and_every_kind_equally_often() -> None:
    kinds = {CHAT: [[1] * n for n in range(5, 25)], CODE: [[2] * n for n in (3, 40)]}
    text = replace(short_recipe().text, batch=4)
    openings = prompt_openings(kinds, text, 16, seed=0)
    batches = [next(openings) for _ in range(4)]
    lengths = [row.tolist() for _, row in batches]
    assert sorted(chain.from_iterable(lengths))[-4:] == [40] * 4
    spans = [max(row) - min(row) for row in lengths]
    assert sorted(spans)[:3] < [16] * 3
    first = [token for tokens, _ in batches for token in tokens[:, 0].tolist()]
    assert first.count(1) == first.count(2) == 8
    for tokens, row in batches:
        for line, length in zip(tokens.tolist(), row.tolist(), strict=True):
            assert set(line[:length]) in ({1}, {2})
            assert set(line[length:]) <= {0}
    again = prompt_openings(kinds, text, 16, seed=0)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(batches, again, strict=False))


@pytest.mark.slow
def test_all_stages_for_an_existing_target(
    tiny_work: Path, tmp_path: Path, functions: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompts are every tenth function that is installed."""
    monkeypatch.setitem(prompts.READERS, CODE, lambda: iter(functions[::10]))
    target = tiny_work / "model" / "target"
    recipe, work = existing_recipe(target, length=150, prompt_tokens=110), Work(tmp_path / "work")
    collect_prompts(work, recipe)
    collected = load_prompts(tmp_path / "work" / "prompts.jsonl")
    write_text(work, recipe)
    assert train_drafter(work, recipe)
    assert train_weaver(work, recipe)
    assert train_autoregressive(work, recipe)
    assert not (tmp_path / "work" / "model" / "target").exists()
    bundle = load_bundle(str(tmp_path / "work" / "model"), target=str(target))
    sides = {True: set[str](), False: set[str]()}
    for prompt in collected:
        sides[prompt.is_held_out].add(prompt.text)
    for name, is_held_out in (("text.npz", False), ("held_out_text.npz", True)):
        written = load_written(tmp_path / "work" / name)
        assert written.tokens.shape[1] == recipe.text.length
        for row, start in zip(written.tokens.tolist(), written.written_from.tolist(), strict=True):
            assert bundle.decode(row[:start]) in sides[is_held_out]
    assert len(np.unique(load_written(tmp_path / "work" / "text.npz").written_from)) > 1


def test_a_fetched_target_is_named_in_the_bundle(
    tiny_work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfm_lab.training import pipeline

    real = pipeline.load_target_only
    target = str(tiny_work / "model" / "target")
    monkeypatch.setattr(pipeline, "load_target_only", lambda name, **options: real(target, **options))
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("text.npz", "held_out_text.npz"):
        (folder / name).write_bytes((tiny_work / name).read_bytes())
    recipe = replace(existing_recipe(Path("x")), fetched="smollm2")
    assert train_drafter(Work(folder), recipe)
    assert json.loads((folder / "model" / "bundle.json").read_text()) == {"target": "smollm2"}


def test_stages_of_an_own_target_refuse_an_existing_one(tiny_work: Path, tmp_path: Path) -> None:
    recipe = existing_recipe(tiny_work / "model" / "target")
    for stage in (lambda work: prepare_corpus(work, recipe, None), lambda work: train_target(work, recipe)):
        with pytest.raises(ValueError, match="is for the existing target"):
            stage(Work(tmp_path / "work"))
    with pytest.raises(ValueError, match="starts from no prompts that could be collected"):
        collect_prompts(Work(tmp_path / "work"), short_recipe())
    with pytest.raises(ValueError, match="no prompts of kind 'code' of at most 40 tokens"):
        writing.encode_prompts(load_target_only(recipe.fetched), [], recipe.text, 4, seed=0, note=lambda message: None)
    with pytest.raises(ValueError, match="has no table 'autoregressive'"):
        train_autoregressive(Work(tmp_path / "work"), replace(recipe, autoregressive=None))
