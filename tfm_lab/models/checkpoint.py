"""Checkpoint folders in Hugging Face layout: ``config.json`` and safetensors, single or sharded.

Only safetensors are read and nothing in a checkpoint is executed. Writing is atomic: a folder appears whole or not at
all.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tfm_lab.models.autoregressive import AutoregressiveDrafter
from tfm_lab.models.config import DrafterConfig, TargetConfig, WeaverConfig, read_config
from tfm_lab.models.config_reading import texts
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver
from tfm_lab.models.weaver_published import read_published_weaver, weaver_file
from tfm_lab.models.weight_files import FLOATING, WEIGHTS, StoredTensor, check_room, stored_tensors, stream

Record = TypeVar("Record")
FINGERPRINT = "target_fingerprint"
AUTOREGRESSIVE = "AutoregressiveDraftModel"
WRAPPER_PREFIX = "model.language_model."


def load_target(folder: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu") -> TargetModel:
    """Read a target from a folder that transformers could have written.

    Args:
        folder: checkpoint folder (``qwen3_5_text``, the text part of a ``qwen3_5`` wrapper, or ``llama``).
        dtype: floating dtype of the weights in memory.
        device: where to put them.

    Raises:
        ValueError: if files are missing or damaged, the architecture is not supported, or a tensor is missing, unknown
            or of the wrong shape; the message lists the tensors by name.
    """
    folder = Path(folder)
    config = _read_as("target", TargetConfig.from_hugging_face, read_config(folder), folder)
    model = _on_meta(TargetModel, config)
    _load(model, _target_tensors(folder, config), folder, dtype, device)
    return model


def check_target(folder: str | Path) -> TargetConfig:
    """The config of a target's folder whose weights fit it: names and shapes of all tensors, whole files.

    Reads the headers of the weights alone, so it takes little time and memory whatever the size of the model.

    Raises:
        ValueError: as :func:`load_target`.
    """
    folder = Path(folder)
    config = _read_as("target", TargetConfig.from_hugging_face, read_config(folder), folder)
    _check_fit(_on_meta(TargetModel, config), _target_tensors(folder, config), folder)
    return config


def check_drafter(folder: str | Path) -> DrafterConfig:
    """The config of the folder of a drafter, of either kind, whose weights fit it; reads headers alone.

    Raises:
        ValueError: as :func:`load_drafter`, but for the target, which is not known.
    """
    folder = Path(folder)
    config = _read_as("drafter", DrafterConfig.from_hugging_face, read_config(folder), folder)
    kind = AutoregressiveDrafter if is_autoregressive(folder) else FactorisedDrafter
    _check_fit(_on_meta(kind, config), stored_tensors(folder), folder)
    return config


def is_autoregressive(folder: Path) -> bool:
    """Whether a folder's config says that its drafter is an autoregressive one."""
    architectures = _read_as("drafter", lambda config: texts(config, "architectures"), read_config(folder), folder)
    return AUTOREGRESSIVE in (architectures or ())


def check_weaver(path: str | Path) -> WeaverConfig:
    """The config of a Weaver, as :func:`load_weaver` takes it, whose weights fit it.

    Raises:
        ValueError: as :func:`load_weaver`, but for the target, which is not known.
    """
    path = Path(path)
    if (published := weaver_file(path)) is not None:
        config, tensors = read_published_weaver(published)
        _check_fit(_on_meta(Weaver, config), tensors, published)
        return config
    config = _read_as("Weaver", WeaverConfig.from_json, read_config(path), path)
    _check_fit(_on_meta(Weaver, config), stored_tensors(path), path)
    return config


def load_drafter(
    folder: str | Path, target: TargetModel, *, dtype: torch.dtype | None = None, device: str | None = None
) -> FactorisedDrafter:
    """Read a DFlash drafter and check that it was made for ``target`` (sizes, tap layers, fingerprint).

    Raises:
        ValueError: as :func:`load_target`, if the drafter belongs to another target, or if it is an autoregressive one.
    """
    return _load_drafter(FactorisedDrafter, Path(folder), target, dtype, device)


