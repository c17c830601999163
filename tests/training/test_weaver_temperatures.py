"""A Weaver that sees temperatures learns, of every text, the laws of the temperature that the text was written at."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.oracle import VOCABULARY
from models.small import drafter_for, tiny_target, weaver_for

from tfm_lab.drafting import TreeConfig
from tfm_lab.models import Weaver
from tfm_lab.replay import DraftModels, replay
from tfm_lab.training.data import WrittenTexts
from tfm_lab.training.losses import PoolComparison, lk_loss
from tfm_lab.training.tasks import REPLAYED_BUDGET, BlockData, WeaverTask, gather_after, pool_scores

BLOCK, DEPTH, POOL = 8, 7, 20
TEXTS = torch.randint(VOCABULARY, (6, 40), generator=torch.Generator().manual_seed(0)).numpy().astype(np.uint16)
HEATS = np.array([1.0, 0.0, 0.6, 1.7, 0.0, 0.3], dtype=np.float32)
WRITTEN = WrittenTexts(TEXTS, np.array([4, 9, 1, 0, 31, 20], dtype=np.int32), HEATS)


def task_for(written: WrittenTexts = WRITTEN, *, sees_temperature: bool = True) -> WeaverTask:
    target = tiny_target()
    weaver = weaver_for(target, sees_temperature=sees_temperature)
    data = BlockData(target, written, written, 6, 5, 0, BLOCK, replayed_tokens=8)
    return WeaverTask(weaver, drafter_for(target), data)


def one_text_at_a_time(task: WeaverTask, weaver: Weaver, step: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Law of every place and what the Weaver says there, from the target's full rows and a Weaver told by itself."""
    target, drafter = task.data.target, task.drafter
    tokens, anchors = task.data.texts(step)
    laws, log_q = [], []
    for text, heat in enumerate(task.data.temperatures(step).tolist()):
        fixed = weaver.for_temperature(heat)
        scores = pool_scores(target, drafter, fixed, tokens[[text]], anchors[[text]])
        features = target.features(tokens[[text]], drafter.config.tap_layers)
        hidden = drafter(features.taps, drafter.pack_blocks(tokens[[text]], anchors[[text]], target))
        pool = target.logits(hidden.reshape(-1, DEPTH, hidden.shape[-1])).topk(POOL, dim=-1).indices
        places = anchors[text, :, None] + torch.arange(DEPTH)
        rows, said = target(tokens[[text]])[0][places], gather_after(tokens[[text]], anchors[[text]], DEPTH)[0]
        law = (rows / heat).softmax(-1) if heat else torch.nn.functional.one_hot(said, VOCABULARY).to(rows.dtype)
        laws.append(law.gather(-1, pool))
        log_q.append((scores.drafter_logits.float() + scores.residual.float()).log_softmax(-1))
    return laws, log_q


def test_laws_are_those_of_the_texts_temperatures_and_the_weaver_is_told_them() -> None:
    task = task_for()
    step = 3
    batch, heats = task.data.texts(step), task.data.temperatures(step)
    scores = pool_scores(task.data.target, task.drafter, task.model, *batch, heats)
    laws, log_q = one_text_at_a_time(task, task.model, step)
    assert torch.allclose(scores.target_probabilities, torch.cat(laws), atol=1e-12, rtol=0.0)
    wanted = PoolComparison(torch.cat(laws), torch.cat(log_q), scores.is_next)
    assert torch.allclose(scores.compare().acceptance, wanted.acceptance, atol=1e-6, rtol=0.0)
    assert task.loss(step)[0].item() == pytest.approx(lk_loss(wanted, task.eta).item(), rel=1e-6)


def test_a_weaver_that_does_not_see_them_learns_the_laws_of_temperature_one() -> None:
    blind, seeing = task_for(sees_temperature=False), task_for()
    batch = blind.data.texts(0)
    at_one = torch.ones(len(batch[0]))
    scores = pool_scores(blind.data.target, blind.drafter, blind.model, *batch)
    told = pool_scores(seeing.data.target, seeing.drafter, seeing.model, *batch, at_one)
    assert torch.allclose(scores.target_probabilities, told.target_probabilities, atol=1e-12, rtol=0.0)
    comparison = scores.compare()
    assert blind.loss(0)[0].item() == pytest.approx(lk_loss(comparison, blind.eta).item(), rel=1e-9)


def test_decodes_are_measured_at_the_temperature_of_each_text_and_greedy_ones_apart() -> None:
    task = task_for()
    found, texts = task.evaluate(), task.data.held_out_texts()
    models = DraftModels(task.data.target, task.drafter, task.model)
    config = TreeConfig(budget=REPLAYED_BUDGET, pool_size=POOL)
    committed = [
        [step.committed for step in replay(models.at_temperature(heat), [text], "tfm", config)[0]]
        for heat, text in zip(HEATS.tolist(), texts, strict=True)
    ]
    greedy = [length for heat, lengths in zip(HEATS, committed, strict=True) if heat == 0.0 for length in lengths]
    every = [length for lengths in committed for length in lengths]
    assert found["held_out.decoded_mal.tfm"] == pytest.approx(sum(every) / len(every), rel=1e-12)
    assert found["held_out.decoded_mal.tfm@T0"] == pytest.approx(sum(greedy) / len(greedy), rel=1e-12)


def test_texts_that_do_not_know_their_temperatures_are_refused_before_training() -> None:
    with pytest.raises(ValueError, match="do not say at which temperatures they were written"):
        task_for(replace(WRITTEN, temperatures=None))
    task_for(replace(WRITTEN, temperatures=None), sees_temperature=False).loss(0)
