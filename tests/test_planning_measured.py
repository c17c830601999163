"""Measured steps of a full-size model: the reader, the fit to the shipped file, decodes with replayed acceptance."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tfm_lab.planning import FullModel, MeasuredStep, Plan, fit_costs, leave_one_out, read_full_model
from tfm_lab.planning.curves import RESULTS
from tfm_lab.planning.measured import FIRST_MODEL, FULL_MODEL, STATE_PER_NODE
from tfm_lab.planning.replayed import drawn_error, plain_decode, predicted_rate, recorded_length, speed_up


@pytest.fixture(scope="module")
def model() -> FullModel:
    return read_full_model()


@pytest.fixture(scope="module")
def first() -> FullModel:
    return read_full_model(FIRST_MODEL)


def test_the_shipped_file_gives_steps_with_their_plans(model: FullModel) -> None:
    tree = model.step("tfm", 64)
    document = json.loads(FULL_MODEL.read_text())
    record = next(r for r in document["records"] if r["key"] == "tfm B=63 batch=1 context=1024 gdn=triton")
    assert tree.plan == Plan("tfm", 63, 4)
    assert tree.plan.calls == 16
    assert tree.seconds == pytest.approx([1e-3 * record["step_ms"][name] for name in ("median", "p10", "p90")])
    assert tree.parts["memories"] == pytest.approx(1e-3 * record["parts_ms"]["memories"]["median"])
    assert sum(tree.stages.values()) == pytest.approx(tree.seconds.median, rel=0.02)
    facts = document["provenance"]
    assert model.origin == f"NVIDIA H200, {facts['date']}, commit {facts['commit']}"
    assert model.plain_step().gdn == "plain", "the one-token recurrence is faster than the kernels with one row"
    assert model.step("tfm", 64, STATE_PER_NODE).seconds.median > tree.seconds.median


def test_four_requests_are_in_the_first_measurement(first: FullModel) -> None:
    assert first.plain_step(batch=4).gdn == "triton", "with four rows the kernels are faster"
    assert first.step("tfm", 256, batch=4).seconds.median > first.step("tfm", 64).seconds.median


def test_a_step_that_was_not_measured_is_named(model: FullModel) -> None:
    with pytest.raises(ValueError, match="no step of ddtree with 64 rows, recurrent memories, 1024 tokens"):
        model.step("ddtree", 64, STATE_PER_NODE)
    with pytest.raises(ValueError, match="no plain step with 7 tokens of context"):
        model.plain_step(context=7)


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the shipped file with a change."""
    document = json.loads(FULL_MODEL.read_text())
    change(document)
    file = folder / "other.json"
    file.write_text(json.dumps(document))
    return file


