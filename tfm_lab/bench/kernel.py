"""Microseconds per layer of tree verification, variants taking turns, each checked before and after it is timed.

What a variant or a whole group cannot do is a refusal with its reason, whatever went wrong; the others go on.
"""

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tfm_lab.bench.gpu_time import gpu_seconds
from tfm_lab.bench.kernel_cases import Builder, Exact, KernelCase, Work, error_ratio, exact_answers

OUTPUT_BOUND = 4e-3
"""Largest error ratio of outputs that is reported: rounding the output to bfloat16 alone costs 1.7e-3."""

STATE_BOUND = 2e-5
"""Largest error ratio of committed states, which are float32."""


class Stopwatch(Protocol):
    """How a step is run and timed on a device."""

    def ready(self, step: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        """A call that runs the step again, and the outputs that it writes."""
        ...

    def seconds(self, run: Callable[[], None]) -> float:
        """Duration of one run."""
        ...

    def release(self) -> None:
        """Give the device back the memory of what nothing refers to any more."""
        ...


class GraphStopwatch:
    """A CUDA graph of the whole step, replayed between two events.

    Raises:
        ValueError: if there is no GPU.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ValueError("the kernel benchmark needs a CUDA GPU, and torch sees none on this machine")
        self._stream = torch.cuda.Stream()

    def ready(self, step: Callable[[], list[Tensor]]) -> tuple[Callable[[], None], list[Tensor]]:
        """Compile, warm up and reserve workspaces outside the graph, then capture on the same stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            outputs = step()
        return graph.replay, outputs

    def seconds(self, run: Callable[[], None]) -> float:
        """Time between an event before and one after the replay."""
        return gpu_seconds(run)

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()


class Microseconds(NamedTuple):
    """Per layer, over all runs."""

    median: float
    p10: float
    p90: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One variant in one setting.

    Attributes:
        time: ``None`` where the variant is not reported.
        output_error: error ratio of its outputs against the float64 recurrence; ``None`` if it has none.
        state_error: of the committed states; ``None`` if it commits nothing.
        refusal: why there is no time; empty if there is one.
        sitting: variants of the same sitting took turns with each other; where not all fit the memory at once, those
            that are left over sit after the others.
    """

    variant: str
    time: Microseconds | None
    output_error: float | None
    state_error: float | None
    refusal: str = ""
    sitting: int = 1


class _Errors(NamedTuple):
    output: float | None
    state: float | None

    @property
    def too_large(self) -> bool:
        bounds = (OUTPUT_BOUND, STATE_BOUND)
        return any(error is not None and not error <= bound for error, bound in zip(self, bounds, strict=True))


class _Answers(NamedTuple):
    """The exact answers before and after the commit of the deepest paths."""

    before: Sequence[Exact]
    after: Sequence[Exact]


class _Ready(NamedTuple):
    """A variant that can be timed.

    Attributes:
        first: copies of the outputs; ``None`` for a variant that commits, whose outputs move from run to run.
    """

    work: Work
    run: Callable[[], None]
    outputs: list[Tensor]
    first: list[Tensor] | None
    errors: _Errors

    @property
    def moves(self) -> bool:
        """Whether outputs that should stay have changed."""
        same = self.first is None or all(torch.equal(x, y) for x, y in zip(self.first, self.outputs, strict=True))
        return not same


def measure(
    case: KernelCase,
    builders: Mapping[str, Builder],
    repeats: int,
    stopwatch: Stopwatch,
    tick: Callable[[], None] = lambda: None,
) -> list[Measurement]:
    """Every variant in this setting. One with a wrong output, or that cannot run at all, is refused with its reason.

    Each gets states of its own. It is checked when it has run once (outputs, committed states), then all take turns; in
    the end the outputs of those that only verify, which every run must repeat, are compared bit by bit. A variant that
    finds no memory beside the others is measured when they are gone.

    Args:
        tick: called after each variant's preparation and after each round.
    """
    answers = _Answers(exact_answers(case), exact_answers(case, committed=True))
    found: dict[str, Measurement] = {}
    waiting, sitting = dict(builders), 1
    while waiting:
        found |= _one_sitting(case, waiting, answers, repeats, stopwatch, tick, sitting)
        stopwatch.release()
        waiting = {name: build for name, build in waiting.items() if name not in found}
        sitting += 1
    return [found[name] for name in builders]


def measure_or_refuse(
    variants: Iterable[str], group: Callable[[], list[Measurement]], stopwatch: Stopwatch
) -> list[Measurement]:
    """The measurements of a group; where it cannot be set up, a refusal of every variant with the reason."""
    try:
        return group()
    except Exception as error:
        reason = _reason(error)
    with suppress(RuntimeError):  # a GPU that is lost gives nothing back; the refusals say why
        stopwatch.release()
    return [Measurement(name, None, None, None, refusal=reason) for name in variants]


def _one_sitting(
    case: KernelCase,
    builders: Mapping[str, Builder],
    answers: _Answers,
    repeats: int,
    stopwatch: Stopwatch,
    tick: Callable[[], None],
    sitting: int,
) -> dict[str, Measurement]:
    """Measurements and refusals of all variants but those that found no memory beside others: at least one."""
    running: dict[str, _Ready] = {}
    found: dict[str, Measurement] = {}
    for name, build in builders.items():
        try:
            outcome = _prepare(case, build, answers, stopwatch)
            if isinstance(outcome, _Ready):
                running[name] = outcome
            else:
                found[name] = Measurement(name, None, *outcome, refusal="its result is wrong", sitting=sitting)
        except Exception as error:
            if not running or _lack_of_memory(error) is None:
                found[name] = Measurement(name, None, None, None, refusal=_reason(error), sitting=sitting)
        if name not in running:
            stopwatch.release()
        tick()
    times, refusals = _in_turns(running, repeats, stopwatch, tick)
    for name, ready in running.items():
        refusal = refusals.get(name, "")
        time = None if refusal else _spread(times[name], case.layers)
        found[name] = Measurement(name, time, *ready.errors, refusal=refusal, sitting=sitting)
    return found


def _prepare(case: KernelCase, build: Builder, answers: _Answers, stopwatch: Stopwatch) -> _Ready | _Errors:
    """Build a variant on states of its own, check it, and make it ready; the errors alone if its result is wrong."""
    work = build(case._replace(states=case.states.clone()))
    errors = _errors(work.step(), work, answers)
    if errors.too_large:
        return errors
    run, outputs = stopwatch.ready(work.step)
    run()
    first = [x.clone() for x in outputs] if work.states is None else None
    return _Ready(work, run, outputs, first, errors)


def _in_turns(
    running: Mapping[str, _Ready], repeats: int, stopwatch: Stopwatch, tick: Callable[[], None]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of every run of every variant, and why some variants have none."""
    seconds: dict[str, list[float]] = {name: [] for name in running}
    refusals: dict[str, str] = {}
    for _ in range(repeats):
        for name, ready in running.items():
            if name in refusals:
                continue
            try:
                seconds[name].append(stopwatch.seconds(ready.run))
            except Exception as error:
                refusals[name] = _reason(error)
        tick()
    for name, ready in running.items():
        try:
            if name not in refusals and ready.moves:
                refusals[name] = "its result changes from run to run"
        except Exception as error:
            refusals[name] = _reason(error)
    return seconds, refusals


def _errors(outputs: Sequence[Tensor], work: Work, answers: _Answers) -> _Errors:
    """Error ratios of outputs and of committed states, the largest of the sampled requests and layers."""
    wanted = answers.before if work.states is None else answers.after
    output = [error_ratio(e.output, outputs[e.layer][e.request][:, e.heads]) for e in wanted] if outputs else None
    state = None
    if work.states is not None:
        state = [error_ratio(e.state, work.states[e.layer, e.request, e.heads]) for e in answers.before]
    return _Errors(_largest(output), _largest(state))


def _largest(errors: list[float] | None) -> float | None:
    return float(np.max(errors)) if errors else None


def _lack_of_memory(error: BaseException | None) -> BaseException | None:
    """The error that says that a device has no memory left: this one, or one that it came after."""
    while error is not None:
        text = str(error).lower()
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "alloc_failed" in text:
            return error
        error = error.__cause__ or error.__context__
    return None


def _reason(error: Exception) -> str:
    """One line for a table; of torch's account of a full memory what was asked for, without the state of its pools."""
    cause = _lack_of_memory(error) or error
    line = str(cause).split("\n")[0]
    if isinstance(cause, torch.OutOfMemoryError):
        return ". ".join(line.split(". ")[:2])
    return line if isinstance(cause, ValueError | RuntimeError) and line else f"{type(cause).__name__}: {line}"


def _spread(seconds: Sequence[float], layers: int) -> Microseconds:
    return Microseconds(*(float(x) for x in np.percentile(seconds, [50, 10, 90]) * 1e6 / layers))
