"""What is trained is what is drafted: labels, paths and context of training equal those of decoding."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models.oracle import VOCABULARY
from models.small import drafter_config, drafter_for, tiny_target, weaver_for
from torch import Tensor

from tfm_lab.decoding import DecodeConfig, speculative_decode
from tfm_lab.drafting import Marginals, OpenNode, TreeConfig
from tfm_lab.methods import make_speculator
from tfm_lab.metrics import acceptance_by_depth, mean_accepted_length
from tfm_lab.models import FactorisedDrafter, TargetModel, Weaver, WeaverSession
from tfm_lab.models.config import FULL_ATTENTION, LINEAR_ATTENTION
from tfm_lab.models.target import Features
from tfm_lab.training.data import PackedCorpus, WrittenTexts
from tfm_lab.training.fit import FitConfig, fit
from tfm_lab.training.initialise import new_drafter, new_target
from tfm_lab.training.losses import PoolComparison, block_cross_entropy, lk_loss
from tfm_lab.training.tasks import BlockData, DrafterTask, TargetTask, WeaverTask, block_losses, pool_scores
from tfm_lab.tree import DraftTree

BLOCK = 8
TEXTS = torch.randint(VOCABULARY, (6, 40), generator=torch.Generator().manual_seed(0)).numpy().astype(np.uint16)
WRITTEN = WrittenTexts(TEXTS, np.array([4, 9, 1, 0, 31, 20], dtype=np.int32))
HELD_OUT = WrittenTexts(TEXTS[::-1].copy(), np.full(6, 10, dtype=np.int32))


def block_data(target: TargetModel, **changes: Any) -> BlockData:
    fields: dict[str, Any] = {"target": target, "train": WRITTEN, "held_out": HELD_OUT, "batch": 2, "anchors": 3}
    return BlockData(**(fields | {"seed": 0, "block": BLOCK, "replayed_tokens": 8} | changes))


def blocks_of(tokens: Tensor, anchors: Tensor) -> list[tuple[list[int], int]]:
    """Text and anchor of every block of a batch, in order."""
    return [(text, anchor) for text, row in zip(tokens.tolist(), anchors.tolist(), strict=True) for anchor in row]


def decode_view(target: TargetModel, drafter: FactorisedDrafter, text: list[int], anchor: int) -> Any:
    """Marginals for the block at ``anchor`` and the hidden state that produced the anchor, as a decode has them."""
    prefilled = target.prefill(text[:anchor], drafter.config.tap_layers)
    context = drafter.extend_context(drafter.empty_context(), prefilled.taps)
    return drafter.propose(context, text[anchor], target), prefilled


class CompiledForm:
    """Stands for what torch.compile gives: it calls the function, and counts."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def test_compiled_forms_take_the_training_steps_and_no_others() -> None:
    target = tiny_target()
    drafter, weaver, data = drafter_for(target), weaver_for(target), block_data(target)
    blocks, scores = CompiledForm(block_losses), CompiledForm(pool_scores)
    pairs = (
        (DrafterTask(drafter, data), DrafterTask(drafter, data, run=blocks)),
        (WeaverTask(weaver, drafter, data), WeaverTask(weaver, drafter, data, run=scores)),
    )
    for wanted, found in pairs:
        assert torch.equal(found.loss(3)[0], wanted.loss(3)[0])
        assert found.evaluate() == wanted.evaluate()
    assert (blocks.calls, scores.calls) == (1, 1)


