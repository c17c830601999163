"""Tables of an evaluation, as Markdown and as HTML."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from tfm_lab.evaluation.best_trees import BestTrees
from tfm_lab.evaluation.ceiling import Ceiling
from tfm_lab.evaluation.statistics import Bounded
from tfm_lab.evaluation.summary import ALL, Gain, Summary

NOTHING = "–"


class Table(NamedTuple):
    """A table with its heading and a sentence about it."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The bare table."""
        head, *body = (f"| {' | '.join(cells)} |" for cells in (self.header, *self.rows))
        return "\n".join([head, "|---" * len(self.header) + "|", *body]) + "\n"

    def html(self) -> str:
        """Heading, note and table."""
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.header)
        body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>\n" for row in self.rows)
        note = f"<p>{escape(self.note)}</p>\n" if self.note else ""
        return (
            f"<h2>{escape(self.title)}</h2>\n{note}"
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n'
        )


def markdown_table(summaries: Iterable[Summary]) -> str:
    """The summaries as a bare Markdown table."""
    return summary_table(list(summaries)).markdown()


def summary_table(summaries: Sequence[Summary], title: str = "Mean accepted length") -> Table:
    """MAL of every setting, with interval, macro average and cost."""
    header = ("T", "method", "B", "texts", "MAL", "95 % interval", "standard error", "macro MAL", "95 % interval")
    rows = [
        (
            f"{s.setting.temperature:g}",
            s.setting.label if s.kind == ALL else f"{s.setting.label}, {s.kind}",
            str(s.setting.budget),
            str(s.contexts),
            number(s.mal.value, 3),
            bounds(s.interval, 3),
            number(s.mal.standard_error, 3),
            number(s.macro.value, 3),
            bounds(s.macro, 3),
            str(s.target_calls),
            number(s.calls_per_step, 1),
            number(s.tokens_per_second, 1),
        )
        for s in summaries
    ]
    note = (
        "The macro average is the mean of the MALs of the kinds of text. Percentile-bootstrap intervals of fewer than "
        "about 20 texts (per kind, for the macro average) are too narrow."
    )
    return Table(title, note, (*header, "target calls", "drafter calls / step", "tokens / s"), rows)


def gain_table(gains: Sequence[Gain]) -> Table:
    """Paired gains of TfM."""
    header = ("T", "B", "method", "over", "texts", "gain", "95 % interval", "standard error", "macro gain")
    rows = [
        (
            f"{g.setting.temperature:g}",
            str(g.setting.budget),
            g.setting.label,
            g.baseline.label,
            str(g.contexts),
            percent(g.overall.value, signed=True),
            percent_bounds(g.interval),
            percent(g.overall.standard_error),
            percent(g.macro.value, signed=True),
            percent_bounds(g.macro),
        )
        for g in gains
    ]
    note = (
        "Relative gain in MAL; both methods draft trees of the same budget and are compared text by text. TfM with "
        "unusual numbers is compared with the usual ones as well, its sampled trees with its fixed ones."
    )
    return Table("Gains on the same contexts", note, (*header, "95 % interval"), rows)


def depth_table(summaries: Sequence[Summary]) -> Table:
    """Share of steps that accepted at least d drafts."""
    deepest = max((len(s.acceptance) for s in summaries), default=0)
    rows = [
        (
            f"{s.setting.temperature:g}",
            s.setting.label,
            str(s.setting.budget),
            *(f"{share:.3f}" for share in s.acceptance),
            *[NOTHING] * (deepest - len(s.acceptance)),
        )
        for s in summaries
    ]
    note = (
        "Share of target calls that accepted at least d drafts; a row sums to MAL - 1, but for clipped ends of texts."
    )
    header = ("T", "method", "B", *(f"d = {depth}" for depth in range(1, deepest + 1)))
    return Table("Acceptance by depth", note, header, rows)


def ceiling_table(ceiling: Ceiling) -> Table:
    """Expected acceptance by depth: what the oracle marginal allows, and what the drafters reach."""
    figures = ceiling.figures()
    depths = max(len(column) for column in figures.values())
    rows = [
        (
            str(depth + 1),
            *(
                f"{column[depth].value:.3f} ({bounds(column[depth], 3)})" if depth < len(column) else NOTHING
                for column in figures.values()
            ),
        )
        for depth in range(depths)
    ]
    note = (
        f"Expected acceptance sum_v min(q, p) at temperature 1 with 95 % intervals over {ceiling.anchors} anchors, "
        f"{ceiling.continuations} sampled paths each. The two oracle columns leave each path out of its own average; "
        "what bias remains makes them too low, not too high. No factorised drafter that samples its marginal gets "
        "beyond the truth behind the first of them by matching the target better; the Weaver sees the path and may."
    )
    return Table("The ceiling of factorised drafting", note, ("depth", *figures), rows)


def best_tree_table(found: BestTrees) -> Table:
    """Expected tokens of one step with every method's tree and with the best tree of as many nodes."""
    rows = [
        (
            str(y.setting.budget),
            y.setting.label,
            y.kind,
            str(y.anchors),
            f"{y.tokens.value:.3f} ({bounds(y.tokens, 3)})",
            *(
                NOTHING if math.isnan(f.value) else f"{percent(f.value, signed=f is not y.share)} ({percent_bounds(f)})"
                for f in (y.gain, y.share, y.left)
            ),
        )
        for y in found.yields()
    ]
    note = (
        "Expected tokens of one step, bonus included, at temperature 1 with noise of the target's own: 1 plus the "
        "target's probabilities of all paths in the tree, with 95 % intervals over anchors. The best tree holds the "
        "target's own most probable paths; no fixed tree of B nodes yields more. (Trees whose siblings are drawn are "
        "accepted by other rules, and this bound does not hold for them.) This is a mean over places drawn evenly from "
        "texts of the target, one per text and the same for all trees. It is not the MAL of decoding, which takes few "
        "steps where the text is easy and therefore averages over harder places."
    )
    header = ("B", "tree", "texts", "anchors", "tokens of a step", "over DDTree", "share of the way to the best tree")
    return Table("The best tree of B nodes", note, (*header, "best tree over it"), rows)


def number(value: float, digits: int) -> str:
    """Fixed digits; a dash for NaN."""
    return NOTHING if math.isnan(value) else f"{value:.{digits}f}"


def bounds(figure: Bounded, digits: int) -> str:
    """The interval alone."""
    return NOTHING if math.isnan(figure.low) else f"{figure.low:.{digits}f} to {figure.high:.{digits}f}"


def percent(share: float, *, signed: bool = False) -> str:
    """One digit after the point."""
    return NOTHING if math.isnan(share) else f"{100 * share:{'+' if signed else ''}.1f} %"


def percent_bounds(figure: Bounded) -> str:
    """The interval alone, in per cent."""
    return NOTHING if math.isnan(figure.low) else f"{100 * figure.low:+.1f} to {100 * figure.high:+.1f} %"
