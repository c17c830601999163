"""Blocks compared with the laws that texts were written from: the cheap form, its gradient, its mean and its noise."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models.oracle import VOCABULARY
from models.small import autoregressive_for, drafter_for, tiny_target
from torch import Tensor
from training.tiny import STAGES, prepared, short_recipe, with_fit

from tfm_lab.models import AutoregressiveDrafter, FactorisedDrafter, TargetModel
from tfm_lab.models.config import FULL_ATTENTION, LINEAR_ATTENTION
from tfm_lab.training import labels
from tfm_lab.training.data import WrittenTexts, load_written, save_written
from tfm_lab.training.fit import Metrics, read_history
from tfm_lab.training.initialise import new_target
from tfm_lab.training.labels import LABELS, mean_head_rows
from tfm_lab.training.losses import position_weights
from tfm_lab.training.pipeline import Work, train_drafter
from tfm_lab.training.tasks import BlockData, DrafterTask, block_losses

Drafter = FactorisedDrafter | AutoregressiveDrafter
MAKERS: list[Callable[..., Drafter]] = [drafter_for, autoregressive_for]
BLOCK, GAMMA = 8, 3.0
TEXTS = torch.randint(VOCABULARY, (6, 40), generator=torch.Generator().manual_seed(0)).numpy().astype(np.uint16)
HEATS = np.array([1.0, 0.0, 0.6, 1.7, 0.0, 0.3], dtype=np.float32)
WRITTEN = WrittenTexts(TEXTS, np.array([4, 9, 1, 0, 31, 20], dtype=np.int32), HEATS)


def block_data(target: TargetModel, written: WrittenTexts = WRITTEN) -> BlockData:
    return BlockData(target, written, written, 6, 5, 0, BLOCK, replayed_tokens=8)


def laws_of(target: TargetModel, tokens: Tensor, temperatures: Tensor) -> Tensor:
    """Distribution of the token after every place, text by text; one-hot at temperature 0."""
    logits, laws = target(tokens), []
    for row, text, heat in zip(logits, tokens, temperatures.tolist(), strict=True):
        if heat > 0.0:
            laws.append((row / heat).softmax(-1))
        else:
            laws.append(torch.nn.functional.one_hot(text.roll(-1), row.shape[-1]).to(row.dtype))
    return torch.stack(laws)


def summed_over_the_vocabulary(
    target: TargetModel, drafter: Drafter, tokens: Tensor, anchors: Tensor, temperatures: Tensor
) -> Tensor:
    """The loss written out: every block by itself, every law in full."""
    taps, laws = target.features(tokens, drafter.config.tap_layers).taps, laws_of(target, tokens, temperatures)
    weights, losses = position_weights(drafter.config.draft_depth, GAMMA), []
    for text in range(len(tokens)):
        for anchor in anchors[text].tolist():
            blocks = drafter.pack_blocks(tokens[[text]], torch.tensor([[anchor]]), target)
            log_q = target.logits(drafter(taps[[text]], blocks)[0, 0]).log_softmax(-1)
            law = laws[text, anchor : anchor + drafter.config.draft_depth]
            losses.append((-(law * log_q).sum(-1) * weights).sum() / weights.sum())
    return torch.stack(losses).mean()


def gradient(loss: Tensor, drafter: Drafter) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(drafter.parameters()))])


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-plain"])
@pytest.mark.parametrize("make", MAKERS)
def test_loss_and_gradient_are_those_of_the_sum_over_the_vocabulary(
    name: str, make: Callable[..., Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, with a head that is the embedding and one that is not, in pieces that do not divide the texts."""
    monkeypatch.setattr(labels, "ENTRIES_AT_ONCE", 37 * VOCABULARY)
    target = tiny_target(name)
    drafter = make(target).requires_grad_(True)
    data = block_data(target)
    task = DrafterTask(drafter, data, GAMMA, from_laws=True)
    for step in (0, 5):
        cheap = task.loss(step)[0]
        wanted = summed_over_the_vocabulary(target, drafter, *data.texts(step), data.temperatures(step))
        assert cheap.item() == pytest.approx(wanted.item(), rel=1e-12)
        assert torch.allclose(gradient(cheap, drafter), gradient(wanted, drafter), rtol=1e-9, atol=1e-12)
        assert cheap.item() != pytest.approx(DrafterTask(drafter, data, GAMMA).loss(step)[0].item(), rel=1e-3)


