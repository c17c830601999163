"""The training loop: broken-off runs end bit by bit like whole ones, and nothing bad is ever saved."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models.small import drafter_for, tiny_target, weaver_for
from safetensors.torch import load_file
from torch import Tensor, nn
from training.tiny import STAGES, prepared, short_recipe, with_fit

from tfm_lab.training.fit import FitConfig, Metrics, Progress, fit, make_optimisers, read_history
from tfm_lab.training.pipeline import Work
from tfm_lab.training.recipe import Recipe

CONFIG = FitConfig(steps=6, learning_rate=0.01, evaluate_every=2, checkpoint_every=2)


class Model(nn.Module):
    """One parameter of each sort."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(5, 3)
        self.proj = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3, bias=False).requires_grad_(False)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)


def times_nan(loss: Tensor) -> Tensor:
    return loss * math.nan


def plus_infinity(loss: Tensor) -> Tensor:
    """Not finite, with a gradient that is."""
    return loss + math.inf


def without_slope(loss: Tensor) -> Tensor:
    """Zero, with a gradient that is no number."""
    return torch.sqrt(loss * 0.0)


@dataclass(frozen=True)
class Task:
    """Least squares; ``spoiled`` steps return what ``spoil`` makes of the loss."""

    model: Model = field(default_factory=Model)
    spoiled: tuple[int, ...] = ()
    spoil: Callable[[Tensor], Tensor] = times_nan

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        inputs = torch.randint(5, (4,), generator=torch.Generator().manual_seed(step))
        outputs = self.model.frozen(self.model.proj(self.model.embed_tokens(inputs)))
        loss = (outputs - 1.0).square().mean()
        return self.spoil(loss) if step in self.spoiled else loss, {"size": outputs.detach().norm()}

    def evaluate(self) -> Metrics:
        return {"held_out": self.model.proj.weight.sum().item()}


def same_tensors(left: Path, right: Path) -> bool:
    """Whether two runs saved the same weights and optimiser states, to the bit."""
    a, b = (load_file(folder / "state" / "state.safetensors") for folder in (left, right))
    assert any(name.startswith("optimiser.0.") for name in a)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Broken(Exception):
    """Something went wrong between two steps."""


def break_after(step: int) -> Callable[[Progress], None]:
    def check(progress: Progress) -> None:
        if progress.step == step:
            raise Broken

    return check


def resumption_recipe(optimiser: str) -> Recipe:
    recipe = with_fit(short_recipe(), steps=5, evaluate_every=2, checkpoint_every=2, optimiser=optimiser)
    return replace(recipe, target=replace(recipe.target, batch=2, length=48))


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_broken_off_training_ends_with_the_same_weights(
    tiny_work: Path, tmp_path: Path, stage: str, optimiser: str
) -> None:
    recipe, train = resumption_recipe(optimiser), STAGES[stage]
    whole, broken = (prepared(tiny_work, tmp_path / name, stage) for name in ("whole", "broken"))
    assert train(Work(whole), recipe)
    with pytest.raises(Broken):
        train(Work(broken, on_step=break_after(3)), recipe)  # the last checkpoint is that of step 2
    assert not train(Work(broken, max_seconds=-1.0), recipe)  # step 3 again, with a checkpoint
    with pytest.raises(Broken):
        train(Work(broken, on_step=break_after(4)), recipe)
    assert train(Work(broken), recipe)
    assert same_tensors(whole / stage, broken / stage)
    history = (whole / stage / "history.jsonl").read_text()
    assert [json.loads(line)["step"] for line in history.splitlines()] == [2, 4, 5]
    assert (broken / stage / "history.jsonl").read_text() == history
    model = Path("model") / stage / "model.safetensors"
    assert (broken / model).read_bytes() == (whole / model).read_bytes()


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_one_step_per_call_is_the_whole_run(tmp_path: Path, optimiser: str) -> None:
    config = replace(CONFIG, optimiser=optimiser)
    assert fit(Task(), config, tmp_path / "whole") == 6
    for step in range(1, 7):
        assert fit(Task(), config, tmp_path / "steps", max_seconds=-1.0) == step
    assert same_tensors(tmp_path / "whole", tmp_path / "steps")
    assert list(read_history(tmp_path / "steps")) == list(read_history(tmp_path / "whole"))