def test_a_given_width_and_refusals_are_read(tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["provenance"]["width"] = 8
        refused = {"kind": "step", "key": "tfm B=511", "refusal": "out of memory"}
        document["records"] = [*document["records"], refused]

    model = read_full_model(changed(tmp_path, change))
    assert model.step("tfm", 64).plan == Plan("tfm", 63, 8)
    assert len(model.steps) == len(read_full_model().steps)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("records"),
        lambda document: document["provenance"].pop("width"),
        lambda document: document["provenance"].update(width="wide"),
        lambda document: document.update(records=[r for r in document["records"] if r["kind"] != "floor"]),
        lambda document: document["records"][2].pop("step_ms"),
        lambda document: document.update(records=7),
    ],
)
def test_files_of_another_kind_are_refused_in_one_sentence(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(ValueError, match=r"other\.json holds no measured steps of a whole model .*: give a file that"):
        read_full_model(changed(tmp_path, change))


@pytest.mark.parametrize("name", ["smollm2_mal.json", "kernel_h200.json", "model_h200.md"])
def test_other_result_files_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="holds no measured steps of a whole model"):
        read_full_model(RESULTS / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none\.json: tfm-lab bench model --out makes one"):
        read_full_model(tmp_path / "none.json")


def test_held_out_steps_are_predicted_within_five_per_cent_but_one(model: FullModel, first: FullModel) -> None:
    one = leave_one_out(model.table((1024,)))
    assert len(one) == len(model.table((1024,))) - 1 == 9, "all but plain decoding, without which the draft is in each"
    assert max(abs(item.relative_error) for item in one) < 0.025
    every = leave_one_out(model.table())
    assert len(every) == len(model.table()) == 13
    (beyond,) = [item for item in every if abs(item.relative_error) > 0.05]
    assert (beyond.step.plan.method, beyond.step.context) == ("tfm", 32768), "no other tree has a long context"
    assert beyond.relative_error < 0.06
    with_more_contexts = leave_one_out(first.table())
    assert len(with_more_contexts) == len(first.table()) == 16
    assert max(abs(item.relative_error) for item in with_more_contexts) < 0.05


def test_contexts_that_no_step_of_the_table_has_are_predicted(first: FullModel) -> None:
    fitted = fit_costs(first.table((1024, 32768)))
    errors = [fitted.predict(e.plan, e.context) / e.seconds - 1 for e in first.table((8192,))]
    assert len(errors) == 3
    assert max(map(abs, errors)) < 0.015


def test_the_fit_does_not_know_what_further_requests_cost(first: FullModel) -> None:
    """Caches, memories and drafts grow with them, and one batch size cannot show it."""
    fitted = fit_costs(first.table())
    errors = [fitted.predict(e.plan, e.context) / e.seconds - 1 for e in first.table(batch=4)]
    assert len(errors) == 3
    assert all(-0.23 < error < -0.10 for error in errors)


def test_which_plain_step_is_taken_does_not_change_what_is_said_about_drafted_ones(model: FullModel) -> None:
    table = model.table((1024,))
    through_kernels = model.step("ar", 1).seconds.median
    assert table[0].seconds < through_kernels
    other = [MeasuredStep(Plan("ar"), through_kernels, 1024), *table[1:]]
    for first, second in zip(leave_one_out(table), leave_one_out(other), strict=True):
        assert first.predicted == pytest.approx(second.predicted, rel=1e-9)


def test_whole_decodes_are_as_fast_as_the_fit_says(model: FullModel) -> None:
    fitted = fit_costs(model.table())
    drafted = [item for item in model.decodes if item.plan.method != "ar"]
    assert len(drafted) == 8
    for item in [plain_decode(model), *drafted]:
        assert predicted_rate(fitted, item) == pytest.approx(item.rate, rel=0.012)


def test_speeds_are_those_of_the_file_with_the_error_of_drawing(model: FullModel) -> None:
    rates = {(item.plan.method, item.suite): item.rate for item in model.decodes if item.gdn == "triton"}
    over_plain = speed_up(model, "chat", "tfm")
    assert over_plain is not None
    assert over_plain.value == pytest.approx(rates["tfm", "chat"] / plain_decode(model).rate)
    assert plain_decode(model).gdn == "plain"
    over_chain = speed_up(model, "chat", "tfm", "chain")
    assert over_chain is not None
    assert over_chain.value == pytest.approx(rates["tfm", "chat"] / rates["chain", "chat"])
    assert over_chain.error / over_chain.value > over_plain.error / over_plain.value > 0
    assert speed_up(model, "maths", "tfm") is None, "it was not reached"


def test_the_error_of_drawing_is_that_of_many_drawn_decodes(model: FullModel) -> None:
    decode = next(item for item in model.decodes if (item.plan.method, item.suite) == ("chain", "code"))
    summary = next(
        row
        for row in json.loads((RESULTS / decode.source).read_text())["summaries"]
        if (row["kind"], row["method"], row["temperature"]) == ("code", "chain", 0.0)
    )
    few = dataclasses.replace(decode, steps=40)
    draws = Random(3)

    def drawn() -> float:
        levels = [draws.random() for _ in range(few.steps)]
        return 1 + sum(sum(level < share for share in summary["acceptance"]) for level in levels) / few.steps

    means = [drawn() for _ in range(2000)]
    mean = sum(means) / len(means)
    spread = math.sqrt(sum((value - mean) ** 2 for value in means) / len(means))
    assert drawn_error(few, 0.0) == pytest.approx(spread / mean, rel=0.06)
    assert recorded_length("code", "chain", 0.0) == pytest.approx(mean, rel=0.01)
    assert drawn_error(decode, 0.0) == pytest.approx(drawn_error(few, 0.0) * math.sqrt(40 / decode.steps))
    assert drawn_error(plain_decode(model), 0.0) == 0.0


def test_a_law_that_is_not_recorded_is_named(model: FullModel, tmp_path: Path) -> None:
    decode = next(item for item in model.decodes if item.plan.method == "tfm")
    with pytest.raises(ValueError, match=r"acceptance of tfm on chat with 64 nodes is not in smollm2_mal\.json"):
        drawn_error(decode, 0.0, tmp_path)
    with pytest.raises(ValueError, match="acceptance of tfm on chat"):
        drawn_error(decode, 0.5)
    with pytest.raises(ValueError, match="no plain decode was measured"):
        plain_decode(dataclasses.replace(model, decodes=()))
