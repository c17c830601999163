"""What the notebooks share: a cached bundle, the same text decoded by several methods, and frames for the player."""

import functools
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.bundle import Bundle, load_bundle
from tfm_lab.decoding import DecodeConfig, autoregressive_decode, speculative_decode
from tfm_lab.drafting import Draft, DraftSource, GrowthRound
from tfm_lab.methods import AUTOREGRESSIVE, METHODS, make_speculator
from tfm_lab.models import TargetState, WeaverSession
from tfm_lab.show.marked_text import marked_html
from tfm_lab.show.player import SPACED, Frame
from tfm_lab.show.views import Decode, counted, frontier, growth_view, step_view, visible
from tfm_lab.trace import DecodeTrace
from tfm_lab.tree import DraftTree

TITLES = {AUTOREGRESSIVE: "plain"} | {name: method.title for name, method in METHODS.items()}


@functools.cache
def bundle(name: str = "hybrid", dtype: str = "float64") -> Bundle:
    """A bundle on the CPU, loaded once per kernel.

    The notebooks use float64, so that every machine takes the same greedy decisions and counts the same calls.
    """
    return load_bundle(name, dtype=getattr(torch, dtype))


def decode_all(
    models: Bundle, prompt: Sequence[int], config: DecodeConfig, methods: Sequence[str]
) -> dict[str, DecodeTrace]:
    """The same prompt decoded by each method (``ar`` is plain decoding)."""
    traces: dict[str, DecodeTrace] = {}
    for method in methods:
        if method == AUTOREGRESSIVE:
            trace = autoregressive_decode(models.target, prompt, config)
        else:
            speculator = make_speculator(method, models.drafter, models.weaver, config.sampling)
            trace = speculative_decode(models.target, speculator, prompt, config)
        traces[method] = trace.uninterrupted()
    return traces


class OpenStep(NamedTuple):
    """A decode halted before a draft: everything that tree builders and the target need for the next step.

    Attributes:
        root: last token of the text, the root of the tree to come.
        source: what tree builders draw on.
        state: the target after all tokens but the last.
        hidden: the target's hidden state that the root was chosen from; the Weaver's prefix begins with it.
    """

    root: int
    source: DraftSource
    state: TargetState
    hidden: Float[Tensor, " channels"]


def open_step(models: Bundle, tokens: Sequence[int], pool_size: int = 512) -> OpenStep:
    """Halt after ``tokens`` (prompt and text so far; at least two) and run the drafter once."""
    target, drafter, weaver = models.target, models.drafter, models.weaver
    prefilled = target.prefill(tokens[:-1], drafter.config.tap_layers)
    context = drafter.extend_context(drafter.empty_context(), prefilled.taps)
    marginals = drafter.propose(context, tokens[-1], target)
    if weaver is None:
        raise ValueError("this bundle has no Weaver; use the hybrid bundle")
    source = DraftSource(marginals, lambda: WeaverSession(weaver, target, marginals, prefilled.hidden, pool_size))
    return OpenStep(tokens[-1], source, prefilled.state, prefilled.hidden)


def decode_tracks(models: Bundle, traces: Mapping[str, DecodeTrace]) -> dict[str, list[Frame]]:
    """Frames of several decodes, one per target call: text so far, the tree of that call, and running counts."""
    return {TITLES[name]: _decode_frames(models, trace) for name, trace in traces.items()}


def growth_frames(models: Bundle, draft: Draft) -> list[Frame]:
    """Frames of one growing tree, one per drafter call: the tree so far, and what waits in the frontier."""
    frames: list[Frame] = []
    for last, growth in enumerate(draft.rounds):
        taken = sum(len(earlier.added) for earlier in draft.rounds[: last + 1])
        call = f"expands {counted(len(growth.expanded), 'node')}" if growth.expanded else "needs no drafter call"
        caption = f"<b>Round {last + 1}</b> {call}; {taken} of {draft.tree.budget} nodes are in the tree."
        side = frontier_table(draft.tree, draft.rounds, last, _piece(models))
        frames.append(Frame(growth_view(draft.tree, draft.rounds, last, _piece(models)), caption, side))
    return frames


def counts_table(traces: Mapping[str, DecodeTrace], guesses: Mapping[str, int] | None = None) -> str:
    """Tokens, target calls and MAL of several decodes as an HTML table, with guesses beside them if there are any."""
    heads = ["method", "new tokens", "target calls", "mean accepted length"]
    heads += ["your guess"] if guesses else []
    rows = ""
    for name, trace in traces.items():
        cells = [str(len(trace.tokens)), str(trace.target_calls), f"{trace.mean_accepted_length:.2f}"]
        cells += [str(guesses.get(name, "-"))] if guesses else []
        rows += f'<tr><th scope="row">{TITLES[name]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    head = "".join(f'<th scope="col">{title}</th>' for title in heads)
    caption = "<caption>The same text, four ways; the first token comes with the prompt</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _decode_frames(models: Bundle, trace: DecodeTrace) -> list[Frame]:
    pieces = models.pieces(trace.tokens)
    frames: list[Frame] = []
    done = 1
    for index, step in enumerate(trace.steps):
        done += len(step.committed)
        counts = (
            f"target call {index + 1} of {trace.target_calls}: {step.kept_drafts} of {step.tree.budget} drafted tokens "
            f"accepted, {len(step.committed)} tokens gained, {done} in all"
        )
        caption = f"{marked_html(trace, pieces, index + 1)}<p>{counts}</p>"
        frames.append(Frame(step_view(step, _piece(models), TITLES[trace.method]), caption))
    return frames


def frontier_table(tree: DraftTree, rounds: Sequence[GrowthRound], last: int, decode: Decode, most: int = 12) -> str:
    """What waits after round ``last`` as an HTML table: the best candidates, marked where the next round takes them.

    The parent is named by token and number, the log-probability is that of the whole path.
    """
    waiting = frontier(tree, rounds, last)
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    taken = {(parents[node], tokens[node]) for growth in rounds[last + 1 : last + 2] for node in growth.added}
    labels = [escape(visible(decode(token))) for token in tokens]
    rows = "".join(
        f"<tr><td>{'▶' if (c.parent, c.token) in taken else ''}</td>"
        f"<td>{escape(visible(decode(c.token)))}</td><td>{labels[c.parent]} ({c.parent})</td>"
        f"<td>{c.score:.2f}</td></tr>"
        for c in waiting[:most]
    )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("next", "token", "below node", "log-probability"))
    shown = "" if len(waiting) <= most else f", the best {most}"
    caption = f"<caption>frontier: {counted(len(waiting), 'candidate')}{shown}</caption>"
    return f"<table {SPACED}>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _piece(models: Bundle) -> Decode:
    return lambda token: models.decode([token])
