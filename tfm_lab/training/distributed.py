"""Several processes training one model: torch's DistributedDataParallel under torchrun, nothing of our own.

Without torchrun there is one process and everything here does nothing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Value = TypeVar("Value")


def process_count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def process_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def is_torchrun() -> bool:
    """Whether torchrun started this process."""
    return {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the other processes of a torchrun (NCCL on GPUs, gloo on CPUs); yields the device of this process."""
    if not is_torchrun():
        yield device
        return
    is_gpu = torch.device(device).type == "cuda"
    place = f"cuda:{os.environ['LOCAL_RANK']}" if is_gpu else device
    if is_gpu:
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if is_gpu else "gloo")
    try:
        yield place
    finally:
        dist.destroy_process_group()


def shard(tensor: Tensor) -> Tensor:
    """This process's equal share of the rows of a batch.

    Raises:
        ValueError: if the rows do not divide evenly.
    """
    count = process_count()
    if tensor.shape[0] % count:
        raise ValueError(f"a batch of {tensor.shape[0]} does not divide among {count} processes; choose another batch")
    return tensor.chunk(count)[process_rank()]


def mean_over_processes(tensor: Tensor) -> Tensor:
    """Mean of a tensor's values in all processes, without gradient."""
    if process_count() == 1:
        return tensor.detach()
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total / process_count()


def from_first_process(value: bool) -> bool:
    """What the first process thinks, so that all decide alike."""
    if process_count() == 1:
        return value
    decision: list[bool] = [value]
    dist.broadcast_object_list(decision, src=0)
    return decision[0]


def gathered(value: Value) -> list[Value]:
    """What every process holds, in order, on the first process; an empty list on the others."""
    if process_count() == 1:
        return [value]
    values: list[Any] | None = [None] * process_count() if process_rank() == 0 else None
    dist.gather_object(value, values)
    return values or []


def wait_for_all() -> None:
    if process_count() > 1:
        dist.barrier()


def replicated(module: nn.Module) -> nn.Module:
    """The module with its gradients averaged over all processes."""
    if process_count() == 1:
        return module
    return DistributedDataParallel(module)
