"""Notebook 05: the tiny world and its hand-made target, trainings with and without a leak, and what betrays one."""

import itertools
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
import torch
import traitlets

from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting import DraftSource, Marginals, TreeBuilder, best_first, chain, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.lessons.by_hand import expected_tokens
from tfm_lab.lessons.tiny_world import MASK, VOCAB, path_chances, target_of, tiny_world, weaver_shape, written_texts
from tfm_lab.lessons.training_by_hand import forcing, lk_loss, pool_coverage
from tfm_lab.lessons.training_curves import LOSSES, CurvesExplorer, CurvesState, Drafted, LiveCurves, curves_picture
from tfm_lab.lessons.training_curves_picture import curves_svg
from tfm_lab.lessons.training_evidence import ideal_lengths, lowest_cross_entropy, sees, training_minus_decode
from tfm_lab.lessons.weaver_training import (
    DEPTH,
    HALT,
    SCORES,
    TREE,
    Setting,
    Stop,
    by_depth,
    held_out_blocks,
    held_out_scores,
    marginal_lengths,
    train_drafter,
    train_weaver,
    woven_length,
)
from tfm_lab.metrics import expected_tokens_per_call
from tfm_lab.models import FactorisedDrafter, Weaver, WeaverSession
from tfm_lab.training.initialise import new_weaver
from tfm_lab.training.losses import PoolComparison
from tfm_lab.training.losses import lk_loss as package_lk_loss
from tfm_lab.training.tasks import gather_after
from tfm_lab.tree import DraftTree

STEPS, POOL = 12, 16
SVG = "{http://www.w3.org/2000/svg}"


class Trained(NamedTuple):
    """A short training of everything; Weavers and stops by whether the answer leaked."""

    setting: Setting
    drafter: FactorisedDrafter
    weavers: dict[bool, Weaver]
    stops: dict[bool, list[Stop]]


@pytest.fixture(scope="module")
def trained() -> Trained:
    setting = Setting.new(0.04, 3, contexts=6)
    drafter = train_drafter(setting, 15)
    stops: dict[bool, list[Stop]] = {False: [], True: []}
    weavers = {
        leaks: train_weaver(setting, drafter, "ce", leaks=leaks, steps=STEPS, pool_size=POOL, on_stop=found.append)
        for leaks, found in stops.items()
    }
    return Trained(setting, drafter, weavers, stops)


# The world and what is computed in it


def test_the_target_by_hand_has_the_law_of_the_world_after_any_text() -> None:
    world = tiny_world(0.04, 0)
    texts = torch.randint(MASK, (3, 12), generator=torch.Generator().manual_seed(0))
    law = torch.softmax(target_of(world)(texts).double(), dim=-1)
    torch.testing.assert_close(law, world.transitions[texts], rtol=0, atol=1e-6)


def test_every_word_may_follow_and_the_mask_never_does() -> None:
    world = tiny_world(0.02, 5)
    assert world.vocab == VOCAB
    assert float(world.transitions[:, :MASK].min()) > 1e-4
    assert float(world.transitions[:, MASK].max()) < 1e-6
    texts = written_texts(world, 50, 0).tokens
    assert texts.max() < MASK
    assert (written_texts(world, 50, 0).tokens == texts).all()
    assert (written_texts(world, 50, 1).tokens != texts).any()


def test_path_chances_are_products_along_the_paths_and_pass_over_unused_columns() -> None:
    world = tiny_world(0.5, 0)
    tree = DraftTree.from_parents([4, 7, 9, 7, 2], [-1, 0, 0, 1, 3])
    tokens = torch.cat([tree.tokens, torch.tensor([0])])[None]
    parents = torch.cat([tree.parents, torch.tensor([-1])])[None]
    chances = path_chances(world, tokens, parents)[0]
    step = world.transitions
    wanted = [1.0, step[4, 7], step[4, 9], step[4, 7] * step[7, 7], step[4, 7] * step[7, 7] * step[7, 2], 0.0]
    assert chances.tolist() == pytest.approx([float(value) for value in wanted])
    rows = TargetRows(step[tree.tokens].log(), SamplingConfig())
    assert float(chances.sum()) == pytest.approx(expected_tokens_per_call(tree, rows))


def test_lengths_are_those_of_the_builders_of_single_trees(trained: Trained) -> None:
    setting, drafter, weaver = trained.setting, trained.drafter, trained.weavers[False]
    roots, before, hidden, logits = held_out_blocks(setting, drafter)
    builders: dict[str, TreeBuilder] = {"chain": chain, "ddtree": best_first, "tfm": woven}
    sums: dict[str, float] = dict.fromkeys(builders, 0.0)
    for text, root in enumerate(roots.tolist()):
        marginals = Marginals(logits[text], hidden[text])
        session = WeaverSession(weaver, setting.target, marginals, before[text], POOL)
        source = DraftSource(marginals, lambda session=session: session)
        for name, build in builders.items():
            tree = build(root, source, TREE, SeededDraws(0)).tree
            paths = [tree.path_tokens(node)[1:] for node in range(1, len(tree))]
            sums[name] += expected_tokens(paths, setting.world.at(root).conditional) / len(roots)
    found = marginal_lengths(setting, drafter) | {"tfm": woven_length(setting, drafter, weaver)}
    assert found == pytest.approx(sums, abs=1e-3)  # near ties may fall either way in float32


