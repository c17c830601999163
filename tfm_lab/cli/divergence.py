"""``tfm-lab divergence``: where a decode first differs from plain decoding, and why."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfm_lab.cli.options import (
    bundle_option,
    choose_device,
    choose_dtype,
    device_option,
    dtype_option,
    progress_bar,
    target_option,
)

if TYPE_CHECKING:
    from tfm_lab.bundle import Bundle
    from tfm_lab.divergence import Divergence


@click.command("divergence")
@click.argument("prompt", required=False)
@click.option(
    "--method", default="tfm", show_default=True, help="chain, ddtree, tfm, dyspec, or a method of the form ard-..."
)
@click.option("--budget", default=64, show_default=True, help="Proposed nodes per tree.")
@click.option("--max-new-tokens", default=64, show_default=True, help="Per prompt.")
@click.option("--chat", is_flag=True, help="Treat PROMPT as a question and let the assistant answer.")
@click.option(
    "--contexts", type=click.Path(path_type=Path), default=None, help="JSON-lines file of contexts, in place of PROMPT."
)
@click.option("--held-out", is_flag=True, help="Use the contexts that ship with the package, in place of PROMPT.")
@click.option("--limit", type=int, default=None, help="Use only so many contexts.")
@bundle_option()
@target_option()
@device_option()
@dtype_option()
def command(
    prompt: str | None,
    method: str,
    budget: int,
    max_new_tokens: int,
    chat: bool,
    contexts: Path | None,
    held_out: bool,
    limit: int | None,
    bundle: str,
    target: str | None,
    device: str,
    dtype: str,
) -> int:
    """Decode greedily with and without trees; where the texts differ, say whether rounding or the algorithm did it.

    At the first differing token it shows the best tokens of both rows of logits, how far apart the two candidates are,
    how far rounding of the dtype can move a logit, and whether the two rows still differ in float64. The exit status is
    1 if any difference is the algorithm's, else 0.

    \b
    Examples:
      tfm-lab divergence "import os"
      tfm-lab divergence --held-out --dtype bfloat16
      tfm-lab divergence --held-out --limit 20 --method ddtree --budget 32
    """
    from tfm_lab.bundle import load_bundle
    from tfm_lab.decoding import DecodeConfig
    from tfm_lab.distributions import SamplingConfig
    from tfm_lab.divergence import first_divergence
    from tfm_lab.drafting import TreeConfig
    from tfm_lab.evaluation.contexts import HELD_OUT, load_contexts
    from tfm_lab.methods import make_speculator

    if (prompt is not None) + (contexts is not None) + held_out != 1:
        raise ValueError("give one of PROMPT, --contexts FILE and --held-out")
    models = load_bundle(bundle, target=target, dtype=choose_dtype(dtype), device=choose_device(device))
    sampling = SamplingConfig(temperature=0.0)
    speculator = make_speculator(method, models.drafter, models.weaver, sampling, autoregressive=models.autoregressive)
    config = DecodeConfig(max_new_tokens, sampling, TreeConfig(budget=budget), models.target.config.stop_tokens)
    if prompt is not None:
        prompts = {"the text": models.chat(prompt) if chat else models.encode(prompt)}
    else:
        prompts = {context.name: context.tokens(models) for context in load_contexts(contexts or HELD_OUT, limit)}
    found: dict[str, Divergence] = {}
    with progress_bar("comparing", len(prompts)) as show:
        for done, (name, tokens) in enumerate(prompts.items(), start=1):
            divergence = first_divergence(models.target, speculator, tokens, config)
            if divergence is not None:
                found[name] = divergence
            show(done)
    for name, divergence in found.items():
        click.echo("\n".join(_lines(models, name, divergence)) + "\n")
    wrong = sum(divergence.verdict == "algorithm" for divergence in found.values())
    click.echo(
        f"{len(prompts)} texts: {len(prompts) - len(found)} identical, {len(found) - wrong} differ by rounding, ",
        nl=False,
    )
    click.echo(f"{wrong} by the algorithm ({method}, B = {budget}, {dtype})")
    return 1 if wrong else 0


def _lines(models: "Bundle", name: str, divergence: "Divergence") -> list[str]:
    """What was found at the first differing token of one text."""
    d = divergence
    words = [repr(models.decode([token])) for token in (d.plain_token, d.tree_token)]
    return [
        f"{name}: new token {d.place} is {words[0]} plainly and {words[1]} after node {d.node} of step {d.step}",
        f"  plain row: {_row(models, d.plain_best)}",
        f"  tree row:  {_row(models, d.tree_best)}",
        f"  the two are {d.margin:.2e} apart; rounding in {d.dtype} moves a logit by about {d.bound:.2e}",
        f"  in float64 the rows differ by {d.disagreement:.1e} of their largest logit: {d.verdict}",
    ]


def _row(models: "Bundle", best: Sequence[tuple[int, float]]) -> str:
    return "  ".join(f"{models.decode([token])!r} {logit:.4f}" for token, logit in best)
