"""Bundles: a target, its drafter, its Weaver and its tokenizer in one folder, loaded and checked together."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from tfm_lab.models.checkpoint import load_drafter, load_target, load_weaver
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver

SHIPPED = Path(__file__).parent / "bundles"
DEFAULT = "hybrid"


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Models that belong together.

    Attributes:
        name: of the shipped bundle, or the folder it came from.
        weaver: ``None`` if the folder has none.
    """

    name: str
    target: TargetModel
    drafter: FactorisedDrafter
    weaver: Weaver | None
    tokenizer: Tokenizer

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
        """Token ids of one user turn, up to where the assistant's answer begins."""
        return self.encode(f"<|im_start|>user\n{question.strip()}<|im_end|>\n<|im_start|>assistant\n")


def load_bundle(name_or_path: str = DEFAULT, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Bundle:
    """Load a shipped bundle by name, or any folder with ``target/``, ``drafter/`` and perhaps ``weaver/``.

    Offline; nothing in a bundle is executed.

    Raises:
        ValueError: if there is no such bundle, a file is missing or damaged, or its parts do not belong together.
    """
    folder = Path(name_or_path)
    if not (folder / "target").is_dir():
        folder = SHIPPED / name_or_path
    if not (folder / "target").is_dir():
        known = ", ".join(sorted(path.name for path in SHIPPED.glob("*") if (path / "target").is_dir())) or "none"
        raise ValueError(f"there is no bundle {name_or_path!r}; shipped are {known}, or give a folder with target/")
    target = load_target(folder / "target", dtype=dtype, device=device)
    drafter = load_drafter(folder / "drafter", target)
    weaver = load_weaver(folder / "weaver", target) if (folder / "weaver").is_dir() else None
    return Bundle(name_or_path, target, drafter, weaver, _matching_tokenizer(folder / "target", target))


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


def _matching_tokenizer(folder: Path, target: TargetModel) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    if tokenizer.get_vocab_size() > target.config.vocab_size:
        raise ValueError(
            f"the tokenizer in {folder} knows {tokenizer.get_vocab_size()} tokens, the target only "
            f"{target.config.vocab_size}; use the tokenizer that belongs to the target"
        )
    return tokenizer
