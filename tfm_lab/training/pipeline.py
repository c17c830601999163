"""The stages of training a bundle. Each reads what the one before wrote in the same work folder.

corpus.npz, held_out.npz, held_out.jsonl, tokenizer.json   prepare_corpus     (for a target of its own)
target/   (run) and model/target                           train_target       (for a target of its own)
prompts.jsonl                                              collect_prompts    (if the recipe's text starts from prompts)
text.npz, held_out_text.npz                                write_text
drafter/  (run) and model/drafter                          train_drafter
weaver/   (run) and model/weaver                           train_weaver
autoregressive/ (run) and model/autoregressive             train_autoregressive
"""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tfm_lab.bundle import DESCRIPTION, TargetOnly, load_target_only, load_tokenizer
from tfm_lab.fetching import names
from tfm_lab.models.checkpoint import (
    atomic_folder,
    load_autoregressive,
    load_drafter,
    load_weaver,
    save_autoregressive,
    save_drafter,
    save_target,
    save_weaver,
)
from tfm_lab.models.target import TargetModel
from tfm_lab.training.corpus import Document, sources, split
from tfm_lab.training.data import joined_texts, load_packed, load_written, pack, save_packed, save_written
from tfm_lab.training.distributed import gathered, process_count, process_rank
from tfm_lab.training.fit import FitConfig, Progress, Task, fit
from tfm_lab.training.initialise import new_autoregressive, new_drafter, new_target, new_weaver, take_over
from tfm_lab.training.labels import LAW
from tfm_lab.training.prompts import READERS, load_prompts, save_prompts
from tfm_lab.training.recipe import CorpusRecipe, DrafterRecipe, Recipe, TargetRecipe, WeaverRecipe
from tfm_lab.training.tasks import BlockData, DrafterTask, TargetTask, WeaverTask, block_losses, pool_scores
from tfm_lab.training.tokenizer import END_OF_TEXT, TURN_END, save_tokenizer, token_id, train_tokenizer
from tfm_lab.training.writing import continue_prompts, corpus_openings, encode_prompts, prompt_openings

TOKENIZER_CHARACTERS = 6_000_000
SEEDS_APART = 1000


@dataclass(frozen=True, slots=True)
class Work:
    """A work folder, where to compute, and how to report.

    Attributes:
        target: name or folder of an existing target, in place of the one that the recipe names.
        start: folder of a bundle whose weights a drafter or Weaver goes on from, in place of fresh ones.
    """

    folder: Path
    device: str = "cpu"
    target: str | None = None
    start: Path | None = None
    on_step: Callable[[Progress], None] | None = None
    on_note: Callable[[str], None] | None = None
    max_seconds: float | None = None

    def note(self, message: str) -> None:
        if self.on_note is not None:
            self.on_note(message)

    def compiled(
        self, function: Callable[..., Any], shape: TargetRecipe | DrafterRecipe | WeaverRecipe
    ) -> Callable[..., Any]:
        """A compiled form of a model or function where the recipe asks for it and a GPU trains."""
        return torch.compile(function) if shape.compile and torch.device(self.device).type == "cuda" else function

    def fit(self, task: Task, config: FitConfig, name: str) -> bool:
        """Train in the sub-folder ``name``; True when all steps are done.

        On a GPU, float32 products may use TF32 while this process trains.
        """
        if torch.device(self.device).type == "cuda":
            torch.set_float32_matmul_precision("high")
        done = fit(task, config, self.folder / name, on_step=self.on_step, max_seconds=self.max_seconds)
        return done == config.steps


