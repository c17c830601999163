"""``tfm-lab evaluate``: mean accepted length on held-out contexts and benchmark suites."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfm_lab.cli.options import (
    bundle_option,
    check_report_path,
    check_writable,
    choose_device,
    choose_dtype,
    comma_list,
    device_option,
    dtype_option,
    print_table,
    progress_bar,
    target_option,
)

if TYPE_CHECKING:
    from tfm_lab.bundle import Bundle
    from tfm_lab.evaluation import Context, Evaluation
    from tfm_lab.evaluation.best_trees import BestTrees
    from tfm_lab.evaluation.ceiling import Ceiling
    from tfm_lab.evaluation.records import Prompt


@click.command("evaluate")
@click.option("--methods", default="chain,ddtree,tfm", show_default=True, help="Comma-separated; ar is plain decoding.")
@click.option("--budgets", default="16,32,64", show_default=True, help="Comma-separated tree budgets.")
@click.option("--temperatures", default="0,1", show_default=True, help="Comma-separated temperatures.")
@click.option("--children", default="32", show_default=True, help="Most children per node, comma-separated.")
@click.option("--width", default="auto", show_default=True, help="Nodes per drafter call; auto is ceil(budget / 16).")
@click.option("--pool-size", default="512", show_default=True, help="Candidates per depth, comma-separated.")
@click.option("--max-depth", default="15", show_default=True, help="Longest path, comma-separated.")
@click.option("--noise", default="own", show_default=True, help="Comma-separated: own, shared (drafters foresee it).")
@click.option("--suite", default=None, help="Comma-separated: chat (MT-Bench), math (word problems), code (HumanEval).")
@click.option(
    "--contexts", "context_file", type=click.Path(path_type=Path), default=None, help="JSON-lines file of contexts."
)
@click.option("--limit", type=int, default=None, help="Use only so many contexts, the kinds taking turns.")
@click.option("--max-new-tokens", default=64, show_default=True, help="Per context.")
@click.option("--seed", default=0, show_default=True, help="Of all draws.")
@click.option("--replay", is_flag=True, help="Write each text once and replay every setting on it (fixed trees only).")
@click.option("--batch", default=64, show_default=True, help="Texts at a time, with --replay.")
@click.option("--ceiling", "anchors", type=int, default=0, help="Add the ceiling of factorised drafting, on N anchors.")
@click.option("--best-tree", "places", type=int, default=0, help="Add the best tree of B nodes (T = 1), on N anchors.")
@click.option("--continuations", default=64, show_default=True, help="Sampled paths per anchor, with --ceiling.")
@click.option(
    "--records",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("build/evaluation/records.jsonl"),
    show_default=True,
    help="One line per context and setting; a broken-off evaluation goes on from here.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write summary JSON here, and .md tables and an .html page with figures beside it.",
)
@bundle_option()
@target_option()
@device_option()
@dtype_option()
def command(
    methods: str,
    budgets: str,
    temperatures: str,
    children: str,
    width: str,
    pool_size: str,
    max_depth: str,
    noise: str,
    suite: str | None,
    context_file: Path | None,
    limit: int | None,
    max_new_tokens: int,
    seed: int,
    replay: bool,
    batch: int,
    anchors: int,
    places: int,
    continuations: int,
    records: Path,
    out: Path | None,
    bundle: str,
    target: str | None,
    device: str,
    dtype: str,
) -> None:
    """Evaluate every method, tree size and temperature on held-out contexts; report MAL with 95 % intervals.

    Every combination of methods and comma lists is a setting; combinations that differ in nothing that matters to
    their method count once. The contexts that ship with the package come from documents that training never saw.
    Contexts whose plain greedy continuation only repeats itself are left out at temperature 0, and contexts that do
    not fit the target always, for all methods alike, and counted.

    With --replay nothing is decoded setting by setting: the target writes every text once, and the steps of each
    method follow from it. For fixed trees under the greedy and target_sample rules that gives what decoding gives, up
    to near ties in floating point, many times faster on a GPU, but no times.

    --ceiling and --best-tree say what is possible at temperature 1. --ceiling: how often a draft of each depth would be
    accepted from the best factorised drafter. --best-tree: how many tokens a step yields at most with any fixed tree of
    B nodes, and what share of it each method gets, at one random place in each of N texts of the target.

    \b
    Examples:
      tfm-lab evaluate --limit 10 --temperatures 0
      tfm-lab evaluate --out tfm_lab/results/hybrid_mal.json
      tfm-lab evaluate --suite chat,math,code --replay --budgets 15,32,64,128 --device cuda
      tfm-lab evaluate --methods tfm --children 8,32 --width auto,1 --replay --ceiling 40
      tfm-lab evaluate --bundle smollm2 --suite chat,math,code --limit 300 --temperatures 1 --replay --best-tree 300
    """
    from tfm_lab.bundle import load_bundle
    from tfm_lab.evaluation import (
        Evaluation,
        cross_settings,
        evaluate,
        evaluate_replayed,
        gains,
        markdown_table,
        summarise,
    )
    from tfm_lab.evaluation.best_trees import comparable
    from tfm_lab.evaluation.tables import best_tree_table, ceiling_table, gain_table

    check_report_path(out)
    if out is not None:
        check_writable(out.with_suffix(".html"))
    if records.exists() and not records.is_file():
        raise ValueError(f"--records takes the name of an ordinary file, and {records} is none")
    check_writable(records)
    if min(anchors, places) < 0 or continuations < 2 or batch < 1:
        raise ValueError(
            "--ceiling and --best-tree take 0 or more anchors, --continuations at least 2, --batch at least 1"
        )
    settings = cross_settings(
        comma_list(methods, str, "--methods"),
        comma_list(budgets, int, "--budgets"),
        comma_list(temperatures, float, "--temperatures"),
        comma_list(children, int, "--children"),
        comma_list(width, lambda entry: None if entry == "auto" else int(entry), "--width"),
        comma_list(pool_size, int, "--pool-size"),
        comma_list(max_depth, int, "--max-depth"),
        [_is_shared(name) for name in comma_list(noise, str, "--noise")],
    )
    evaluation = Evaluation(settings, max_new_tokens, seed)
    contexts, origin = _contexts(suite, context_file, limit)
    models = load_bundle(bundle, target=target, dtype=choose_dtype(dtype), device=choose_device(device))
    anchored = _anchored(models, contexts, max_new_tokens + models.drafter.config.draft_depth, anchors, "--ceiling")
    deepest = max(setting.max_depth for setting in comparable(settings)) if places else 0
    placed = _anchored(models, contexts, max_new_tokens + deepest, places, "--best-tree")
    with progress_bar("per cent", 100) as show:
        run = partial(evaluate_replayed, batch=batch) if replay else evaluate
        rows = run(models, contexts, evaluation, records, lambda done, total: show(100 * done // total))
    summaries, compared = summarise(rows), gains(rows)
    print_table(markdown_table(summaries))
    if compared:
        print_table(gain_table(compared).markdown())
    too_long = max(summary.too_long for summary in summaries)
    if too_long:
        click.echo(f"left out: {too_long} contexts that do not fit the target's context with the new tokens\n")
    ceiling = _ceiling(models, anchored, evaluation, continuations)
    if ceiling is not None:
        print_table(ceiling_table(ceiling).markdown())
    best_trees = _best_trees(models, placed, evaluation)
    if best_trees is not None:
        print_table(best_tree_table(best_trees).markdown())
    if out is not None:
        from tfm_lab.evaluation.report import write_report

        write_report(rows, models, evaluation, out, origin, ceiling, best_trees)
        click.echo(f"written: {out} and {out.with_suffix('.md')}, with figures in {out.with_suffix('.html')}")


def _is_shared(noise: str) -> bool:
    if noise not in ("own", "shared"):
        raise ValueError(f"--noise takes own, shared or both, got {noise!r}")
    return noise == "shared"


def _contexts(suite: str | None, context_file: Path | None, limit: int | None) -> tuple[list["Context"], str]:
    """The contexts, and in words where they come from."""
    from tfm_lab.evaluation import HELD_OUT, load_contexts, load_suites

    if suite is None:
        file = context_file or HELD_OUT
        return load_contexts(file, limit), file.name
    if context_file is not None:
        raise ValueError("--suite and --contexts exclude each other; give one of them")
    names = comma_list(suite, str, "--suite")
    contexts = load_suites(names, limit)
    return contexts, f"suites {', '.join(names)}: {'; '.join(sorted({context.source for context in contexts}))}"


def _anchored(models: "Bundle", contexts: Sequence["Context"], room: int, anchors: int, option: str) -> list["Prompt"]:
    """Prompts to find anchors behind: the first with ``room`` for their text and the paths below the anchor."""
    from tfm_lab.evaluation.records import read_prompts

    fitting = [prompt for prompt in read_prompts(models, contexts, room) if prompt.fits] if anchors else []
    if len(fitting) < anchors:
        raise ValueError(f"{option} {anchors} needs as many contexts that fit, and there are {len(fitting)}")
    return fitting[:anchors]


def _ceiling(
    models: "Bundle", prompts: Sequence["Prompt"], evaluation: "Evaluation", continuations: int
) -> "Ceiling | None":
    from tfm_lab.evaluation.ceiling import measure_ceiling

    if not prompts:
        return None
    with progress_bar("ceiling", len(prompts)) as show:
        return measure_ceiling(
            models,
            [prompt.tokens for prompt in prompts],
            continuations=continuations,
            depth=models.drafter.config.draft_depth,
            written=evaluation.max_new_tokens,
            seed=evaluation.seed,
            on_anchor=show,
        )


def _best_trees(models: "Bundle", prompts: Sequence["Prompt"], evaluation: "Evaluation") -> "BestTrees | None":
    from tfm_lab.evaluation.best_trees import measure_best_trees

    if not prompts:
        return None
    with progress_bar("best trees", len(prompts)) as show:
        return measure_best_trees(
            models,
            prompts,
            evaluation.settings,
            written=evaluation.max_new_tokens,
            seed=evaluation.seed,
            on_anchor=show,
        )
