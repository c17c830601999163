"""Tensors in checkpoint files: what is there, from the headers alone, and one tensor after the other.

Only safetensors are read here. A tensor is read when its turn comes and let go when the caller has moved it, so a
checkpoint of any size takes the memory of its largest tensor beside the model itself.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from tfm_lab.models.config_reading import read_json

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATING = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
"""Number formats of weights, as safetensors call them."""


class StoredTensor(NamedTuple):
    """A tensor in a file.

    Attributes:
        key: its name there.
        dtype: ``None`` for a number format that no weight of this package has.
    """

    path: Path
    key: str
    shape: torch.Size
    dtype: torch.dtype | None


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a folder, in one file or in the shards that the index names.

    Raises:
        ValueError: naming the file that is missing or damaged.
    """
    found: dict[str, StoredTensor] = {}
    for name in _weight_files(folder):
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise ValueError(
                f"{folder} lacks its weights file {name}; fetch the checkpoint again (only safetensors are read)"
            )
        try:
            with safe_open(path, framework="pt") as opened:
                for key in opened.keys():  # noqa: SIM118 (not a dict)
                    header = opened.get_slice(key)
                    shape, dtype = torch.Size(header.get_shape()), FLOATING.get(header.get_dtype())
                    found[key] = StoredTensor(path, key, shape, dtype)
        except SafetensorError as error:
            raise _damaged(path, error) from None
    return found


def stream(tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors, file by file; each file is opened once and each tensor read when it is asked for.

    Raises:
        ValueError: naming a file that is damaged.
    """
    for path in sorted({tensor.path for tensor in tensors.values()}):
        try:
            with safe_open(path, framework="pt") as opened:
                for name, tensor in tensors.items():
                    if tensor.path == path:
                        yield name, opened.get_tensor(tensor.key)
        except SafetensorError as error:
            raise _damaged(path, error) from None


def check_room(model: nn.Module, dtype: torch.dtype, device: str, what: str) -> None:
    """Refuse a model that does not fit into the memory that is free, before anything is read.

    Args:
        model: on the meta device.
        what: it is, for the sentence.

    Raises:
        ValueError: with both figures.
    """
    needed = sum(tensor.numel() for tensor in model.state_dict().values()) * dtype.itemsize
    place = torch.device(device)
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise ValueError(
            f"{what} needs {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')} and {device} has "
            f"{free / 1e9:.1f} GB free; choose another device or dtype, or free memory first"
        )


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is damaged ({error}); fetch the checkpoint again")


def _weight_files(folder: Path) -> list[str]:
    """Names of the files that hold the weights: those that the index lists, or the only one."""
    index = folder / INDEX
    if not index.is_file():
        return [WEIGHTS]
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(
            f"{index} is damaged: its weight_map must name a file for every tensor; fetch the checkpoint again"
        )
    return sorted(set(files.values()))
