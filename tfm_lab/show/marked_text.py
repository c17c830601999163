"""Decoded text with every token marked: accepted draft, bonus token, or given by the prompt."""

from collections.abc import Sequence
from html import escape

from tfm_lab.show.style import BLUE, GREEN, PURPLE
from tfm_lab.trace import DecodeTrace

FIRST, ACCEPTED, BONUS = "first", "accepted", "bonus"
MARKS = {
    FIRST: f"border-bottom:3px double {BLUE}",
    ACCEPTED: f"border-bottom:3px solid {GREEN}",
    BONUS: f"border:1px solid {PURPLE};border-radius:3px;padding:0 1px",
}
NAMES = {FIRST: "from the prompt", ACCEPTED: "accepted draft", BONUS: "bonus token"}


def token_kinds(trace: DecodeTrace, steps: int | None = None) -> list[str]:
    """For each new token of the first ``steps`` steps (all by default) whether it was drafted or the target's own."""
    kinds = [FIRST] if trace.first_token is not None else []
    for step in trace.steps[:steps]:
        kinds += [ACCEPTED if index < step.accepted else BONUS for index in range(len(step.committed))]
    return kinds


def marked_html(trace: DecodeTrace, pieces: Sequence[str], steps: int | None = None) -> str:
    """The text so far as HTML; marks are lines and boxes, so that colour is not needed to tell them apart.

    Args:
        pieces: text of each new token, see :meth:`tfm_lab.bundle.Bundle.pieces`.
        steps: stop after so many steps.
    """
    kinds = token_kinds(trace, steps)
    spans = [
        f'<span style="{MARKS[kind]}" title="{NAMES[kind]}">{escape(piece)}</span>'
        for kind, piece in zip(kinds, pieces, strict=False)
    ]
    legend = " ".join(f'<span style="{MARKS[kind]}">{NAMES[kind]}</span>' for kind in MARKS)
    return (
        f'<div style="font-family:monospace;white-space:pre-wrap;line-height:1.9">{"".join(spans)}</div>'
        f'<div style="font-size:12px;margin-top:6px">{legend}</div>'
    )


def marked_plain(trace: DecodeTrace, pieces: Sequence[str], steps: int | None = None) -> str:
    """The same in plain text: accepted drafts in [brackets], bonus tokens in (parentheses)."""
    fences = {FIRST: ("", ""), ACCEPTED: ("[", "]"), BONUS: ("(", ")")}
    kinds = token_kinds(trace, steps)
    return "".join(f"{fences[k][0]}{piece}{fences[k][1]}" for k, piece in zip(kinds, pieces, strict=False))