def test_texts_at_temperature_zero_have_the_loss_of_their_tokens() -> None:
    target = tiny_target()
    drafter = drafter_for(target).requires_grad_(True)
    data = block_data(target, replace(WRITTEN, temperatures=np.zeros(6, dtype=np.float32)))
    (law, law_hits), (text, hits) = (DrafterTask(drafter, data, GAMMA, from_laws=law).loss(1) for law in (True, False))
    assert law.item() == pytest.approx(text.item(), rel=1e-6)  # tokens are compared in float32
    assert torch.allclose(gradient(law, drafter), gradient(text, drafter), rtol=1e-4, atol=1e-7)
    assert law_hits == hits


@pytest.mark.parametrize("make", MAKERS)
def test_over_all_texts_the_gradient_has_the_mean_of_that_of_tokens_and_less_noise(
    make: Callable[..., Drafter],
) -> None:
    """All 25 ways in which a target over five tokens goes on for two, each with its probability."""
    config = replace(tiny_target().config, vocab_size=5, layer_types=(LINEAR_ATTENTION, FULL_ATTENTION))
    target = new_target(config, seed=3).double().requires_grad_(False)
    target.model.embed_tokens.weight.mul_(2.0)
    drafter = make(target, block_size=3, mask_token=4).requires_grad_(True)
    heat, anchors, opening = torch.tensor([0.7]), torch.tensor([[3]]), [0, 3, 1, 2]
    chances, by_law, by_text = [], [], []
    for ending in product(range(5), repeat=drafter.config.draft_depth):
        tokens = torch.tensor([[*opening, *ending]])
        laws = laws_of(target, tokens, heat)[0, 3:-1]
        chances.append(laws.gather(1, torch.tensor(ending).unsqueeze(1)).prod())
        by_law.append(gradient(block_losses(target, drafter, GAMMA, tokens, anchors, heat)[0], drafter))
        by_text.append(gradient(block_losses(target, drafter, GAMMA, tokens, anchors)[0], drafter))
    chance = torch.stack(chances).unsqueeze(1)
    assert float(chance.sum()) == pytest.approx(1.0)
    assert float(chance.max()) < 0.7
    law, text = torch.stack(by_law), torch.stack(by_text)
    mean = (chance * law).sum(0)
    assert torch.allclose(mean, (chance * text).sum(0), rtol=1e-4, atol=1e-6 * float(mean.abs().max()))
    noises = [float((chance * (one - mean) ** 2).sum()) for one in (law, text)]
    assert noises[0] < 0.7 * noises[1]


def test_in_mixed_precision_mean_rows_keep_to_bfloat16() -> None:
    """A channel that all rows of the head share keeps its value under any law, the others what rounded logits leave."""
    known = tiny_target("llama-plain", torch.float32)
    target = TargetModel(known.config).requires_grad_(False)
    target.load_state_dict(known.state_dict())
    target.head_weight[:, 0] = 1.0
    hidden = torch.randn(6, 40, 48, generator=torch.Generator().manual_seed(0))
    texts = torch.from_numpy(TEXTS.astype(np.int64)), torch.from_numpy(HEATS)
    exact = mean_head_rows(target, hidden, *texts)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = mean_head_rows(target, hidden, *texts)
    assert rounded.dtype == torch.float32
    assert torch.allclose(rounded[..., 0], torch.ones(()), atol=2.0**-8)
    assert float((rounded - exact).norm() / exact.norm()) < 0.01


