"""The stages from text to Weaver on the recipe ``tiny``, and what each says when an earlier one is missing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training.tiny import STAGES, prepared, short_recipe, with_fit

from tfm_lab.bundle import load_bundle, load_tokenizer
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.methods import METHODS, make_speculator
from tfm_lab.models import load_target
from tfm_lab.training.corpus import Document, json_lines
from tfm_lab.training.data import load_packed, load_written
from tfm_lab.training.pipeline import Work, prepare_corpus, write_text
from tfm_lab.training.recipe import load_recipe
from tfm_lab.training.tokenizer import END_OF_TEXT, token_id


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_inside(part: np.ndarray, whole: np.ndarray) -> bool:
    return part.tobytes() in whole.tobytes()


def test_the_trained_models_decode_without_loss_by_every_method(tiny_work: Path) -> None:
    bundle = load_bundle(str(tiny_work / "model"), dtype=torch.float64)
    prompt, config = bundle.encode("import os\n"), DecodeConfig(max_new_tokens=12)
    plain = autoregressive_decode(bundle.target, prompt, config)
    for method in METHODS:
        speculator = make_speculator(method, bundle.drafter, bundle.weaver, config.sampling)
        assert speculative_decode(bundle.target, speculator, prompt, config).tokens == plain.tokens


def test_held_out_documents_are_in_no_training_data(tiny_work: Path) -> None:
    held_out = [Document(**json.loads(line)) for line in json_lines(tiny_work / "held_out.jsonl")]
    assert held_out
    assert all(document.is_held_out for document in held_out)
    tokenizer = load_tokenizer(tiny_work)
    train, kept = load_packed(tiny_work / "corpus.npz"), load_packed(tiny_work / "held_out.npz")
    end = token_id(tokenizer, END_OF_TEXT)
    for document in held_out:
        tokens = np.array([*tokenizer.encode(document.text).ids, end], dtype=np.uint16)
        assert is_inside(tokens, kept.tokens[document.source])
        assert not is_inside(tokens, train.tokens[document.source])


@pytest.mark.parametrize(("texts", "corpus"), [("text.npz", "corpus.npz"), ("held_out_text.npz", "held_out.npz")])
def test_written_texts_continue_prompts_from_their_own_side_of_the_split(
    tiny_work: Path, texts: str, corpus: str
) -> None:
    recipe = short_recipe()
    written, packed = load_written(tiny_work / texts), load_packed(tiny_work / corpus)
    prompt = recipe.text.prompt_tokens
    wanted = recipe.text.texts if texts == "text.npz" else recipe.text.held_out_texts
    assert written.tokens.shape == (wanted, recipe.text.length)
    assert (written.written_from == prompt).all()
    for row in written.tokens[:, :prompt]:
        assert any(is_inside(row, tokens) for tokens in packed.tokens.values())


def test_texts_written_at_temperature_zero_follow_the_targets_argmax(tiny_work: Path) -> None:
    recipe = short_recipe()
    target = load_target(tiny_work / "model" / "target")
    written = load_written(tiny_work / "text.npz")
    tokens = torch.from_numpy(written.tokens.astype(np.int64))
    logits = target(tokens)[:, recipe.text.prompt_tokens - 1 : -1]
    chosen = logits.gather(2, tokens[:, recipe.text.prompt_tokens :, None])[..., 0]
    gap = (logits.amax(-1) - chosen).amax(1)
    assert written.temperatures is not None
    greedy = torch.from_numpy(written.temperatures) == 0.0
    assert greedy.tolist() == [False, True] * (len(gap) // 2)
    assert float(gap[greedy].max()) < 1e-4
    assert float(gap[~greedy].min()) > 0.1


def test_a_finished_stage_called_again_leaves_every_file_as_it_was(tiny_work: Path) -> None:
    before = files_of(tiny_work)
    for stage in STAGES.values():
        assert stage(Work(tiny_work), short_recipe())
    assert files_of(tiny_work) == before


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_out_of_time_writes_no_model_and_goes_on_later(tiny_work: Path, tmp_path: Path, stage: str) -> None:
    folder = prepared(tiny_work, tmp_path / "work", stage)
    recipe = with_fit(short_recipe(), steps=2)
    assert not STAGES[stage](Work(folder, max_seconds=-1.0), recipe)
    assert not (folder / "model" / stage).exists()
    assert STAGES[stage](Work(folder, max_seconds=-1.0), recipe)
    assert (folder / "model" / stage / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("stage", "missing", "sentence"),
    [
        ("target", "corpus.npz", "corpus.npz does not exist; build it with 'tfm-lab train corpus'"),
        ("target", "tokenizer.json", "has no tokenizer.json"),
        ("drafter", "text.npz", "text.npz does not exist; let the target write it with 'tfm-lab train text'"),
        ("drafter", "model/target", "train the target first with 'tfm-lab train target'"),
        ("weaver", "model/target", "train the target first with 'tfm-lab train target'"),
        ("weaver", "model/drafter", "train the drafter first with 'tfm-lab train drafter'"),
        ("autoregressive", "model/target", "train the target first with 'tfm-lab train target'"),
    ],
)
def test_a_missing_stage_is_named(tiny_work: Path, tmp_path: Path, stage: str, missing: str, sentence: str) -> None:
    folder = prepared(tiny_work, tmp_path / "work", stage)
    (folder / missing).rename(folder / "elsewhere")
    before = files_of(folder)
    with pytest.raises(ValueError, match=sentence):
        STAGES[stage](Work(folder), short_recipe())
    assert files_of(folder) == before


def test_text_needs_a_trained_target_that_does_more_than_repeat_itself(tiny_work: Path, tmp_path: Path) -> None:
    folder = prepared(tiny_work, tmp_path / "work", "target")
    with pytest.raises(ValueError, match="train the target first"):
        write_text(Work(folder), short_recipe())
    folder = prepared(tiny_work, tmp_path / "other", "drafter")
    recipe = replace(short_recipe(), text=replace(short_recipe().text, least_distinct=1.0))
    with pytest.raises(ValueError, match="only repeats itself"):
        write_text(Work(folder), recipe)


def test_texts_that_repeat_themselves_are_left_out(tiny_work: Path, tmp_path: Path) -> None:
    folder = prepared(tiny_work, tmp_path / "work", "drafter")
    recipe = replace(short_recipe(), text=replace(short_recipe().text, least_distinct=0.5))
    write_text(Work(folder), recipe)
    written = load_written(folder / "text.npz").tokens[:, recipe.text.prompt_tokens :]
    assert len(written) == recipe.text.texts
    assert min(len(set(row)) / len(row) for row in written.tolist()) >= 0.5


@pytest.mark.parametrize(
    ("source", "sentence"),
    [("wikipedia", "the corpus has no source 'wikipedia'; use some of stdlib, packages"), ("chat", "give --chat FILE")],
)
def test_an_unknown_source_is_refused_before_anything_is_written(tmp_path: Path, source: str, sentence: str) -> None:
    recipe = short_recipe()
    assert recipe.corpus is not None
    recipe = replace(recipe, corpus=replace(recipe.corpus, sources=("stdlib", source)))
    with pytest.raises(ValueError, match=sentence):
        prepare_corpus(Work(tmp_path / "work"), recipe, None)
    assert not (tmp_path / "work").exists()


def test_a_block_of_another_size_is_trained_and_decoded(tiny_work: Path, tmp_path: Path) -> None:
    folder = prepared(tiny_work, tmp_path / "work", "drafter")
    recipe = with_fit(short_recipe(), steps=1)
    recipe = replace(recipe, drafter=replace(recipe.drafter, block_size=40))
    for stage in ("drafter", "weaver"):
        assert STAGES[stage](Work(folder), recipe)
    bundle = load_bundle(str(folder / "model"))
    assert bundle.drafter.config.draft_depth == 39
    assert bundle.weaver is not None
    assert bundle.weaver.config.max_depth == 39


@pytest.mark.parametrize(
    ("device", "asked", "is_compiled"), [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)]
)
def test_steps_are_compiled_where_the_recipe_asks_for_it_and_a_gpu_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, asked: bool, is_compiled: bool
) -> None:
    monkeypatch.setattr(torch, "compile", {len: sum}.__getitem__)
    recipe = load_recipe("tiny")
    for shape in (recipe.drafter, recipe.weaver):
        got = Work(tmp_path, device).compiled(len, replace(shape, compile=asked))
        assert got is (sum if is_compiled else len)
