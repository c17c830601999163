"""The shipped recipe ``tiny`` with still fewer steps, and work folders that continue from its stages."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfm_lab.training.pipeline import (
    Work,
    prepare_corpus,
    train_autoregressive,
    train_drafter,
    train_target,
    train_weaver,
    write_text,
)
from tfm_lab.training.recipe import Recipe, load_recipe

STAGES: dict[str, Callable[[Work, Recipe], bool]] = {
    "target": train_target,
    "drafter": train_drafter,
    "weaver": train_weaver,
    "autoregressive": train_autoregressive,
}
INPUTS = {"target": (), "drafter": ("target",), "weaver": ("target", "drafter"), "autoregressive": ("target",)}


def with_fit(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with other training lengths or optimisers in all trainings."""
    parts = {name: getattr(recipe, name) for name in STAGES}
    return replace(recipe, **{name: replace(part, fit=replace(part.fit, **changes)) for name, part in parts.items()})


def short_recipe() -> Recipe:
    """What the shared tiny bundle is trained with."""
    return with_fit(load_recipe("tiny"), steps=8, evaluate_every=4, checkpoint_every=4)


def run_all(work: Work, recipe: Recipe) -> None:
    """Every stage, in order."""
    prepare_corpus(work, recipe, None)
    assert train_target(work, recipe)
    write_text(work, recipe)
    assert train_drafter(work, recipe)
    assert train_weaver(work, recipe)
    assert train_autoregressive(work, recipe)


def prepared(source: Path, folder: Path, stage: str) -> Path:
    """A new work folder that holds what ``stage`` reads, copied from a finished one."""
    folder.mkdir()
    for file in source.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    for part in INPUTS[stage]:
        shutil.copytree(source / "model" / part, folder / "model" / part)
    return folder
