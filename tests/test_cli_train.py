"""``tfm-lab train``, ``evaluate`` and ``bench``: from an empty folder to a report, and one sentence for bad input."""

import json
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from command_line import assert_refused, examples_of, parse, run
from torch import Tensor
from training.tiny import prepared

from tfm_lab.bundle import Bundle, load_bundle
from tfm_lab.evaluation import load_contexts
from tfm_lab.evaluation.contexts import Context, save_contexts
from tfm_lab.evaluation.records import read_records
from tfm_lab.training.chat import Exchange, save_chat
from tfm_lab.training.corpus import read_chat
from tfm_lab.training.recipe import SHIPPED
from tfm_lab.training.tasks import TargetTask

STAGES = ["corpus", "target", "text", "drafter", "weaver", "autoregressive"]
PAGES = [["train"], *(["train", stage] for stage in [*STAGES, "prompts", "chat", "contexts"])]
PAGES += [["evaluate"], ["bench"], ["bench", "decode"]]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiny recipe with two steps per training, in a new working folder."""
    monkeypatch.chdir(tmp_path)
    text = (SHIPPED / "tiny.toml").read_text(encoding="utf-8")
    for steps in ("steps = 30", "steps = 20"):
        text = text.replace(steps, "steps = 2")
    Path("short.toml").write_text(text, encoding="utf-8")
    return "short.toml"


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_help_pages_have_examples_that_parse(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words, "--help") == 0
    examples = examples_of(capsys.readouterr().out)
    assert examples
    for example in examples:
        assert example[: len(words)] == words or words == ["train"]
        parse(example)


def test_all_stages_from_an_empty_folder_to_a_decode(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    for stage in STAGES:
        assert run("train", stage, "--recipe", recipe, "--work", "new/work", "--device", "cpu") == 0
    output = capsys.readouterr().out
    assert "stdlib: " in output
    assert "step 2  " in output
    assert "held_out.chain_mal" in output
    assert "text.npz: kept 48 texts of 64 tokens" in output
    assert run("decode", "import os\n", "--bundle", "new/work/model", "--max-new-tokens", "4", "--device", "cpu") == 0
    assert "mean accepted length" in capsys.readouterr().out


def test_a_training_out_of_time_says_how_to_go_on(
    tiny_work: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(tiny_work, Path("work"), "drafter")
    command = ["train", "drafter", "--recipe", recipe, "--work", "work", "--device", "cpu"]
    assert run(*command, "--minutes", "1e-9") == 0
    told = capsys.readouterr().out
    assert re.search(r"stopped after 1e-09 minutes \(1 steps, [0-9.]+ ms per step\); the same command goes on", told)
    assert not Path("work/model/drafter").exists()
    assert run(*command) == 0
    output = capsys.readouterr().out
    assert "step 2 " in output
    assert "stopped" not in output
    assert Path("work/model/drafter/model.safetensors").is_file()


def test_ctrl_c_during_training_exits_with_130_and_the_command_goes_on_later(
    tiny_work: Path, recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared(tiny_work, Path("work"), "target")
    loss = TargetTask.loss

    def pressed_in_the_second_step(task: TargetTask, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        if step == 1:
            signal.raise_signal(signal.SIGINT)
        return loss(task, step)

    command = ["train", "target", "--recipe", recipe, "--work", "work", "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr(TargetTask, "loss", pressed_in_the_second_step)
        assert run(*command) == 130
    assert capsys.readouterr().err.strip() == "Error: interrupted"
    assert run(*command) == 0
    assert Path("work/model/target/model.safetensors").is_file()


def test_contexts_are_chosen_from_held_out_text_and_unasked_questions(
    tiny_work: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [Exchange("Why is rain important?", "It waters the plants.")]
    save_chat(Path("chat.jsonl"), asked)
    command = ["train", "contexts", "--recipe", recipe, "--work", str(tiny_work), "--out", "contexts.jsonl"]
    assert run(*command, "--chat", "chat.jsonl", "--per-kind", "3") == 0
    contexts = load_contexts(Path("contexts.jsonl"))
    assert f"{len(contexts)} contexts written to contexts.jsonl" in capsys.readouterr().out
    chats = [context for context in contexts if context.kind == "chat"]
    assert len(chats) == 3
    assert not any(asked[0].prompt in context.prompt for context in chats)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["corpus", "--recipe", "nosuch"],
            "there is no recipe 'nosuch'; use one of hybrid, smollm2, smollm2_more, smollm2_weaver, tiny",
        ),
        (["corpus", "--recipe", "hybrid"], "the corpus has no source 'chat'; give --chat FILE"),
        (["corpus", "--recipe", "broken.toml"], "broken.toml is not valid TOML"),
        (["corpus", "--recipe", "tiny", "--device", "tpu"], "there is no device 'tpu'"),
        (["corpus", "--recipe", "tiny", "--device", "cuda"], "device 'cuda' asks for a GPU that torch does not see"),
        (["target", "--recipe", "tiny"], "corpus.npz does not exist; build it with 'tfm-lab train corpus'"),
        (["target", "--recipe", "tiny", "--minutes", "0"], "--minutes must be more than 0, got 0"),
        (["target", "--recipe", "tiny", "--minutes", "nan"], "--minutes must be more than 0, got nan"),
        (
            ["corpus", "--recipe", "tiny", "--chat", "chat.jsonl"],
            "this recipe has no source 'chat', so chat.jsonl would",
        ),
        (["target", "--recipe", "tiny", "--minutes", "soon"], "'soon' is not a valid float"),
        (["text", "--recipe", "tiny"], "train the target first with 'tfm-lab train target'"),
        (["drafter", "--recipe", "tiny"], "train the target first with 'tfm-lab train target'"),
        (["weaver", "--recipe", "tiny"], "train the target first with 'tfm-lab train target'"),
        (["contexts", "--out", "x.jsonl"], "build the corpus first with 'tfm-lab train corpus'"),
        (["nosuch"], "No such command 'nosuch'"),
    ],
)
def test_bad_input_for_training_is_one_sentence(
    tmp_path: Path,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text("[corpus")
    work = ["--work", "new/work"] if words != ["nosuch"] else []
    assert_refused(["train", *words, *work], sentence, tmp_path, capsys)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--teacher", "nowhere"], "nowhere is not a checkpoint folder: it has no config.json"),
        (["--teacher", "nowhere", "--count", "0"], "--count and --batch must be at least 1"),
        (["--teacher", "nowhere", "--batch", "-1"], "--count and --batch must be at least 1"),
        ([], "Missing option '--teacher'"),
    ],
)
def test_bad_input_for_conversations_is_one_sentence(
    tmp_path: Path,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(["train", "chat", "--out", "chat.jsonl", *words], sentence, tmp_path, capsys)


def test_a_target_can_write_conversations(tiny_work: Path, recipe: str) -> None:
    shutil.copytree(tiny_work / "model" / "target", "teacher")
    config = Path("teacher/config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 512}))
    assert run("train", "chat", "--teacher", "teacher", "--out", "chat.jsonl", "--count", "2", "--device", "cpu") == 0
    assert {document.source for document in read_chat(Path("chat.jsonl"))} <= {"chat"}


@pytest.fixture
def evaluate(tiny_work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command with the tiny bundle and two contexts, run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    contexts = [Context("a", "code", "", "import os\n"), Context("b", "docs", "", "It is a file\n")]
    save_contexts(contexts, Path("contexts.jsonl"))
    options = ["--bundle", str(tiny_work / "model"), "--contexts", "contexts.jsonl", "--device", "cpu"]
    return ["evaluate", *options, "--max-new-tokens", "6"]


def test_an_evaluation_prints_a_table_and_writes_a_report(
    evaluate: list[str], tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*evaluate, "--methods", "ar, chain,tfm", "--budgets", "4,8", "--temperatures", "1"]
    command += ["--records", "new/records.jsonl", "--out", "new/mal.json"]
    assert run(*command) == 0
    output = capsys.readouterr().out
    assert output.startswith("| T | method | B | texts | MAL |")
    assert "written: new/mal.json and new/mal.md" in output
    records = read_records(Path("new/records.jsonl"))
    columns = [("ar", 0), ("chain", 4), ("chain", 8), ("tfm", 4), ("tfm", 8)]
    assert [(r["method"], r["budget"]) for r in records] == columns * 2
    document = json.loads(Path("new/mal.json").read_text())
    assert document["setup"]["target"] == tiny_bundle.target.fingerprint()
    assert [s["method"] for s in document["summaries"] if s["kind"] == "all"] == [method for method, _ in columns]
    before = Path("new/records.jsonl").read_bytes()
    assert run(*command) == 0
    assert Path("new/records.jsonl").read_bytes() == before
    assert run(*command, "--methods", "chain", "--limit", "1") == 0
    assert Path("new/records.jsonl").read_bytes() == before
    document = json.loads(Path("new/mal.json").read_text())
    assert [(s["method"], s["contexts"]) for s in document["summaries"] if s["kind"] == "all"] == [("chain", 1)] * 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "chain,nosuch"], "there is no method 'nosuch'"),
        (["--budgets", "16,many"], "--budgets takes a comma-separated list of numbers, and 'many' is none"),
        (["--budgets", ""], "--budgets takes a comma-separated list of numbers, and '' is none"),
        (["--budgets", "-4"], "budget must be 0 or more proposed nodes, got -4"),
        (["--temperatures", "0;1"], "--temperatures takes a comma-separated list of numbers, and '0;1' is none"),
        (["--temperatures", "-1"], "temperature must be zero or a positive number"),
        (["--max-new-tokens", "-1"], "max_new_tokens must be 0 or more"),
        (["--children", "0"], "children must be at least 1, got 0"),
        (["--limit", "0"], "the limit must be at least 1 context, got 0"),
        (["--contexts", "nowhere.jsonl"], "nowhere.jsonl does not exist; give a JSON-lines file"),
        (["--contexts", "notes.txt"], "notes.txt is not a file of contexts"),
        (["--records", "notes.txt"], "notes.txt is not an evaluation file"),
        (["--budgets", "2000"], "budget must be at most 1024 proposed nodes, got 2000"),
        (["--out", "mal.md"], "--out takes the name of a .json file"),
        (["--out", "notes.txt/mal.json"], "cannot write notes.txt/mal.json: "),
        (["--records", "notes.txt/new/records.jsonl"], "cannot write notes.txt/new/records.jsonl: "),
        (["--records", "/dev/null"], "--records takes the name of an ordinary file, and /dev/null is none"),
        (["--bundle", "nosuch"], "there is no bundle 'nosuch'"),
        (["--target", "nosuch"], "there is no target 'nosuch'; give a folder with config.json"),
        (["--device", "cuda"], "device 'cuda' asks for a GPU"),
    ],
)
def test_bad_input_for_an_evaluation_is_one_sentence(
    evaluate: list[str],
    tmp_path: Path,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    Path("notes.txt").write_text("my notes\nno newline at the end")
    assert_refused([*evaluate, "--records", "new/records.jsonl", *words], sentence, tmp_path, capsys)
    assert Path("notes.txt").read_text() == "my notes\nno newline at the end"


def test_a_benchmark_prints_a_table_and_writes_a_report(
    tiny_work: Path, recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--bundle", str(tiny_work / "model"), "--device", "cpu", "--limit", "1", "--max-new-tokens", "4"]
    assert run("bench", "decode", *options, "--methods", "ar, tfm,ar", "--budget", "4", "--out", "new/stages.json") == 0
    output = capsys.readouterr().out
    assert output.startswith("| method | B | draft |")
    assert "written: new/stages.json and new/stages.md" in output
    document = json.loads(Path("new/stages.json").read_text())
    assert [entry["method"] for entry in document["methods"]] == ["ar", "tfm"]
    assert document["setup"]["contexts"] == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "nosuch"], "there is no method 'nosuch'"),
        (["--budget", "-1"], "budget must be 0 or more proposed nodes, got -1"),
        (["--limit", "0"], "a benchmark needs --limit of at least 1 and --max-new-tokens of at least 2"),
        (["--max-new-tokens", "1"], "a benchmark needs --limit of at least 1 and --max-new-tokens of at least 2"),
        (["--bundle", "nosuch"], "there is no bundle 'nosuch'"),
        (["--out", "table.md"], "--out takes the name of a .json file"),
        (["--out", "notes.txt/stages.json"], "cannot write notes.txt/stages.json: "),
        (["--device", "cuda"], "device 'cuda' asks for a GPU"),
    ],
)
def test_bad_input_for_a_benchmark_is_one_sentence(
    tiny_work: Path,
    tmp_path: Path,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("my notes")
    options = ["--bundle", str(tiny_work / "model"), "--device", "cpu", "--limit", "1", "--out", "new/stages.json"]
    assert_refused(["bench", "decode", *options, *words], sentence, tmp_path, capsys)


def test_a_bundle_trained_by_the_commands_is_whole(tiny_work: Path, tmp_path: Path) -> None:
    """Nothing outside of ``model`` is needed to decode."""
    shutil.copytree(tiny_work / "model", tmp_path / "moved")
    bundle = load_bundle(str(tmp_path / "moved"))
    assert bundle.weaver is not None
    assert sorted(path.name for path in (tmp_path / "moved").iterdir()) == [
        "autoregressive",
        "drafter",
        "target",
        "weaver",
    ]
