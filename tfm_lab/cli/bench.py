"""``tfm-lab bench``: measured times."""

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
)


@click.group("bench")
def command() -> None:
    """Measure times on this machine. Compare figures of one run with each other, not across machines.

    \b
    Examples:
      tfm-lab bench decode
      tfm-lab bench decode --methods chain,tfm --budget 32 --limit 20
    """


@command.command("decode")
@click.option("--methods", default="ar,chain,ddtree,tfm", show_default=True, help="Comma-separated.")
@click.option("--budget", default=64, show_default=True, help="Proposed nodes per tree.")
@click.option("--limit", default=10, show_default=True, help="Held-out contexts to decode.")
@click.option("--max-new-tokens", default=64, show_default=True, help="Per context.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Write JSON and a .md table here."
)
@bundle_option()
@device_option()
@dtype_option()
def decode(
    methods: str, budget: int, limit: int, max_new_tokens: int, out: Path | None, bundle: str, device: str, dtype: str
) -> None:
    """Milliseconds per step in each stage (draft, weave, verify, accept, commit), greedy, methods taking turns.

    \b
    Examples:
      tfm-lab bench decode
      tfm-lab bench decode --out tfm_lab/results/hybrid_stages_cpu.json
    """
    from itertools import count

    from tfm_lab.bench.decode import bench_building, bench_decode, markdown_stages, save_bench
    from tfm_lab.bundle import load_bundle
    from tfm_lab.evaluation import load_contexts

    if limit < 1 or max_new_tokens < 2:
        raise ValueError("a benchmark needs --limit of at least 1 and --max-new-tokens of at least 2")
    check_report_path(out)
    place = choose_device(device)
    names = list(dict.fromkeys(comma_list(methods, str, "--methods")))
    models = load_bundle(bundle, dtype=choose_dtype(dtype), device=place)
    contexts = load_contexts(limit=limit)
    done = count(1)
    with progress_bar("decoding", (len(contexts) + 1) * len(names)) as show:
        tables = bench_decode(models, contexts, names, budget, max_new_tokens, lambda: show(next(done)))
    building = bench_building(models, contexts[0], budget)
    print_table(markdown_stages(tables, building))
    if out is not None:
        setup = {"device": place, "bundle": models.name, "dtype": dtype, "contexts": len(contexts)}
        save_bench(tables, building, setup | {"budget": budget, "max_new_tokens": max_new_tokens}, out)
        click.echo(f"written: {out} and {out.with_suffix('.md')}")
