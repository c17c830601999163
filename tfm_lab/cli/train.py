"""``tfm-lab train``: make a bundle, stage by stage; every stage can be broken off and called again."""

from functools import wraps
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from tfm_lab.cli.options import choose_device, device_option, progress_bar

if TYPE_CHECKING:
    from tfm_lab.training.pipeline import Work
    from tfm_lab.training.recipe import Recipe


@click.group("train")
def command() -> None:
    """Train a target, then a drafter and a Weaver for it, on text that the target wrote.

    The stages share one work folder and one recipe (a TOML file; shipped are hybrid, smollm2, smollm2_more,
    smollm2_weaver and tiny). Training can be broken off at any time; the same command goes on from the last checkpoint
    and ends with the same weights.

    \b
    Examples: the whole way, as a trial of a minute on a CPU
      tfm-lab train corpus  --recipe tiny --work build/tiny
      tfm-lab train target  --recipe tiny --work build/tiny
      tfm-lab train text    --recipe tiny --work build/tiny
      tfm-lab train drafter --recipe tiny --work build/tiny
      tfm-lab train weaver  --recipe tiny --work build/tiny
      tfm-lab decode "import os" --bundle build/tiny/model

    \b
    For a target that exists already (fetched, or any llama or Qwen3.5 folder with --target):
      tfm-lab train prompts --recipe smollm2 --work build/smollm2
      tfm-lab train text    --recipe smollm2 --work build/smollm2
      tfm-lab train drafter --recipe smollm2 --work build/smollm2

    \b
    Several GPUs (text and every training):
      torchrun --nproc-per-node 2 -m tfm_lab train drafter --recipe smollm2 --work build/smollm2
    """


def _stage(function: Any) -> Any:
    """Options that all stages share; the stage gets the recipe itself."""

    @wraps(function)
    def stage(*, recipe: str, changes: tuple[str, ...], **options: Any) -> Any:
        from tfm_lab.training.recipe import load_recipe

        return function(recipe=load_recipe(recipe, changes), **options)

    decorated: Any = stage
    for option in (
        device_option(),
        click.option(
            "--set", "changes", multiple=True, help="Change the recipe: TABLE.NAME=VALUE, as often as needed."
        ),
        click.option("--recipe", default="hybrid", show_default=True, help="Shipped recipe, or a TOML file."),
        click.option(
            "--work", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of all stages."
        ),
    ):
        decorated = option(decorated)
    return decorated


def _existing_target(function: Any) -> Any:
    return click.option(
        "--target", default=None, help="Fetched name or folder of an existing target, instead of the recipe's."
    )(function)


def _start(function: Any) -> Any:
    return click.option(
        "--start",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        default=None,
        help="Folder of a bundle whose weights to go on from, in place of fresh ones.",
    )(function)


def _minutes(function: Any) -> Any:
    return click.option("--minutes", type=float, default=None, help="Write a checkpoint and stop after this long.")(
        function
    )


@command.command("corpus")
@_stage
@click.option(
    "--chat", type=click.Path(path_type=Path, dir_okay=False), default=None, help="Conversations, JSON lines."
)
def corpus(work: Path, recipe: "Recipe", device: str, chat: Path | None) -> None:
    """Collect text from what is installed, train the tokenizer, tokenise, and set the held-out part aside.

    \b
    Example:
      tfm-lab train corpus --recipe hybrid --work build/hybrid --chat chat.jsonl
    """
    from tfm_lab.training.pipeline import prepare_corpus

    prepare_corpus(_open(work, device), recipe, chat)


