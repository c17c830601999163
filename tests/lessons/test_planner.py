"""Notebook 10: solutions by hand against the package, lines of equal speed, and the planner."""

from xml.etree import ElementTree

import pytest

from tfm_lab.lessons.iso_speed import (
    KERNELS,
    IsoSpeedExplorer,
    IsoSpeedState,
    iso_speed_picture,
    iso_speed_svg,
)
from tfm_lab.lessons.planner import PlannerState, SpeedupPlanner, planner_picture
from tfm_lab.lessons.planner_picture import planner_svg
from tfm_lab.lessons.speed_by_hand import break_even, choose_budget
from tfm_lab.lessons.step_times import compared, compared_card, decodes_card, held_out_card
from tfm_lab.planning import (
    MalCurve,
    fastest,
    fastest_by_method,
    fit_costs,
    leave_one_out,
    outcomes,
    paper_costs,
    paper_hardware,
    read_full_model,
    tokens_per_second,
)
from tfm_lab.planning.published import RATES, longest_chain_step_where_the_tree_loses, plain_step_seconds

SVG = "{http://www.w3.org/2000/svg}"
CURVE = MalCurve("made up", "a test", {"chain": {15: 3.0}, "ddtree": {16: 3.4}, "tfm": {16: 3.8, 64: 4.9}})
CHAIN_ONLY = MalCurve("chain only", "a test", {"chain": {15: 3.0}})


def planner(*curves: MalCurve) -> PlannerState:
    return PlannerState({curve.name: curve for curve in curves or (CURVE, CHAIN_ONLY)})


def test_break_even_by_hand_gives_equal_speed() -> None:
    fused, other = break_even(3.0, 12.0, 16.0, 48, 42.8, 195.0)
    slower = 16.0 + 48 * 0.1522
    assert tokens_per_second(fused, 16.0) == pytest.approx(tokens_per_second(3.0, 12.0))
    assert tokens_per_second(other, slower) == pytest.approx(tokens_per_second(3.0, 12.0))


def test_the_budget_by_hand_is_the_planners() -> None:
    for kernel in ("fused", "state per node"):
        for batch in (1, 8, 64):
            found = outcomes(CURVE, paper_hardware(), paper_costs(), batch, kernel)
            trees = {item.plan.budget: item for item in found if item.plan.width == 4}
            mal = {budget: item.mal for budget, item in trees.items()}
            step_ms = {budget: 1e3 * item.step.total for budget, item in trees.items()}
            plain = fastest_by_method(found)["ar"]
            wanted = fastest([plain, *trees.values()]).plan.budget
            assert choose_budget(mal, step_ms, 1e3 * plain.step.total) == wanted


def test_equal_speeds_prefer_no_tree_and_small_trees() -> None:
    assert choose_budget({16: 2.0, 32: 2.0}, {16: 20.0, 32: 20.0}, 10.0) == 0
    assert choose_budget({32: 3.0, 16: 3.0}, {16: 20.0, 32: 20.0}, 10.0) == 16


def test_published_points_keep_their_speed_wherever_the_chain_is() -> None:
    state = IsoSpeedState()
    for mal in (3.6, 5.0, 8.0):
        state.chain_mal = mal
        points = state.published()
        for name, method in (("plain", "ar"), ("DFlash chain", "chain"), ("TfM", "tfm")):
            assert points[name].speedup == pytest.approx(RATES[method].value / RATES["ar"].value, rel=1e-3)
        slow, fast = state.ddtree()
        assert points["TfM"].speedup / fast.speedup == pytest.approx(1.10)
        assert points["TfM"].speedup / slow.speedup == pytest.approx(1.30)
        assert points["TfM"].mal / slow.mal == pytest.approx(1.32)


def test_with_the_other_kernel_the_tree_loses_up_to_the_derived_chain_step() -> None:
    state = IsoSpeedState(kernel=KERNELS[1])
    limit = longest_chain_step_where_the_tree_loses() / plain_step_seconds()
    for mal, verdict in ((6.4, "slower"), (6.8, "faster")):
        state.chain_mal = mal
        points = state.published()
        assert (points["DFlash chain"].step < limit) == (verdict == "slower")
        assert f"{verdict} than the chain" in state.describe()