@pytest.mark.parametrize("name", ["hybrid-grouped", "llama-grouped"])
def test_a_block_is_trained_for_the_tokens_that_it_will_draft(name: str) -> None:
    target = tiny_target(name)
    drafter, data = drafter_for(target), block_data(target)
    task = DrafterTask(drafter, data, gamma=3.0)
    for step in (0, 5):
        tokens, anchors = data.texts(step)
        logits, labels = [], []
        for text, anchor in blocks_of(tokens, anchors):
            logits.append(decode_view(target, drafter, text, anchor)[0].logits)
            labels.append(text[anchor + 1 : anchor + BLOCK])
        loss, figures = task.loss(step)
        wanted = block_cross_entropy(torch.stack(logits), torch.tensor(labels), 3.0)
        assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
        hits = (torch.stack(logits).argmax(-1) == torch.tensor(labels)).float().mean(0)
        assert {name: float(figure) for name, figure in figures.items()} == pytest.approx(
            {f"hit@{depth}": float(hits[depth - 1]) for depth in (1, 2, 4)}
        )


def woven_along(
    target: TargetModel, weaver: Weaver, marginals: Marginals, hidden: Tensor, path: list[int]
) -> tuple[Tensor, Tensor]:
    """Pool tokens and the Weaver's log-probabilities at every node of one path, drafted node by node."""
    session = WeaverSession(weaver, target, marginals, hidden, weaver.config.pool_size)
    proposals = [session.expand([OpenNode(depth, depth - 1, path[depth], depth)])[0] for depth in range(BLOCK - 1)]
    return torch.stack([p.tokens for p in proposals]), torch.stack([p.log_probs for p in proposals])


@pytest.mark.parametrize("form", [{}, {"positions": "rotary", "mlp": "swiglu"}])
def test_the_weaver_is_trained_on_the_conditionals_that_it_will_draft_from(form: dict[str, str]) -> None:
    target = tiny_target()
    drafter, weaver, data = drafter_for(target), weaver_for(target, **form), block_data(target)
    tokens, anchors = data.texts(3)
    probabilities, log_q, log_marginal, is_next = [], [], [], []
    for text, anchor in blocks_of(tokens, anchors):
        marginals, prefilled = decode_view(target, drafter, text, anchor)
        path = text[anchor : anchor + BLOCK - 1]
        pool, woven = woven_along(target, weaver, marginals, prefilled.hidden, path)
        chain = DraftTree.from_parents(path, list(range(-1, BLOCK - 2)))
        verified = target.verify_tree(prefilled.state, chain).logits.softmax(-1)
        probabilities.append(verified.gather(1, pool))
        is_next.append(pool == torch.tensor(text[anchor + 1 : anchor + BLOCK]).unsqueeze(1))
        log_q.append(woven)
        log_marginal.append(marginals.logits.gather(1, pool).log_softmax(-1))
    wanted = PoolComparison(torch.stack(probabilities), torch.stack(log_q), torch.stack(is_next))
    loss, figures = WeaverTask(weaver, drafter, data, eta=2.0).loss(3)
    assert float(loss) == pytest.approx(float(lk_loss(wanted, 2.0)), rel=1e-5)
    for depth in (1, 2, 4):
        assert float(figures[f"acceptance@{depth}"]) == pytest.approx(float(wanted.acceptance[:, depth - 1].mean()))
    by_text = WeaverTask(weaver, drafter, data, objective="ce").loss(3)[0]
    assert float(by_text) == pytest.approx(float(wanted.surprise.mean()), rel=1e-5)
    assert torch.stack(is_next).any()
    plain = PoolComparison(torch.stack(probabilities), torch.stack(log_marginal), torch.stack(is_next))
    assert not torch.allclose(plain.acceptance, wanted.acceptance)


def test_held_out_figures_come_from_held_out_texts_and_compare_weaver_and_marginals() -> None:
    target = tiny_target()
    drafter, weaver = drafter_for(target), weaver_for(target)
    swapped = block_data(target, train=HELD_OUT)
    tasks = (WeaverTask(weaver, drafter, block_data(target)), WeaverTask(weaver, drafter, swapped))
    first, second = (task.evaluate() for task in tasks)
    assert first == second
    assert first["held_out.weaver@1"] != first["held_out.marginal@1"]
    assert first["held_out.weaver@1"] <= first["held_out.pool@1"] <= 1.0
    drafts = DrafterTask(drafter, block_data(target)).evaluate()
    assert drafts == DrafterTask(drafter, swapped).evaluate()
    assert 1.0 <= drafts["held_out.chain_mal"] <= BLOCK
    assert DrafterTask(drafter, block_data(target, held_out=WRITTEN)).evaluate() != drafts


