"""The cost model: counted bytes against real modules, parts of a step, speed, break-even, curves and fits."""

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

from tfm_lab.models import DeltaNetConfig, FactorisedDrafter, TargetModel, Weaver
from tfm_lab.planning import (
    FIGURES,
    Hardware,
    MalCurve,
    MeasuredStep,
    ModelCosts,
    Plan,
    break_even_mal,
    fastest,
    fastest_by_method,
    fit_costs,
    fitted_outcomes,
    leave_one_out,
    outcomes,
    paper_costs,
    paper_hardware,
    published,
    result_curves,
    shapes,
    step_ratio,
    step_seconds,
    tokens_per_second,
    typed_curve,
)
from tfm_lab.planning.costs import rule_width
from tfm_lab.planning.curves import RESULTS, kept_by_width
from tfm_lab.planning.fitting import FittedCosts

HARDWARE = Hardware(bandwidth=1e12, arithmetic=1e14)
COSTS = ModelCosts(
    weight_bytes=10e9, row_flops=10e9, delta_net_layers=10, state_bytes=1e6, draft_bytes=1e9, draft_row_flops=1e9,
    call_seconds=50e-6, gather_bytes=1e6, row_seconds=20e-6, rest_seconds=0.5e-3,
)  # fmt: skip
CURVE = MalCurve(
    "test", "made up", {"chain": {15: 3.0}, "ddtree": {16: 3.4, 64: 4.0}, "tfm": {16: 3.8, 32: 4.4, 64: 4.9}}
)


def matrices(module: nn.Module) -> int:
    """Weights of all linear layers."""
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, nn.Linear))


def test_the_papers_figures_follow_from_each_other() -> None:
    """Published: 89.9, 315.0 and 392.8 tokens/s, +24.7 % speed; 4.6 times at 64 nodes and 7.1 at 128."""
    rates = {name: figure.value for name, figure in published.RATES.items()}
    assert rates["tfm"] / rates["chain"] - 1 == pytest.approx(published.SPEED_GAIN.value, abs=5e-4)
    assert rates["chain"] / rates["ar"] == pytest.approx(3.50, abs=5e-3)
    assert rates["tfm"] / rates["ar"] == pytest.approx(4.37, abs=5e-3)
    assert step_ratio(0.77, 0.247) == pytest.approx(1.42, abs=1e-3)
    for nodes, ratio in ((16, 1.5), (32, 2.7), (64, 4.6), (128, 7.1)):
        times = published.KERNEL_TIMES[nodes]
        assert times.state_per_node / times.fused == pytest.approx(ratio, abs=0.06)
    assert published.plain_step_seconds() == pytest.approx(11.12e-3, abs=5e-6)
    assert published.other_kernel_extra_seconds() == pytest.approx(48 * 152.2e-6, rel=1e-12)


def test_where_the_tree_loses_both_are_equally_fast() -> None:
    ratio = step_ratio(0.77, 0.247)
    for pays in (False, True):
        chain = published.longest_chain_step_where_the_tree_loses(chain_pays=pays)
        tree = chain * ratio + published.other_kernel_extra_seconds()
        chain += published.other_kernel_extra_seconds(16) if pays else 0.0
        assert 1.77 / tree == pytest.approx(1.0 / chain, rel=1e-12)
    chain_mal = published.chain_length_if_verification_is_the_kernel()
    step = 1.77 * chain_mal / published.RATES["tfm"].value
    assert 48 * 42.8e-6 / step == pytest.approx(published.VERIFICATION_SHARE.value, rel=1e-12)


def test_kernel_times_are_the_reported_ones_and_lines_between_them() -> None:
    for nodes, times in published.KERNEL_TIMES.items():
        assert published.kernel_seconds("fused", nodes) == pytest.approx(times.fused * 1e-6)
        assert published.kernel_seconds("state per node", nodes) == pytest.approx(times.state_per_node * 1e-6)
    assert published.kernel_seconds("fused", 48) == pytest.approx((39.0 + 42.8) / 2 * 1e-6)
    assert published.kernel_seconds("fused", 4) == published.kernel_seconds("fused", 16)
    assert published.kernel_seconds("state per node", 192) == pytest.approx((408.3 + 213.3) * 1e-6)