def test_sliders_move_the_point_and_the_switch_the_kernel() -> None:
    state = IsoSpeedState()
    explorer = IsoSpeedExplorer(state)
    before = explorer._picture.value
    explorer._sliders["mal"].value = 6.0
    assert state.own.speedup == 3.0
    assert "3.00 times plain decoding" in explorer._words.value
    assert explorer._picture.value != before
    explorer._sliders["chain_mal"].value = 5.0
    assert "if its chain has a MAL of 5.0" in explorer._words.value
    explorer._kernel.value = KERNELS[1]
    assert state.kernel == KERNELS[1]
    assert "TfM (state per node)" in explorer._words.value
    state.step = 1.25
    assert explorer._sliders["step"].value == 1.25
    data, _ = explorer._repr_mimebundle_()
    assert data["image/svg+xml"] == iso_speed_picture(state).svg
    assert data["text/plain"] == state.describe()
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize("standalone", [True, False])
@pytest.mark.parametrize("mal", [1.0, 15.0])
def test_the_picture_of_equal_speeds_is_well_formed_and_stays_inside(standalone: bool, mal: float) -> None:
    state = IsoSpeedState(mal=mal, step=4.0, chain_mal=8.0, kernel=KERNELS[1])
    text = iso_speed_svg(state, standalone=standalone)
    root = ElementTree.fromstring(text)
    assert root.findtext(f"{SVG}desc") == state.describe()
    assert ("currentColor" in text) is not standalone
    assert all(0 <= float(circle.get("cy", "nan")) <= 420 for circle in root.iter(f"{SVG}circle"))
    assert {"1x", "2x", "3x", "4x", "5x"} <= {item.text for item in root.iter(f"{SVG}text")}


def test_the_planner_begins_with_the_papers_setting() -> None:
    state = planner()
    paper, hardware = paper_costs(), paper_hardware()
    assert state.hardware().bandwidth == pytest.approx(hardware.bandwidth, rel=0.02)
    costs = state.costs()
    for name in ("weight_bytes", "row_flops", "draft_bytes", "draft_row_flops", "call_seconds"):
        assert getattr(costs, name) == pytest.approx(getattr(paper, name), rel=0.02)
    assert costs.delta_net_layers == 48
    assert PlannerState().curve == "smollm2, temperature 0"


def test_the_view_shows_the_best_width_of_every_budget_and_batch() -> None:
    state = planner()
    state.batch = 24
    view = state.view()
    assert list(view.best) == ["plain decoding", "DFlash chain", "DDTree", "TfM"]
    assert list(view.cells) == [16, 64]
    assert list(view.cells[16]) == [1, 2, 4, 8, 16, 24, 32, 64]
    for budget, row in view.cells.items():
        for batch, item in row.items():
            found = outcomes(CURVE, state.hardware(), state.costs(), batch)
            mine = [o.speedup for o in found if o.plan.method == "tfm" and o.plan.budget == budget]
            assert item.speedup == max(mine)
            chains = [o.speedup for o in found if o.plan.method in ("ar", "chain")]
            assert view.others[batch] == max(chains)


@pytest.mark.parametrize("standalone", [True, False])
def test_the_planners_picture_is_well_formed_and_tells_its_table(standalone: bool) -> None:
    state = planner()
    root = ElementTree.fromstring(planner_svg(state.view(), standalone=standalone))
    words = [item.text for item in root.iter(f"{SVG}text")]
    for row in state.view().cells.values():
        assert all(f"{item.speedup:.2f}" in words for item in row.values())
    told = root.findtext(f"{SVG}desc") or ""
    assert told.startswith(state.describe())
    assert "B = 16: batch size 1 " in told
    hollow = [r for r in root.iter(f"{SVG}rect") if r.get("stroke-dasharray")]
    view = state.view()
    loses = [o for row in view.cells.values() for batch, o in row.items() if o.speedup <= view.others[batch]]
    assert len(hollow) == len(loses) > 0


def test_controls_change_the_plan() -> None:
    state = planner()
    widget = SpeedupPlanner(state)
    assert "Best: TfM with B = 64" in widget._words.value
    widget._controls["batch"].value = 64
    assert "Best: plain decoding, 1.00 times" in widget._words.value
    widget._controls["batch"].value = 1
    widget._controls["rest"].value = 20.0
    widget._controls["typed"].value = "tfm 16: 2.0"
    assert "typed, batch 1" in widget._words.value
    assert "Best: plain decoding" in widget._words.value
    widget._controls["typed"].value = ""
    widget._controls["curve"].value = "chain only"
    assert "chain only, batch 1" in widget._words.value
    assert "no points for TfM" in widget._picture.value
    before = state.describe()
    for name, value in (
        ("bandwidth", 1.0),
        ("weights", 10.0),
        ("layers", 0),
        ("call", 200.0),
        ("kernel", "state per node"),
    ):
        widget._controls[name].value = value
        assert getattr(state, name) == value
    assert state.describe() != before
    data, _ = widget._repr_mimebundle_()
    assert data["image/svg+xml"] == planner_picture(state).svg
    assert data["text/plain"] == state.describe()


