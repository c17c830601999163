"""How the parts of an engine's step are run and timed: recorded on a GPU, as they are on a CPU."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from tfm_lab.bench.gpu_time import gpu_seconds
from tfm_lab.engine import Engine, capture, record

Run = Callable[[], None]


class Milliseconds(NamedTuple):
    """Of one run, over all runs."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Milliseconds":
        """The spread of measured seconds."""
        return cls(*(float(x) for x in np.percentile(seconds, [50, 10, 90]) * 1e3))


class Clock(Protocol):
    """A device as a benchmark sees it.

    Attributes:
        choices: of an attention for a shape, so that every shape is tried once.
    """

    choices: dict[tuple[int, ...], str]

    @property
    def device(self) -> str:
        """For torch."""
        ...

    def record(self, run: Run, engine: Engine | None = None) -> Run:
        """A call that does what ``run`` does, as fast as this device can; an engine's texts stand where they stood."""
        ...

    def seconds(self, run: Run) -> float:
        """Duration of one call."""
        ...

    def free(self) -> int:
        """Bytes of memory that may still be taken."""
        ...

    def peak(self) -> int:
        """Most bytes that were taken since the last time this was asked; 0 where it is not known."""
        ...


class GraphClock:
    """CUDA graphs between two events.

    Raises:
        ValueError: if there is no GPU.
    """

    device = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise ValueError(
                "this benchmark needs a CUDA GPU, and torch sees none; --device cpu --shape toy is a trial"
            )
        self.choices: dict[tuple[int, ...], str] = {}

    def record(self, run: Run, engine: Engine | None = None) -> Run:
        return record(run) if engine is None else capture(engine, run)

    def seconds(self, run: Run) -> float:
        return gpu_seconds(run)

    def free(self) -> int:
        free, _ = torch.cuda.mem_get_info()
        return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def peak(self) -> int:
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak


class EagerClock:
    """Runs everything as it is: for trials on a CPU."""

    device = "cpu"

    def __init__(self) -> None:
        self.choices: dict[tuple[int, ...], str] = {}

    def record(self, run: Run, engine: Engine | None = None) -> Run:
        return run

    def seconds(self, run: Run) -> float:
        started = time.perf_counter()
        run()
        return time.perf_counter() - started

    def free(self) -> int:
        import psutil

        return psutil.virtual_memory().available

    def peak(self) -> int:
        return 0
