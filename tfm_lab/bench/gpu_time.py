"""Durations by the clock of a GPU."""

from collections.abc import Callable

import torch


def gpu_seconds(run: Callable[[], None]) -> float:
    """Seconds between an event before and one after a run, on a GPU that was idle before."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
