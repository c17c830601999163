"""The membership walk, step by step: frames for the player."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

from jaxtyping import Float
from torch import Tensor

from tfm_lab.drafting import TreeKind
from tfm_lab.draws import SeededDraws
from tfm_lab.lessons.by_hand import membership_walk
from tfm_lab.show.picture import Picture, tree_picture
from tfm_lab.show.player import SPACED, Frame
from tfm_lab.show.views import step_view, visible
from tfm_lab.trace import DecodeStep, StageSeconds
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance

Decode = Callable[[int], str]

NO_TIME = StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0)
SHOWN = 8
"""Tokens in the table of the target's distribution."""


def walk_frames(tree: DraftTree, rows: Float[Tensor, "nodes vocab"], seed: int, decode: Decode) -> list[Frame]:
    """One frame per draw of the target: where the walk stands, what was drawn, and whether a child carries it.

    Args:
        tree: the draft.
        rows: the target's distribution after each node, float64.
        seed: of the draws; trees that share it emit the same text.
        decode: text of a token.
    """
    path, bonus = membership_walk(tree, rows, SeededDraws(seed))
    drawn = [*(int(tree.tokens[node]) for node in path[1:]), bonus]
    return [
        _frame(tree, rows, path[: place + 1], drawn[: place + 1], place + 1 == len(path), decode)
        for place in range(len(path))
    ]


def accepted_picture(tree: DraftTree, words: Sequence[str], path: tuple[int, ...], bonus: str) -> Picture:
    """A tree whose walk is over.

    Args:
        tree: its tokens are places in ``words``.
        words: text of each token.
        path: accepted nodes, root first.
        bonus: text of the bonus token.
    """
    emitted = (*(int(tree.tokens[node]) for node in path[1:]), len(words))
    step = DecodeStep(tree, TreeKind.FIXED, (), 0, Acceptance(path, len(words)), emitted, NO_TIME)
    return tree_picture(step_view(step, lambda token: (*words, bonus)[token]))


def _frame(
    tree: DraftTree, rows: Tensor, path: tuple[int, ...], drawn: list[int], is_last: bool, decode: Decode
) -> Frame:
    word, node = visible(decode(drawn[-1])), path[-1]
    chance = float(rows[node][drawn[-1]])
    children = tree.children()[node]
    if is_last:
        outcome = "No child has it" if children else "The path ends here"
        outcome += ": bonus token."
    else:
        outcome = "A child has it: descend."
    text = f"Draw {len(drawn)}: the target says {word!r} (probability {chance:.3f}). {outcome}"
    committed = tuple(drawn if is_last else drawn[:-1])
    step = DecodeStep(tree, TreeKind.FIXED, (), 0, Acceptance(path, drawn[-1]), committed, NO_TIME)
    view = replace(step_view(step, decode, f"draw {len(drawn)}"), description=text)
    emitted = "".join(escape(decode(token)) for token in committed)
    caption = f"<b>{escape(text)}</b><p>emitted so far: <code>{emitted}</code></p>"
    return Frame(
        view, caption, _row_table(rows[node], drawn[-1], [int(tree.tokens[child]) for child in children], decode)
    )


def _row_table(row: Tensor, drawn: int, offered: list[int], decode: Decode) -> str:
    """The target's likeliest tokens, which of them the tree offers, and which one was drawn."""
    best = row.argsort(descending=True)[:SHOWN].tolist()
    lines = "".join(
        f"<tr><td>{'▶' if token == drawn else ''}</td><td>{escape(visible(decode(token)))}</td>"
        f"<td>{float(row[token]):.3f}</td><td>{'in the tree' if token in offered else ''}</td></tr>"
        for token in (best if drawn in best else [*best, drawn])
    )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("drawn", "token", "probability", "offered"))
    caption = "<caption>what the target says here</caption>"
    return f"<table {SPACED}>{caption}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
