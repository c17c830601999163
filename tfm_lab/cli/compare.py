"""``tfm-lab compare``: what bundles for one target gain over each other, from the records of their evaluations."""

from collections.abc import Sequence
from pathlib import Path

import click

from tfm_lab.cli.options import check_report_path, check_writable, print_table


@click.command("compare")
@click.argument("files", nargs=-1, metavar="NAME=RECORDS.jsonl ...")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write JSON here, and .md tables and an .html page beside it.",
)
def command(files: Sequence[str], out: Path | None) -> None:
    """Compare evaluations of several bundles for the same target, text by text; the first one is the reference.

    The files are what tfm-lab evaluate --records wrote. Target, dtype, length, seed and contexts must agree; drafter
    and Weaver may differ, as after an ablation of training. Every setting that a file shares with the reference gets
    its relative gain with a 95 % interval, on the texts that both have; other settings are listed with their MAL.

    \b
    Examples:
      tfm-lab compare base=build/base.jsonl wide=build/wide.jsonl
      tfm-lab compare ce=build/ce.jsonl kl=build/kl.jsonl tv=build/tv.jsonl --out build/evaluation/losses.json
    """
    from tfm_lab.evaluation.comparison import compare, read_bundles
    from tfm_lab.evaluation.comparison_report import comparison_notes, comparison_table, write_comparison

    named = [_name_and_path(word) for word in files]
    check_report_path(out)
    if out is not None:
        check_writable(out.with_suffix(".html"))
        for _, path in named:
            if path.resolve() in {out.with_suffix(end).resolve() for end in (".json", ".md", ".html")}:
                raise ValueError(f"--out {out} would overwrite the records in {path}; choose another name")
    bundles = read_bundles(named)
    compared = compare(bundles)
    print_table(comparison_table(compared, bundles[0].name).markdown())
    for note in comparison_notes(bundles, compared):
        click.echo(note)
    if out is not None:
        write_comparison(bundles, compared, out)
        click.echo(f"written: {out}, {out.with_suffix('.md')} and {out.with_suffix('.html')}")


def _name_and_path(word: str) -> tuple[str, Path]:
    name, _, path = word.partition("=")
    if not name.strip() or not path:
        raise ValueError(f"give every file as NAME=records.jsonl, got {word!r}")
    if any(character in name for character in "|\r\n"):
        raise ValueError(f"a name stands in a table and may hold no | and no line break, got {name!r}")
    return name.strip(), Path(path)