@command.command("chat")
@click.option("--teacher", type=click.Path(path_type=Path), required=True, help="Folder of an instruction-tuned llama.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON-lines file to write.")
@click.option("--count", default=20_000, show_default=True, help="Questions to ask.")
@click.option("--batch", default=64, show_default=True, help="Questions at a time.")
@click.option("--seed", default=0, show_default=True, help="Of questions and answers.")
@device_option()
def chat(teacher: Path, out: Path, count: int, batch: int, seed: int, device: str) -> None:
    """Let a larger model write everyday conversations for the corpus.

    \b
    Example:
      tfm-lab train chat --teacher smollm2/ --out chat.jsonl --count 20000
    """
    import torch

    from tfm_lab.bundle import load_tokenizer
    from tfm_lab.models import load_target
    from tfm_lab.training.chat import choose_prompts, save_chat, write_chat

    if count < 1 or batch < 1:
        raise ValueError("--count and --batch must be at least 1")
    place = choose_device(device)
    dtype = torch.float32 if place == "cpu" else torch.bfloat16
    model, tokenizer = load_target(teacher, dtype=dtype, device=place), load_tokenizer(teacher)
    generator = torch.Generator(place).manual_seed(seed)
    with progress_bar("questions answered", count) as show:
        exchanges = write_chat(model, tokenizer, choose_prompts(count, seed), generator, batch=batch, on_batch=show)
        save_chat(out, list(exchanges))


@command.command("contexts")
@_stage
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON-lines file to write.")
@click.option(
    "--chat", type=click.Path(path_type=Path, dir_okay=False), default=None, help="The corpus's conversations."
)
@click.option("--per-kind", default=40, show_default=True, help="Contexts of each kind of text.")
def contexts(work: Path, recipe: "Recipe", device: str, out: Path, chat: Path | None, per_kind: int) -> None:
    """Choose contexts for evaluation from the documents that were set aside.

    With --chat, everyday questions that the corpus does not hold are candidates too.

    \b
    Example:
      tfm-lab train contexts --work build/hybrid --chat chat.jsonl --out tfm_lab/data/held_out.jsonl
    """
    import json

    from tfm_lab.bundle import load_tokenizer
    from tfm_lab.evaluation.contexts import choose_contexts, save_contexts
    from tfm_lab.training.chat import unasked_questions
    from tfm_lab.training.corpus import conversation, json_lines, read_chat

    documents = work / "held_out.jsonl"
    if not documents.is_file():
        raise ValueError(f"{documents} does not exist; build the corpus first with 'tfm-lab train corpus'")
    tokenizer = load_tokenizer(work)
    records = [json.loads(line) for line in json_lines(documents)]
    texts = [(record["source"], record["key"], record["text"]) for record in records]
    if chat is not None:
        unasked = unasked_questions({document.key for document in read_chat(chat)})
        texts += [("chat", question, conversation(question, "")) for question in unasked]
    chosen = choose_contexts(texts, per_kind, seed=0, count_tokens=lambda text: len(tokenizer.encode(text).ids))
    if not chosen:
        raise ValueError(f"{documents} holds no text that is long enough for a context; use a larger corpus")
    save_contexts(chosen, out)
    click.echo(f"{len(chosen)} contexts written to {out}")


@command.command("target")
@_stage
@_minutes
def target(work: Path, recipe: "Recipe", device: str, minutes: float | None) -> int:
    """Train the target on the corpus; writes model/target in Hugging Face layout.

    \b
    Example:
      tfm-lab train target --work build/hybrid --minutes 9
    """
    from tfm_lab.training.pipeline import train_target

    return _train(train_target, work, recipe, device, minutes, "target")


@command.command("prompts")
@_stage
def prompts(work: Path, recipe: "Recipe", device: str) -> None:
    """Collect word problems and functions to complete, for a target that continues prompts.

    Needs the train and dev extras, whose packages hold the functions and make the word problems.

    \b
    Example:
      tfm-lab train prompts --recipe smollm2 --work build/smollm2
    """
    from tfm_lab.training.pipeline import collect_prompts

    collect_prompts(_open(work, device), recipe)


@command.command("text")
@_stage
@_existing_target
def text(work: Path, recipe: "Recipe", device: str, target: str | None) -> None:
    """Let the target write the texts that the drafters and the Weaver learn from.

    \b
    Example:
      tfm-lab train text --work build/hybrid
    """
    from tfm_lab.training.distributed import joined
    from tfm_lab.training.pipeline import write_text

    with joined(choose_device(device)) as place:
        write_text(_open(work, place, target=target), recipe)


