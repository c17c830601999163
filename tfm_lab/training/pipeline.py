"""The stages of training a bundle. Each reads what the one before wrote in the same work folder.

corpus.npz, held_out.npz, held_out.jsonl, tokenizer.json   prepare_corpus
target/   (run) and model/target                           train_target
text.npz, held_out_text.npz                                write_text
drafter/  (run) and model/drafter                          train_drafter
weaver/   (run) and model/weaver                           train_weaver
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from tfm_lab.bundle import load_tokenizer
from tfm_lab.models.checkpoint import load_drafter, load_target, save_drafter, save_target, save_weaver
from tfm_lab.models.target import TargetModel
from tfm_lab.training.corpus import Document, sources, split
from tfm_lab.training.data import (
    PackedCorpus,
    WrittenTexts,
    load_packed,
    load_written,
    pack,
    save_packed,
    save_written,
)
from tfm_lab.training.fit import FitConfig, Progress, Task, fit
from tfm_lab.training.initialise import new_drafter, new_target, new_weaver
from tfm_lab.training.recipe import Recipe
from tfm_lab.training.sampling import sample_texts
from tfm_lab.training.tasks import BlockData, DrafterTask, TargetTask, WeaverTask
from tfm_lab.training.tokenizer import END_OF_TEXT, MASK, TURN_END, save_tokenizer, token_id, train_tokenizer

TOKENIZER_CHARACTERS = 6_000_000


@dataclass(frozen=True, slots=True)
class Work:
    """A work folder, where to compute, and how to report."""

    folder: Path
    device: str = "cpu"
    on_step: Callable[[Progress], None] | None = None
    on_note: Callable[[str], None] | None = None
    max_seconds: float | None = None

    def note(self, message: str) -> None:
        if self.on_note is not None:
            self.on_note(message)

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
        ValueError: if a source is unknown or not installed.
    """
    available = sources(chat)
    missing = [name for name in recipe.corpus.sources if name not in available]
    if missing:
        hint = "give --chat FILE" if missing == ["chat"] else f"use some of {', '.join(available)}"
        raise ValueError(f"the corpus has no source {missing[0]!r}; {hint}")
    documents: list[Document] = []
    for name in recipe.corpus.sources:
        read = _capped(available[name].read(), recipe.corpus.characters)
        documents += read
        work.note(f"{name}: {len(read)} documents, {sum(len(d.text) for d in read) / 1e6:.2f} M characters")
    train, held_out = split(documents)
    sample = [text for name in recipe.corpus.sources for text in _sample_texts(train, name)]
    tokenizer = train_tokenizer(sample, recipe.corpus.vocabulary)
    weights = {name: available[name].weight for name in recipe.corpus.sources}
    packed = pack(train, tokenizer, weights)
    save_tokenizer(tokenizer, work.folder, recipe.target.max_positions)
    save_packed(packed, work.folder / "corpus.npz")
    save_packed(pack(held_out, tokenizer, weights), work.folder / "held_out.npz")
    lines = (json.dumps(asdict(document), ensure_ascii=False) for document in held_out)
    (work.folder / "held_out.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sizes = ", ".join(f"{name} {array.size / 1e6:.2f}" for name, array in packed.tokens.items())
    work.note(f"training tokens in millions: {sizes}; held out: {len(held_out)} documents")


def train_target(work: Work, recipe: Recipe) -> bool:
    """Train the target; True when finished and written to ``model/target``."""
    train, held_out = load_packed(work.folder / "corpus.npz"), load_packed(work.folder / "held_out.npz")
    tokenizer = load_tokenizer(work.folder)
    stops = tuple(token_id(tokenizer, token) for token in (END_OF_TEXT, TURN_END))
    model = new_target(recipe.target.config(tokenizer.get_vocab_size(), stops), recipe.target.fit.seed).to(work.device)
    task = TargetTask(
        model,
        train,
        held_out,
        recipe.target.batch,
        recipe.target.length,
        recipe.target.fit.seed,
        torch.compile(model) if recipe.target.compile and work.device != "cpu" else model,
    )
    if not work.fit(task, recipe.target.fit, "target"):
        return False
    save_target(model, work.folder / "model" / "target")
    save_tokenizer(tokenizer, work.folder / "model" / "target", recipe.target.max_positions)
    return True


def write_text(work: Work, recipe: Recipe) -> None:
    """Let the target continue training prompts (and held-out prompts), for drafter and Weaver to learn from."""
    text = recipe.text
    dtype = torch.float32 if work.device == "cpu" else torch.bfloat16
    target = load_target(_finished(work, "target"), dtype=dtype, device=work.device)
    for name, corpus, count in (
        ("text.npz", "corpus.npz", text.texts),
        ("held_out_text.npz", "held_out.npz", text.held_out_texts),
    ):
        written = _write(work, target, load_packed(work.folder / corpus), recipe, count)
        save_written(written, work.folder / name)
        work.note(f"{name}: kept {len(written.tokens)} texts of {text.length} tokens")


def train_drafter(work: Work, recipe: Recipe) -> bool:
    """Train the drafter on the target's own text; True when finished and written to ``model/drafter``."""
    target = load_target(_finished(work, "target"), device=work.device)
    mask = token_id(load_tokenizer(work.folder), MASK)
    model = new_drafter(recipe.drafter.config(target.config, mask), target, recipe.drafter.fit.seed).to(work.device)
    shape = recipe.drafter
    data = _block_data(work, target, shape.batch, shape.anchors, shape.fit.seed, shape.block_size)
    if not work.fit(DrafterTask(model, data, recipe.drafter.gamma), recipe.drafter.fit, "drafter"):
        return False
    save_drafter(model, target, work.folder / "model" / "drafter")
    return True


def train_weaver(work: Work, recipe: Recipe) -> bool:
    """Train the Weaver on top of the frozen drafter; True when finished and written to ``model/weaver``."""
    target = load_target(_finished(work, "target"), device=work.device)
    drafter = load_drafter(_finished(work, "drafter"), target)
    config = recipe.weaver.config(target.config, drafter.config.draft_depth)
    model = new_weaver(config, target, recipe.weaver.fit.seed).to(work.device)
    shape = recipe.weaver
    data = _block_data(work, target, shape.batch, shape.anchors, shape.fit.seed + 1, drafter.config.block_size)
    if not work.fit(WeaverTask(model, drafter, data, recipe.weaver.eta), recipe.weaver.fit, "weaver"):
        return False
    save_weaver(model, target, work.folder / "model" / "weaver")
    return True


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


def _write(work: Work, target: TargetModel, corpus: PackedCorpus, recipe: Recipe, count: int) -> WrittenTexts:
    text = recipe.text
    generator = torch.Generator(work.device).manual_seed(text.seed)
    kept: list[np.ndarray] = []
    step = 0
    while sum(len(part) for part in kept) < count:
        size = min(text.batch, count)
        prompts = corpus.batch(step, size, text.prompt_tokens, text.seed).to(work.device)
        temperatures = torch.tensor(text.temperatures, device=work.device).repeat(-(-size // len(text.temperatures)))
        tokens = sample_texts(target, prompts, text.length - text.prompt_tokens, temperatures[:size], generator)
        array = tokens.cpu().numpy().astype(np.uint16)
        ranked = np.sort(array[:, text.prompt_tokens :], axis=1)
        distinct = 1 + (ranked[:, 1:] != ranked[:, :-1]).sum(axis=1)
        varied = array[distinct >= text.least_distinct * ranked.shape[1]]
        if not len(varied):
            raise ValueError("the target only repeats itself; train it longer or lower least_distinct")
        kept.append(varied)
        step += 1
        work.note(f"wrote {step * size} texts, kept {sum(len(part) for part in kept)}")
    tokens = np.concatenate(kept)[:count]
    return WrittenTexts(tokens, np.full(len(tokens), text.prompt_tokens, dtype=np.int32))


def _block_data(work: Work, target: TargetModel, batch: int, anchors: int, seed: int, block: int) -> BlockData:
    train, held_out = load_written(work.folder / "text.npz"), load_written(work.folder / "held_out_text.npz")
    return BlockData(target, train, held_out, batch, anchors, seed, block)
