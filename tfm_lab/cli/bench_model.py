"""``tfm-lab bench model``: a whole model's decode step, in a real shape with random weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfm_lab.cli.options import (
    check_report_path,
    choose_dtype,
    comma_list,
    print_table,
    progress_bar,
)

if TYPE_CHECKING:
    from tfm_lab.bench.model_replay import Acceptance


@click.command("model")
@click.option("--shape", default="qwen3.6-27b", show_default=True, help="qwen3.6-27b, or toy for a trial on a CPU.")
@click.option("--layers", default=0, help="Only the first layers of the target; all if left out.")
@click.option("--methods", default="ar,chain,ddtree,tfm", show_default=True, help="Comma-separated.")
@click.option(
    "--budgets", default="15,31,63,127", show_default=True, help="Proposed nodes of trees; rows are one more."
)
@click.option("--contexts", default="1024,8192,32768", show_default=True, help="Committed tokens, comma-separated.")
@click.option(
    "--further-budgets", default="15,63", show_default=True, help="Budgets for larger batches and for contrast."
)
@click.option("--batches", default="1,2,4,8,16", show_default=True, help="Texts side by side, at the first context.")
@click.option(
    "--gdn", default="triton", show_default=True, help="triton, masked; then recurrent, for contrast with SGLang."
)
@click.option("--children", default=8, show_default=True, help="Most children of a node of a TfM tree.")
@click.option("--width", default=0, help="Nodes per call of the Weaver; ceil(budget / 16) if left out.")
@click.option("--fold/--no-fold", default=True, help="Keep the Weaver's products with all tokens as tables.")
@click.option(
    "--weaving", default="triton", show_default=True, help="triton or torch: what scores candidates and grows trees."
)
@click.option("--compile/--no-compile", "compiles", default=True, help="Fuse norms, gates and rotations.")
@click.option("--repeats", default=20, show_default=True, help="Timed runs of every configuration.")
@click.option("--accepted", default=4, show_default=True, help="Drafts that a timed step accepts.")
@click.option("--traces", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Recorded acceptance.")
@click.option("--lengths", default="", help="Given tokens per step, for example chain=3.3,ddtree=4.4,tfm=5.8.")
@click.option("--temperature", default=0.0, show_default=True, help="Of the recorded acceptance.")
@click.option("--replay-tokens", default=4096, show_default=True, help="Length of a decode; 0 for no replay.")
@click.option("--replay-budget", default=63, show_default=True, help="Proposed nodes of trees in a replay.")
@click.option("--minutes", default=0.0, help="Begin nothing more after this time; the same command goes on later.")
@click.option("--device", default="cuda", show_default=True, help="cuda, or cpu for a trial.")
@click.option("--dtype", default="bfloat16", show_default=True, help="Of weights and caches.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Write JSON and .md here.")
def model(
    shape: str,
    layers: int,
    methods: str,
    budgets: str,
    contexts: str,
    further_budgets: str,
    batches: str,
    gdn: str,
    children: int,
    width: int,
    fold: bool,
    weaving: str,
    compiles: bool,
    repeats: int,
    accepted: int,
    traces: Path | None,
    lengths: str,
    temperature: float,
    replay_tokens: int,
    replay_budget: int,
    minutes: float,
    device: str,
    dtype: str,
    out: Path | None,
) -> None:
    """Milliseconds of whole decode steps, stage by stage, and decodes with replayed acceptance.

    The shape is real, the weights are random: a step costs what it costs, whatever the weights say. Every configuration
    is written to a .jsonl file beside --out as soon as it is measured; the same command goes on where a run broke off.

    \b
    Examples:
      tfm-lab bench model --device cpu --shape toy --dtype float32 --gdn masked --weaving torch --contexts 64
      tfm-lab bench model --contexts 1024 --batches 1 --budgets 63 --replay-tokens 0
      tfm-lab bench model --gdn triton,recurrent --out tfm_lab/results/model_h200.json
      tfm-lab bench model --lengths chain=3.3,ddtree=4.4,tfm=5.8 --out tfm_lab/results/model_h200.json
    """
    import time
    from itertools import count

    from tfm_lab.bench.kernel_peers import installed_peers
    from tfm_lab.bench.model_bytes import shortage
    from tfm_lab.bench.model_clock import EagerClock, GraphClock
    from tfm_lab.bench.model_replay import deepest
    from tfm_lab.bench.model_report import model_tables, save_model_bench
    from tfm_lab.bench.model_run import CHAIN_BUDGET, Grid, Lines, Replays, check_grid, count_of, run_all
    from tfm_lab.bench.model_steps import Settings
    from tfm_lab.bench.model_weights import SHAPES, meta_models, random_models, shrunk, weight_bytes
    from tfm_lab.engine.config import WEAVINGS
    from tfm_lab.provenance import commit, device_name

    started = time.monotonic()
    if shape not in SHAPES:
        raise ValueError(f"--shape knows no {shape!r}; use {', '.join(SHAPES)}")
    if device not in ("cuda", "cpu"):
        raise ValueError(f"--device takes cuda or cpu, got {device!r}")
    if min(repeats, children) < 1 or min(accepted, replay_tokens, layers, width) < 0:
        raise ValueError(
            "--repeats and --children take at least 1; --accepted, --replay-tokens, --layers and --width at least 0"
        )
    if weaving not in WEAVINGS:
        raise ValueError(f"--weaving takes {' or '.join(WEAVINGS)}, got {weaving!r}")
    names = comma_list(methods, str, "--methods")
    sizes, pasts = comma_list(budgets, int, "--budgets"), comma_list(contexts, int, "--contexts")
    few = comma_list(further_budgets, int, "--further-budgets")
    grid = Grid(names, sizes, pasts, comma_list(batches, int, "--batches"), comma_list(gdn, str, "--gdn"), few)
    check_grid(grid, ("triton", "masked", "recurrent"))
    if not 1 <= replay_budget <= 511:
        raise ValueError(f"--replay-budget takes 1 to 511 proposed nodes, got {replay_budget}")
    check_report_path(out)
    shapes = SHAPES[shape]()
    shapes = shrunk(shapes, layers or shapes.target.layers)
    number = choose_dtype(dtype)
    weightless = meta_models(shapes, number)
    drafted = [method for method in names if method != "ar"]
    budget_of = {method: CHAIN_BUDGET if method == "chain" else replay_budget for method in drafted}
    laws = _given(lengths, {method: deepest(weightless, method, budget) for method, budget in budget_of.items()})
    if replay_tokens and drafted and (traces is not None or not lengths):
        laws = (*_recorded(traces, drafted, (CHAIN_BUDGET, replay_budget), temperature), *laws)
    clock = GraphClock() if device == "cuda" else EagerClock()
    settings = Settings(
        repeats, accepted, children, width or None, fold, compiles and device == "cuda", weaving=weaving
    )
    needed = weight_bytes(weightless)
    if refusal := shortage({"weights": needed}, clock.free()):
        raise ValueError(f"this shape {refusal}: take fewer --layers")
    click.echo(f"weights take {needed / 1e9:.1f} GB; {clock.free() / 1e9:.1f} GB are free")
    setup = {
        "shape": shape,
        "layers": f"{shapes.target.layers} of {SHAPES[shape]().target.layers}",
        "dtype": dtype,
        "children": children,
        "width": width or "ceil(budget / 16)",
        "tables of the Weaver": fold,
        "weaving": weaving,
        "compiled": settings.compiles,
        "repeats": repeats,
        "accepted": accepted,
        "temperature of recorded acceptance": temperature,
        "peers": installed_peers(),
    }
    facts = {"device": device_name(device), "commit": commit(), **setup}
    lines = Lines(None if out is None else out.with_suffix(".jsonl"), facts)
    replays = Replays(laws if replay_tokens else (), replay_tokens, pasts[0], replay_budget)
    done = count(1)
    with progress_bar("measuring", count_of(grid, replays)) as show:
        left = run_all(
            lambda: random_models(shapes, number, device), shapes, grid, replays, settings, clock, lines,
            lambda key: show(next(done)), lambda: 0.0 < minutes * 60.0 < time.monotonic() - started,
        )  # fmt: skip
    if left:
        click.echo(f"{left} are left: the same command goes on with them")
    for table in model_tables(lines.records):
        print_table(table.markdown())
    if out is not None:
        save_model_bench(lines.records, setup, device, out)
        click.echo(f"written: {out}, {out.with_suffix('.md')} and {out.with_suffix('.jsonl')}")


def _recorded(
    traces: Path | None, drafted: Sequence[str], budgets: Sequence[int], temperature: float
) -> "list[Acceptance]":
    """Recorded acceptance of the drafted methods, from the given file or the shipped one."""
    from tfm_lab.bench.model_replay import recorded_acceptance

    path = traces or Path(__file__).parent.parent / "results" / "smollm2_mal.json"
    return recorded_acceptance(path, drafted, budgets, temperature)


def _given(lengths: str, depths: Mapping[str, int]) -> "tuple[Acceptance, ...]":
    """The means of ``--lengths``, for methods whose steps accept at most so many drafts."""
    from tfm_lab.bench.model_replay import constant_acceptance

    laws: dict[str, Acceptance] = {}
    for pair in comma_list(lengths, str, "--lengths") if lengths else ():
        method, _, value = pair.partition("=")
        if method not in depths:
            raise ValueError(f"--lengths speaks of {method!r}, which is none of the drafted --methods")
        if method in laws:
            raise ValueError(f"--lengths gives {method} twice: name each method once")
        try:
            emitted = float(value)
        except ValueError:
            raise ValueError(f"--lengths takes pairs such as tfm=5.8, got {pair!r}") from None
        laws[method] = constant_acceptance(method, emitted, depths[method])
    return tuple(laws.values())