def small_shapes() -> shapes.Shapes:
    """The paper's shapes with fewer layers and narrower everything, so that real modules fit into a test."""
    target, drafter, weaver = shapes.paper_shapes()
    layout = DeltaNetConfig(key_heads=2, value_heads=6, key_dim=8, value_dim=16, convolution_width=4)
    narrow = {"vocab_size": 96, "hidden_size": 40, "intermediate_size": 56, "head_dim": 12}
    return shapes.Shapes(
        dataclasses.replace(target, layer_types=target.layer_types[:5], rotary_dim=6, delta_net=layout, **narrow),
        dataclasses.replace(drafter, mask_token=95, **narrow),
        dataclasses.replace(weaver, target_width=40, width=48, attention_heads=3, mlp_width=64),
    )


def test_weights_are_counted_as_in_the_modules() -> None:
    target, drafter, weaver = small_shapes()
    assert shapes.target_weights(target) == matrices(TargetModel(target))
    assert shapes.drafter_weights(drafter) == matrices(FactorisedDrafter(drafter)) + 96 * 40
    for mlp in ("gelu", "swiglu"):
        made = dataclasses.replace(weaver, mlp=mlp)
        assert shapes.weaver_weights(made) == matrices(Weaver(made)) - weaver.target_width * weaver.width
    assert shapes.pool_bytes(weaver) == 2 * 512 * 40
    assert shapes.delta_net_layers(target) == 4
    assert shapes.state_bytes(target) == 4 * 6 * 8 * 16


def test_the_papers_shapes_are_the_published_ones() -> None:
    """27 thousand million parameters, of which the embedding is not multiplied; 56.7 million in the Weaver."""
    target, _, weaver = shapes.paper_shapes()
    embedding = target.vocab_size * target.hidden_size
    assert shapes.target_weights(target) + embedding == pytest.approx(27e9, rel=0.01)
    prefix = weaver.target_width * weaver.width
    assert shapes.weaver_weights(weaver) + prefix == pytest.approx(56.7e6, rel=2e-3)
    assert shapes.delta_net_layers(target) == published.LAYERS == 48
    assert shapes.state_bytes(target) == 3 * 2**20


def test_a_llama_has_neither_gates_nor_states() -> None:
    target = small_shapes().target
    llama = dataclasses.replace(
        target, model_type="llama", layer_types=("full_attention",) * 2, delta_net=None, rotary_dim=target.head_dim
    )
    assert shapes.target_weights(llama) == matrices(TargetModel(llama))
    assert shapes.state_bytes(llama) == shapes.delta_net_layers(llama) == 0


def test_every_default_has_unit_origin_and_source() -> None:
    fields = {*Hardware.__dataclass_fields__, *ModelCosts.__dataclass_fields__}
    assert set(FIGURES) == fields
    assert all(figure.unit and figure.source and str(figure.origin) in str(figure) for figure in FIGURES.values())
    values = dataclasses.asdict(paper_hardware()) | dataclasses.asdict(paper_costs())
    assert values == {name: figure.value for name, figure in FIGURES.items()}


def test_a_plain_step_with_the_defaults_is_the_papers() -> None:
    hardware = dataclasses.replace(paper_hardware(), arithmetic=1e30)
    step = step_seconds(hardware, paper_costs(), Plan("ar"))
    assert step.total == pytest.approx(published.plain_step_seconds(), rel=1e-12)
    assert step.rows == step.draft == step.weave == step.rest == 0.0


