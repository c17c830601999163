"""Bundles: a target, its drafter, its Weaver and its tokenizer in one folder, loaded and checked together.

A bundle may leave its target out and name a fetched one in ``bundle.json``: ``{"target": "smollm2"}``. A target without
a drafter is a folder in Hugging Face layout, and decodes plainly.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tfm_lab.chat_template import ChatTemplate, read_chat_template
from tfm_lab.fetching import fetched, fetched_from_hub, is_hub_id, names
from tfm_lab.models.autoregressive import AutoregressiveDrafter
from tfm_lab.models.checkpoint import check_target, load_autoregressive, load_drafter, load_target, load_weaver
from tfm_lab.models.config import TargetConfig
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.packing import can_pack, prepare_for_cpu
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver

SHIPPED = Path(__file__).parent / "bundles"
DEFAULT = "hybrid"
DESCRIPTION = "bundle.json"


@dataclass(frozen=True, slots=True, eq=False)
class TargetOnly:
    """A target with what it takes to read and write its tokens: enough for plain decoding.

    Attributes:
        name: of the shipped bundle or fetched target, or the folder it came from.
        chat_template: that of the checkpoint, ``None`` if it has none.
    """

    name: str
    target: TargetModel
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; chat markers such as ``<|im_start|>`` become their own tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: list[int] | tuple[int, ...]) -> str:
        """Text of token ids, chat markers included."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def pieces(self, tokens: list[int] | tuple[int, ...]) -> list[str]:
        """The text that each token adds, in order; they join to :meth:`decode` of the whole.

        Bytes of a character that later tokens complete are attributed to the last of them.
        """
        pieces: list[str] = []
        done = 0
        for count in range(1, len(tokens) + 1):
            text = self.decode(tokens[:count])
            whole = text if count == len(tokens) else text.rstrip("\ufffd")
            pieces.append(whole[done:])
            done = max(done, len(whole))
        return pieces

    def chat(self, question: str) -> list[int]:
        """Token ids of one user turn, up to where the assistant's answer begins.

        In the format of the checkpoint's own chat template; without one, user and assistant between ``<|im_start|>``
        and ``<|im_end|>``.

        Raises:
            ValueError: if the chat template fails.
        """
        text = question.strip()
        if self.chat_template is None:
            return self.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
        return self.encode(self.chat_template.render([{"role": "user", "content": text}]))


@dataclass(frozen=True, slots=True, eq=False)
class Bundle(TargetOnly):
    """Models that belong together.

    Attributes:
        weaver: ``None`` if the folder has none.
        autoregressive: the drafter of the ``ard-`` methods, ``None`` if the folder has none.
    """

    drafter: FactorisedDrafter
    weaver: Weaver | None
    autoregressive: AutoregressiveDrafter | None = None

    def at_temperature(self, temperature: float) -> "Bundle":
        """These models, with the Weaver told that the target samples at ``temperature`` (0: greedy)."""
        return self if self.weaver is None else replace(self, weaver=self.weaver.for_temperature(temperature))