def load_autoregressive(
    folder: str | Path, target: TargetModel, *, dtype: torch.dtype | None = None, device: str | None = None
) -> AutoregressiveDrafter:
    """Read an autoregressive drafter; as :func:`load_drafter`, and refuses a factorised one."""
    return _load_drafter(AutoregressiveDrafter, Path(folder), target, dtype, device)


def load_weaver(
    folder: str | Path, target: TargetModel, *, dtype: torch.dtype | None = None, device: str | None = None
) -> Weaver:
    """Read a Weaver and check that it was made for ``target`` (width, fingerprint).

    Args:
        folder: as :func:`save_weaver` writes it; or a published ``.pth`` file, or a folder with one, which records no
            fingerprint: only its width can be checked.

    Raises:
        ValueError: as :func:`load_target`, and if the Weaver belongs to another target.
    """
    folder = Path(folder)
    if (published := weaver_file(folder)) is not None:
        config, tensors = read_published_weaver(published)
        model = _on_meta(Weaver, config)
        model.check_target(target)
        _check_fit(model, tensors, published)
        _fill(model, tensors.items(), published, dtype or target.dtype, device or str(target.device))
        return model
    raw = read_config(folder)
    model = _on_meta(Weaver, _read_as("Weaver", WeaverConfig.from_json, raw, folder))
    model.check_target(target)
    _check_fingerprint("Weaver", raw, target)
    _load(model, stored_tensors(folder), folder, dtype or target.dtype, device or str(target.device))
    return model


def save_target(model: TargetModel, folder: str | Path) -> None:
    """Write a target as transformers would (bfloat16)."""
    _save(model, model.config.to_hugging_face(), Path(folder))


def save_drafter(model: FactorisedDrafter, target: TargetModel, folder: str | Path) -> None:
    """Write a drafter in the layout of published DFlash checkpoints (bfloat16), with its target's fingerprint."""
    _save(model, model.config.to_hugging_face() | {FINGERPRINT: target.fingerprint()}, Path(folder))


def save_autoregressive(model: AutoregressiveDrafter, target: TargetModel, folder: str | Path) -> None:
    """Write an autoregressive drafter (bfloat16), with its target's fingerprint."""
    config = model.config.to_hugging_face() | {"architectures": [AUTOREGRESSIVE]}
    _save(model, config | {FINGERPRINT: target.fingerprint()}, Path(folder))


def save_weaver(model: Weaver, target: TargetModel, folder: str | Path) -> None:
    """Write a Weaver (bfloat16), with its target's fingerprint."""
    config = {"architectures": ["Weaver"], "model_type": "weaver"} | asdict(model.config)
    _save(model, config | {FINGERPRINT: target.fingerprint()}, Path(folder))