def test_every_part_of_a_step() -> None:
    step = step_seconds(HARDWARE, COSTS, Plan("tfm", 63, 4))
    assert step.floor == pytest.approx(10e-3)
    assert step.rows == pytest.approx(64 * 20e-6)
    assert step.verification == pytest.approx(10 * 42.8e-6)
    assert step.draft == pytest.approx(1e-3)
    assert step.weave == pytest.approx(16 * (50e-6 + 4e-6))
    assert step.rest == pytest.approx(0.5e-3)
    assert step.total == pytest.approx(sum(step))
    assert step_seconds(HARDWARE, COSTS, Plan("ddtree", 63)).weave == 0.0
    slow = step_seconds(HARDWARE, COSTS, Plan("tfm", 63, 4, kernel="state per node"))
    assert slow.total - step.total == pytest.approx(10 * 152.2e-6)


def test_requests_share_weights_but_neither_rows_nor_states() -> None:
    one, eight = (step_seconds(HARDWARE, COSTS, Plan("tfm", 63, 4, batch)) for batch in (1, 8))
    assert eight.floor == one.floor
    assert eight.rows == pytest.approx(512 * 10e9 / 1e14 - 10e-3), "arithmetic takes longer than reading by now"
    assert eight.verification == pytest.approx(one.verification + 10 * 7 * 2e-6)
    assert eight.weave == pytest.approx(16 * (50e-6 + 32e-6))
    per_node = [step_seconds(HARDWARE, COSTS, Plan("tfm", 63, 4, batch, "state per node")) for batch in (1, 8)]
    assert per_node[1].verification - per_node[0].verification == pytest.approx(10 * 7 * 64 * 2e-6)
    plain = step_seconds(HARDWARE, COSTS, Plan("ar", batch=8))
    assert plain.verification == pytest.approx(10 * 8 * 2e-6)


@pytest.mark.parametrize("plan", [Plan("ar", 4), Plan("tfm"), Plan("chain", 15, batch=0)])
def test_plans_that_are_none_are_refused(plan: Plan) -> None:
    with pytest.raises(ValueError, match="a plan serves 1 request or more"):
        step_seconds(HARDWARE, COSTS, plan)


def test_costs_and_hardware_must_make_sense() -> None:
    with pytest.raises(ValueError, match="row_seconds must not be negative, got -1"):
        dataclasses.replace(COSTS, row_seconds=-1.0)
    with pytest.raises(ValueError, match="weight_bytes above 0"):
        dataclasses.replace(COSTS, weight_bytes=0.0)
    with pytest.raises(ValueError, match="must be positive, got 0"):
        Hardware(0.0, 1.0)


def test_calls_of_the_weaver_and_the_width_of_the_paper() -> None:
    assert [Plan("tfm", budget, rule_width(budget)).calls for budget in (16, 64, 128)] == [16, 16, 16]
    assert Plan("tfm", 10, 4).calls == 3
    assert Plan("ddtree", 64).calls == 0


def test_speed_is_length_over_seconds_and_break_even_its_inverse() -> None:
    assert tokens_per_second(4.0, 0.02) == 200.0
    mal = break_even_mal(0.02, 0.012, 3.0)
    assert tokens_per_second(mal, 0.02) == pytest.approx(tokens_per_second(3.0, 0.012))
    assert break_even_mal(0.02, 0.01) == 2.0


def test_the_fastest_plan_is_the_largest_of_all() -> None:
    found = outcomes(CURVE, HARDWARE, COSTS)
    best = fastest(found)
    assert best.speedup == max(item.speedup for item in found)
    by_method = fastest_by_method(found)
    assert set(by_method) == {"ar", "chain", "ddtree", "tfm"}
    assert by_method["ar"].speedup == 1.0
    assert by_method["tfm"] == best
    plain = by_method["ar"].tokens_per_second
    assert best.tokens_per_second == pytest.approx(best.speedup * plain)
    tied = [best._replace(plan=best.plan._replace(budget=best.plan.budget + 1)), best]
    assert fastest(tied) == best


def test_trees_stop_paying_at_large_batches_and_sooner_without_the_kernel() -> None:
    def budgets(kernel: published.KernelName) -> list[int]:
        hardware, costs = paper_hardware(), paper_costs()
        return [fastest(outcomes(CURVE, hardware, costs, batch, kernel)).plan.budget for batch in (1, 8, 64)]

    fused, per_node = budgets("fused"), budgets("state per node")
    assert fused == sorted(fused, reverse=True)
    assert fused[0] == 64
    assert fused[-1] == 0
    assert per_node[0] < fused[0]


