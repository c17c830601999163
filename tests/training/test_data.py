"""Token arrays: batches that depend on seed and step alone, epochs that miss nothing, and damaged files."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tfm_lab.training.corpus import Document
from tfm_lab.training.data import (
    PackedCorpus,
    WrittenTexts,
    joined_texts,
    load_packed,
    load_written,
    pack,
    save_arrays,
    save_packed,
    save_written,
)
from tfm_lab.training.tokenizer import END_OF_TEXT, token_id, train_tokenizer

CORPUS = PackedCorpus(
    {"few": np.arange(100, 130, dtype=np.uint16), "many": np.arange(1000, 2000, dtype=np.uint16)},
    {"few": 1.0, "many": 3.0},
)
TEXTS = WrittenTexts(np.arange(70, dtype=np.uint16).reshape(7, 10), np.arange(7, dtype=np.int32))
HEATED = replace(TEXTS, temperatures=np.linspace(0.0, 1.5, 7, dtype=np.float32))


def test_documents_are_packed_source_by_source_with_an_end_after_each() -> None:
    tokenizer = train_tokenizer(["some text", "other text"], 270)
    texts = [("b", "some text"), ("a", "other"), ("b", "text"), ("left out", "gone")]
    packed = pack([Document(source, text, text) for source, text in texts], tokenizer, {"a": 0.5, "b": 0.5})
    end = token_id(tokenizer, END_OF_TEXT)
    assert packed.tokens["a"].tolist() == [*tokenizer.encode("other").ids, end]
    assert packed.tokens["b"].tolist() == [
        *tokenizer.encode("some text").ids,
        end,
        *tokenizer.encode("text").ids,
        end,
    ]
    assert packed.size == sum(array.size for array in packed.tokens.values())


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    wanted = {(seed, step): CORPUS.batch(step, 4, 8, seed) for seed in range(3) for step in range(3)}
    for (seed, step), batch in reversed(wanted.items()):
        assert torch.equal(CORPUS.batch(step, 4, 8, seed), batch)
    assert len({tuple(batch.flatten().tolist()) for batch in wanted.values()}) == len(wanted)


def test_batches_hold_windows_of_the_sources_in_proportion_to_their_weights() -> None:
    batch = CORPUS.batch(0, 4000, 8, 0)
    assert batch.dtype == torch.int64
    assert bool((batch[:, 1:] - batch[:, :-1] == 1).all())
    assert float((batch[:, 0] < 1000).double().mean()) == pytest.approx(0.25, abs=0.03)
    assert set(batch[batch[:, 0] < 1000, 0].tolist()) == set(range(100, 122))


def test_a_source_shorter_than_the_window_is_passed_over() -> None:
    assert int(CORPUS.batch(0, 50, 40, 0).min()) >= 1000
    with pytest.raises(ValueError, match="no source holds more than 1000 tokens; build a larger corpus or use"):
        CORPUS.batch(0, 1, 1000, 0)


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 10])
def test_every_text_comes_once_in_an_epoch(batch: int) -> None:
    """Also when an epoch ends inside a batch."""
    rows: list[int] = []
    for step in range(21 // batch + 1):
        tokens, written_from = TEXTS.batch(step, batch, seed=5)
        rows += written_from.tolist()
        assert torch.equal(tokens[:, 0], 10 * written_from)
    epochs = [tuple(rows[start : start + 7]) for start in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len(set(epochs)) == 3


def test_the_order_of_texts_depends_on_seed_and_step_alone() -> None:
    first = TEXTS.batch(4, 3, 0)[1]
    TEXTS.batch(0, 3, 0)
    assert torch.equal(TEXTS.batch(4, 3, 0)[1], first)
    assert any(not torch.equal(TEXTS.batch(4, 3, seed)[1], first) for seed in range(1, 4))


def test_files_come_back_as_written_and_leave_nothing_beside_them(tmp_path: Path) -> None:
    save_packed(CORPUS, tmp_path / "new" / "corpus.npz")
    save_written(TEXTS, tmp_path / "new" / "text.npz")
    packed, texts = load_packed(tmp_path / "new" / "corpus.npz"), load_written(tmp_path / "new" / "text.npz")
    assert packed.weights == CORPUS.weights
    assert packed.tokens.keys() == CORPUS.tokens.keys()
    for name, array in CORPUS.tokens.items():
        assert np.array_equal(packed.tokens[name], array)
        assert packed.tokens[name].dtype == np.uint16
    assert np.array_equal(texts.tokens, TEXTS.tokens)
    assert np.array_equal(texts.written_from, TEXTS.written_from)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["corpus.npz", "text.npz"]


def test_temperatures_stay_with_their_texts(tmp_path: Path) -> None:
    known = HEATED.temperatures
    assert known is not None
    save_written(HEATED, tmp_path / "text.npz")
    loaded = load_written(tmp_path / "text.npz")
    assert loaded.temperatures is not None
    assert loaded.temperatures.dtype == np.float32
    assert np.array_equal(loaded.temperatures, known)
    joined = joined_texts([HEATED, loaded])
    assert joined.temperatures is not None
    assert joined.temperatures.tolist() == [*known, *known]
    assert joined_texts([HEATED, TEXTS]).temperatures is None
    for step in range(4):
        rows = HEATED.rows(step, 3, seed=5)
        assert np.array_equal(HEATED.batch(step, 3, seed=5)[1].numpy(), HEATED.written_from[rows])


def test_texts_of_unknown_temperatures_are_read(tmp_path: Path) -> None:
    save_arrays(tmp_path / "text.npz", {"tokens": TEXTS.tokens, "written_from": TEXTS.written_from})
    assert load_written(tmp_path / "text.npz").temperatures is None


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_written(TEXTS, tmp_path / "text.npz")

    def fail(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space"):
        save_written(WrittenTexts(TEXTS.tokens[:1], TEXTS.written_from[:1]), tmp_path / "text.npz")
    assert len(load_written(tmp_path / "text.npz").tokens) == 7


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def flip(path: Path) -> None:
    """Change one bit in the middle of the first array."""
    with zipfile.ZipFile(path) as archive:
        first, second = archive.infolist()[:2]
    raw = bytearray(path.read_bytes())
    raw[second.header_offset - first.compress_size // 2] ^= 1
    path.write_bytes(raw)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def plain_array(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(3))


def pickled(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, tokens=np.array([{}], dtype=object), written_from=np.arange(1))


def other_arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, something=np.arange(3))


@pytest.mark.parametrize("damage", [Path.unlink, cut, flip, empty, plain_array, pickled, other_arrays])
def test_missing_and_damaged_files_are_refused_with_the_command_that_makes_them(tmp_path: Path, damage: Any) -> None:
    save_packed(CORPUS, tmp_path / "corpus.npz")
    save_written(TEXTS, tmp_path / "text.npz")
    damage(tmp_path / "corpus.npz")
    damage(tmp_path / "text.npz")
    with pytest.raises(ValueError, match=r"corpus.npz .*'tfm-lab train corpus'"):
        load_packed(tmp_path / "corpus.npz")
    with pytest.raises(ValueError, match=r"text.npz .*'tfm-lab train text'"):
        load_written(tmp_path / "text.npz")
