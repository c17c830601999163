"""One training loop for target, drafter and Weaver: resumable to the bit, stopped by the first NaN."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tfm_lab.models.checkpoint import atomic_folder, recover_folder
from tfm_lab.training.distributed import (
    from_first_process,
    mean_over_processes,
    process_rank,
    replicated,
    wait_for_all,
)

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class FitConfig:
    """How long and how to optimise.

    Attributes:
        steps: optimiser steps of the whole run.
        learning_rate: peak; reached after ``warmup`` of the steps.
        schedule: ``cosine`` down to ``final_rate`` of the peak, or ``wsd`` (constant, then linear decay over the last
            ``decay`` of the steps).
        optimiser: ``adamw``, or ``muon`` for the matrices of the layers and AdamW for everything else.
        clip: largest gradient norm.
        evaluate_every, checkpoint_every: in steps; the last step does both.
        seed: of initialisation and data order.
    """

    steps: int
    learning_rate: float
    schedule: str = "cosine"
    warmup: float = 0.04
    final_rate: float = 0.05
    decay: float = 0.3
    optimiser: str = "adamw"
    weight_decay: float = 0.01
    beta2: float = 0.95
    clip: float = 1.0
    evaluate_every: int = 250
    checkpoint_every: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.evaluate_every < 1 or self.checkpoint_every < 1:
            raise ValueError("steps, evaluate_every and checkpoint_every must be at least 1")
        if self.schedule not in ("cosine", "wsd"):
            raise ValueError(f"schedule must be 'cosine' or 'wsd', got {self.schedule!r}")
        if self.optimiser not in ("adamw", "muon"):
            raise ValueError(f"optimiser must be 'adamw' or 'muon', got {self.optimiser!r}")

    def rate(self, step: int) -> float:
        """Learning rate of step 0, 1, ... as a share of the peak."""
        warm = max(1, round(self.warmup * self.steps))
        if step < warm:
            return (step + 1) / warm
        progress = (step - warm) / max(1, self.steps - warm)
        if self.schedule == "cosine":
            return self.final_rate + (1.0 - self.final_rate) * 0.5 * (1.0 + math.cos(math.pi * progress))
        return min(1.0, max(self.final_rate, (1.0 - step / self.steps) / self.decay))


class Task(Protocol):
    """What to optimise. ``loss`` must depend on the model and the step number alone.

    With several processes it is the loss of this process's share of the step's batch.
    """

    @property
    def model(self) -> nn.Module: ...

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss of one step, and figures worth logging."""
        ...

    def evaluate(self) -> Metrics:
        """Figures on held-out data."""
        ...