def prepare_corpus(work: Work, recipe: Recipe, chat: Path | None) -> None:
    """Collect text, train the tokenizer, tokenise, and set the held-out part aside.

    Raises:
        ValueError: if a source is unknown or not installed, or the recipe is for an existing target.
    """
    shape, target_shape = _own_target(recipe)
    available = sources(chat)
    missing = [name for name in shape.sources if name not in available]
    if missing:
        hint = "give --chat FILE" if missing == ["chat"] else f"use some of {', '.join(available)}"
        raise ValueError(f"the corpus has no source {missing[0]!r}; {hint}")
    if chat is not None and "chat" not in shape.sources:
        raise ValueError(f"this recipe has no source 'chat', so {chat} would not be read: leave out --chat")
    documents: list[Document] = []
    for name in shape.sources:
        read = _capped(available[name].read(), shape.characters)
        documents += read
        work.note(f"{name}: {len(read)} documents, {sum(len(d.text) for d in read) / 1e6:.2f} M characters")
    train, held_out = split(documents)
    sample = [text for name in shape.sources for text in _sample_texts(train, name)]
    tokenizer = train_tokenizer(sample, shape.vocabulary)
    weights = {name: available[name].weight for name in shape.sources}
    packed = pack(train, tokenizer, weights)
    save_tokenizer(tokenizer, work.folder, target_shape.max_positions)
    save_packed(packed, work.folder / "corpus.npz")
    save_packed(pack(held_out, tokenizer, weights), work.folder / "held_out.npz")
    lines = (json.dumps(asdict(document), ensure_ascii=False) for document in held_out)
    (work.folder / "held_out.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sizes = ", ".join(f"{name} {array.size / 1e6:.2f}" for name, array in packed.tokens.items())
    work.note(f"training tokens in millions: {sizes}; held out: {len(held_out)} documents")


def train_target(work: Work, recipe: Recipe) -> bool:
    """Train the target; True when finished and written to ``model/target``."""
    _, shape = _own_target(recipe)
    train, held_out = load_packed(work.folder / "corpus.npz"), load_packed(work.folder / "held_out.npz")
    tokenizer = load_tokenizer(work.folder)
    stops = tuple(token_id(tokenizer, token) for token in (END_OF_TEXT, TURN_END))
    model = new_target(shape.config(tokenizer.get_vocab_size(), stops), shape.fit.seed).to(work.device)
    forward = work.compiled(model, shape)
    task = TargetTask(model, train, held_out, shape.batch, shape.length, shape.fit.seed, forward)
    if not work.fit(task, shape.fit, "target"):
        return False
    if process_rank() == 0:
        save_target(model, work.folder / "model" / "target")
        save_tokenizer(tokenizer, work.folder / "model" / "target", shape.max_positions)
    return True


def collect_prompts(work: Work, recipe: Recipe) -> None:
    """Write the prompts that come from what is installed to ``prompts.jsonl``.

    Raises:
        ValueError: if the recipe's text starts from no prompts, or a source is not installed.
    """
    kinds = [kind for kind in recipe.text.prompts if kind in READERS]
    if not kinds:
        raise ValueError("the recipe's text starts from no prompts that could be collected")
    prompts: list[Document] = []
    for kind in kinds:
        found = {document.text: document for document in READERS[kind]()}
        prompts += found.values()
        work.note(f"{kind}: {len(found)} prompts")
    save_prompts(work.folder / "prompts.jsonl", prompts)


def write_text(work: Work, recipe: Recipe) -> None:
    """Let the target continue training prompts (and held-out prompts), for drafter and Weaver to learn from.

    Several processes write equal shares, each from prompts and with random numbers of its own.
    """
    share, rank = process_count(), process_rank()
    text = replace(recipe.text, seed=recipe.text.seed + SEEDS_APART * rank)
    models = _target(work, recipe, torch.float32 if work.device == "cpu" else torch.bfloat16)
    collected = load_prompts(work.folder / "prompts.jsonl") if set(text.prompts) & set(READERS) else []
    for name, corpus, count in (
        ("text.npz", "corpus.npz", -(-text.texts // share)),
        ("held_out_text.npz", "held_out.npz", -(-text.held_out_texts // share)),
    ):
        is_held_out = name.startswith("held_out")
        if text.prompts:
            chosen = [prompt for prompt in collected if prompt.is_held_out is is_held_out][rank::share]
            seed = text.seed + is_held_out
            openings = prompt_openings(encode_prompts(models, chosen, text, count, seed, work.note), text, count, seed)
        else:
            openings = corpus_openings(load_packed(work.folder / corpus), text, count)
        parts = gathered(continue_prompts(models.target, openings, text, count, work.note))
        if parts:
            written = joined_texts(parts)
            save_written(written, work.folder / name)
            work.note(f"{name}: kept {len(written.tokens)} texts of {text.length} tokens")


def train_drafter(work: Work, recipe: Recipe) -> bool:
    """Train the drafter on the target's own text; True when finished and written to ``model/drafter``."""
    models, shape = _target(work, recipe), recipe.drafter
    config = shape.config(models.target.config, token_id(models.tokenizer, shape.mask_token))
    model = new_drafter(config, models.target, shape.fit.seed).to(work.device)
    _start(work, "drafter", model, models.target, load_drafter)
    data = _drafter_data(work, models.target, shape, recipe)
    run = work.compiled(block_losses, shape)
    task = DrafterTask(model, data, shape.gamma, shape.labels == LAW, run=run)
    if not work.fit(task, shape.fit, "drafter"):
        return False
    if process_rank() == 0:
        save_drafter(model, models.target, work.folder / "model" / "drafter")
        _describe(work, recipe)
    return True


def train_weaver(work: Work, recipe: Recipe) -> bool:
    """Train the Weaver on top of the frozen drafter; True when finished and written to ``model/weaver``."""
    target, shape = _target(work, recipe).target, recipe.weaver
    drafter = load_drafter(_finished(work, "drafter"), target)
    model = new_weaver(shape.config(target.config, drafter.config.draft_depth), target, shape.fit.seed).to(work.device)
    _start(work, "weaver", model, target, load_weaver, take_over)
    data = _block_data(work, target, shape, shape.fit.seed + 1, drafter.config.block_size, recipe)
    run = work.compiled(pool_scores, shape)
    task = WeaverTask(model, drafter, data, shape.eta, shape.objective, run=run)
    if not work.fit(task, shape.fit, "weaver"):
        return False
    if process_rank() == 0:
        save_weaver(model, target, work.folder / "model" / "weaver")
    return True


def train_autoregressive(work: Work, recipe: Recipe) -> bool:
    """Train the autoregressive drafter; True when finished and written to ``model/autoregressive``.

    Raises:
        ValueError: if the recipe has none.
    """
    shape = recipe.autoregressive
    if shape is None:
        raise ValueError("the recipe has no table 'autoregressive'; add one to train such a drafter")
    models = _target(work, recipe)
    config = shape.config(models.target.config, token_id(models.tokenizer, shape.mask_token))
    model = new_autoregressive(config, models.target, shape.fit.seed).to(work.device)
    _start(work, "autoregressive", model, models.target, load_autoregressive)
    data = _drafter_data(work, models.target, shape, recipe)
    run = work.compiled(block_losses, shape)
    task = DrafterTask(model, data, shape.gamma, shape.labels == LAW, run=run)
    if not work.fit(task, shape.fit, "autoregressive"):
        return False
    if process_rank() == 0:
        save_autoregressive(model, models.target, work.folder / "model" / "autoregressive")
    return True


def _same(model: Any, known: Any) -> bool:
    """Give ``model`` the weights of one of the very same shape."""
    if known.config != model.config:
        return False
    model.load_state_dict(known.state_dict())
    return True


def fork(source: Path, folder: Path) -> list[str]:
    """A new work folder with the texts, the target and the drafter of another, to train the rest in another way.

    Returns:
        What was copied.

    Raises:
        ValueError: if ``source`` has no texts, or ``folder`` holds something already.
    """
    if not (source / "text.npz").is_file():
        raise ValueError(f"{source} has no texts to train on; write them first with 'tfm-lab train text'")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a new folder")
    names = ("text.npz", "held_out_text.npz", f"model/{DESCRIPTION}", "model/target", "model/drafter")
    copied = [name for name in names if (source / name).exists()]
    with atomic_folder(folder) as scratch:
        (scratch / "model").mkdir()
        for name in copied:
            copy = shutil.copytree if (source / name).is_dir() else shutil.copy
            copy(source / name, scratch / name)
    return copied


def _start(
    work: Work, part: str, model: Any, target: TargetModel, load: Callable[..., Any], take: Callable[..., bool] = _same
) -> None:
    """Give a fresh model the weights of the bundle to start from, if there is one.

    Args:
        take: gives them to it and says whether their shapes allow it.
    """
    if work.start is None:
        return
    folder = work.start / part
    if not folder.is_dir():
        raise ValueError(f"{work.start} has no {part} to start from: name the folder of a bundle that holds one")
    if not take(model, load(folder, target)):
        raise ValueError(f"the {part} in {folder} has another shape than the recipe asks for: start from fresh weights")


def _own_target(recipe: Recipe) -> tuple[CorpusRecipe, TargetRecipe]:
    if recipe.corpus is None or recipe.target is None:
        raise ValueError(
            f"this recipe is for the existing target {recipe.fetched!r}; go on with 'tfm-lab train prompts'"
        )
    return recipe.corpus, recipe.target


def _target(work: Work, recipe: Recipe, dtype: torch.dtype = torch.float32) -> TargetOnly:
    """The existing target, or the one that was trained in this work folder."""
    name = work.target or recipe.fetched or str(_finished(work, "target"))
    return load_target_only(name, dtype=dtype, device=work.device)


def _describe(work: Work, recipe: Recipe) -> None:
    """Name a fetched target in the bundle, so that the bundle can be loaded without being told which it is for."""
    name = work.target or recipe.fetched
    if name in names():
        path = work.folder / "model" / DESCRIPTION
        path.write_text(json.dumps({"target": name}) + "\n", encoding="utf-8")


def _finished(work: Work, part: str) -> Path:
    """Folder of a trained model."""
    folder = work.folder / "model" / part
    if not folder.is_dir():
        raise ValueError(f"{folder} does not exist; train the {part} first with 'tfm-lab train {part}'")
    return folder


def _capped(documents: Iterable[Document], characters: int) -> list[Document]:
    """The first documents up to a number of characters, and no more are read; all of them for 0."""
    kept: list[Document] = []
    total = 0
    for document in documents:
        if characters and total >= characters:
            break
        kept.append(document)
        total += len(document.text)
    return kept


def _sample_texts(documents: Sequence[Document], source: str) -> list[str]:
    """Enough text of one source for the tokenizer to learn from, so that no source drowns the others."""
    return [d.text for d in _capped([d for d in documents if d.source == source], TOKENIZER_CHARACTERS)]


def _drafter_data(work: Work, target: TargetModel, shape: DrafterRecipe, recipe: Recipe) -> BlockData:
    return _block_data(work, target, shape, shape.fit.seed, shape.block_size, recipe)


def _block_data(
    work: Work, target: TargetModel, shape: DrafterRecipe | WeaverRecipe, seed: int, block: int, recipe: Recipe
) -> BlockData:
    train, held_out = load_written(work.folder / "text.npz"), load_written(work.folder / "held_out_text.npz")
    return BlockData(target, train, held_out, shape.batch, shape.anchors, seed, block, recipe.text.replayed_tokens)