def test_the_loss_of_a_step_depends_on_model_and_step_alone() -> None:
    target = tiny_target()
    drafter, weaver = drafter_for(target), weaver_for(target)
    for make in (
        lambda: DrafterTask(drafter, block_data(target)),
        lambda: WeaverTask(weaver, drafter, block_data(target)),
    ):
        losses = [float(make().loss(step)[0]) for step in (4, 1, 4)]
        assert losses[0] == losses[2] != losses[1]


def test_anchors_keep_to_what_the_target_wrote_and_leave_room_for_a_block() -> None:
    data = block_data(tiny_target(), batch=6, anchors=50)
    seen: dict[int, set[int]] = {}
    for step in range(30):
        tokens, anchors = data.texts(step)
        for text, row in zip(tokens.tolist(), anchors.tolist(), strict=True):
            seen.setdefault(TEXTS.tolist().index(text), set()).update(row)
    for index, written_from in enumerate(WRITTEN.written_from.tolist()):
        first = max(1, written_from - 1)  # position 0 has no hidden state before it for the Weaver
        assert seen[index] == set(range(first, TEXTS.shape[1] - BLOCK + 1))


def test_texts_too_short_for_a_block_are_refused() -> None:
    data = block_data(tiny_target(), train=WrittenTexts(TEXTS, np.full(6, 34, dtype=np.int32)))
    with pytest.raises(ValueError, match="texts of 40 tokens leave no room for a block of 8; write longer ones"):
        data.texts(0)


def test_a_block_learns_nothing_from_features_at_or_after_its_anchor(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_target()
    drafter = drafter_for(target)
    leaves: list[Tensor] = []
    features = TargetModel.features

    def watched(self: TargetModel, tokens: Tensor, tap_layers: Any = ()) -> Features:
        plain = features(self, tokens, tap_layers)
        leaves.append(plain.taps.detach().requires_grad_(True))
        return Features(plain.hidden, leaves[-1])

    monkeypatch.setattr(TargetModel, "features", watched)
    data = block_data(target, anchors=1, batch=6)
    for step in range(3):
        loss, _ = DrafterTask(drafter, data).loss(step)
        (gradient,) = torch.autograd.grad(loss, leaves.pop())
        for row, anchor in enumerate(data.texts(step)[1][:, 0].tolist()):
            reach = gradient[row].abs().amax(-1)
            assert bool((reach[:anchor] > 0.0).all())
            assert bool((reach[anchor:] == 0.0).all())


def test_a_block_learns_nothing_from_another_block_of_its_text() -> None:
    """The loss of several anchors is the mean of the losses of each by itself."""
    target = tiny_target()
    data = block_data(target)
    tokens, anchors = data.texts(1)

    class Fixed(BlockData):
        """Texts of the step, the anchors given."""

        def texts(self, step: int, *, held_out: bool = False) -> tuple[Tensor, Tensor]:
            return tokens, anchors[:, [step]]

    together = float(DrafterTask(drafter_for(target), data).loss(1)[0])
    apart = DrafterTask(drafter_for(target), Fixed(target, WRITTEN, HELD_OUT, 2, 1, 0, BLOCK))
    assert sum(float(apart.loss(index)[0]) for index in range(3)) / 3 == pytest.approx(together, rel=1e-6)


def target_task(target: TargetModel, held_out: Mapping[str, np.ndarray], **changes: Any) -> TargetTask:
    train = PackedCorpus({"a": TEXTS.reshape(-1)}, {"a": 1.0})
    kept = PackedCorpus(held_out, {"a": 1.0, "b": 3.0})
    fields: dict[str, Any] = {"batch": 3, "length": 12, "seed": 0, "forward": target}
    return TargetTask(target, train, kept, **(fields | changes))


def test_the_target_learns_the_next_token() -> None:
    target = tiny_target()
    task = target_task(target, {"a": TEXTS[0], "b": TEXTS[1]})
    losses = []
    for window in task.train.batch(2, 3, 13, 0).tolist():
        for length in range(1, 13):
            losses.append(-float(target.prefill(window[:length]).logits.log_softmax(-1)[window[length]]))
    assert float(task.loss(2)[0]) == pytest.approx(sum(losses) / len(losses), rel=1e-6)


def test_held_out_loss_weighs_the_sources_and_passes_over_short_ones() -> None:
    target = tiny_target()
    both = target_task(target, {"a": TEXTS[0], "b": TEXTS[1]}).evaluate()
    assert both["held_out"] == pytest.approx(0.25 * both["held_out.a"] + 0.75 * both["held_out.b"])
    one = target_task(target, {"a": TEXTS[0], "b": TEXTS[1][:13]}).evaluate()
    assert one == {"held_out.a": both["held_out.a"], "held_out": both["held_out.a"]}


def test_a_target_without_enough_held_out_text_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match="no source sets aside more than 13 tokens; build a larger corpus"):
        target_task(tiny_target(), {"a": TEXTS[0][:13], "b": TEXTS[0][:0]})