def test_progress_is_reported_after_every_step_and_figures_at_evaluations(tmp_path: Path) -> None:
    reports: list[Progress] = []
    fit(Task(), replace(CONFIG, steps=5), tmp_path, on_step=reports.append)
    assert [(report.step, report.steps) for report in reports] == [(step, 5) for step in range(1, 6)]
    assert [bool(report.metrics) for report in reports] == [False, True, False, True, True]
    assert reports[1].metrics.keys() == {"loss", "size", "held_out"}
    assert [line["loss"] for line in read_history(tmp_path)] == [reports[step].loss for step in (1, 3, 4)]


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    fit(Task(), CONFIG, tmp_path)
    before = (tmp_path / "history.jsonl").read_text(), (tmp_path / "state" / "state.safetensors").read_bytes()
    task = Task()
    assert fit(task, CONFIG, tmp_path) == 6
    assert before == ((tmp_path / "history.jsonl").read_text(), (tmp_path / "state/state.safetensors").read_bytes())
    weight = load_file(tmp_path / "state" / "state.safetensors")["model.proj.weight"]
    assert torch.equal(task.model.proj.weight, weight)


def test_a_history_without_a_checkpoint_is_from_a_run_that_counts_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(Broken):
        fit(Task(), replace(CONFIG, checkpoint_every=5), tmp_path, on_step=break_after(3))
    fit(Task(), replace(CONFIG, checkpoint_every=5), tmp_path)
    assert [line["step"] for line in read_history(tmp_path)] == [2, 4, 6]


@pytest.mark.parametrize("spoil", [times_nan, plus_infinity, without_slope])
def test_a_loss_that_is_no_number_stops_the_run_and_spares_the_checkpoint(
    tmp_path: Path, spoil: Callable[[Tensor], Tensor]
) -> None:
    with pytest.raises(ValueError, match=r"stopped being a number at step 5; the last good checkpoint is in .*state"):
        fit(Task(spoiled=(5,), spoil=spoil), CONFIG, tmp_path / "spoiled")
    saved = load_file(tmp_path / "spoiled" / "state" / "state.safetensors")
    assert all(bool(tensor.isfinite().all()) for tensor in saved.values())
    assert fit(Task(), CONFIG, tmp_path / "spoiled") == 6
    fit(Task(), CONFIG, tmp_path / "good")
    assert same_tensors(tmp_path / "spoiled", tmp_path / "good")


@pytest.mark.parametrize("changes", [{"learning_rate": 0.02}, {"steps": 7}, {"optimiser": "muon"}, {"seed": 1}])
def test_another_configuration_in_the_same_folder_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    fit(Task(), CONFIG, tmp_path)
    before = (tmp_path / "history.jsonl").read_text()
    with pytest.raises(ValueError, match="holds a run with another configuration; use a new folder"):
        fit(Task(), replace(CONFIG, **changes), tmp_path)
    assert (tmp_path / "history.jsonl").read_text() == before


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    fit(Task(), CONFIG, tmp_path)
    model = Model()
    model.embed_tokens = nn.Embedding(7, 3)
    with pytest.raises(ValueError, match="holds a run of a model of another shape"):
        fit(Task(model), CONFIG, tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    fit(Task(), CONFIG, tmp_path)
    path = tmp_path / "state" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"the checkpoint in .* is damaged .*; remove .* and start again"):
        fit(Task(), CONFIG, tmp_path)