def test_result_files_give_the_curves_of_the_readme() -> None:
    curves = result_curves()
    assert list(curves) == [f"{name}, temperature {t}" for name in ("smollm2", "hybrid") for t in (0, 1)]
    smollm2 = curves["smollm2, temperature 0"]
    assert {b: round(mal, 2) for b, mal in smollm2.points["tfm"].items()} == {16: 4.25, 32: 4.81, 64: 5.3, 128: 5.8}
    assert round(smollm2.points["chain"][15], 2) == 2.81
    assert round(curves["smollm2, temperature 1"].points["tfm"][64], 2) == 2.6, "without shared noise"
    assert "H200" in smollm2.source
    hybrid = json.loads((RESULTS / "hybrid_mal.json").read_text())
    row = next(r for r in hybrid["summaries"] if (r["method"], r["budget"], r["temperature"]) == ("tfm", 64, 1.0))
    assert curves["hybrid, temperature 1"].points["tfm"][64] == row["mal"]["value"]
    assert hybrid["provenance"]["device"] in curves["hybrid, temperature 1"].source


def test_widths_scale_a_curve_nearly_as_measured() -> None:
    assert kept_by_width(16, 1) == kept_by_width(64, 4) == 1.0
    rows = json.loads((RESULTS / "smollm2_width.json").read_text())["summaries"]
    measured = {row["width"]: row["mal"]["value"] for row in rows if row["kind"] == "all"}
    for width in (2, 8, 16):
        short = measured[width] / measured[None] - kept_by_width(64, width)
        assert 0.0 <= short < 0.05, "a lower bound, and not a loose one"
    assert kept_by_width(50, 50) == kept_by_width(64, 64) < kept_by_width(16, 16)
    assert CURVE.mal("tfm", 64, rule_width(64)) == CURVE.mal("tfm", 64) == 4.9
    assert CURVE.mal("tfm", 64, 16) == pytest.approx(4.9 * kept_by_width(64, 16) / kept_by_width(64, 4))
    assert CURVE.mal("ddtree", 64, 0) == 4.0
    assert CURVE.mal("ar", 0) == 1.0


def test_typed_curves() -> None:
    curve = typed_curve(" chain 15:2.6 ;TFM 16: 3.9, 32: 4 64:4.9;")
    assert curve.points == {"chain": {15: 2.6}, "tfm": {16: 3.9, 32: 4.0, 64: 4.9}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "nothing is typed: write it like"),
        ("tfm", "'tfm' is not understood: write it like"),
        ("tfm 16: 3.9 and 32: 4", "is not understood"),
        ("tfm 16: -3", "is not understood"),
        ("eagle 16: 3", "there is no method 'eagle'; use chain, ddtree, tfm"),
        ("tfm 2: 3.5", "tfm with 2 nodes cannot have a MAL of 3.5: it lies between 1 and 3"),
        ("tfm 16: 0.9", "cannot have a MAL of 0.9"),
        ("tfm 1000: 5", "a budget lies between 1 and 256 nodes, got 1000"),
    ],
)
def test_what_is_no_curve_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        typed_curve(text)


TRUE = FittedCosts(step=0.02, row=2e-4, draft=5e-3, call=1e-3)
PLANS = [
    Plan("ar"), Plan("chain", 15), Plan("ddtree", 8), Plan("ddtree", 32), Plan("tfm", 8, 1), Plan("tfm", 16, 1),
    Plan("tfm", 32, 2), Plan("tfm", 64, 8),
]  # fmt: skip


def test_a_fit_finds_the_coefficients_of_a_synthetic_table() -> None:
    fitted = fit_costs([MeasuredStep(plan, TRUE.predict(plan)) for plan in PLANS])
    assert fitted == pytest.approx(TRUE, rel=1e-9)
    assert TRUE.predict(Plan("tfm", 64, 8)) == pytest.approx(0.02 + 65 * 2e-4 + 5e-3 + 8 * 1e-3)


