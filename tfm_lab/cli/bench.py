"""``tfm-lab bench``: measured times."""

from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from tfm_lab.cli.bench_model import model
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
    write_whole,
)

if TYPE_CHECKING:
    from tfm_lab.bench.kernel import Measurement, Stopwatch
    from tfm_lab.bench.kernel_cases import Builder, KernelCase
    from tfm_lab.bench.kernel_report import Results

T = TypeVar("T")


@click.group("bench")
def command() -> None:
    """Measure times on this machine. Compare figures of one run with each other, not across machines.

    \b
    Examples:
      tfm-lab bench decode
      tfm-lab bench decode --methods chain,tfm --budget 32 --limit 20
      tfm-lab bench cpu --bundle smollm2
      tfm-lab bench kernel
      tfm-lab bench model --replay-tokens 0
    """


command.add_command(model)


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


@command.command("kernel")
@click.option("--nodes", default="17,33,65,129,257", show_default=True, help="Nodes per tree, the root included.")
@click.option("--batch", default="1,8,32", show_default=True, help="Requests, comma-separated.")
@click.option("--trees", default="random", show_default=True, help="random, best-first, comb, star, chain.")
@click.option(
    "--inputs", default="warm,cold", show_default=True, help="warm: all layers share q, k, v; cold: none does."
)
@click.option("--variants", default="", help="Comma-separated; all if left out.")
@click.option(
    "--settings",
    multiple=True,
    metavar="TEXT",
    help="The fused kernels with these changes, such as 'groups=3 fold_tile=32', beside the variants; many times.",
)
@click.option("--layers", default=48, show_default=True, help="Layers of a step, each with states of its own.")
@click.option("--repeats", default=50, show_default=True, help="Replays per variant, the variants taking turns.")
@click.option("--search", is_flag=True, help="Try many settings of the fused kernels instead, and name the fastest.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write JSON, .md tables and a .svg here; with --search no .svg.",
)
def kernel(
    nodes: str,
    batch: str,
    trees: str,
    inputs: str,
    variants: str,
    settings: tuple[str, ...],
    layers: int,
    repeats: int,
    search: bool,
    out: Path | None,
) -> None:
    """Microseconds per layer of tree verification on one GPU, in the shape of Qwen3.6-27B; bfloat16 q, k and v.

    Every variant is compared with the float64 recurrence first; one whose output is wrong, or that cannot run, is not
    reported. The files of --out are written after every setting: a run that breaks off leaves what it has measured.

    \b
    Examples:
      tfm-lab bench kernel
      tfm-lab bench kernel --nodes 129 --batch 1 --trees random,comb,chain
      tfm-lab bench kernel --nodes 65 --batch 1 --inputs warm --search
      tfm-lab bench kernel --nodes 65 --batch 1 --variants "fused verify" --settings groups=3 --settings groups=5
      tfm-lab bench kernel --out tfm_lab/results/kernel_h200.json
    """
    from functools import partial
    from importlib.metadata import version
    from itertools import product

    import torch

    from tfm_lab.bench.kernel import GraphStopwatch
    from tfm_lab.bench.kernel_cases import LayerShape, layers_that_fit, make_case
    from tfm_lab.bench.kernel_peers import installed_peers
    from tfm_lab.bench.kernel_report import Setting, memory_table, save_kernel_bench, search_table, time_table
    from tfm_lab.bench.kernel_trees import TREES
    from tfm_lab.bench.kernel_variants import VARIANTS, fused_variants

    sizes, batches = comma_list(nodes, int, "--nodes"), comma_list(batch, int, "--batch")
    chosen = {name: _named(VARIANTS, name, "--variants") for name in comma_list(variants, str, "--variants") if name}
    for text in settings:
        chosen |= fused_variants(text)
    kinds = {name: _named(TREES, name, "--trees") for name in comma_list(trees, str, "--trees")}
    warmth = {
        name: _named({"warm": False, "cold": True}, name, "--inputs") for name in comma_list(inputs, str, "--inputs")
    }
    if min(sizes) < 1 or max(sizes) > 512 or min(batches) < 1 or layers < 1 or repeats < 1:
        raise ValueError("--nodes takes sizes of 1 to 512; --batch, --layers and --repeats at least 1")
    check_report_path(out)
    stopwatch, shape, results = GraphStopwatch(), LayerShape(), []
    memory = memory_table(shape, layers, sizes)
    setup = {"layers": layers, "repeats": repeats, "dtype": "bfloat16", "triton": version("triton")}
    setup |= {"peers": installed_peers()}
    groups = list(product(kinds.items(), warmth.items(), batches, sizes))
    for (kind, build), (name, cold), requests, size in groups:
        drawn = [build(size, seed) for seed in range(requests)]
        fitting = layers_that_fit(layers, requests)
        make = partial(make_case, shape, drawn, layers=fitting, cold=cold, dtype=torch.bfloat16, device="cuda")
        label = f"{kind}, {requests} x {size} nodes, {name}"
        group = _kernel_group(make, None if search else chosen or VARIANTS, repeats, stopwatch, label)
        depth = max(tree.max_depth for tree in drawn)
        results.append((Setting(kind, size, depth, requests, name, fitting), group))
        if search:
            print_table(search_table(group).markdown())
        if out is not None:
            save_kernel_bench(results, memory, setup | {"settings": f"{len(results)} of {len(groups)}"}, out)
            if not search:
                write_whole(_kernel_plot(results), out.with_suffix(".svg"))
    if not search:
        print_table(time_table(results).markdown())
        print_table(memory.markdown())
    if out is not None:
        picture = "" if search else f", {out.with_suffix('.svg')}"
        click.echo(f"written: {out}{picture} and {out.with_suffix('.md')}")


