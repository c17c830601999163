"""Bundles: parts that belong together, tokens that join to text, and one sentence for everything else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings
from safetensors.torch import load_file, save_file

from tfm_lab.bundle import Bundle, check_target_folder, load_bundle, load_target_only, load_tokenizer, target_folder
from tfm_lab.decoding import DecodeConfig, autoregressive_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.fetching import catalogue, fetch
from tfm_lab.fetching.catalogue import Entry
from tfm_lab.methods import make_speculator
from tfm_lab.training.corpus import conversation
from tfm_lab.training.tokenizer import train_tokenizer


def copy_of(tiny_work: Path, folder: Path) -> Path:
    shutil.copytree(tiny_work / "model", folder)
    return folder


def test_a_bundle_loads_in_any_dtype_with_all_its_parts(tiny_work: Path) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        bundle = load_bundle(str(tiny_work / "model"), dtype=dtype)
        assert bundle.weaver is not None
        for model in (bundle.target, bundle.drafter, bundle.weaver):
            assert {parameter.dtype for parameter in model.parameters()} == {dtype}
            assert not any(parameter.requires_grad for parameter in model.parameters())
            assert not model.training
    assert bundle.name == str(tiny_work / "model")


def test_a_shipped_bundle_goes_by_its_name_even_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hybrid").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_bundle("hybrid").target.config.vocab_size == 8192


def test_a_folder_is_found_from_where_one_is(tiny_work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_work)
    assert load_bundle("model").target.config.vocab_size == 384


def test_without_a_weaver_the_methods_that_need_none_work(tiny_work: Path, tmp_path: Path) -> None:
    folder = copy_of(tiny_work, tmp_path / "bundle")
    shutil.rmtree(folder / "weaver")
    bundle = load_bundle(str(folder))
    assert bundle.weaver is None
    sampling = SamplingConfig(0.0)
    assert make_speculator("ddtree", bundle.drafter, bundle.weaver, sampling).weaver is None
    with pytest.raises(ValueError, match="method 'tfm' needs a Weaver; load one, or use chain or ddtree"):
        make_speculator("tfm", bundle.drafter, bundle.weaver, sampling)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(tokens=st.lists(st.integers(0, 383), max_size=40))
@example(tokens=[])
def test_pieces_join_to_the_text_for_any_tokens(tiny_bundle: Bundle, tokens: list[int]) -> None:
    pieces = tiny_bundle.pieces(tokens)
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == tiny_bundle.decode(tokens)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(text=st.text(), cut=st.integers(0, 20))
@example(text="a👩‍👩‍👧‍👦b안녕\ufffd", cut=3)
def test_pieces_of_whole_characters_and_of_cut_ones(tiny_bundle: Bundle, text: str, cut: int) -> None:
    tokens = tiny_bundle.encode(text)
    assert tiny_bundle.decode(tokens) == text
    assert "".join(tiny_bundle.pieces(tokens)) == text
    assert "".join(tiny_bundle.pieces(tokens[cut:])) == tiny_bundle.decode(tokens[cut:])


def test_a_character_split_over_tokens_belongs_to_the_last_of_them(tiny_bundle: Bundle) -> None:
    tokens = tiny_bundle.encode("a👋b")
    assert len(tokens) == 6
    assert tiny_bundle.pieces(tokens) == ["a", "", "", "", "👋", "b"]
    assert tiny_bundle.pieces(tokens[:3]) == ["a", "", "\ufffd"]


def test_chat_markers_are_single_tokens_and_stay_in_the_text(tiny_bundle: Bundle) -> None:
    tokens = tiny_bundle.chat("  Why? ")
    assert tiny_bundle.decode(tokens) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert conversation("Why?", "So.").startswith(tiny_bundle.decode(tokens))
    start, end = (tiny_bundle.encode(marker) for marker in ("<|im_start|>", "<|im_end|>"))
    assert (tokens.count(start[0]), tokens.count(end[0])) == (2, 1)
    assert len(start) == len(end) == 1


@pytest.fixture
def cache(tiny_work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds the tiny target under the name ``toy``."""
    monkeypatch.setenv("TFM_LAB_CACHE", str(tmp_path / "cache"))
    toy = Entry("toy", "a toy", "MIT", (), 1, 1, lambda: None, lambda making: copy_files(tiny_work, making.folder))
    monkeypatch.setattr(catalogue, "CATALOGUE", (toy,))
    fetch("toy")
    return tmp_path / "cache"


def copy_files(tiny_work: Path, folder: Path) -> None:
    shutil.copytree(tiny_work / "model" / "target", folder, dirs_exist_ok=True)


def describing(tiny_work: Path, folder: Path, description: str) -> Path:
    """A copy of the tiny bundle without its target, and a ``bundle.json``."""
    shutil.rmtree(copy_of(tiny_work, folder) / "target")
    (folder / "bundle.json").write_text(description)
    return folder


def test_a_bundle_may_name_a_fetched_target(tiny_work: Path, tmp_path: Path, cache: Path) -> None:
    folder = describing(tiny_work, tmp_path / "bundle", '{"target": "toy"}')
    assert target_folder(str(folder)) == target_folder("toy") == cache / "toy"
    bundle = load_bundle(str(folder))
    assert bundle.target.fingerprint() == load_target_only("toy").target.fingerprint()
    shutil.rmtree(cache / "toy")
    with pytest.raises(ValueError, match="toy has not been fetched; run: tfm-lab fetch toy"):
        load_bundle(str(folder))


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        ("{", "bundle.json does not name a target; it holds for example"),
        ("[]", "bundle.json does not name a target"),
        ("{}", "bundle.json does not name a target"),
        ('{"target": "nosuch"}', "bundle.json names the target 'nosuch', which cannot be fetched; use one of toy"),
        ('{"target": "../../etc"}', "which cannot be fetched"),
        ('{"target": 5}', "which cannot be fetched"),
    ],
)
def test_a_bundle_that_names_no_target_is_refused(
    tiny_work: Path, tmp_path: Path, cache: Path, description: str, sentence: str
) -> None:
    folder = describing(tiny_work, tmp_path / "bundle", description)
    with pytest.raises(ValueError, match=sentence):
        load_bundle(str(folder))