def test_perfect_models_are_better_than_trained_ones(trained: Trained) -> None:
    ideal, own = ideal_lengths(trained.setting), marginal_lengths(trained.setting, trained.drafter)
    assert 1.0 < ideal["chain"] < ideal["ddtree"] < ideal["tfm"]
    assert own["chain"] < ideal["chain"]
    assert own["ddtree"] < ideal["ddtree"]


# Trainings


def test_a_training_stops_before_it_starts_and_evenly_after_that(trained: Trained) -> None:
    for stops in trained.stops.values():
        assert [stop.step for stop in stops] == [0, 2, 4, 6, 8, 10, 12]
    first, leaking = trained.stops[False][0], trained.stops[True][0]
    assert first == leaking
    bare = held_out_scores(trained.setting, trained.drafter, untouched(trained)).compare(with_weaver=False)
    assert first.acceptance == pytest.approx(by_depth(bare.acceptance))


def untouched(trained: Trained) -> Weaver:
    return new_weaver(weaver_shape(POOL), trained.setting.target, trained.setting.seed)


def test_a_training_can_be_repeated_and_leaves_the_drafter_alone(trained: Trained) -> None:
    before = {name: tensor.clone() for name, tensor in trained.drafter.state_dict().items()}
    again: list[Stop] = []
    train_weaver(trained.setting, trained.drafter, "ce", leaks=False, steps=STEPS, pool_size=POOL, on_stop=again.append)
    assert again == trained.stops[False]
    assert all(torch.equal(before[name], tensor) for name, tensor in trained.drafter.state_dict().items())


def test_the_loss_falls_either_way_and_only_the_honest_tree_grows(trained: Trained) -> None:
    honest, leaking = trained.stops[False], trained.stops[True]
    assert honest[-1].loss < honest[1].loss < honest[0].loss
    assert leaking[-1].loss < 0.5 * honest[-1].loss
    assert honest[-1].mal > honest[0].mal + 0.1
    assert leaking[-1].mal < leaking[0].mal
    assert leaking[-1].echo > 5 * honest[-1].echo


def test_an_exchanged_token_is_noticed_by_later_predictions_alone_unless_it_leaks(trained: Trained) -> None:
    setting, drafter = trained.setting, trained.drafter
    below = torch.ones(DEPTH, DEPTH, dtype=torch.bool).tril(-1)
    assert torch.equal(sees(SCORES[False], setting, drafter, trained.weavers[False]), below)
    assert torch.equal(
        sees(SCORES[True], setting, drafter, trained.weavers[True]), below | torch.eye(DEPTH, dtype=torch.bool)
    )


def test_training_and_decode_agree_unless_it_leaks(trained: Trained) -> None:
    setting, drafter = trained.setting, trained.drafter
    assert training_minus_decode(SCORES[False], setting, drafter, trained.weavers[False]) < 1e-4
    assert training_minus_decode(SCORES[True], setting, drafter, trained.weavers[True]) > 0.5


def test_the_floor_of_cross_entropy_is_reached_by_the_target_itself(trained: Trained) -> None:
    scores = held_out_scores(trained.setting, trained.drafter, trained.weavers[False])
    p = scores.target_probabilities.double()
    ideal = (p / p.sum(-1, keepdim=True)).log()
    assert lowest_cross_entropy(scores) == pytest.approx(float(-(p * ideal).sum(-1).mean()), rel=1e-5)
    log_q = (scores.drafter_logits + scores.residual).double().log_softmax(-1)
    assert lowest_cross_entropy(scores) < float(-(p * log_q).sum(-1).mean())


# Solutions by hand


def test_the_loss_by_hand_is_the_packages_with_its_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    p = 0.9 * torch.randn(5, 3, 4, generator=generator, dtype=torch.float64).softmax(-1)
    logits = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    for eta in (0.0, 1.0, 3.0):
        log_q = logits.log_softmax(-1)
        by_hand = lk_loss(p, log_q, eta)
        packages = package_lk_loss(PoolComparison(p, log_q, torch.zeros_like(p, dtype=torch.bool)), eta)
        assert by_hand.item() == pytest.approx(packages.item(), abs=1e-12)
        ours, theirs = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (by_hand, packages))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_paths_and_answers_by_hand_are_those_of_the_trainings(trained: Trained) -> None:
    tokens, anchors = trained.setting.held_out()
    reads, answers = gather_after(tokens, anchors - 1, DEPTH), gather_after(tokens, anchors, DEPTH)
    for text, row in enumerate(tokens.tolist()):
        assert forcing(row, HALT, DEPTH) == (reads[text, 0].tolist(), answers[text, 0].tolist())