@pytest.mark.parametrize("held_out", [False, True])
def test_every_text_comes_with_its_own_temperature(held_out: bool) -> None:
    data = replace(block_data(tiny_target()), batch=4, seed=3)
    for step in range(5):
        tokens, heats = data.texts(step, held_out=held_out)[0], data.temperatures(step, held_out=held_out)
        assert heats.tolist() == [HEATS[TEXTS.tolist().index(text)] for text in tokens.tolist()]


@pytest.mark.parametrize("from_laws", [True, False])
def test_held_out_texts_are_judged_by_their_tokens_and_their_laws(from_laws: bool) -> None:
    target = tiny_target()
    drafter, data = drafter_for(target), block_data(target)
    figures = DrafterTask(drafter, data, GAMMA, from_laws).evaluate()
    unknown = replace(data, held_out=replace(WRITTEN, temperatures=None))
    plain = DrafterTask(drafter, unknown, GAMMA).evaluate()
    greedy = {f"held_out.decoded_mal.{method}@T0" for method in ("chain", "ddtree")}
    assert figures.keys() - plain.keys() == {"held_out.law_loss"} | greedy
    assert {name: figures[name] for name in plain} == plain
    losses = [
        summed_over_the_vocabulary(
            target, drafter, *data.texts(step, held_out=True), data.temperatures(step, held_out=True)
        )
        for step in range(2)
    ]
    assert figures["held_out.law_loss"] == pytest.approx(float(sum(losses)) / 2, rel=1e-9)


def history(tiny_work: Path, folder: Path, stage: str, kind: str, changes: dict[str, Any], **fit: Any) -> list[Metrics]:
    """Evaluations of a training of one stage with these labels."""
    recipe = with_fit(short_recipe(), **fit)
    shape = replace(getattr(recipe, stage), labels=kind, **changes)
    assert STAGES[stage](Work(prepared(tiny_work, folder / kind, stage)), replace(recipe, **{stage: shape}))
    return list(read_history(folder / kind / stage))


@pytest.mark.parametrize("stage", ["drafter", "autoregressive"])
def test_a_recipe_chooses_the_labels(tiny_work: Path, tmp_path: Path, stage: str) -> None:
    (law,), (text,) = (history(tiny_work, tmp_path, stage, kind, {}, steps=1) for kind in LABELS[::-1])
    assert law.keys() == text.keys()
    assert law["hit@1"] == text["hit@1"]
    assert law["loss"] != text["loss"]
    assert law["held_out.law_loss"] != law["held_out.loss"]


@pytest.mark.slow
def test_with_laws_few_texts_are_not_learned_by_heart(tiny_work: Path, tmp_path: Path) -> None:
    fit, changes = {"steps": 60, "learning_rate": 1e-2, "evaluate_every": 60}, {"anchors": 16, "batch": 8}
    (law,), (text,) = (history(tiny_work, tmp_path, "autoregressive", kind, changes, **fit) for kind in LABELS[::-1])
    assert law["held_out.loss"] < text["held_out.loss"] - 0.03
    assert law["held_out.law_loss"] < text["held_out.law_loss"] - 0.03
    assert law["held_out.law_loss"] - law["loss"] < 0.5 * (text["held_out.loss"] - text["loss"])


def test_laws_of_texts_that_do_not_know_their_temperature_are_refused(tiny_work: Path, tmp_path: Path) -> None:
    folder, recipe = prepared(tiny_work, tmp_path / "work", "drafter"), with_fit(short_recipe(), steps=1)
    save_written(replace(load_written(folder / "text.npz"), temperatures=None), folder / "text.npz")
    with pytest.raises(ValueError, match=r"do not say at which temperatures they were written.* write them anew"):
        train_drafter(Work(folder), replace(recipe, drafter=replace(recipe.drafter, labels="law")))
    assert not (folder / "drafter").exists()
    assert train_drafter(Work(folder), recipe)