def test_a_configuration_that_was_held_out_is_predicted() -> None:
    noise = torch.Generator().manual_seed(5)
    factors = (1 + 0.02 * torch.randn(len(PLANS), generator=noise, dtype=torch.float64)).tolist()
    table = [MeasuredStep(plan, TRUE.predict(plan) * factor) for plan, factor in zip(PLANS, factors, strict=True)]
    held_out = leave_one_out(table)
    assert [item.step.plan for item in held_out] == PLANS[1:], "without plain decoding the draft is in every step"
    assert all(abs(item.relative_error) < 0.12 for item in held_out)
    exact = leave_one_out([MeasuredStep(plan, TRUE.predict(plan)) for plan in PLANS])
    assert max(abs(item.relative_error) for item in exact) < 1e-9


LONG = FittedCosts(step=0.02, row=2e-4, draft=5e-3, call=1e-3, token=3e-8, token_row=5e-9)


def test_several_contexts_give_the_costs_of_attention_too() -> None:
    table = [MeasuredStep(plan, LONG.predict(plan, context), context) for plan in PLANS for context in (1000, 9000)]
    assert fit_costs(table) == pytest.approx(LONG, rel=1e-7)
    assert LONG.predict(Plan("chain", 15), 9000) == pytest.approx(0.02 + 16 * 2e-4 + 5e-3 + 9000 * (3e-8 + 16 * 5e-9))
    assert LONG.parts(Plan("tfm", 63, 4, batch=2), 1000) == pytest.approx(
        (0.02 + 2000 * 3e-8, 128 * (2e-4 + 1000 * 5e-9), 0.0, 5e-3, 16e-3, 0.0)
    )
    assert [item.step for item in leave_one_out(table)] == table, "now plain decoding can be held out as well"
    assert fit_costs(table[::2]).token == fit_costs(table[::2]).token_row == 0.0, "one context alone"


def test_one_budget_cannot_tell_a_cache_from_its_rows() -> None:
    chains = [MeasuredStep(plan, LONG.predict(plan, 1000), 1000) for plan in PLANS]
    longer = MeasuredStep(Plan("chain", 15), LONG.predict(Plan("chain", 15), 9000), 9000)
    with pytest.raises(ValueError, match="for several contexts, two budgets in two of them"):
        fit_costs([*chains, longer])


def test_fitted_outcomes_compare_with_plain_decoding_and_keep_the_width_of_the_rule() -> None:
    found = fitted_outcomes(CURVE, LONG, 4000)
    assert [(item.plan.budget, item.plan.width) for item in found if item.plan.method == "tfm"] == [
        (16, 1), (32, 2), (64, 4),
    ]  # fmt: skip
    plain = LONG.predict(Plan("ar"), 4000)
    for item in found:
        assert item.step.total == pytest.approx(LONG.predict(item.plan, 4000))
        assert item.speedup == pytest.approx(item.mal * plain / item.step.total)
    assert found[0].speedup == 1.0


def test_long_steps_do_not_drown_short_ones() -> None:
    """Relative errors count: a per cent too much in the longest step must not move the shortest by more."""
    table = [MeasuredStep(plan, TRUE.predict(plan)) for plan in PLANS]
    table.append(MeasuredStep(Plan("tfm", 255, 1), 1.01 * TRUE.predict(Plan("tfm", 255, 1))))
    assert fit_costs(table).predict(Plan("ar")) == pytest.approx(TRUE.predict(Plan("ar")), rel=0.01)


@pytest.mark.parametrize("kept", [[], PLANS[:3], [p for p in PLANS if p.calls == 0], [p for p in PLANS if p.budget]])
def test_tables_that_cannot_tell_the_coefficients_apart_are_refused(kept: list[Plan]) -> None:
    with pytest.raises(ValueError, match="cannot tell the time of a step, a row, a draft and a call apart"):
        fit_costs([MeasuredStep(plan, TRUE.predict(plan)) for plan in kept])


def test_times_must_be_positive() -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        fit_costs([MeasuredStep(Plan("ar"), math.nan)])