def test_history_after_the_last_checkpoint_is_written_anew(tmp_path: Path) -> None:
    config = replace(CONFIG, evaluate_every=1)
    with pytest.raises(Broken):
        fit(Task(), config, tmp_path, on_step=break_after(3))
    assert [line["step"] for line in read_history(tmp_path)] == [1, 2, 3]
    fit(Task(), config, tmp_path)
    assert [line["step"] for line in read_history(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_a_history_line_that_a_crash_cut_short_is_dropped(tmp_path: Path) -> None:
    fit(Task(), CONFIG, tmp_path / "whole")
    fit(Task(), CONFIG, tmp_path / "cut", max_seconds=-1.0)
    with (tmp_path / "cut" / "history.jsonl").open("a") as history:
        history.write('{"step": 2, "lo')
    fit(Task(), CONFIG, tmp_path / "cut")
    assert list(read_history(tmp_path / "cut")) == list(read_history(tmp_path / "whole"))


def test_cosine_schedule() -> None:
    config = FitConfig(steps=10, learning_rate=1.0, warmup=0.2, final_rate=0.05)
    wanted = {0: 0.5, 1: 1.0, 2: 1.0, 6: 0.525, 9: 0.05 + 0.475 * (1 - math.cos(math.pi / 8)), 10: 0.05}
    assert {step: config.rate(step) for step in wanted} == pytest.approx(wanted)


def test_warmup_stable_decay_schedule() -> None:
    config = FitConfig(steps=10, learning_rate=1.0, schedule="wsd", warmup=0.2, decay=0.5, final_rate=0.3)
    wanted = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.3]
    assert [config.rate(step) for step in range(10)] == pytest.approx(wanted)


def test_the_schedule_reaches_the_optimiser(tmp_path: Path) -> None:
    """The first AdamW step moves every parameter without decay by the learning rate; the first rate is a warm-up."""
    task = Task()
    before = task.model.proj.bias.detach().clone()
    fit(task, FitConfig(steps=10, learning_rate=0.1, warmup=0.4, clip=1e9), tmp_path, max_seconds=-1.0)
    assert (task.model.proj.bias - before).abs().tolist() == pytest.approx([0.025] * 3, rel=1e-4)


def test_gradients_are_clipped_to_their_joint_norm(tmp_path: Path) -> None:
    task = Task()
    seen: list[float] = []
    task.model.proj.weight.register_hook(lambda gradient: seen.append(float(gradient.norm())))
    step = torch.optim.AdamW.step
    norms: list[float] = []

    def record(optimiser: torch.optim.AdamW, *arguments: Any) -> None:
        gradients = [p.grad for p in task.model.parameters() if p.grad is not None]
        norms.append(float(torch.stack([gradient.norm() for gradient in gradients]).norm()))
        step(optimiser, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", record)
        fit(task, replace(CONFIG, clip=0.01), tmp_path, max_seconds=-1.0)
    assert seen[0] > 0.01
    assert norms == pytest.approx([0.01], rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "must be at least 1"),
        ({"evaluate_every": 0}, "must be at least 1"),
        ({"checkpoint_every": -1}, "must be at least 1"),
        ({"schedule": "linear"}, "schedule must be 'cosine' or 'wsd', got 'linear'"),
        ({"optimiser": "sgd"}, "optimiser must be 'adamw' or 'muon', got 'sgd'"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(CONFIG, **changes)


def groups_of(model: nn.Module, optimiser: str) -> dict[str, tuple[str, float]]:
    """Optimiser and weight decay of every parameter, by name."""
    config = FitConfig(1, 0.1, optimiser=optimiser, weight_decay=0.25)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found: dict[str, tuple[str, float]] = {}
    for made in make_optimisers(model, config):
        for group in made.param_groups:
            for parameter in group["params"]:
                assert names[id(parameter)] not in found
                found[names[id(parameter)]] = type(made).__name__, group["weight_decay"]
    return found


def models() -> dict[str, nn.Module]:
    target = tiny_target("hybrid-plain")  # its head is not tied to the embedding
    made = {"target": target, "drafter": drafter_for(target), "weaver": weaver_for(target)}
    return {name: model.requires_grad_(True) for name, model in made.items()}


@pytest.mark.parametrize("name", ["target", "drafter", "weaver"])
def test_matrices_go_to_muon_and_vectors_are_not_decayed(name: str) -> None:
    model = models()[name]
    try:
        with_muon, with_adamw = groups_of(model, "muon"), groups_of(model, "adamw")
    finally:
        model.requires_grad_(False)
    tables = {"model.embed_tokens.weight", "lm_head.weight", "pos_emb"}
    shapes = {parameter_name: parameter.ndim for parameter_name, parameter in model.named_parameters()}
    assert with_muon.keys() == with_adamw.keys() == shapes.keys()
    for parameter, ndim in shapes.items():
        is_matrix = ndim == 2 and parameter not in tables
        assert with_muon[parameter] == ("Muon" if is_matrix else "AdamW", 0.25 if ndim == 2 else 0.0)
        assert with_adamw[parameter] == ("AdamW", 0.25 if ndim == 2 else 0.0)
    kinds = {kind for kind, _ in with_muon.values()}
    assert kinds == {"Muon", "AdamW"}


def test_frozen_parameters_are_left_out() -> None:
    assert groups_of(Model(), "muon") == {
        "embed_tokens.weight": ("AdamW", 0.25),
        "proj.weight": ("Muon", 0.25),
        "proj.bias": ("AdamW", 0.0),
    }
