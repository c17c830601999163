"""``tfm-lab frequencies``: whether sampled text has the target's frequencies."""

from pathlib import Path

import click

from tfm_lab.cli.options import bundle_option, check_report_path, print_table, progress_bar


@click.command("frequencies")
@click.option("--tokens", default=200_000, show_default=True, help="From repeated steps, for every method and rule.")
@click.option("--decoded", default=5_000, show_default=True, help="From whole decodes, for every method and rule.")
@click.option("--places", default=40, show_default=True, help="Beginnings of held-out texts to go on from.")
@click.option("--classes", default=32, show_default=True, help="Classes of tokens to count.")
@click.option("--temperature", default=1.0, show_default=True, help="Of the target.")
@click.option("--top-k", default=0, show_default=True, help="Keep the k most probable tokens; 0 keeps all.")
@click.option("--top-p", default=1.0, show_default=True, help="Keep the smallest set of this probability.")
@click.option("--seed", default=0, show_default=True, help="Of all draws.")
@click.option("--workers", default=2, show_default=True, help="Processes, each with one thread.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Write JSON and a .md table here."
)
@bundle_option()
def command(
    tokens: int,
    decoded: int,
    places: int,
    classes: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    workers: int,
    out: Path | None,
    bundle: str,
) -> int:
    """Test by chi-squared that speculative sampling writes every token as often as plain sampling does.

    Fixed trees (tfm) and sampled ones (dyspec) under every rule that takes them, in float32 on the CPU. The law of
    plain sampling is computed, not sampled. Controls with a planted bias run along: the test fails if it misses one,
    too. The exit status is 1 if the test fails, else 0.

    \b
    Examples:
      tfm-lab frequencies --tokens 4000 --decoded 0 --places 4 --classes 12
      tfm-lab frequencies --out tfm_lab/results/hybrid_chi_squared.json
    """
    from tfm_lab.distributions import SamplingConfig
    from tfm_lab.evaluation.frequency_test import (
        Plan,
        false_alarms,
        frequency_table,
        missed_controls,
        run_plan,
        save_frequencies,
    )

    check_report_path(out)
    sampling = SamplingConfig(temperature, top_k, top_p)
    if sampling.is_greedy:
        raise ValueError("greedy text has no frequencies to test: use a temperature above 0, or tfm-lab divergence")
    plan = Plan(bundle, tokens, decoded, places, classes=classes, sampling=sampling, seed=seed)
    with progress_bar("counting", places) as show:
        tests = run_plan(plan, workers, show)
    print_table(frequency_table(tests).markdown())
    alarms, missed = false_alarms(tests), missed_controls(tests)
    if alarms:
        click.echo(f"FAILED: not the frequencies of plain sampling: {'; '.join(alarms)}")
    elif missed:
        click.echo(f"FAILED: too few tokens to notice the planted bias of {'; '.join(missed)}")
    else:
        click.echo("passed: no alarm but for the controls")
    if out is not None:
        save_frequencies(tests, plan, {"workers": workers, "dtype": "float32"}, out)
        click.echo(f"written: {out} and {out.with_suffix('.md')}")
    return 1 if alarms or missed else 0
