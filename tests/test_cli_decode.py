"""``tfm-lab decode``: what it prints, what it writes, and what it says about input that cannot work."""

import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import assert_refused, examples_of, parse, run

from tfm_lab import decoding
from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode
from tfm_lab.methods import METHODS
from tfm_lab.metrics import acceptance_by_depth
from tfm_lab.trace import DecodeStep, DecodeTrace, StopReason

PROMPT = "import os\n"
SHORT = ["--budget", "6", "--max-new-tokens", "8"]


@pytest.fixture
def decode(tiny_work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command with the tiny bundle, run in an empty folder on the CPU."""
    monkeypatch.chdir(tmp_path)
    return ["decode", "--bundle", str(tiny_work / "model"), "--device", "cpu"]


def test_the_examples_of_the_help_page_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("decode", "--help") == 0
    examples = examples_of(capsys.readouterr().out)
    assert len(examples) == 7
    for words in examples:
        assert parse(words).info_name == "decode"


@pytest.mark.parametrize("method", ["ar", *METHODS])
def test_text_figures_and_trace_agree(
    decode: list[str], tiny_bundle: Bundle, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*decode, PROMPT, *SHORT, "--method", method, "--json", "trace.json") == 0
    output = capsys.readouterr().out
    trace = DecodeTrace.from_json(Path("trace.json").read_text(encoding="utf-8"))
    assert [path.name for path in Path().iterdir()] == ["trace.json"]
    stops = tiny_bundle.target.config.stop_tokens
    plain = autoregressive_decode(tiny_bundle.target, tiny_bundle.encode(PROMPT), DecodeConfig(8, stop_tokens=stops))
    assert trace.tokens == plain.tokens
    assert output.startswith(tiny_bundle.decode(plain.tokens) + "\n")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert f"method {method}, rule greedy, budget {0 if method == 'ar' else 6}" in lines
    assert "new tokens 8 (stopped by: length)" in lines
    assert f"target calls {trace.target_calls} after the prompt" in lines
    assert f"mean accepted length {trace.mean_accepted_length:.3f} tokens per target call, bonus included" in lines
    for depth in acceptance_by_depth([trace]):
        counts = f"{depth.depth} {depth.reached} {depth.accepted} {depth.conditional:.2f} {depth.cumulative:.2f}"
        assert (counts in lines) == (depth.reached > 0)
    assert ("acceptance by depth" in lines) == (method != "ar")


def test_the_prompt_may_come_from_standard_input(
    decode: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    assert run(*decode, "-", *SHORT, "--json", "stdin.json") == 0
    assert run(*decode, PROMPT, *SHORT, "--json", "argument.json") == 0
    first, second = (DecodeTrace.from_json(Path(name).read_text()) for name in ("stdin.json", "argument.json"))
    assert first.prompt == second.prompt
    assert first.tokens == second.tokens


def test_a_question_is_put_in_chat_format(decode: list[str], tiny_bundle: Bundle) -> None:
    assert run(*decode, "Why?", "--chat", *SHORT, "--json", "trace.json") == 0
    trace = DecodeTrace.from_json(Path("trace.json").read_text())
    assert tiny_bundle.decode(trace.prompt) == "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def test_a_target_without_a_drafter_decodes_plainly(decode: list[str], tiny_work: Path) -> None:
    target = str(tiny_work / "model" / "target")
    assert run(*decode, PROMPT, *SHORT, "--json", "bundle.json", "--method", "ar") == 0
    for index, words in enumerate((["--target", target], ["--bundle", target], ["--bundle", "no", "--target", target])):
        assert run(*decode, PROMPT, *SHORT, "--method", "ar", *words, "--json", f"{index}.json") == 0
        traces = [DecodeTrace.from_json(Path(name).read_text()) for name in ("bundle.json", f"{index}.json")]
        assert traces[0].tokens == traces[1].tokens


def test_the_bundles_own_target_may_be_given_from_elsewhere(decode: list[str], tiny_work: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_work / "model" / "target", tmp_path / "elsewhere")
    for name, words in (("own", []), ("given", ["--target", "elsewhere"])):
        assert run(*decode, PROMPT, *SHORT, *words, "--json", f"{name}.json") == 0
    own, given = (DecodeTrace.from_json(Path(f"{name}.json").read_text()) for name in ("own", "given"))
    assert (own.tokens, own.target_calls) == (given.tokens, given.target_calls)


def test_sampled_text_depends_on_the_seed_and_reaches_the_trace(decode: list[str]) -> None:
    options = ["--temperature", "0.9", "--top-k", "50", "--top-p", "0.95", "--width", "2", "--rule", "traversal"]
    traces = []
    for index, seed in enumerate(("3", "3", "4")):
        assert run(*decode, PROMPT, *SHORT, *options, "--seed", seed, "--json", f"{index}.json") == 0
        traces.append(DecodeTrace.from_json(Path(f"{index}.json").read_text()))
    assert traces[0].tokens == traces[1].tokens != traces[2].tokens
    sampling = traces[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.9, 50, 0.95)
    assert (traces[0].rule, traces[0].tree.width, traces[2].seed) == ("traversal", 2, 4)


def test_shared_noise_samples_the_text_of_plain_decoding(decode: list[str]) -> None:
    options = ["--temperature", "0.9", "--shared-noise", "--seed", "3"]
    traces = {}
    for method in ("ar", "tfm"):
        assert run(*decode, PROMPT, *SHORT, *options, "--method", method, "--json", "trace.json") == 0
        traces[method] = DecodeTrace.from_json(Path("trace.json").read_text())
    assert traces["ar"].tokens == traces["tfm"].tokens
    assert traces["tfm"].sampling.shared_noise
    assert traces["tfm"].rule == "target_sample"


def test_coloured_text_is_the_same_text(
    decode: list[str], tiny_bundle: Bundle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*decode, PROMPT, *SHORT, "--colour", "--json", "trace.json") == 0
    trace = DecodeTrace.from_json(Path("trace.json").read_text())
    output = capsys.readouterr().out
    assert output.startswith(tiny_bundle.decode(trace.tokens) + "\naccepted draft  bonus token  from the prompt\n")


def test_no_new_tokens_are_no_target_calls(decode: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*decode, PROMPT, "--max-new-tokens", "0") == 0
    output = capsys.readouterr().out
    assert "target calls  0 after the prompt" in output
    assert "acceptance" not in output


def test_ctrl_c_keeps_what_is_done_and_exits_with_130(
    decode: list[str], tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = decoding.DecodeSession.step
    calls: list[DecodeStep] = []

    def pressed_in_the_third_step(session: Any, budget: int | None = None) -> DecodeStep:
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        calls.append(step(session, budget))
        return calls[-1]

    monkeypatch.setattr(decoding.DecodeSession, "step", pressed_in_the_third_step)
    assert run(*decode, PROMPT, *SHORT, "--json", "trace.json") == 130
    trace = DecodeTrace.from_json(Path("trace.json").read_text())
    assert trace.stop is StopReason.INTERRUPTED
    assert trace.target_calls == 2
    captured = capsys.readouterr()
    assert captured.out.startswith(tiny_bundle.decode(trace.tokens) + "\n")
    assert "(stopped by: interrupted)" in captured.out
    assert "Traceback" not in captured.err


def test_ctrl_c_before_the_first_step_exits_with_130(
    decode: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(decoding.TargetModel, "prefill", lambda *arguments: signal.raise_signal(signal.SIGINT))
    assert run(*decode, PROMPT, "--json", "trace.json") == 130
    assert capsys.readouterr().err.strip() == "Error: interrupted"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([PROMPT, "--method", "nosuch"], "there is no method 'nosuch'; use ar, chain, ddtree, tfm, dyspec"),
        ([PROMPT, "--rule", "nosuch"], "there is no acceptance rule 'nosuch'; use one of greedy, target_sample"),
        ([PROMPT, "--rule", "greedy", "--temperature", "1"], "the temperature is 1: use target_sample"),
        ([PROMPT, "--rule", "rejection_swor"], "use target_sample or traversal"),
        (
            [PROMPT, "--rule", "greedy", "--method", "ar"],
            "plain decoding (ar) has no acceptance rule",
        ),
        ([PROMPT, "--bundle", "nosuch"], "there is no bundle 'nosuch'; shipped are hybrid"),
        ([PROMPT, "--target", "nosuch"], "there is no target 'nosuch'; give a folder with config.json"),
        ([PROMPT, "--target", "nosuch", "--method", "ar"], "there is no target 'nosuch'"),
        ([PROMPT, "--target", "hybrid"], "the drafter was made for another target"),
        ([PROMPT, "--device", "cuda"], "device 'cuda' asks for a GPU that torch does not see; use --device cpu"),
        ([PROMPT, "--device", "cuda:9"], "device 'cuda:9' asks for a GPU that torch does not see"),
        ([PROMPT, "--device", "tpu"], "there is no device 'tpu'; use auto, cpu or cuda"),
        ([PROMPT, "--device", "meta"], "device 'meta' is not supported; use cpu or cuda"),
        ([PROMPT, "--dtype", "float16"], "'float16' is not one of 'float32', 'float64', 'bfloat16'"),
        ([PROMPT, "--budget", "-1"], "budget must be 0 or more proposed nodes, got -1"),
        ([PROMPT, "--budget", "many"], "'many' is not a valid integer"),
        ([PROMPT, "--budget", "2000"], "budget must be at most 1024 proposed nodes, got 2000"),
        ([PROMPT, "--width", "0"], "width must be at least 1 node per drafter call, got 0"),
        ([PROMPT, "--shared-noise"], "shared noise needs a temperature above 0"),
        ([PROMPT, "--shared-noise", "--temperature", "1", "--rule", "traversal"], "use target_sample"),
        ([PROMPT, "--temperature", "-1"], "temperature must be zero or a positive number, got -1.0"),
        ([PROMPT, "--temperature", "nan"], "temperature must be zero or a positive number, got nan"),
        ([PROMPT, "--top-k", "-1"], "top_k must be zero (keep all) or a positive count, got -1"),
        ([PROMPT, "--top-p", "0"], "top_p must lie in (0, 1], got 0.0"),
        ([PROMPT, "--max-new-tokens", "-1"], "max_new_tokens must be 0 or more, got -1"),
        ([""], "the prompt is empty; give at least one token"),
        (["  ", "--chat"], "the question is empty; give one, or leave out --chat"),
        (["many words " * 200], "tokens do not fit the target's context of 256; shorten the prompt"),
        ([PROMPT, "--json", "missing/trace.json"], "cannot write missing/trace.json: its folder does not exist"),
        ([PROMPT, "--json", "."], "File '.' is a directory"),
        ([PROMPT, "--json", "x" * 300], "xxx: File name too long"),
        ([PROMPT, "--json", "circle"], "cannot write circle: it is a link to itself"),
        (["a\udcff"], "the prompt is not valid UTF-8"),
        ([], "Missing argument 'PROMPT'"),
        ([PROMPT, "more"], "Got unexpected extra argument (more)"),
    ],
)
def test_bad_input_is_one_sentence(
    decode: list[str],
    tmp_path: Path,
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    options = ["--json", "trace.json"] if "--json" not in words else []
    Path("circle").symlink_to("circle")
    assert_refused([*decode, *options, *words], sentence, tmp_path, capsys)


def test_nothing_on_standard_input_is_refused(
    decode: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert_refused([*decode, "-"], "the prompt is empty", tmp_path, capsys)


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        (io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"), "the prompt is not valid UTF-8"),
        (io.StringIO("a\udcff"), "the prompt is not valid UTF-8"),
        (None, "standard input is closed"),
    ],
)
def test_standard_input_that_holds_no_text_is_refused(
    decode: list[str],
    tmp_path: Path,
    stream: io.TextIOBase | None,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", stream)
    assert_refused([*decode, "-"], sentence, tmp_path, capsys)


def test_a_trace_goes_through_links_and_into_pipes(decode: list[str]) -> None:
    Path("folder").mkdir()
    Path("link.json").symlink_to("folder/trace.json")
    for _ in range(2):  # a link to nothing, then a link to a file
        assert run(*decode, PROMPT, *SHORT, "--json", "link.json") == 0
        assert Path("link.json").is_symlink()
        assert [path.name for path in Path("folder").iterdir()] == ["trace.json"]
    os.mkfifo("pipe.json")
    with subprocess.Popen(["cat", "pipe.json"], stdout=subprocess.PIPE, text=True) as reader:
        assert run(*decode, PROMPT, *SHORT, "--json", "pipe.json") == 0
        piped, _ = reader.communicate()
    assert Path("pipe.json").is_fifo()
    traces = [DecodeTrace.from_json(text) for text in (piped, Path("folder/trace.json").read_text())]
    assert traces[0].tokens == traces[1].tokens


def test_the_longest_file_name_that_there_can_be_is_written(decode: list[str], tmp_path: Path) -> None:
    name = "x" * 250 + ".json"
    assert run(*decode, PROMPT, *SHORT, "--json", name) == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_the_text_is_printed_even_if_its_trace_cannot_be_written(
    decode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*decode, PROMPT, *SHORT, "--json", "/dev/full") == 2
    captured = capsys.readouterr()
    assert captured.err == "Error: cannot write /dev/full: No space left on device\n"
    assert "mean accepted length" in captured.out


def test_auto_takes_the_gpu_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfm_lab.cli.options import choose_device

    for available, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert choose_device("auto") == device


def test_commands_do_without_the_attention_that_plans_for_every_length() -> None:
    from tfm_lab.cli.options import choose_device

    torch.backends.cuda.enable_cudnn_sdp(True)
    assert choose_device("cpu") == "cpu"
    assert not torch.backends.cuda.cudnn_sdp_enabled()
