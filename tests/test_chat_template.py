"""Chat templates: as transformers renders them, in a sandbox, and one sentence for what fails."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from tfm_lab.bundle import SHIPPED, load_target_only
from tfm_lab.chat_template import ChatTemplate, read_chat_template

SPACED = """{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
{%- else %}
    {%- set system = 'Be <b>kind</b> & "brief".' %}
{%- endif %}
{{ bos_token }}[{{ system }}]
{% for message in messages %}
    {% if message['role'] == 'system' %}
        {% continue %}
    {% endif %}
    {{- '<' + message['role'] + '>' }}
  {{ message['content'] | tojson }}
{% endfor %}
{% if tools %}tools{% endif %}
{%- if add_generation_prompt %}
{{ '<assistant>' }}
{%- endif %}
"""
CONVERSATIONS = [
    [{"role": "user", "content": "Why?"}],
    [{"role": "user", "content": "a < b && c > 'd' \"e\" 안녕 \\n {{ messages }} {% raw %}"}],
    [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The tokenizer of the shipped target, whose template a test replaces."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED / "hybrid" / "target" / name, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["chat_template"]
    rewrite(tmp_path, config | {"bos_token": {"__type": "AddedToken", "content": "<|endoftext|>"}})
    return tmp_path


def rewrite(folder: Path, config: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def config_with(folder: Path, template: Any) -> None:
    rewrite(folder, json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": template})


@pytest.mark.parametrize("place", ["file", "config", "list"])
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["short", "hard characters", "three turns"])
def test_a_template_gives_what_transformers_gives(folder: Path, place: str, messages: list[dict[str, str]]) -> None:
    if place == "file":
        (folder / "chat_template.jinja").write_text(SPACED)
        config_with(folder, "an older one")
    elif place == "config":
        config_with(folder, SPACED)
    else:
        config_with(folder, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": SPACED}])
    template = read_chat_template(folder)
    assert template is not None
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    wanted = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert template.render(messages) == wanted
    assert wanted.startswith("<|endoftext|>[")


@pytest.mark.parametrize(
    "question", ["Why?", "  a\n\n  b  ", "{{ x }} {% if %} <|im_end|>", "안녕 👋 <b>&", "a 'b' \"c\" \\"]
)
def test_the_shipped_target_is_asked_in_the_format_it_was_trained_on(question: str) -> None:
    models = load_target_only("hybrid")
    assert models.chat_template is not None
    wanted = f"<|im_start|>user\n{question.strip()}<|im_end|>\n<|im_start|>assistant\n"
    assert models.chat(question) == models.encode(wanted)


def test_without_a_template_there_is_none(folder: Path, tmp_path: Path) -> None:
    assert read_chat_template(folder) is None
    assert read_chat_template(tmp_path / "nosuch") is None
    config_with(folder, [{"name": "tool_use", "template": "x"}])
    assert read_chat_template(folder) is None


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% if %}", "Expected an expression"),
        ("{{ raise_exception('Roles must take turns') }}", "Roles must take turns"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ nosuch.part }}", "'nosuch' is undefined"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% generation %}", "unknown tag 'generation'"),
    ],
)
def test_a_template_that_fails_is_told_in_one_sentence(source: str, reason: str) -> None:
    template = ChatTemplate(source, "some/chat_template.jinja")
    with pytest.raises(ValueError, match=f"the chat template in some/chat_template.jinja fails: .*{reason}") as caught:
        template.render([{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer_config.json", b"{", "tokenizer_config.json is not valid JSON"),
        ("tokenizer_config.json", b"[]", "tokenizer_config.json must hold a JSON object"),
        (
            "tokenizer_config.json",
            b'{"chat_template": [{"name": "default"}]}',
            "holds a chat template that is not text",
        ),
        ("tokenizer_config.json", b'{"chat_template": 5}', "holds a chat template that is not text"),
        ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja is not text; fetch the checkpoint again"),
    ],
)
def test_a_damaged_file_is_named(folder: Path, name: str, content: bytes, sentence: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read_chat_template(folder)
