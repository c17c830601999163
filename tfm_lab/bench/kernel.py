"""Microseconds per layer of tree verification, variants taking turns, each checked before and after it is timed."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

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
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


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
    """

    variant: str
    time: Microseconds | None
    output_error: float | None
    state_error: float | None
    refusal: str = ""


class _Running(NamedTuple):
    work: Work
    run: Callable[[], None]
    outputs: list[Tensor]
    errors: tuple[float | None, float | None]


def measure(
    case: KernelCase,
    builders: Mapping[str, Builder],
    repeats: int,
    stopwatch: Stopwatch,
    tick: Callable[[], None] = lambda: None,
) -> list[Measurement]:
    """Every variant in this setting. One with a wrong output, or that cannot run at all, is refused with its reason.

    Each gets states of its own. It is checked when it has run once (outputs, committed states), then all take turns; in
    the end the outputs of those that only verify, which every run must repeat, are compared bit by bit.

    Args:
        tick: called after each variant's preparation and after each round.
    """
    exact, after = exact_answers(case), exact_answers(case, committed=True)
    running: dict[str, _Running] = {}
    refused: dict[str, Measurement] = {}
    for name, build in builders.items():
        try:
            work = build(case._replace(states=case.states.clone()))
            errors = _errors(work.step(), work, exact, after)
            if _too_wrong(errors):
                refused[name] = Measurement(name, None, *errors, refusal="its result is wrong")
            else:
                run, outputs = stopwatch.ready(work.step)
                run()
                running[name] = _Running(work, run, outputs, errors)
        except (ValueError, RuntimeError) as error:
            refused[name] = Measurement(name, None, None, None, refusal=str(error).split("\n")[0])
        tick()
    kept = {name: [x.clone() for x in r.outputs] for name, r in running.items() if r.work.states is None}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(repeats):
        for name, variant in running.items():
            seconds[name].append(stopwatch.seconds(variant.run))
        tick()
    for name, before in kept.items():
        if not all(torch.equal(x, y) for x, y in zip(before, running[name].outputs, strict=True)):
            refused[name] = Measurement(name, None, *running[name].errors, refusal="its result changes from run to run")
    measured = [
        refused.get(name) or Measurement(name, _spread(seconds[name], case.layers), *running[name].errors)
        for name in builders
    ]
    running.clear()
    gc.collect()
    return measured


def _errors(
    outputs: Sequence[Tensor], work: Work, exact: Sequence[Exact], after: Sequence[Exact]
) -> tuple[float | None, float | None]:
    """Error ratios of outputs and of committed states, the largest of the sampled requests and layers."""
    wanted = exact if work.states is None else after
    output = [error_ratio(e.output, outputs[e.layer][e.request][:, e.heads]) for e in wanted] if outputs else None
    state = None
    if work.states is not None:
        state = [error_ratio(e.state, work.states[e.layer, e.request, e.heads]) for e in exact]
    return _largest(output), _largest(state)


def _largest(errors: list[float] | None) -> float | None:
    return float(np.max(errors)) if errors else None


def _too_wrong(errors: tuple[float | None, float | None]) -> bool:
    return any(
        error is not None and not error <= bound
        for error, bound in zip(errors, (OUTPUT_BOUND, STATE_BOUND), strict=True)
    )


def _spread(seconds: Sequence[float], layers: int) -> Microseconds:
    return Microseconds(*(float(x) for x in np.percentile(seconds, [50, 10, 90]) * 1e6 / layers))