def load_bundle(
    name_or_path: str = DEFAULT,
    *,
    target: str | None = None,
    drafter: str | None = None,
    weaver: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Bundle:
    """Load a shipped bundle by name, or any folder with ``drafter/``, perhaps ``weaver/``, and its target.

    A folder may also hold ``autoregressive/``, a drafter of the classical kind. The target is in ``target/``, or a
    fetched one that ``bundle.json`` names. Offline; nothing in a bundle is executed (a chat template is rendered in a
    sandbox).

    Args:
        target: use this one instead: a folder, or the name of a fetched target. Drafters and a Weaver that were
            trained for another target are refused.
        drafter: use this DFlash drafter and no other model of the bundle but its target: a folder, or the hub id of a
            checkpoint that was fetched.
        weaver: use this Weaver: likewise, or a published ``.pth`` file.

    Raises:
        ValueError: if there is no such bundle, its target was not fetched, a file is missing or damaged, or its parts
            do not belong together.
    """
    folder = _bundle_folder(name_or_path)
    if drafter is not None:
        alone = load_target_only(target or name_or_path, dtype=dtype, device=device)
        return Bundle(
            drafter,
            alone.target,
            alone.tokenizer,
            alone.chat_template,
            load_drafter(_checkpoint(drafter, "drafter"), alone.target),
            None if weaver is None else load_weaver(_checkpoint(weaver, "Weaver"), alone.target),
        )
    if folder is None and (target is None or not (Path(name_or_path) / "drafter").is_dir()):
        if (Path(name_or_path) / "config.json").is_file() or name_or_path in names():
            raise ValueError(
                f"{name_or_path} is a target without a drafter, so only plain decoding works with it: use method ar"
            )
        shipped = sorted(path.name for path in SHIPPED.glob("*") if _bundle_folder(path.name) == path)
        raise ValueError(
            f"there is no bundle {name_or_path!r}; shipped are {', '.join(shipped) or 'none'}, "
            "or give a folder with target/"
        )
    folder = folder or Path(name_or_path)
    alone = load_target_only(target or str(folder), dtype=dtype, device=device)
    weaver_path = folder / "weaver" if weaver is None else _checkpoint(weaver, "Weaver")
    other = folder / "autoregressive"
    return Bundle(
        name_or_path,
        alone.target,
        alone.tokenizer,
        alone.chat_template,
        load_drafter(folder / "drafter", alone.target),
        load_weaver(weaver_path, alone.target) if weaver_path.exists() else None,
        load_autoregressive(other, alone.target) if other.is_dir() else None,
    )


def load_target_only(
    name_or_path: str = DEFAULT, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> TargetOnly:
    """Load a target without a drafter: its folder, a fetched name, a hub id that was fetched, or a bundle's target.

    Raises:
        ValueError: if there is no such target, it was not fetched, or a file is missing or damaged.
    """
    folder = target_folder(name_or_path)
    target = load_target(folder, dtype=dtype, device=device)
    return TargetOnly(name_or_path, target, _matching_tokenizer(folder, target.config), read_chat_template(folder))


def prepare_models(models: TargetOnly) -> bool:
    """Lay out the weights of all models for decoding on this CPU, see :func:`tfm_lab.models.packing.prepare_for_cpu`.

    Returns:
        ``False``, with nothing done, if they are not float32 on a CPU or this processor has no packed product.
    """
    target = models.target
    if target.dtype != torch.float32 or target.device.type != "cpu" or not can_pack():
        return False
    prepare_for_cpu(target)
    if isinstance(models, Bundle):
        for model in (models.drafter, models.weaver, models.autoregressive):
            if model is not None:
                prepare_for_cpu(model)
    return True


def target_folder(name_or_path: str) -> Path:
    """Where a target lies, see :func:`load_target_only`.

    Raises:
        ValueError: if there is none of that name, or it was not fetched.
    """
    path = Path(name_or_path)
    if (path / "config.json").is_file():
        return path
    bundle = _bundle_folder(name_or_path)
    if bundle is not None:
        return bundle / "target" if (bundle / "target").is_dir() else _described_target(bundle)
    if name_or_path in names():
        return fetched(name_or_path)
    if not path.exists() and is_hub_id(name_or_path):
        return fetched_from_hub(name_or_path)
    raise ValueError(
        f"there is no target {name_or_path!r}; give a folder with config.json, a bundle, or a fetched name"
    )


def check_target_folder(folder: Path) -> TargetConfig:
    """The config of a target's folder that can be used: config, weights, tokenizer and chat template fit together.

    Raises:
        ValueError: naming what is missing, damaged or not supported.
    """
    config = check_target(folder)
    _matching_tokenizer(folder, config)
    read_chat_template(folder)
    return config


def _checkpoint(name_or_path: str, what: str) -> Path:
    """A path that exists, else a hub checkpoint that was fetched.

    Raises:
        ValueError: if it is neither.
    """
    path = Path(name_or_path)
    if not path.exists() and is_hub_id(name_or_path):
        return fetched_from_hub(name_or_path)
    if not path.exists():
        raise ValueError(f"there is no {what} {name_or_path!r}; give a checkpoint folder, or OWNER/NAME once fetched")
    return path


def _bundle_folder(name_or_path: str) -> Path | None:
    """A folder of that path, else a shipped bundle of that name, that has or names a target."""
    for folder in (Path(name_or_path), SHIPPED / name_or_path):
        if (folder / "target").is_dir() or (folder / DESCRIPTION).is_file():
            return folder
    return None


def _described_target(bundle: Path) -> Path:
    path = bundle / DESCRIPTION
    try:
        name = json.loads(path.read_text(encoding="utf-8"))["target"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f'{path} does not name a target; it holds for example {{"target": "smollm2"}}') from None
    if not isinstance(name, str) or not (name in names() or is_hub_id(name)):
        raise ValueError(f"{path} names the target {name!r}, which cannot be fetched; use one of {', '.join(names())}")
    return fetched(name) if name in names() else fetched_from_hub(name)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read ``tokenizer.json`` of a checkpoint folder.

    Raises:
        ValueError: if it is missing or damaged.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no tokenizer.json; copy the tokenizer that belongs to the checkpoint there")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path} is not a tokenizer file ({error}); fetch it again") from None


def _matching_tokenizer(folder: Path, config: TargetConfig) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    if tokenizer.get_vocab_size() > config.vocab_size:
        raise ValueError(
            f"the tokenizer in {folder} knows {tokenizer.get_vocab_size()} tokens, the target only "
            f"{config.vocab_size}; use the tokenizer that belongs to the target"
        )
    return tokenizer
