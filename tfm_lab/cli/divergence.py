"""``tfm-lab divergence``: where a decode first differs from plain decoding, and why."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfm_lab.cli.options import (
    bundle_option,
    check_report_path,
    choose_device,
    choose_dtype,
    comma_list,
    device_option,
    print_table,
    progress_bar,
    target_option,
)

if TYPE_CHECKING:
    from tfm_lab.bundle import Bundle
    from tfm_lab.divergence import Divergence
    from tfm_lab.evaluation.contexts import Context


@click.command("divergence")
@click.argument("prompt", required=False)
@click.option(
    "--method",
    default="tfm",
    show_default=True,
    help="chain, ddtree, tfm, dyspec, or a method of the form ard-...; several comma-separated.",
)
@click.option("--budget", default=64, show_default=True, help="Proposed nodes per tree.")
@click.option("--max-new-tokens", default=64, show_default=True, help="Per prompt.")
@click.option("--chat", is_flag=True, help="Treat PROMPT as a question and let the assistant answer.")
@click.option(
    "--contexts", type=click.Path(path_type=Path), default=None, help="JSON-lines file of contexts, in place of PROMPT."
)
@click.option("--held-out", is_flag=True, help="Use the contexts that ship with the package, in place of PROMPT.")
@click.option("--suite", default=None, help="Go on with these suites (chat, math, code), comma-separated.")
@click.option("--limit", type=int, default=None, help="Use only so many contexts.")
@bundle_option()
@target_option()
@device_option()
@click.option("--dtype", default="float32", show_default=True, help="float32, float64, bfloat16; comma-separated.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Write JSON and a .md table here."
)
def command(
    prompt: str | None,
    method: str,
    budget: int,
    max_new_tokens: int,
    chat: bool,
    contexts: Path | None,
    held_out: bool,
    suite: str | None,
    limit: int | None,
    bundle: str,
    target: str | None,
    device: str,
    dtype: str,
    out: Path | None,
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
      tfm-lab divergence --held-out --suite math --limit 200 --method chain,ddtree,tfm --dtype float32,float64,bfloat16
    """
    from tfm_lab.bundle import load_bundle
    from tfm_lab.drafting import TreeConfig
    from tfm_lab.evaluation.greedy_texts import Comparison, compare_texts, comparison_table, save_comparisons

    is_many = held_out or suite is not None
    if (prompt is not None) + (contexts is not None) + is_many != 1:
        raise ValueError("give one of PROMPT, --contexts FILE and --held-out (or --suite, or both)")
    check_report_path(out)
    place, methods = choose_device(device), list(dict.fromkeys(comma_list(method, str, "--method")))
    dtypes = {name: choose_dtype(name) for name in comma_list(dtype, str, "--dtype")}
    found: list[Comparison] = []
    done, texts = 0, [] if prompt is not None else _contexts(contexts, held_out, suite, limit)
    with progress_bar("comparing", len(dtypes) * max(1, len(texts))) as show:

        def tell() -> None:
            nonlocal done
            done += 1
            show(done)

        for name, weights in dtypes.items():
            models = load_bundle(bundle, target=target, dtype=weights, device=place)
            if prompt is not None:
                prompts = {"the text": models.chat(prompt) if chat else models.encode(prompt)}
            else:
                prompts = {context.name: context.tokens(models) for context in texts}
            of_dtype = compare_texts(models, prompts, methods, TreeConfig(budget=budget), max_new_tokens, tell)
            found += of_dtype
            for comparison in of_dtype:
                for text, divergence in comparison.divergences.items():
                    click.echo("\n".join(_lines(models, f"{comparison.method}, {text}", divergence)) + "\n")
                click.echo(
                    f"{comparison.texts} texts: {comparison.identical} identical, {comparison.by_rounding} differ by "
                    f"rounding, {comparison.by_algorithm} by the algorithm ({comparison.method}, B = {budget}, {name})"
                )
    if len(found) > 1:
        print_table(comparison_table(found).markdown())
    if out is not None:
        setup = {"bundle": bundle, "budget": budget, "max_new_tokens": max_new_tokens}
        save_comparisons(found, place, setup, out)
        click.echo(f"written: {out} and {out.with_suffix('.md')}")
    return 1 if any(comparison.by_algorithm for comparison in found) else 0


def _contexts(path: Path | None, held_out: bool, suite: str | None, limit: int | None) -> list["Context"]:
    """What to decode: a file, or the held-out contexts and then the suites."""
    from tfm_lab.evaluation import load_suites
    from tfm_lab.evaluation.contexts import load_contexts

    if path is not None:
        return load_contexts(path, limit)
    if limit is not None and limit < 1:
        raise ValueError(f"the limit must be at least 1 context, got {limit}")
    chosen = load_contexts() if held_out else []
    if suite is not None:
        chosen += load_suites(comma_list(suite, str, "--suite"))
    return chosen[:limit]


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
