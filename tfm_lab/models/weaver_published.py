"""Published Weaver checkpoints: one ``.pth`` file with a ``config`` and the tensors, in either of two forms.

The first form has the names of this package (learned positions, GELU). The later one has rotary positions, one matrix
for queries, keys and values, and a gated MLP whose gate comes before its up projection. Files are read as tensors and
plain numbers alone (``weights_only``): nothing in them is executed.
"""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tfm_lab.models.config import WeaverConfig
from tfm_lab.models.config_reading import whole_number

SUFFIXES = (".pth", ".pt")
CONFIG = "config"


def weaver_file(path: Path) -> Path | None:
    """The published file that ``path`` is, or that a folder without ``config.json`` holds, itself or one level below.

    ``None`` if there is none.

    Raises:
        ValueError: if a folder holds several.
    """
    if path.is_file() and path.suffix in SUFFIXES:
        return path
    if not path.is_dir() or (path / "config.json").is_file():
        return None
    found = sorted(file for pattern in ("*", "*/*") for file in path.glob(pattern) if file.suffix in SUFFIXES)
    if len(found) > 1:
        raise ValueError(f"{path} holds several Weaver files ({', '.join(f.name for f in found)}); name one of them")
    return found[0] if found else None


def read_published_weaver(path: Path) -> tuple[WeaverConfig, dict[str, Tensor]]:
    """Shape and tensors of a published Weaver, under the names of this package.

    Raises:
        ValueError: if the file is damaged or holds anything but tensors and numbers, or its config is not understood.
    """
    content = _load(path)
    config = content.get(CONFIG)
    if not isinstance(config, Mapping):
        raise ValueError(f"{path} has no config of a Weaver; a published file holds {CONFIG!r} beside its tensors")
    tensors = _tensors(content)
    if not tensors:
        raise ValueError(f"{path} holds no tensors")
    try:
        return _config(config, tensors), _renamed(tensors)
    except ValueError as error:
        raise ValueError(f"{path} is no Weaver that can be loaded: {error}") from None


def _load(path: Path) -> Mapping[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError:
        raise ValueError(f"{path} is damaged, or holds more than tensors and numbers, and is not executed") from None
    except (RuntimeError, EOFError, ValueError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is damaged ({reason}); fetch it again") from None
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"{path} must hold a table of names; fetch it again")
    return content


def _tensors(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors beside the config, or in the one table that stands beside it."""
    beside = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    if beside:
        return beside
    tables = [value for name, value in content.items() if name != CONFIG and isinstance(value, Mapping)]
    return {name: value for table in tables for name, value in table.items() if isinstance(value, Tensor)}


def _config(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> WeaverConfig:
    width = whole_number(config, "d_model")
    if whole_number(config, "d_embed", width) != width:
        raise ValueError(f"its embeddings have width {config['d_embed']} and the target's states {width}")
    is_rotary = "pos_emb" not in tensors
    is_gated = any(".gate_up_proj." in name for name in tensors)
    return WeaverConfig(
        target_width=width,
        width=whole_number(config, "d_rank"),
        layers=whole_number(config, "num_layers"),
        attention_heads=whole_number(config, "num_heads"),
        mlp_width=whole_number(config, "mlp_dim"),
        max_depth=whole_number(config, "K"),
        pool_size=whole_number(config, "candidate_pool_size"),
        positions="rotary" if is_rotary else "learned",
        mlp="swiglu" if is_gated else "gelu",
    )


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The later form under the names of the first: three matrices in place of one, the MLP as ``fc1`` and ``fc2``."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith("qkv_proj.weight"):
            if tensor.shape[0] % 3:
                raise ValueError(f"{name} has {tensor.shape[0]} rows, which are not three equal parts")
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                renamed[name.replace("qkv_proj", f"{part}_proj")] = rows
        else:
            renamed[re.sub(r"\.down_proj\.", ".fc2.", re.sub(r"\.gate_up_proj\.", ".fc1.", name))] = tensor
    return renamed