class _Loss(nn.Module):
    """A task as a module, so that gradients of its model are averaged over processes as the backward pass goes."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self._task = task

    def forward(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        return self._task.loss(step)


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """Loss and gradient norm of a step, still on the device: reading them waits for the device."""

    step: int
    loss: Tensor
    norm: Tensor

    def read(self, folder: Path) -> float:
        """The loss; raises a ValueError if it or the norm is not finite."""
        loss = self.loss.item()
        if not math.isfinite(loss) or not math.isfinite(self.norm.item()):
            raise ValueError(
                f"the loss stopped being a number at step {self.step}; the last good checkpoint is in "
                f"{folder / 'state'}: lower the learning rate and start again from there or from scratch"
            )
        return loss


@dataclass(frozen=True, slots=True)
class Progress:
    """What the loop reports after each step.

    Attributes:
        loss: of this step if it ends with an evaluation or a checkpoint, otherwise of the step before: no step waits
            for its own loss, so that the device never idles.
        seconds: since the start of this call.
        step_seconds: of this step alone, without evaluation and checkpoint.
        metrics: those of an evaluation, if this step ended with one.
    """

    step: int
    steps: int
    loss: float
    seconds: float
    step_seconds: float
    metrics: Metrics


def fit(
    task: Task,
    config: FitConfig,
    folder: Path,
    *,
    on_step: Callable[[Progress], None] | None = None,
    max_seconds: float | None = None,
) -> int:
    """Train, or go on training, in ``folder``.

    The folder holds ``history.jsonl`` (one line per evaluation) and ``state/`` (weights, optimiser and step of the
    last checkpoint). Called again with the same task and config, the loop goes on from there, and every weight comes
    out as if it had never stopped (on the same device and library versions).

    In a process group, every process calls this with its own replica of the same model; the first one evaluates and
    writes. All of them read the checkpoint, so the folder must be the same for all.

    Args:
        max_seconds: write a checkpoint and return after this long, for machines that are lent by the minute.

    Returns:
        Steps done; less than ``config.steps`` only if ``max_seconds`` ran out.

    Raises:
        ValueError: if the loss is not finite (the last checkpoint stays), if ``folder`` belongs to another config or
            model, or if its checkpoint is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optimisers = make_optimisers(task.model, config)
    if process_rank() == 0:
        recover_folder(folder / "state")
    wait_for_all()
    step = _resume(task.model, optimisers, config, folder)
    is_first, objective = process_rank() == 0, replicated(_Loss(task))
    started, unread = time.monotonic(), None
    while step < config.steps:
        step_started = time.monotonic()
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate * config.rate(step)
        loss, figures = objective(step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(task.model.parameters(), config.clip)
        taken = _Taken(step, mean_over_processes(loss), norm)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        step += 1
        is_last = step == config.steps
        is_evaluated = step % config.evaluate_every == 0 or is_last
        is_out_of_time = max_seconds is not None and from_first_process(time.monotonic() - started > max_seconds)
        is_kept = step % config.checkpoint_every == 0 or is_last or is_out_of_time
        value = (taken if unread is None else unread).read(folder)
        if is_evaluated or is_kept:
            value = taken.read(folder)
        unread, step_seconds = taken, time.monotonic() - step_started
        metrics: Metrics = {}
        if is_first and is_evaluated:
            metrics = {"loss": value} | {name: figure.item() for name, figure in figures.items()} | task.evaluate()
            with (folder / "history.jsonl").open("a", encoding="utf-8") as history:
                history.write(json.dumps({"step": step} | metrics) + "\n")
        if is_first and is_kept:
            _save(task.model, optimisers, config, step, folder)
        if on_step is not None:
            on_step(Progress(step, config.steps, value, time.monotonic() - started, step_seconds, metrics))
        if is_out_of_time:
            break
    wait_for_all()
    return step


def make_optimisers(model: nn.Module, config: FitConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon (torch.optim's) for matrices and AdamW for the rest; vectors are not decayed.

    Matrices are the weights of linear layers. Embeddings, position tables and the output head are not counted among
    them; what has other than two axes (norms, gates, short convolutions) is a vector.
    """
    matrices: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim != 2:
            vectors.append(parameter)
        elif "embed" in name or "pos_emb" in name or name.startswith("lm_head."):
            tables.append(parameter)
        else:
            matrices.append(parameter)
    decayed, rest = {"weight_decay": config.weight_decay}, {"weight_decay": 0.0}
    groups = [{"params": tables, **decayed}, {"params": vectors, **rest}]
    optimisers: list[torch.optim.Optimizer] = []
    if config.optimiser == "muon":
        muon = torch.optim.Muon(
            matrices, lr=config.learning_rate, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        optimisers.append(muon)
    else:
        groups.append({"params": matrices, **decayed})
    groups = [group for group in groups if group["params"]]
    if groups:
        fused = next(model.parameters()).is_cuda
        optimisers.append(torch.optim.AdamW(groups, config.learning_rate, (0.9, config.beta2), fused=fused))
    return optimisers


def read_history(folder: Path) -> Iterator[Metrics]:
    """Evaluations of a run so far, oldest first; a last line that a crash cut short is passed over."""
    path = folder / "history.jsonl"
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _save(
    model: nn.Module, optimisers: list[torch.optim.Optimizer], config: FitConfig, step: int, folder: Path
) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, optimiser in enumerate(optimisers):
        for parameter, entries in optimiser.state_dict()["state"].items():
            for name, entry in entries.items():
                tensors[f"optimiser.{index}.{parameter}.{name}"] = torch.as_tensor(entry)
    with atomic_folder(folder / "state") as scratch:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            scratch / "state.safetensors",
        )
        (scratch / "progress.json").write_text(json.dumps({"step": step, "config": asdict(config)}) + "\n")


def _resume(model: nn.Module, optimisers: list[torch.optim.Optimizer], config: FitConfig, folder: Path) -> int:
    state = folder / "state"
    if not (state / "progress.json").is_file():
        (folder / "history.jsonl").unlink(missing_ok=True)
        return 0
    progress = json.loads((state / "progress.json").read_text())
    if progress["config"] != asdict(config):
        raise ValueError(f"{folder} holds a run with another configuration; use a new folder or remove that one")
    try:
        tensors = load_file(state / "state.safetensors")
    except (SafetensorError, OSError) as error:
        raise ValueError(f"the checkpoint in {state} is damaged ({error}); remove {folder} and start again") from None
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if shapes != {name: tensor.shape for name, tensor in weights.items()}:
        raise ValueError(f"{folder} holds a run of a model of another shape; use a new folder or remove that one")
    model.load_state_dict(weights)
    for index, optimiser in enumerate(optimisers):
        whole = optimiser.state_dict()
        prefix = f"optimiser.{index}."
        restored: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                parameter, entry = name.removeprefix(prefix).split(".", 1)
                restored.setdefault(int(parameter), {})[entry] = tensor
        optimiser.load_state_dict(whole | {"state": restored})
    kept = [line for line in read_history(folder) if line["step"] <= progress["step"]]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    return progress["step"]