def _kernel_group(
    make: "Callable[[], KernelCase]",
    builders: "Mapping[str, Builder] | None",
    repeats: int,
    stopwatch: "Stopwatch",
    label: str,
) -> "list[Measurement]":
    """All variants in one setting, or many settings of the fused kernels where no variants are given."""
    from tfm_lab.bench.kernel import measure, measure_or_refuse
    from tfm_lab.bench.kernel_report import search_settings

    if builders is None:
        return measure_or_refuse(["all settings"], lambda: search_settings(make(), repeats, stopwatch), stopwatch)
    total = len(builders) + repeats
    with progress_bar(label, total) as show:
        tick = _ticker(show, total)
        return measure_or_refuse(builders, lambda: measure(make(), builders, repeats, stopwatch, tick), stopwatch)


def _kernel_plot(results: "Results") -> str:
    """Times of the first tree kind, batch and inputs by number of nodes, on a logarithmic axis."""
    from itertools import cycle

    from tfm_lab.show.charts import lines_svg
    from tfm_lab.show.style import SERIES

    first = results[0][0]
    curves: dict[str, dict[float, float]] = {}
    for setting, group in results:
        if (setting.tree, setting.batch, setting.inputs) == (first.tree, first.batch, first.inputs):
            for m in group:
                if m.time:
                    curves.setdefault(m.variant, {})[setting.nodes] = m.time.median
    colours = dict(zip(curves, cycle(SERIES), strict=False))
    title = f"Tree verification: {first.tree} trees, batch {first.batch}, {first.inputs} inputs"
    return lines_svg(curves, title, "nodes per tree", "microseconds per layer", colours, logarithmic=True)


def _ticker(show: Callable[[int], None], total: int) -> Callable[[], None]:
    """Counts calls on a progress bar, up to its end."""
    done = count(1)
    return lambda: show(min(next(done), total))


def _named(table: Mapping[str, T], name: str, option: str) -> T:
    """The entry of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in table:
        raise ValueError(f"{option} knows no {name!r}; use {', '.join(table)}")
    return table[name]
