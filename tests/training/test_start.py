"""Trainings that go on from the weights of a bundle, in place of fresh ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models.small import tiny_target, weaver_for
from safetensors.torch import load_file
from training.tiny import STAGES, prepared, short_recipe, with_fit

from tfm_lab.bundle import load_bundle
from tfm_lab.models.weaver import WeaverBlock
from tfm_lab.training.initialise import new_weaver, take_over
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
    changed = {"mlp_width": 2 * recipe.weaver.mlp_width} if part == "weaver" else {"layers": shape.layers + 1}
    other = replace(recipe, **{part: replace(shape, **changed)})
    with pytest.raises(ValueError, match="another shape than the recipe asks for: start from fresh weights"):
        STAGES[part](Work(folder, start=tiny_work / "model"), other)
    assert not (folder / "model" / part).exists()


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_a_weaver_with_more_blocks_and_temperatures_starts_as_the_one_it_comes_from(temperature: float):
    target = tiny_target()
    known = weaver_for(target)
    grown = new_weaver(replace(known.config, layers=3, sees_temperature=True), target, seed=5).double()
    assert take_over(grown, known)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(4, *shape, 48, generator=generator, dtype=torch.float64) for shape in ((), (7,), (5,))]
    wanted = known(*inputs)
    assert torch.allclose(grown(*inputs, torch.full((4,), temperature)), wanted, atol=1e-12, rtol=0.0)
    assert torch.allclose(grown.for_temperature(temperature)(*inputs), wanted, atol=1e-12, rtol=0.0)
    grown(*inputs, torch.full((4,), temperature)).sum().backward()
    last = grown.blocks[2]
    assert isinstance(last, WeaverBlock)
    assert float(last.o_proj.weight.grad.abs().max()) > 0.0  # pyright: ignore[reportOptionalMemberAccess]
    assert float(last.fc2.weight.grad.abs().max()) > 0.0  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("change", [{"layers": 1}, {"sees_temperature": False}, {"mlp_width": 8}, {"pool_size": 4}])
def test_a_weaver_takes_over_nothing_from_one_that_has_more(change: dict[str, Any]):
    target = tiny_target()
    known = weaver_for(target, layers=2, sees_temperature=True)
    model = new_weaver(replace(known.config, **change), target, seed=5).double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert not take_over(model, known)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


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
