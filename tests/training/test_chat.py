"""Conversations that a larger model writes: which questions, in which format, and what is kept of the answers."""

import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.training import chat
from tfm_lab.training.chat import Exchange, choose_prompts, save_chat, unasked_questions, write_chat
from tfm_lab.training.corpus import conversation, read_chat
from tfm_lab.training.tokenizer import TURN_END, token_id

PREAMBLE = "<|im_start|>system\nYou are a helpful AI assistant who answers in simple words.<|im_end|>\n"


def template_of(question: str) -> int:
    """Index of the template that asks this question, by its opening words."""
    templates = tomllib.loads(chat.QUESTIONS.read_text(encoding="utf-8"))["templates"]
    openings = [template["text"].split("{}")[0] for template in templates]
    fitting = [index for index, opening in enumerate(openings) if question.startswith(opening)]
    return max(fitting, key=lambda index: len(openings[index]))


def test_templates_take_turns_and_repeat_nothing_early() -> None:
    asked = choose_prompts(160, seed=0)
    assert set(Counter(template_of(question) for question in asked).values()) == {20}
    assert len(set(asked)) == 160


def test_questions_depend_on_the_seed_alone() -> None:
    assert choose_prompts(50, seed=3) == choose_prompts(80, seed=3)[:50]
    assert choose_prompts(50, seed=3) != choose_prompts(50, seed=4)


def test_asked_and_unasked_questions_make_up_the_whole() -> None:
    everything = unasked_questions(set())
    assert len(everything) == len(set(everything)) > 1000
    asked = set(choose_prompts(100, seed=1))
    unasked = unasked_questions(asked)
    assert not set(unasked) & asked
    assert set(unasked) | asked == set(everything)


ANSWERS = {
    "Ends in time?": "This is a whole answer that comes to its end in good time.<|im_end|> and what follows",
    "Runs on?": "This answer has one sentence. It has another! And then it is still going on when",
    "Too short?": "No.<|im_end|>",
    "No sentence?": "an answer without any end of a sentence is of no use to anybody at all",
}


def scripted(bundle: Bundle, seen: list[list[str]]) -> Any:
    """A teacher that knows its answers by heart."""

    def write(teacher: Any, prompts: Tensor, new_tokens: int, temperatures: Tensor, generator: Any) -> Tensor:
        texts = [bundle.decode(row) for row in prompts.tolist()]
        seen.append(texts)
        rows = []
        for text, row in zip(texts, prompts.tolist(), strict=True):
            question = text.removeprefix(f"{PREAMBLE}<|im_start|>user\n").split("<|im_end|>")[0]
            answer = bundle.encode(ANSWERS[question])
            rows.append([*row, *(answer + bundle.encode("x") * new_tokens)[:new_tokens]])
        return torch.tensor(rows)

    return write


def answers(
    bundle: Bundle, questions: Sequence[str], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[list[Exchange], list[list[str]]]:
    seen: list[list[str]] = []
    monkeypatch.setattr(chat, "sample_texts", scripted(bundle, seen))
    generator = torch.Generator().manual_seed(0)
    options = {"answer_tokens": 200} | options
    return list(write_chat(bundle.target, bundle.tokenizer, questions, generator, **options)), seen


def test_the_teacher_is_asked_in_chat_format(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    _, seen = answers(tiny_bundle, ["Ends in time?"], monkeypatch)
    assert seen == [[PREAMBLE + "<|im_start|>user\nEnds in time?<|im_end|>\n<|im_start|>assistant\n"]]


def test_answers_end_at_their_turn_or_at_a_sentence(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    length = len(tiny_bundle.encode(ANSWERS["Runs on?"]))
    exchanges, _ = answers(tiny_bundle, list(ANSWERS), monkeypatch, answer_tokens=length)
    assert sorted(exchanges) == [
        Exchange("Ends in time?", "This is a whole answer that comes to its end in good time."),
        Exchange("Runs on?", "This answer has one sentence. It has another!"),
    ]


def test_questions_are_asked_in_batches_of_equal_length(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    _, seen = answers(tiny_bundle, list(ANSWERS) * 3, monkeypatch, batch=2, on_batch=done.append)
    assert all(len(texts) <= 2 for texts in seen)
    assert all(len({len(tiny_bundle.encode(text)) for text in texts}) == 1 for texts in seen)
    assert done[-1] == 12
    assert done == sorted(done)


def test_a_real_target_can_be_the_teacher(tiny_bundle: Bundle) -> None:
    generator = torch.Generator().manual_seed(0)
    questions = choose_prompts(4, seed=0)
    written = list(write_chat(tiny_bundle.target, tiny_bundle.tokenizer, questions, generator, answer_tokens=40))
    end = token_id(tiny_bundle.tokenizer, TURN_END)
    assert all(exchange.prompt in questions for exchange in written)
    assert all(end not in tiny_bundle.encode(exchange.response) for exchange in written)


def test_saved_conversations_become_documents_of_the_corpus(tmp_path: Path) -> None:
    exchanges = [Exchange("Why?", "Because\u2028it is so, 그렇다."), Exchange("Who?", 'Nobody "at all".')]
    save_chat(tmp_path / "new" / "chat.jsonl", exchanges)
    assert [document.text for document in read_chat(tmp_path / "new" / "chat.jsonl")] == [
        conversation(*exchange) for exchange in exchanges
    ]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["chat.jsonl"]
    first = (tmp_path / "new" / "chat.jsonl").read_text(encoding="utf-8").split("\n")[0]
    assert json.loads(first) == exchanges[0]._asdict()