def test_measured_steps_take_the_place_of_bounds_and_contexts_that_of_batches() -> None:
    state = planner()
    widget = SpeedupPlanner(state)
    assert not widget._controls["bandwidth"].disabled
    assert widget._controls["context"].disabled
    widget._controls["source"].value = "measured"
    assert "fitted to steps measured on one NVIDIA H200 (27B shape, random weights)" in widget._words.value
    assert widget._controls["batch"].disabled
    assert not widget._controls["context"].disabled
    widget._controls["context"].value = 5120
    view = state.view()
    assert list(view.cells[16]) == [1024, 2048, 4096, 5120, 8192, 16384, 32768]
    assert [item.plan.width for item in view.cells[64].values()] == [4] * 7, "no other width was measured"
    tree = view.best["TfM"]
    assert tree.step.total == pytest.approx(state.fitted.predict(tree.plan, 5120))
    assert view.cells[tree.plan.budget][5120] == tree
    before = state.describe()
    state.batch, state.bandwidth = 64, 0.1
    assert state.describe() == before, "device and batch are those of the measurement"
    words = [item.text for item in ElementTree.fromstring(planner_svg(view)).iter(f"{SVG}text")]
    assert {"step without rows", "rows", "draft", "weave"} <= set(words)
    assert not {"weights", "Gated DeltaNet", "rest"} & set(words), "a fit has no such parts"
    assert "one step at 5120 tokens of context, best plan of each method" in words
    assert "TfM over plain decoding, w = ⌈B / 16⌉, by budget B and context" in words


def test_a_part_is_in_the_legend_when_it_takes_time() -> None:
    state = planner()
    assert ">rest</text>" not in planner_svg(state.view())
    state.rest = 1.0
    assert ">rest</text>" in planner_svg(state.view())


def test_reported_and_measured_steps_stand_side_by_side() -> None:
    model = read_full_model()
    rows = {row.name: row for row in compared(model)}
    tree, chain = (model.step(method, rows).seconds.median for method, rows in (("tfm", 64), ("chain", 16)))
    assert rows["TfM step over chain step"] == ("TfM step over chain step", "1.42 (derived)", f"{tree / chain:.3f}")
    assert rows["chain step, 16 rows"].reported == "not reported"
    assert rows["speed, TfM over plain"].reported == "4.37"
    assert "maths not reached" in rows["speed, TfM over plain"].own
    assert rows["speed, TfM over plain"].own.startswith("chat 2.")
    assert " ± " in rows["speed, TfM over DDTree"].own
    card = compared_card(model)
    for words in ("one NVIDIA B200", "27B shape, random weights, one NVIDIA H200", "replayed acceptance"):
        assert words in card.html
        assert words in card.words


def test_held_out_steps_and_decodes_are_listed_with_their_errors() -> None:
    model = read_full_model()
    fitted = fit_costs(model.table())
    (held_out,) = [
        item for item in leave_one_out(model.table()) if item.step.plan.budget == 127 and item.step.plan.calls
    ]
    card = held_out_card([held_out], "A note.")
    ms, predicted = 1e3 * held_out.step.seconds, 1e3 * held_out.predicted
    assert card.words == (
        f"A note.\nstep: TfM, 128 rows, context: 1,024, measured, ms: {ms:.2f}, predicted, ms: {predicted:.2f}, "
        f"error: {100 * (predicted / ms - 1):+.1f} %"
    )
    decodes = decodes_card(model, fitted, "A note.").words
    assert decodes.count("decode: plain, 1 row") == 1, "the faster of two"
    assert decodes.count("decode: TfM, 64 rows") == 2


def test_a_typed_curve_that_is_none_is_explained_and_draws_nothing() -> None:
    state = planner()
    widget = SpeedupPlanner(state)
    widget._controls["typed"].value = "tfm many"
    assert "is not understood: write it like" in widget._words.value
    assert widget._picture.value == ""
    data, _ = widget._repr_mimebundle_()
    assert "image/svg+xml" not in data
    widget._controls["typed"].value = "tfm 16: 3.9"
    assert "Best: TfM with B = 16" in widget._words.value
