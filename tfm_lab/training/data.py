"""Token arrays on disk, and batches that depend on the seed and the step alone, so that a resumed run sees the same."""

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from tfm_lab.training.corpus import Document
from tfm_lab.training.tokenizer import END_OF_TEXT, token_id


@dataclass(frozen=True, slots=True, eq=False)
class PackedCorpus:
    """Documents of each source, tokenised and laid end to end with an end-of-text token after each.

    Attributes:
        tokens: one uint16 array per source.
        weights: share of each source in a batch; they need not sum to one.
    """

    tokens: Mapping[str, NDArray[np.uint16]]
    weights: Mapping[str, float]

    @property
    def size(self) -> int:
        """Number of tokens in all sources."""
        return sum(array.size for array in self.tokens.values())

    def batch(self, step: int, batch: int, length: int, seed: int) -> Int[Tensor, "batch tokens"]:
        """Windows of ``length`` tokens at random places; the same for the same seed and step.

        Raises:
            ValueError: if no source is that long.
        """
        names = [name for name in sorted(self.tokens) if self.tokens[name].size > length]
        if not names:
            raise ValueError(
                f"no source holds more than {length} tokens; build a larger corpus or use a shorter length"
            )
        shares = np.array([self.weights[name] for name in names])
        generator = np.random.Generator(np.random.Philox(key=[seed, step]))
        chosen = generator.choice(len(names), size=batch, p=shares / shares.sum())
        windows = []
        for index in chosen:
            array = self.tokens[names[index]]
            start = generator.integers(0, array.size - length)
            windows.append(array[start : start + length])
        return torch.from_numpy(np.stack(windows).astype(np.int64))


def pack(documents: Sequence[Document], tokenizer: Tokenizer, weights: Mapping[str, float]) -> PackedCorpus:
    """Tokenise documents, source by source, in the order given."""
    end = token_id(tokenizer, END_OF_TEXT)
    arrays: dict[str, NDArray[np.uint16]] = {}
    for source in weights:
        texts = [document.text for document in documents if document.source == source]
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [token for encoding in encoded for token in (*encoding.ids, end)]
        arrays[source] = np.array(ids, dtype=np.uint16)
    return PackedCorpus(arrays, weights)


def save_packed(corpus: PackedCorpus, path: Path) -> None:
    """Write a packed corpus as one compressed file, all or nothing."""
    arrays = {f"tokens.{name}": array for name, array in corpus.tokens.items()}
    save_arrays(path, {**arrays, "weights": np.array(json.dumps(dict(corpus.weights)))})


def load_packed(path: Path) -> PackedCorpus:
    """Read what :func:`save_packed` wrote.

    Raises:
        ValueError: if the file is missing or is something else.
    """
    arrays = load_arrays(path, "build it with 'tfm-lab train corpus'")
    if "weights" not in arrays:
        raise ValueError(f"{path} is not a packed corpus; build one with 'tfm-lab train corpus'")
    tokens = {name.removeprefix("tokens."): array for name, array in arrays.items() if name.startswith("tokens.")}
    return PackedCorpus(tokens, json.loads(str(arrays["weights"])))


@dataclass(frozen=True, slots=True, eq=False)
class WrittenTexts:
    """Texts that a target wrote itself, all equally long.

    Attributes:
        tokens: uint16 (uint32 for vocabularies beyond 65,536), [texts, length].
        written_from: for each text the index of the first token that the target wrote (what is before is prompt).
        temperatures: float32, [texts], at which they were written; ``None`` if that is not known.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    written_from: NDArray[np.int32]
    temperatures: NDArray[np.float32] | None = None

    def batch(self, step: int, batch: int, seed: int) -> tuple[Int[Tensor, "batch tokens"], Int[Tensor, " batch"]]:
        """Texts and where writing starts; every text once per epoch, in an order fixed by the seed."""
        rows = self.rows(step, batch, seed)
        tokens = torch.from_numpy(self.tokens[rows].astype(np.int64))
        return tokens, torch.from_numpy(self.written_from[rows].astype(np.int64))

    def rows(self, step: int, batch: int, seed: int) -> NDArray[np.int64]:
        """Which texts :meth:`batch` takes."""
        count = len(self.tokens)
        wanted = step * batch + np.arange(batch)
        rows = np.empty(batch, dtype=np.int64)
        for epoch in np.unique(wanted // count):
            order = np.random.Generator(np.random.Philox(key=[seed, int(epoch)])).permutation(count)
            inside = wanted // count == epoch
            rows[inside] = order[wanted[inside] % count]
        return rows


def joined_texts(parts: Sequence[WrittenTexts]) -> WrittenTexts:
    """The texts of all parts, in order; all must be equally long.

    Their temperatures are known if every part knows its own.
    """
    temperatures = [part.temperatures for part in parts if part.temperatures is not None]
    return WrittenTexts(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.written_from for part in parts]),
        np.concatenate(temperatures) if len(temperatures) == len(parts) else None,
    )


def save_written(texts: WrittenTexts, path: Path) -> None:
    """Write texts as one compressed file, all or nothing."""
    known = {} if texts.temperatures is None else {"temperatures": texts.temperatures}
    save_arrays(path, {"tokens": texts.tokens, "written_from": texts.written_from, **known})


def load_written(path: Path) -> WrittenTexts:
    """Read what :func:`save_written` wrote.

    Raises:
        ValueError: if the file is missing or is something else.
    """
    arrays = load_arrays(path, "let the target write it with 'tfm-lab train text'")
    if set(arrays) - {"temperatures"} != {"tokens", "written_from"}:
        raise ValueError(f"{path} does not hold written texts; make them with 'tfm-lab train text'")
    return WrittenTexts(**arrays)


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    with scratch.open("wb") as file:
        np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
    scratch.replace(path)


def load_arrays(path: Path, remedy: str) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; {remedy}")
    if not zipfile.is_zipfile(path):  # np.load would accept other kinds of files too
        raise ValueError(f"{path} is damaged (it is no npz file); {remedy}")
    try:
        with np.load(path, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); {remedy}") from None
