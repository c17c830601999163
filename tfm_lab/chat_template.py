"""Chat templates: how a checkpoint wants a conversation put into text (Jinja, rendered in a sandbox)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, str]
"""``{"role": "user", "content": ...}``; roles are system, user and assistant."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The template of one checkpoint.

    Attributes:
        source: Jinja text.
        origin: file it came from.
        special_tokens: variables such as ``bos_token`` that the template may use.
    """

    source: str
    origin: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Message]) -> str:
        """Text of the messages up to where the assistant's answer begins, as transformers' ``apply_chat_template``.

        Raises:
            ValueError: if the template is faulty or refuses these messages.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _plain_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            template = environment.from_string(self.source)
            return template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self.special_tokens
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ValueError(
                f"the chat template in {self.origin} fails: {error}; decode without the chat format"
            ) from None


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """The template of a checkpoint folder: ``chat_template.jinja``, else that in ``tokenizer_config.json``, else None.

    Raises:
        ValueError: if a file is there and cannot be read.
    """
    config = _tokenizer_config(folder / "tokenizer_config.json")
    special = {name: _text_of(value) for name, value in config.items() if name.endswith("_token")}
    special_tokens = {name: text for name, text in special.items() if isinstance(text, str)}
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return ChatTemplate(path.read_text(encoding="utf-8"), str(path), special_tokens)
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text; fetch the checkpoint again") from None
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {one.get("name"): one.get("template", one) for one in source if isinstance(one, dict)}
        source = named.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise ValueError(f"{folder / 'tokenizer_config.json'} holds a chat template that is not text; fetch it again")
    return ChatTemplate(source, str(folder / "tokenizer_config.json"), special_tokens)


def _tokenizer_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); fetch the checkpoint again") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object; fetch the checkpoint again")
    return config


def _text_of(token: Any) -> Any:
    """A special token is written as its text or as an object with its text."""
    return token.get("content") if isinstance(token, dict) else token


def _plain_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
