"""Trainings that go on from the weights of a bundle, in place of fresh ones."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training.tiny import STAGES, prepared, short_recipe, with_fit

from tfm_lab.bundle import load_bundle
from tfm_lab.training.pipeline import Work, fork

PARTS = ("drafter", "weaver", "autoregressive")


@pytest.mark.parametrize("part", PARTS)
def test_a_step_of_almost_no_rate_leaves_the_weights_it_started_from(tiny_work: Path, tmp_path: Path, part: str):
    recipe = with_fit(short_recipe(), steps=1, learning_rate=1e-9)
    work = Work(prepared(tiny_work, tmp_path / "work", part), start=tiny_work / "model")
    assert STAGES[part](work, recipe)
    fresh = Work(prepared(tiny_work, tmp_path / "fresh", part))
    assert STAGES[part](fresh, recipe)
    known, started, new = (
        load_file(folder / "model" / part / "model.safetensors") for folder in (tiny_work, work.folder, fresh.folder)
    )
    assert all(torch.equal(known[name], started[name]) for name in known)
    assert any(not torch.equal(known[name], new[name]) for name in known)


@pytest.mark.parametrize("part", PARTS)
def test_a_bundle_without_the_part_or_of_another_shape_is_refused(tiny_work: Path, tmp_path: Path, part: str):
    folder = prepared(tiny_work, tmp_path / "work", part)
    with pytest.raises(ValueError, match=f"has no {part} to start from: name the folder of a bundle"):
        STAGES[part](Work(folder, start=tmp_path), short_recipe())
    recipe = short_recipe()
    shape = getattr(recipe, part)
    assert shape is not None
    wider = replace(recipe, **{part: replace(shape, layers=shape.layers + 1)})
    with pytest.raises(ValueError, match="another shape than the recipe asks for: start from fresh weights"):
        STAGES[part](Work(folder, start=tiny_work / "model"), wider)
    assert not (folder / "model" / part).exists()


def test_a_fork_trains_another_weaver_on_the_same_texts(tiny_work: Path, tmp_path: Path):
    copied = fork(tiny_work, tmp_path / "other")
    assert copied == ["text.npz", "held_out_text.npz", "model/target", "model/drafter"]
    recipe = replace(short_recipe(), weaver=replace(short_recipe().weaver, objective="tv"))
    assert STAGES["weaver"](Work(tmp_path / "other"), recipe)
    bundle = load_bundle(str(tmp_path / "other" / "model"))
    original = load_bundle(str(tiny_work / "model"))
    assert bundle.weaver is not None
    assert original.weaver is not None
    assert bundle.drafter.fingerprint() == original.drafter.fingerprint()
    assert bundle.weaver.fingerprint() != original.weaver.fingerprint()


def test_a_fork_needs_texts_and_a_new_folder(tiny_work: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="has no texts to train on; write them first with 'tfm-lab train text'"):
        fork(tmp_path, tmp_path / "other")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    with pytest.raises(ValueError, match="is not empty: name a new folder"):
        fork(tiny_work, tmp_path / "kept")
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["file"]