PERIOD = [5, 9, 5, 7, 9, 9, 3, 5, 8, 7, 3]
"""The next token depends on more than the last one."""


def train_on_the_string(folder: Path) -> tuple[TargetModel, FactorisedDrafter, DrafterTask]:
    """A target that knows one periodic string by heart, and a drafter trained on it."""
    text = np.array(PERIOD * 12, dtype=np.uint16)
    corpus = PackedCorpus({"string": text}, {"string": 1.0})
    target = new_target(replace(tiny_target().config, layer_types=(LINEAR_ATTENTION, FULL_ATTENTION)), seed=0)
    config = FitConfig(steps=60, learning_rate=0.01, optimiser="muon", evaluate_every=60)
    fit(TargetTask(target, corpus, corpus, 4, 40, 0, target), config, folder / "target")
    target.requires_grad_(False)
    drafter = new_drafter(drafter_config(target), target, seed=0)
    rows = np.stack([text[start : start + 60] for start in range(len(PERIOD))])
    written = WrittenTexts(rows, np.full(len(rows), 12, dtype=np.int32))
    task = DrafterTask(drafter, BlockData(target, written, written, batch=11, anchors=6, seed=0, block=BLOCK))
    fit(task, replace(config, steps=100), folder / "drafter")
    return target, drafter.requires_grad_(False), task


def test_on_a_memorised_string_training_accuracy_and_acceptance_agree(tmp_path: Path) -> None:
    """A label shifted by one token would be learned just as well, and never be accepted."""
    target, drafter, task = train_on_the_string(tmp_path)
    figures = task.evaluate()
    config = DecodeConfig(max_new_tokens=57, tree=TreeConfig(budget=BLOCK - 1))
    speculator = make_speculator("chain", drafter, None, config.sampling)
    traces = []
    for start in range(len(PERIOD)):
        traces.append(speculative_decode(target, speculator, (PERIOD * 3)[start : start + 12], config))
        assert list(traces[-1].tokens) == (PERIOD * 8)[start + 12 : start + 69]
    depths = acceptance_by_depth(traces)
    for depth in (1, 2, 4):
        assert figures[f"held_out.hit@{depth}"] > 0.98
        assert depths[depth - 1].conditional == pytest.approx(figures[f"held_out.hit@{depth}"], abs=0.02)
    assert mean_accepted_length(traces).value == pytest.approx(figures["held_out.chain_mal"], rel=0.02)