SCRATCH = ".writing."


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A scratch folder that takes the place of ``folder`` when the block ends without an error.

    A process that dies on the way leaves the old folder, under its own name or where :func:`recover_folder` finds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}{SCRATCH}", dir=folder.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        for file in scratch.iterdir():
            file.chmod(0o644)
        old = _set_aside(folder)
        if folder.exists():
            folder.replace(old)
        scratch.replace(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Put back what a process that died within :func:`atomic_folder` had set aside, and remove its scratch folders.

    For folders that no other process writes at the same time.
    """
    old = _set_aside(folder)
    if old.is_dir() and not folder.exists():
        old.replace(folder)
    for left in (old, *folder.parent.glob(f".{folder.name}{SCRATCH}*")):
        shutil.rmtree(left, ignore_errors=True)


def _set_aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def _load_drafter(
    kind: type[Any], folder: Path, target: TargetModel, dtype: torch.dtype | None, device: str | None
) -> Any:
    raw = read_config(folder)
    found_autoregressive = is_autoregressive(folder)
    if found_autoregressive is not (kind is AutoregressiveDrafter):
        found = "an autoregressive" if found_autoregressive else "a factorised"
        raise ValueError(f"{folder} holds {found} drafter, and the other kind is needed here")
    model = _on_meta(kind, _read_as("drafter", DrafterConfig.from_hugging_face, raw, folder))
    model.check_target(target)
    _check_fingerprint("drafter", raw, target)
    _load(model, stored_tensors(folder), folder, dtype or target.dtype, device or str(target.device))
    return model


def _read_as(what: str, read: Callable[[Mapping[str, Any]], Record], config: Mapping[str, Any], folder: Path) -> Record:
    """``read(config)``, whose complaints then name the file."""
    try:
        return read(config)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'} does not describe a {what} that can be loaded: {error}") from None


def _on_meta(kind: type[Any], config: object) -> Any:
    with torch.device("meta"):
        return kind(config)


def _save(model: nn.Module, config: Mapping[str, Any], folder: Path) -> None:
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    with atomic_folder(folder) as scratch:
        save_file(tensors, scratch / WEIGHTS, metadata={"format": "pt"})
        (scratch / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _target_tensors(folder: Path, config: TargetConfig) -> dict[str, StoredTensor]:
    """Tensors under this package's names: text part of a wrapper unwrapped, multi-token prediction head left out."""
    tensors = stored_tensors(folder)
    if any(name.startswith(WRAPPER_PREFIX) for name in tensors):
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(("model.visual.", "mtp."))}
        tensors = {name.replace(WRAPPER_PREFIX, "model.", 1): tensor for name, tensor in kept.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    if config.tie_embeddings:
        tensors.pop("lm_head.weight", None)
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def _load(model: nn.Module, tensors: Mapping[str, StoredTensor], folder: Path, dtype: torch.dtype, device: str) -> None:
    """Stream ``tensors`` into ``model``, made on the meta device; a ValueError says what does not fit."""
    _check_fit(model, tensors, folder)
    check_room(model, dtype, device, f"the model in {folder}")
    _fill(model, stream(tensors), folder, dtype, device)


def _fill(
    model: nn.Module, tensors: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype, device: str
) -> None:
    converted = {}
    for name, tensor in tensors:
        moved = tensor.to(device, dtype)
        if not _is_finite(moved):
            raise ValueError(
                f"the weights in {folder} are damaged: {name} holds numbers that are not finite in {dtype}; fetch the "
                "checkpoint again"
            )
        converted[name] = moved
    model.load_state_dict(converted, assign=True)
    model.requires_grad_(False).eval()


def _is_finite(tensor: Tensor) -> bool:
    """One pass in most cases: what is not finite shows in the sum. Where a sum overflows, every number is looked at."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _check_fit(model: nn.Module, tensors: Mapping[str, StoredTensor | Tensor], folder: Path) -> None:
    wanted = model.state_dict()
    problems = [f"missing {name}" for name in wanted.keys() - tensors.keys()]
    problems += [f"unknown {name}" for name in tensors.keys() - wanted.keys()]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(wanted[name].shape)}"
        for name in wanted.keys() & tensors.keys()
        if tensors[name].shape != wanted[name].shape
    ]
    problems += [
        f"{name} does not hold floating-point numbers of 16, 32 or 64 bits"
        for name in wanted.keys() & tensors.keys()
        if tensors[name].dtype not in FLOATING.values()
    ]
    if problems:
        listed = "; ".join(sorted(problems)[:8]) + ("; ..." if len(problems) > 8 else "")
        raise ValueError(f"the weights in {folder} do not fit their config: {listed}")


def _check_fingerprint(what: str, config: Mapping[str, Any], target: TargetModel) -> None:
    recorded = config.get(FINGERPRINT)
    if recorded is not None and recorded != target.fingerprint():
        raise ValueError(
            f"the {what} was trained for another target (fingerprint {recorded}, this target has "
            f"{target.fingerprint()}); load the pair that belongs together"
        )
