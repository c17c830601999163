"""``tfm-lab evaluate``: mean accepted length on held-out contexts."""

from pathlib import Path

import click

from tfm_lab.cli.options import (
    bundle_option,
    check_report_path,
    choose_device,
    choose_dtype,
    comma_list,
    device_option,
    dtype_option,
    print_table,
    progress_bar,
    target_option,
)


@click.command("evaluate")
@click.option("--methods", default="chain,ddtree,tfm", show_default=True, help="Comma-separated; ar is plain decoding.")
@click.option("--budgets", default="16,32,64", show_default=True, help="Comma-separated tree budgets.")
@click.option("--temperatures", default="0,1", show_default=True, help="Comma-separated temperatures.")
@click.option(
    "--contexts", "context_file", type=click.Path(path_type=Path), default=None, help="JSON-lines file of contexts."
)
@click.option("--limit", type=int, default=None, help="Use only so many contexts, the kinds taking turns.")
@click.option("--max-new-tokens", default=64, show_default=True, help="Per context.")
@click.option("--children", default=32, show_default=True, help="Most children per node of a TfM tree.")
@click.option("--seed", default=0, show_default=True, help="Of all draws.")
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
    help="Write summary JSON and a .md table here.",
)
@bundle_option()
@target_option()
@device_option()
@dtype_option()
def command(
    methods: str,
    budgets: str,
    temperatures: str,
    context_file: Path | None,
    limit: int | None,
    max_new_tokens: int,
    children: int,
    seed: int,
    records: Path,
    out: Path | None,
    bundle: str,
    target: str | None,
    device: str,
    dtype: str,
) -> None:
    """Decode held-out contexts with every method, budget and temperature; report MAL with standard errors.

    The contexts that ship with the package come from documents that training never saw. Contexts whose plain greedy
    continuation only repeats itself are left out at temperature 0, for all methods alike, and counted.

    \b
    Examples:
      tfm-lab evaluate --limit 10 --temperatures 0
      tfm-lab evaluate --out tfm_lab/results/hybrid_mal.json
    """
    from tfm_lab.bundle import load_bundle
    from tfm_lab.evaluation import HELD_OUT, Evaluation, Setting, evaluate, load_contexts, markdown_table, summarise
    from tfm_lab.evaluation.report import write_report
    from tfm_lab.evaluation.runs import read_records
    from tfm_lab.methods import AUTOREGRESSIVE

    check_report_path(out)
    tree_budgets = comma_list(budgets, int, "--budgets")
    settings = tuple(
        Setting(method, budget, temperature)
        for temperature in comma_list(temperatures, float, "--temperatures")
        for method in comma_list(methods, str, "--methods")
        for budget in ((0,) if method == AUTOREGRESSIVE else tree_budgets)
    )
    evaluation = Evaluation(settings, max_new_tokens, children, seed)
    contexts = load_contexts(context_file or HELD_OUT, limit)
    models = load_bundle(bundle, target=target, dtype=choose_dtype(dtype), device=choose_device(device))
    with progress_bar("decoding", len(contexts) * len(settings)) as show:
        evaluate(models, contexts, evaluation, records, lambda done, _: show(done))
    chosen = {(s.method, s.budget, s.temperature) for s in settings}
    names = {context.name for context in contexts}
    rows = [
        record
        for record in read_records(records)
        if (record["method"], record["budget"], record["temperature"]) in chosen and record["context"] in names
    ]
    print_table(markdown_table(summarise(rows)))
    if out is not None:
        write_report(rows, models, evaluation, out)
        click.echo(f"written: {out} and {out.with_suffix('.md')}")