def test_coverage_by_hand_is_the_mass_of_the_trainings_pools(trained: Trained) -> None:
    setting, drafter = trained.setting, trained.drafter
    laws = setting.world.transitions[setting.held_out()[0][:, HALT : HALT + DEPTH]]
    by_hand = pool_coverage(laws, held_out_blocks(setting, drafter).logits, POOL)
    mass = held_out_scores(setting, drafter, trained.weavers[False]).compare().pool_mass
    torch.testing.assert_close(by_hand, mass.double().mean(0), rtol=0, atol=1e-6)


# Curves


def curves(last: float = 2.5) -> CurvesState:
    """Two trainings with CE, one with LK, as if recorded."""
    state = CurvesState(Drafted(1.4, 2.1, (0.5, 0.2), (0.9, 0.7)))
    for objective, leaks, end in (("ce", False, last), ("ce", True, 1.2), ("lk", False, 2.8)):
        state.begin(objective, leaks)
        for step in (0, 10, 20):
            share = step / 20
            state.add(Stop(step, 2.0 - share, 1.9 + share * (end - 1.9), (0.5, 0.2 + 0.3 * share), 0.02 + 0.5 * share))
    return state


def test_stops_come_in_and_are_gone_to() -> None:
    state = curves()
    assert (state.objective, state.leaks, state.stop.step) == ("lk", False, 20)
    assert set(state.view().others) == {LOSSES["ce"]}
    state.leaks = True
    with pytest.raises(ValueError, match="there is no training with LK mixture yet: run the cells above first"):
        state.view()
    state.objective, state.place = "ce", 1
    assert state.view().others == {}
    assert state.stop.step == 10
    assert state.describe().startswith("CE, answer leaks, step 10 of 20: the training loss is 1.500")
    assert "shorter than DDTree's 2.100" in state.describe()
    with pytest.raises(traitlets.TraitError):
        state.objective = "mse"


def test_buttons_and_slider_move_the_picture() -> None:
    state = curves()
    state.objective = "ce"
    explorer = CurvesExplorer(state)
    before = explorer._picture.value
    explorer._leak.value = "answer leaks"
    assert state.leaks
    assert "shorter than DDTree" in explorer._words.value
    explorer._place.value = 0
    assert "step 0 of 20" in explorer._words.value
    explorer._place.value, explorer._leak.value = 2, "honest path"
    assert explorer._picture.value == before
    data, _ = explorer._repr_mimebundle_()
    assert data["image/svg+xml"] == curves_svg(state.view())
    assert data["text/plain"] == state.describe()
    assert "application/vnd.jupyter.widget-view+json" in data


def test_the_live_picture_follows_every_stop() -> None:
    state = CurvesState(Drafted(1.4, 2.1, (0.5, 0.2), (0.9, 0.7)))
    live = LiveCurves(state, leaks=False)
    assert LiveCurves.WORDS in live._words.value
    state.begin("tv", False)
    for step in (0, 5):
        state.add(Stop(step, 1.0, 2.0, (0.5, 0.2), 0.0))
        assert f"step {step} of {step}" in live._words.value
        assert "<svg" in live._picture.value
    state.begin("tv", True)
    state.add(Stop(9, 1.0, 2.0, (0.5, 0.2), 0.0))
    assert "honest path, step 5 of 5" in live._words.value
    data, _ = live._repr_mimebundle_()
    assert data["text/plain"] == LiveCurves.WORDS
    ElementTree.fromstring(data["image/svg+xml"])


@pytest.mark.parametrize("standalone", [True, False])
def test_the_curves_are_well_formed_and_described(standalone: bool) -> None:
    state = curves()
    text = curves_svg(state.view(), standalone=standalone)
    root = ElementTree.fromstring(text)
    words = root.findtext(f"{SVG}desc") or ""
    assert words.startswith(state.describe())
    assert "depth 2 pool 0.70 drafter 0.20 Weaver 0.50" in words
    shown = [element.text for element in root.iter(f"{SVG}text")]
    assert {"this one", "CE", "chain", "DDTree", "2.800", "1.000", "acceptance by depth, after step 20"} <= set(shown)
    assert ("#1f2328" in text) is standalone
    assert curves_picture(state).svg == curves_svg(state.view())


def test_names_at_the_ends_of_curves_do_not_cover_each_other() -> None:
    root = ElementTree.fromstring(curves_svg(curves(last=2.79).view()))
    names = {"this one", "CE", "chain", "DDTree"}
    places = sorted(float(e.get("y", "0")) for e in root.iter(f"{SVG}text") if e.text in names)
    assert all(b - a >= 13.9 for a, b in itertools.pairwise(places))
