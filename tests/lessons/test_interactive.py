"""The overlap explorer, the budget to spend, and the frames of the membership walk."""

from xml.etree import ElementTree

import pytest
import torch

from tfm_lab.distributions import SamplingConfig, total_variation
from tfm_lab.drafting import Draft, TreeKind
from tfm_lab.draws import SeededDraws
from tfm_lab.exact import target_rows
from tfm_lab.lessons.exercises_01 import STEPS
from tfm_lab.lessons.exercises_07 import walk_cases
from tfm_lab.lessons.overlap import OverlapExplorer, OverlapState, overlap_picture, overlap_svg
from tfm_lab.lessons.spend import SpendExplorer, SpendState, spend_picture
from tfm_lab.lessons.walks import walk_frames
from tfm_lab.show.views import Role
from tfm_lab.theory import MarkovWorld
from tfm_lab.verification import target_sample

P = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
TOKENS = ("a", "b", "<c>")


def test_only_the_honest_step_is_lossless_whatever_the_drafter() -> None:
    for weights in ((1, 1, 1), (0.1, 0.2, 0.9), (0, 0.1, 0.3)):
        state = OverlapState(P, weights)
        for name in STEPS:
            state.step = name
            seen = state.seen()
            assert (seen.bias <= 1e-12) == (name == "honest")
            assert ("lossless" in state.describe()) == (name == "honest")
        state.step = "honest"
        assert abs(state.seen().acceptance - (1 - float(total_variation(P, state.seen().q)))) <= 1e-12


def test_weights_that_are_all_zero_mean_a_uniform_drafter() -> None:
    assert OverlapState(P, (0, 0, 0)).seen().q.tolist() == pytest.approx([1 / 3] * 3)


def test_state_and_target_must_fit() -> None:
    with pytest.raises(ValueError, match="the target has 3 tokens and the drafter 2"):
        OverlapState(P, (1, 1))


def test_sliders_and_switch_move_the_picture() -> None:
    state = OverlapState(P, (0.2, 0.2, 0.6))
    explorer = OverlapExplorer(state, TOKENS)
    before = explorer._picture.value
    explorer._sliders[0].value = 0.9
    assert state.weights == (0.9, 0.2, 0.6)
    assert explorer._picture.value != before
    explorer._switch.value = "accept everything"
    assert state.step == "accept everything"
    assert "100.0% of the drafts" in explorer._words.value
    state.step = "honest"
    assert explorer._switch.value == "honest"
    data, _ = explorer._repr_mimebundle_()
    assert data["image/svg+xml"] == overlap_svg(state, TOKENS)
    assert data["text/plain"] == state.describe()
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize("standalone", [True, False])
def test_the_overlap_svg_is_well_formed_and_described(standalone: bool) -> None:
    state = OverlapState(P, (0.2, 0.2, 0.6))
    text = overlap_svg(state, TOKENS, standalone=standalone)
    root = ElementTree.fromstring(text)
    assert root.findtext("{http://www.w3.org/2000/svg}desc") == state.describe()
    assert ("currentColor" in text) is not standalone
    assert overlap_picture(state, TOKENS).svg == overlap_svg(state, TOKENS)


def spending(budget: int = 3) -> SpendState:
    return SpendState(MarkovWorld.dirichlet(3, 0.5, seed=2), ("x", "y", "<z>"), budget, depth=2)


def test_nodes_are_bought_below_their_parents_until_the_budget_is_spent() -> None:
    state = spending()
    assert [choice.path for choice in state.choices()] == [(0,), (1,), (2,)]
    assert [choice.marginal for choice in state.choices()] == pytest.approx(state.marginals[0].tolist())
    state.add((1,))
    assert [choice.path for choice in state.choices()] == [(0,), (1, 0), (1, 1), (1, 2), (2,)]
    with pytest.raises(ValueError, match="the node x → y cannot be added"):
        state.add((0, 1))
    state.add((1, 2))
    assert not any(len(choice.path) > 2 for choice in state.choices())
    state.add((0,))
    assert state.choices() == []
    state.undo()
    assert state.paths == ((1,), (1, 2))
    chance = float(state.world.conditional(())[1])
    assert state.worth() == pytest.approx(1 + chance * (1 + float(state.world.conditional((1,))[2])))
    assert [node.label for node in state.view().nodes][1:] == ["y", "<z>"]


def test_best_first_spends_the_whole_budget_and_knowing_the_path_is_worth_no_less() -> None:
    state = spending()
    state.spend_best_first()
    assert len(state.paths) == 3
    assert state.worth() == state.worth_of_best() <= state.worth_with_path() + 1e-12


def test_a_world_needs_a_name_for_each_token() -> None:
    with pytest.raises(ValueError, match="the world has 3 tokens, and 2 have a name"):
        SpendState(MarkovWorld.dirichlet(3, 0.5), ("x", "y"), 3, 2)


def test_list_and_buttons_spend_the_budget() -> None:
    state = spending()
    explorer = SpendExplorer(state)
    assert explorer._undo.disabled
    explorer._choices.value = (2,)
    explorer._add.click()
    assert state.paths == ((2,),)
    assert "1 of 3 nodes spent" in explorer._words.value
    assert "&lt;z&gt;" in explorer._picture.value
    explorer._undo.click()
    assert state.paths == ()
    explorer._best.click()
    assert len(state.paths) == 3
    assert explorer._add.disabled
    explorer._add.click()
    assert len(state.paths) == 3
    data, _ = explorer._repr_mimebundle_()
    assert data["image/svg+xml"] == spend_picture(state).svg
    assert data["text/plain"] == state.describe()


def test_a_walk_has_one_frame_per_draw_and_ends_with_the_bonus() -> None:
    (_, _, case) = walk_cases()
    draft = Draft(case.tree, TreeKind.FIXED)
    rows = target_rows(draft, case.target, SamplingConfig())
    dense = torch.stack([rows.probabilities(node) for node in range(len(case.tree))])
    lengths = set()
    for seed in range(12):
        wanted = target_sample(draft, rows, SeededDraws(seed))
        frames = walk_frames(case.tree, dense, seed, lambda token: "xyz"[token])
        lengths.add(len(frames))
        assert len(frames) == len(wanted.path)
        roles = [[node.role for node in frame.view.nodes] for frame in frames]
        assert [row.count(Role.ACCEPTED) for row in roles] == list(range(len(frames)))
        assert [row.count(Role.BONUS) for row in roles] == [0] * (len(frames) - 1) + [1]
        text = "".join("xyz"[token] for token in wanted.emitted(case.tree))
        assert f"<code>{text}</code>" in frames[-1].caption
        assert "bonus token" in frames[-1].caption
        assert all("descend" in frame.caption for frame in frames[:-1])
        assert all(frame.side.count("▶") == 1 for frame in frames)
    assert len(lengths) > 1
