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
      tfm-lab bench cpu --bundle smollm2
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
    from tfm_lab.bundle import load_bundle, prepare_models
    from tfm_lab.evaluation import load_contexts

    if limit < 1 or max_new_tokens < 2:
        raise ValueError("a benchmark needs --limit of at least 1 and --max-new-tokens of at least 2")
    check_report_path(out)
    place = choose_device(device)
    names = list(dict.fromkeys(comma_list(methods, str, "--methods")))
    models = load_bundle(bundle, dtype=choose_dtype(dtype), device=place)
    prepare_models(models)
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


@command.command("cpu")
@click.option("--methods", default="chain,ddtree,tfm", show_default=True, help="Comma-separated.")
@click.option("--suite", default="chat,math,code", show_default=True, help="Comma-separated: chat, math, code.")
@click.option("--limit", default=30, show_default=True, help="Prompts to compare on, the kinds taking turns.")
@click.option("--tuning", default=3, show_default=True, help="Further prompts, to choose the settings on.")
@click.option("--max-new-tokens", default=64, show_default=True, help="Per prompt.")
@click.option("--dtypes", default="float32,bfloat16", show_default=True, help="Dtypes to choose from.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Write JSON and .md tables here."
)
@bundle_option()
def cpu(
    methods: str,
    suite: str,
    limit: int,
    tuning: int,
    max_new_tokens: int,
    dtypes: str,
    out: Path | None,
    bundle: str,
) -> None:
    """Wall-clock speed-up over the fastest plain decoding of this machine, every method at its own best settings.

    Plain decoding is tried in every dtype, float32 also with packed weights, and with every number of threads; the
    fastest is the baseline. The others take the weights with which a tree is verified fastest, and each chooses among
    a few trees on prompts of its own. Then all decode the same prompts greedily, in turns, and are compared in pairs.
    Keep the machine quiet meanwhile; then OMP_WAIT_POLICY=ACTIVE in the environment makes several threads worth more.

    \b
    Examples:
      tfm-lab fetch smollm2 && tfm-lab fetch suites
      tfm-lab bench cpu --bundle smollm2
      tfm-lab bench cpu --bundle smollm2 --out tfm_lab/results/smollm2_wall_clock_cpu.json
    """
    import os
    from itertools import count

    from tfm_lab.bench.wall_clock import (
        Prompt,
        choose,
        compare,
        fastest_verification,
        load_forms,
        plain_plans,
        tree_plans,
    )
    from tfm_lab.bench.wall_clock_report import save_wall_clock, speed_table, stage_table
    from tfm_lab.evaluation import load_suites

    if limit < 1 or tuning < 1 or max_new_tokens < 2:
        raise ValueError("--limit and --tuning take at least 1 prompt, --max-new-tokens at least 2")
    check_report_path(out)
    names = list(dict.fromkeys(comma_list(methods, str, "--methods")))
    for name in names:
        tree_plans(name, "float32", 1)
    contexts = load_suites(comma_list(suite, str, "--suite"), limit + tuning)
    if len(contexts) < limit + tuning:
        raise ValueError(f"these suites hold {len(contexts)} prompts; --limit and --tuning ask for {limit + tuning}")
    chosen = load_forms(bundle, {name: choose_dtype(name) for name in comma_list(dtypes, str, "--dtypes")})
    any_bundle = next(iter(chosen.values()))
    prompts = [Prompt(context.kind, tuple(context.tokens(any_bundle))) for context in contexts]
    apart, prompts = prompts[limit:], prompts[:limit]
    plains = plain_plans(list(chosen))
    done, ticks = count(1), len(apart) * len(plains)
    with progress_bar("plain decoding", ticks) as show:
        tried = {"ar": choose(chosen, plains, apart, max_new_tokens, lambda: show(next(done)))}
    best = tried["ar"][0][0]
    weights = fastest_verification(chosen, apart[0], best.threads)
    plans = {name: tree_plans(name, weights, best.threads) for name in names}
    done, ticks = count(1), len(apart) * sum(map(len, plans.values()))
    with progress_bar("choosing trees", ticks) as show:
        for name, of_method in plans.items():
            tried[name] = choose(chosen, of_method, apart, max_new_tokens, lambda: show(next(done)))
    finalists = [plans[0][0] for plans in tried.values()]
    done = count(1)
    with progress_bar("comparing", len(prompts) * len(finalists)) as show:
        comparisons = compare(chosen, finalists, prompts, max_new_tokens, lambda: show(next(done)))
    print_table(speed_table(comparisons).markdown())
    print_table(stage_table(comparisons).markdown())
    if out is not None:
        policy = os.environ.get("OMP_WAIT_POLICY", "not set")
        setup = {
            "OMP_WAIT_POLICY": policy,
            "bundle": any_bundle.name,
            "prompts": len(prompts),
            "suites": suite,
            "max_new_tokens": max_new_tokens,
        }
        save_wall_clock(comparisons, tried, setup, out)
        click.echo(f"written: {out} and {out.with_suffix('.md')}")
