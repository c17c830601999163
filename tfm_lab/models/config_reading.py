"""Typed reading of ``config.json``: every field is of the right type and in range, or a ValueError names it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LARGEST = 2**24
"""No size, count or length in a config of this package is larger."""

REFUSED = {
    "quantization_config": "quantised weights are not supported; use a checkpoint in bfloat16, float16 or float32",
    "num_experts": "mixture-of-experts models are not supported; use a dense one",
    "use_sliding_window": "this model uses sliding-window layers, which are not supported; use a full-attention one",
    "final_logit_softcapping": "capped logits (final_logit_softcapping) are not supported",
    "attn_logit_softcapping": "capped attention scores (attn_logit_softcapping) are not supported",
    "attention_bias": "checkpoints with attention_bias are not supported",
    "mlp_bias": "checkpoints with mlp_bias are not supported",
}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: naming the file, if it is no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be read; fetch the checkpoint again") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); fetch the checkpoint again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object; fetch the checkpoint again")
    return value


def whole_number(
    config: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST
) -> int:
    """The whole number ``name``, from ``least`` to ``most``; ``default`` stands in where the field is absent.

    Raises:
        ValueError: if the field is missing without a default, of another type, or out of range.
    """
    value = config.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise _wrong(f"a whole number from {least} to {most}", name, config)
    return value


def positive_number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """The finite number ``name`` above 0; ``default`` stands in where the field is absent.

    Raises:
        ValueError: as :func:`whole_number`.
    """
    value = config.get(name, default)
    if type(value) not in (int, float) or not 0.0 < value < math.inf:
        raise _wrong("a finite number above 0", name, config)
    return float(value)


def truth_value(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """``true`` or ``false``; raises a ValueError for anything else."""
    value = config.get(name, default)
    if type(value) is not bool:
        raise _wrong("true or false", name, config)
    return value


def text(config: Mapping[str, Any], name: str, default: str) -> str:
    """A text; raises a ValueError for anything else."""
    value = config.get(name, default)
    if not isinstance(value, str):
        raise _wrong("a text", name, config)
    return value


def texts(config: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """A list of texts, or None where the field is absent or null; raises a ValueError for anything else."""
    value = config.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong("a list of texts", name, config)
    return tuple(value)


def whole_numbers(config: Mapping[str, Any], name: str, *, below: int) -> tuple[int, ...]:
    """A list of whole numbers from 0 to ``below - 1``, empty where the field is absent or null.

    Raises:
        ValueError: if the field is of another type or a number out of range.
    """
    value = config.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(number) is int and 0 <= number < below for number in value):
        raise _wrong(f"a list of whole numbers from 0 to {below - 1}", name, config)
    return tuple(value)


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object ``name``, empty where it is absent or null; raises a ValueError for anything else."""
    value = config.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong("an object", name, config)
    return value


def rotary_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of the rotary embedding, wherever the config keeps them.

    Raises:
        ValueError: for any but plain rotary embeddings.
    """
    found = [settings for name in ("rope_parameters", "rope_scaling") if (settings := section(config, name))]
    for settings in found:
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind != "default":
            raise ValueError(
                f"rotary embedding type {kind!r} is not supported; only plain ('default') rotary embeddings are"
            )
        if any(isinstance(value, Mapping) for value in settings.values()):
            raise ValueError("rotary embeddings that differ between layers (rope_parameters) are not supported")
    return found[0] if found else {}


def rope_theta(config: Mapping[str, Any]) -> float:
    """Base of the rotary frequencies, 10,000 where the config names none.

    Raises:
        ValueError: if it is not a positive number, or the two places where it may stand disagree.
    """
    places = [place for place in (rotary_settings(config), config) if "rope_theta" in place]
    bases = {positive_number(place, "rope_theta") for place in places}
    if len(bases) > 1:
        raise ValueError(f"rope_theta is {config['rope_theta']} in the model config, but another in its rope settings")
    return bases.pop() if bases else 10000.0


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raise a ValueError for a setting that no model of this package has."""
    for name, sentence in REFUSED.items():
        if config.get(name):
            raise ValueError(sentence)
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"activation {config['hidden_act']!r} is not supported; only 'silu' is")


def _wrong(wanted: str, name: str, config: Mapping[str, Any]) -> ValueError:
    found = f"got {config[name]!r:.80}" if name in config else "it is missing"
    return ValueError(f"the model config needs {wanted} for {name!r}, {found}")
