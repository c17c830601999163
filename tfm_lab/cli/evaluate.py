"""``tfm-lab evaluate``: mean accepted length on held-out contexts."""

from pathlib import Path

import click

from tfm_lab.cli.options import bundle_option, choose_device, choose_dtype, comma_list, device_option, dtype_option


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
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tfm_lab.bundle import load_bundle
    from tfm_lab.evaluation import HELD_OUT, Evaluation, Setting, evaluate, load_contexts, markdown_table, summarise
    from tfm_lab.evaluation.report import write_report
    from tfm_lab.evaluation.runs import read_records

    settings = tuple(
        Setting(method.strip(), budget, temperature)
        for temperature in comma_list(temperatures, float, "--temperatures")
        for method in methods.split(",")
        for budget in comma_list(budgets, int, "--budgets")
    )
    evaluation = Evaluation(settings, max_new_tokens, children, seed)
    contexts = load_contexts(context_file or HELD_OUT, limit)
    models = load_bundle(bundle, dtype=choose_dtype(dtype), device=choose_device(device))
    console = Console()
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("decoding", total=len(contexts) * len(settings))
        evaluate(models, contexts, evaluation, records, lambda done, _: bar.update(task, completed=done))
    chosen = {(s.method, s.budget, s.temperature) for s in settings}
    names = {context.name for context in contexts}
    rows = [
        record
        for record in read_records(records)
        if (record["method"], record["budget"], record["temperature"]) in chosen and record["context"] in names
    ]
    console.print(Markdown(markdown_table(summarise(rows))))
    if out is not None:
        write_report(rows, models, evaluation, out)
        console.print(f"written: {out} and {out.with_suffix('.md')}", highlight=False)
