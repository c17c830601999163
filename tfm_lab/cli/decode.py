"""``tfm-lab decode``: continue a text, and say what the drafter was worth."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tfm_lab.cli.options import (
    bundle_option,
    check_writable,
    choose_device,
    choose_dtype,
    device_option,
    drafter_options,
    dtype_option,
    target_option,
    write_whole,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tfm_lab.trace import DecodeTrace


@click.command("decode")
@click.argument("prompt")
@click.option(
    "--method",
    default="tfm",
    show_default=True,
    help="ar (plain), chain (DFlash), ddtree, tfm, dyspec and ranked (sampled trees); with an autoregressive drafter "
    "ard-chain, ard-tree, ard-dyspec.",
)
@click.option(
    "--budget", default=64, show_default=True, help="Proposed nodes per tree, root excluded. 0 is plain decoding."
)
@click.option("--width", type=int, default=None, help="Nodes per Weaver call. [default: budget / 16, rounded up]")
@click.option("--temperature", default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", default=0, show_default=True, help="Keep the k most probable tokens; 0 keeps all.")
@click.option("--top-p", default=1.0, show_default=True, help="Keep the smallest set of this probability.")
@click.option(
    "--shared-noise", is_flag=True, help="Sample with noise that the drafter foresees; same law, more accepted."
)
@click.option("--rule", default=None, help="greedy, target_sample, rejection_swor or traversal. [default: what suits]")
@click.option("--max-new-tokens", default=128, show_default=True, help="Length limit of the continuation.")
@click.option("--seed", default=0, show_default=True, help="Of all draws.")
@click.option("--chat", is_flag=True, help="Treat PROMPT as a question and let the assistant answer.")
@click.option("--colour", is_flag=True, help="Mark drafted tokens and bonus tokens in the text.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the trace to this file."
)
@click.option(
    "--kernels",
    type=click.Choice(["reference", "triton"]),
    default="reference",
    show_default=True,
    help="What verifies trees in Gated DeltaNet layers: PyTorch, or the fused kernels (a GPU; float32 or bfloat16).",
)
@bundle_option()
@target_option()
@drafter_options()
@device_option()
@dtype_option()
def command(
    prompt: str,
    method: str,
    budget: int,
    width: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    shared_noise: bool,
    rule: str | None,
    max_new_tokens: int,
    seed: int,
    chat: bool,
    colour: bool,
    json_path: Path | None,
    kernels: Literal["reference", "triton"],
    bundle: str,
    target: str | None,
    drafter: str | None,
    weaver: str | None,
    device: str,
    dtype: str,
) -> int:
    """Continue PROMPT and report mean accepted length, target calls and acceptance by depth.

    PROMPT is the text itself, or - to read it from standard input. Whatever the method, the text at temperature 0 is
    that of plain decoding; only the number of target calls differs. (In bfloat16 the rounding of a batch of nodes is
    not that of one token, and a near tie between two tokens can fall either way.) Plain decoding needs no drafter: it
    works with any target.

    \b
    Examples:
      tfm-lab decode "def read_lines(path):"
      tfm-lab decode --chat "Tell me a short story about a fox who builds a boat."
      tfm-lab decode "import os" --method chain --budget 15 --max-new-tokens 64
      tfm-lab decode "import os" --temperature 1 --seed 3 --json trace.json
      cat notes.txt | tfm-lab decode - --method ddtree
      tfm-lab decode --target smollm2 --method ar --chat "What is the capital of France?"
      tfm-lab decode "import os" --target Qwen/Qwen3.6-27B --drafter z-lab/Qwen3.6-27B-DFlash --weaver trymirai/weaver
    """
    from rich.console import Console

    from tfm_lab.bundle import load_bundle, load_target_only, prepare_models
    from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
    from tfm_lab.distributions import SamplingConfig
    from tfm_lab.drafting import TreeConfig
    from tfm_lab.methods import AUTOREGRESSIVE, make_speculator
    from tfm_lab.trace import StopReason

    if json_path is not None:
        check_writable(json_path, makes_folder=False)
    sampling = SamplingConfig(temperature, top_k, top_p, shared_noise)
    tree = TreeConfig(budget=budget, width=width)
    text = _prompt_text(prompt)
    if chat and not text.strip():
        raise ValueError("the question is empty; give one, or leave out --chat")
    weights, place = choose_dtype(dtype), choose_device(device)
    if method == AUTOREGRESSIVE:
        if rule is not None:
            raise ValueError("plain decoding (ar) has no acceptance rule: leave out --rule")
        if drafter is not None or weaver is not None:
            raise ValueError("plain decoding (ar) needs no drafter: leave out --drafter and --weaver")
        if kernels != "reference":
            raise ValueError("plain decoding (ar) verifies no trees: leave out --kernels")
        models, speculator = load_target_only(target or bundle, dtype=weights, device=place), None
    else:
        models = load_bundle(bundle, target=target, drafter=drafter, weaver=weaver, dtype=weights, device=place)
        speculator = make_speculator(method, models.drafter, models.weaver, sampling, rule, models.autoregressive)
    models.target.use_kernels(kernels)
    prepare_models(models)
    config = DecodeConfig(max_new_tokens, sampling, tree, models.target.config.stop_tokens, seed)
    tokens = models.chat(text) if chat else models.encode(text)
    if speculator is None:
        trace = autoregressive_decode(models.target, tokens, config)
    else:
        trace = speculative_decode(models.target, speculator, tokens, config)
    console = Console()
    if colour:
        _print_marked(trace, models.pieces(trace.tokens), console)
    else:
        click.echo(models.decode(trace.tokens))
    _print_figures(trace, console)
    if json_path is not None:
        write_whole(trace.to_json() + "\n", json_path)
    return 130 if trace.stop is StopReason.INTERRUPTED else 0


def _prompt_text(prompt: str) -> str:
    """The prompt itself, or standard input for ``-``."""
    try:
        if prompt == "-":
            if sys.stdin is None:
                raise ValueError("standard input is closed; pipe a text into it, or give the prompt itself")
            prompt = sys.stdin.read()
        prompt.encode("utf-8")  # bytes that are no UTF-8 reach Python as lone surrogates, which have no encoding
    except UnicodeError:
        raise ValueError("the prompt is not valid UTF-8; convert it to UTF-8 first, for instance with iconv") from None
    return prompt


def _print_marked(trace: "DecodeTrace", pieces: list[str], console: "Console") -> None:
    from rich.text import Text

    kinds = ["first"] if trace.first_token is not None else []
    for step in trace.steps:
        kinds += ["drafted" if index < step.accepted else "bonus" for index in range(len(step.committed))]
    styles = {"first": "bold", "drafted": "green", "bonus": "magenta underline"}
    marked = Text()
    for piece, kind in zip(pieces, kinds, strict=True):
        marked.append(piece, styles[kind])
    console.print(marked, soft_wrap=True)
    console.print("[green]accepted draft[/]  [magenta underline]bonus token[/]  [bold]from the prompt[/]")


def _print_figures(trace: "DecodeTrace", console: "Console") -> None:
    from rich.table import Table

    from tfm_lab.metrics import acceptance_by_depth, mean_stage_seconds

    console.print()
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_row("method", f"{trace.method}, rule {trace.rule}, budget {trace.tree.budget}")
    facts.add_row("new tokens", f"{len(trace.tokens)} (stopped by: {trace.stop.value})")
    facts.add_row("target calls", f"{trace.target_calls} after the prompt")
    if trace.steps:
        facts.add_row(
            "mean accepted length", f"{trace.mean_accepted_length:.3f} tokens per target call, bonus included"
        )
        seconds = mean_stage_seconds([trace])
        stages = ", ".join(f"{name} {1e3 * value:.1f}" for name, value in seconds._asdict().items())
        facts.add_row("ms per step", f"{stages}; in all {1e3 * seconds.total:.1f}")
    console.print(facts, soft_wrap=True, highlight=False)
    depths = acceptance_by_depth([trace])
    if depths:
        table = Table("depth", title="acceptance by depth", box=None, title_justify="left", pad_edge=False)
        for title in ("steps that got here", "accepted", "share", "share of all steps"):
            table.add_column(title, justify="right")
        for depth in depths:
            if depth.reached:
                shares = f"{depth.conditional:.2f}", f"{depth.cumulative:.2f}"
                table.add_row(str(depth.depth), str(depth.reached), str(depth.accepted), *shares)
        console.print(table, highlight=False)