@command.command("fork")
@click.option(
    "--of", "source", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="Work folder."
)
@click.option("--work", type=click.Path(path_type=Path, file_okay=False), required=True, help="New work folder.")
def fork(source: Path, work: Path) -> None:
    """Copy texts, target and drafter into a new work folder, to train a Weaver in another way beside the first.

    \b
    Examples: a Weaver on another loss, and what it does for the trees
      tfm-lab train fork --of build/smollm2 --work build/kl
      tfm-lab train weaver --recipe smollm2 --set weaver.objective=kl --set weaver.fit.steps=400 --work build/kl
      tfm-lab evaluate --bundle build/kl/model --methods tfm --replay
    """
    from tfm_lab.training import pipeline

    click.echo(f"copied to {work}: {', '.join(pipeline.fork(source, work))}")


@command.command("drafter")
@_stage
@_existing_target
@_start
@_minutes
def drafter(
    work: Path, recipe: "Recipe", device: str, target: str | None, start: Path | None, minutes: float | None
) -> int:
    """Train the DFlash drafter on the target's own text; writes model/drafter.

    \b
    Examples: as the recipe says, and compared with the laws that the texts were written from
      tfm-lab train drafter --work build/hybrid --minutes 9
      tfm-lab train drafter --work build/hybrid --set drafter.labels=law
    """
    from tfm_lab.training.pipeline import train_drafter

    return _train(train_drafter, work, recipe, device, minutes, "drafter", target, start)


@command.command("weaver")
@_stage
@_existing_target
@_start
@_minutes
def weaver(
    work: Path, recipe: "Recipe", device: str, target: str | None, start: Path | None, minutes: float | None
) -> int:
    """Train the Weaver on top of the frozen drafter; writes model/weaver.

    \b
    Example:
      tfm-lab train weaver --work build/hybrid --minutes 9
    """
    from tfm_lab.training.pipeline import train_weaver

    return _train(train_weaver, work, recipe, device, minutes, "weaver", target, start)


@command.command("autoregressive")
@_stage
@_existing_target
@_start
@_minutes
def autoregressive(
    work: Path, recipe: "Recipe", device: str, target: str | None, start: Path | None, minutes: float | None
) -> int:
    """Train an autoregressive drafter with the full-vocabulary head, for comparison; writes model/autoregressive.

    \b
    Example:
      tfm-lab train autoregressive --recipe smollm2 --work build/smollm2
    """
    from tfm_lab.training.pipeline import train_autoregressive

    return _train(train_autoregressive, work, recipe, device, minutes, "autoregressive", target, start)


def _open(work: Path, device: str, **reporting: Any) -> "Work":
    from tfm_lab.training.distributed import process_rank
    from tfm_lab.training.pipeline import Work

    return Work(work, choose_device(device), on_note=click.echo if process_rank() == 0 else None, **reporting)


def _train(
    stage: Any,
    work: Path,
    recipe: "Recipe",
    device: str,
    minutes: float | None,
    name: str,
    target: str | None = None,
    start: Path | None = None,
) -> int:
    """Run a training stage behind a progress bar with loss and remaining time; under torchrun, one of several."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from tfm_lab.training.distributed import joined, process_rank
    from tfm_lab.training.fit import Progress as Step

    if minutes is not None and not minutes > 0.0:
        raise ValueError(f"--minutes must be more than 0, got {minutes:g}")
    console, step_times = Console(), list[float]()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with joined(choose_device(device)) as place:
        is_first = process_rank() == 0
        with Progress(*columns, console=console, disable=not (console.is_terminal and is_first)) as bar:
            task = bar.add_task(name, total=None)

            def show(step: Step) -> None:
                bar.update(task, total=step.steps, completed=step.step, description=f"{name}  loss {step.loss:.3f}")
                step_times.append(step.step_seconds)
                if step.metrics:
                    figures = "  ".join(f"{key} {value:.3f}" for key, value in step.metrics.items())
                    took = f"{step.seconds:.0f} s  {1000 * median(step_times):.1f} ms per step"
                    console.print(f"step {step.step}  {took}  {figures}", soft_wrap=True, highlight=False)

            limit = None if minutes is None else 60.0 * minutes
            opened = _open(work, place, target=target, start=start, on_step=show, max_seconds=limit)
            finished = stage(opened, recipe)
    if not finished and is_first:
        took = f"{len(step_times)} steps, {1000 * median(step_times):.1f} ms per step"
        stopped = f"stopped after {minutes:g} minutes ({took}); the same command goes on from here"
        console.print(stopped, soft_wrap=True, highlight=False)
    return 0