def test_another_target_of_the_same_weights_is_taken_and_a_foreign_one_refused(
    tiny_work: Path, tmp_path: Path, cache: Path
) -> None:
    folder = copy_of(tiny_work, tmp_path / "bundle")
    for target in ("toy", str(cache / "toy"), str(folder)):
        assert load_bundle(str(folder), target=target).name == str(folder)
    shutil.rmtree(folder / "target")
    assert load_bundle(str(folder), target="toy").weaver is not None
    weights = cache / "toy" / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors | {"model.norm.weight": tensors["model.norm.weight"] + 1}, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="the drafter was trained for another target"):
        load_bundle(str(folder), target="toy")
    with pytest.raises(ValueError, match="the drafter was made for another target"):
        load_bundle(str(folder), target="hybrid")


def test_a_target_alone_reads_writes_and_decodes_as_in_its_bundle(tiny_work: Path, tiny_bundle: Bundle) -> None:
    alone = load_target_only(str(tiny_work / "model" / "target"))
    assert alone.name == str(tiny_work / "model" / "target")
    tokens = alone.chat("Why?")
    assert tokens == tiny_bundle.chat("Why?")
    plain = [autoregressive_decode(one.target, tokens, DecodeConfig(8)).tokens for one in (alone, tiny_bundle)]
    assert plain[0] == plain[1]
    assert "".join(alone.pieces(plain[0])) == tiny_bundle.decode(plain[1])
    assert check_target_folder(tiny_work / "model" / "target") == alone.target.config


def test_a_target_alone_is_no_bundle(tiny_work: Path, cache: Path) -> None:
    for name in (str(tiny_work / "model" / "target"), "toy"):
        with pytest.raises(ValueError, match="is a target without a drafter, so only plain decoding works with it"):
            load_bundle(name)


def test_a_target_without_chat_template_is_asked_in_the_fixed_format(tiny_work: Path, tmp_path: Path) -> None:
    copy_files(tiny_work, tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    models = load_target_only(str(tmp_path))
    assert models.chat_template is None
    assert models.decode(models.chat(" Why? ")) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}?!")
    models = load_target_only(str(tmp_path))
    assert models.decode(models.chat(" Why ")) == "Why?!"


@pytest.mark.parametrize("name", ["nosuch", "", ".", "a/b/c"])
def test_an_unknown_target_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"there is no target '{name}'; give a folder with config.json, a bundle"):
        load_target_only(name)


def drop(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def overwrite(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9]) and None


def other_weights(folder: Path) -> None:
    """The drafter of another target: same shapes, another fingerprint."""
    path = folder / "drafter" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target_fingerprint": "0123456789abcdef"}))


def other_width(folder: Path) -> None:
    path = folder / "weaver" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"width": 64}))


def larger_tokenizer(folder: Path) -> None:
    train_tokenizer(["one two three " * 3, "".join(map(chr, range(0x4E00, 0x4F00)))] * 2, 500).save(
        str(folder / "target" / "tokenizer.json")
    )


def pickled(folder: Path) -> None:
    (folder / "target" / "model.safetensors").rename(folder / "target" / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (drop("target"), r"there is no bundle .*; shipped are hybrid, smollm2, or give a folder with target/"),
        (drop("drafter"), r"drafter is not a checkpoint folder: it has no config.json"),
        (drop("drafter/model.safetensors"), r"drafter lacks its weights file model.safetensors"),
        (drop("target/config.json"), r"target is not a checkpoint folder"),
        (drop("target/tokenizer.json"), r"target has no tokenizer.json; copy the tokenizer that belongs"),
        (drop("weaver/config.json"), r"weaver is not a checkpoint folder"),
        (overwrite("target/tokenizer.json", b"{}"), r"tokenizer.json is not a tokenizer file .*; fetch it again"),
        (overwrite("weaver/config.json", b"{"), r"weaver/config.json is not valid JSON"),
        (overwrite("weaver/config.json", b"{}"), r"weaver/config.json does not describe a Weaver"),
        (cut("target/model.safetensors"), r"model.safetensors is damaged .*; fetch the checkpoint again"),
        (
            larger_tokenizer,
            r"the tokenizer in .* knows 500 tokens, the target only 384; use the tokenizer",
        ),
        (other_weights, r"the drafter was trained for another target \(fingerprint 0123456789abcdef"),
        (other_width, r"the weights in .*weaver do not fit their config: "),
        (pickled, r"target lacks its weights file model.safetensors; .*only safetensors are read"),
    ],
)
def test_a_bundle_that_is_not_whole_is_refused(
    tiny_work: Path, tmp_path: Path, damage: Callable[[Path], None], sentence: str
) -> None:
    folder = copy_of(tiny_work, tmp_path / "bundle")
    damage(folder)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_bundle(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["nosuch", "", "."])
def test_an_unknown_bundle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"there is no bundle '{name}'; shipped are hybrid"):
        load_bundle(name)


def test_a_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("not JSON")
    with pytest.raises(ValueError, match=r"tokenizer.json is not a tokenizer file"):
        load_tokenizer(tmp_path)
