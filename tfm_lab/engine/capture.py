"""Stages of a step recorded as CUDA graphs: one launch for thousands of kernels, replayed at the same addresses."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from tfm_lab.engine.engine import Engine

WARM_UPS = 3
"""Runs before a recording: kernels are compiled and loaded, libraries reserve their workspaces."""

Run = Callable[[], None]


def capture(engine: Engine, run: Run | None = None) -> Run:
    """Record a step, or some part of it; the engine's texts stand where they stood before.

    A part reads what the parts before it left, so those must have run (or been replayed) on this engine.

    Args:
        run: ``engine.step`` if left out.

    Returns:
        A function that replays the recording.

    Raises:
        ValueError: if the engine is not on a GPU.
    """
    if engine.length.device.type != "cuda":
        raise ValueError("a step can be recorded on a CUDA GPU alone; run engine.step as it is elsewhere")
    before = Snapshot(engine)
    replay = record(run or engine.step)
    before.restore()
    return replay


@torch.no_grad()
def record(run: Run) -> Run:
    """Run a few times on a stream of its own, then record; what ``run`` changes has changed a few times after that.

    Runs and recordings share one stream: a library's workspace belongs to a stream, so none is reserved by a recording,
    whose memory would go with its graph.
    """
    stream = _stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """The stream of all recordings on a device."""
    return torch.cuda.Stream(device)


class Snapshot:
    """Where an engine's texts stand: lengths, hidden states, memories. Caches keep their committed rows anyway.

    Args:
        engine: to copy from and restore.
    """

    def __init__(self, engine: Engine) -> None:
        memories = engine.rows.memories
        kept = [engine.length, engine.hidden, engine.steps, engine.text]
        kept += [] if memories is None else memories.tensors()
        self._kept: list[tuple[Tensor, Tensor]] = [(tensor, tensor.clone()) for tensor in kept]

    def restore(self) -> None:
        """Go back there."""
        for tensor, copy in self._kept:
            tensor.copy_(copy)
