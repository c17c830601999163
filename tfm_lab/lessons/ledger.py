"""The ledger of claims as a table, as bars, and as a list whose entries open into cards."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import traitlets

from tfm_lab.claims import CLAIMS, OBJECTIONS, Claim, Examined, Found, Goal, Outcome, find, objections
from tfm_lab.lessons.cards import Card, table_card
from tfm_lab.show.stepping import stepping_buttons
from tfm_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER, text_on_paper

MARKS: Mapping[Outcome, tuple[str, str]] = {
    Outcome.HOLDS: ("✓", GREEN),
    Outcome.PARTLY: ("◐", BLUE),
    Outcome.FALLS_SHORT: ("✗", ORANGE),
    Outcome.OPEN: ("○", GREY),
}
EVERYTHING = "all claims"
ROW, LEFT, UNIT = 30.0, 270.0, 42.0


class Ledger(traitlets.HasTraits):
    """All claims with their numbers, a filter and the claim that is open.

    Args:
        notebooks: folder of the series, with stored outputs.
        claims: what is listed.

    Raises:
        FileNotFoundError: if a notebook or result file is missing.
        ValueError: if a number is not where a claim says.
    """

    chosen = traitlets.Unicode(EVERYTHING)
    claim = traitlets.Unicode("")

    def __init__(self, notebooks: Path, claims: Sequence[Claim] = CLAIMS) -> None:
        self.claims = {claim.name: claim for claim in claims}
        self.found = {claim.name: find(claim, notebooks) for claim in claims}
        super().__init__(claim=claims[0].name)

    @traitlets.validate("chosen")
    def _known_filter(self, proposal: Any) -> str:
        if proposal["value"] not in (EVERYTHING, *Examined, *Outcome):
            raise ValueError(f"there is no filter {proposal['value']!r}: use {EVERYTHING!r} or a status")
        return str(proposal["value"])

    @traitlets.validate("claim")
    def _known_claim(self, proposal: Any) -> str:
        if proposal["value"] not in self.claims:
            raise ValueError(f"there is no claim {proposal['value']!r}: choose one of the list")
        return proposal["value"]

    def listed(self) -> list[Claim]:
        """Claims that pass the filter."""
        return [
            claim
            for claim in self.claims.values()
            if self.chosen in (EVERYTHING, claim.examined.value, claim.outcome.value)
        ]

    def objections(self, name: str) -> set[str]:
        """What a referee would say against an entry."""
        claim = self.claims[name]
        return objections(claim.examined, claim.outcome, [item.finding for item in self.found[name]])

    def counts(self) -> dict[Examined, Counter[Outcome]]:
        """How many claims were examined in each way, by outcome; every way and outcome is there."""
        table = {way: Counter(dict.fromkeys(Outcome, 0)) for way in Examined}
        for claim in self.claims.values():
            table[claim.examined][claim.outcome] += 1
        return table

    def describe(self) -> str:
        """The whole ledger in a sentence."""
        told = [
            f"{way.value}: {', '.join(f'{count} {outcome.value}' for outcome, count in row.items() if count)}"
            for way, row in self.counts().items()
            if row.total()
        ]
        return f"{len(self.claims)} claims. {'; '.join(told)}."

    def markdown(self) -> str:
        """All claims as a table, with links to the notebooks and result files, relative to the notebooks' folder."""
        rows = [
            f"| {claim.statement} | {claim.figure or '–'} | {claim.examined.value} | "
            f"{MARKS[claim.outcome][0]} {claim.outcome.value} | {_numbers(self.found[claim.name]) or claim.because} |"
            for claim in self.claims.values()
        ]
        return "\n".join(["| claim | figure | examined | outcome | numbers |", "|---|---|---|---|---|", *rows])


class LedgerExplorer(widgets.VBox):
    """A filter and a list of claims; the chosen one opens as a card. Elsewhere the bars."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        filters = [EVERYTHING, *(way.value for way in Examined), *(outcome.value for outcome in Outcome)]
        wide = widgets.Layout(width="min(640px, 100%)")
        self._filter = widgets.ToggleButtons(
            options=filters, value=ledger.chosen, description="show", style={"button_width": "auto"}
        )
        self._list = widgets.Select(rows=9, description="claim", layout=wide)
        self._card = widgets.HTML()
        self._is_filling = False  # a list that gets new options changes its value by itself
        self._filter.observe(lambda change: setattr(ledger, "chosen", change["new"]), "value")
        self._list.observe(self._open, "value")
        ledger.observe(lambda _: self._refresh(), ["chosen", "claim"])
        super().__init__([self._filter, self._list, widgets.HBox(stepping_buttons(self._list, "claim")), self._card])
        self._refresh()

    def _open(self, change: Any) -> None:
        if change["new"] and not self._is_filling:
            self.ledger.claim = change["new"]

    def _refresh(self) -> None:
        self._filter.value = self.ledger.chosen
        listed = self.ledger.listed()
        options = [(f"{MARKS[item.outcome][0]} {item.name.replace('-', ' ')}", item.name) for item in listed]
        names = [name for _, name in options]
        if names and self.ledger.claim not in names:
            self.ledger.claim = names[0]  # and the refresh that follows fills the list
            return
        self._is_filling = True
        if list(self._list.options) != options:
            self._list.options = options
        self._list.value = self.ledger.claim if names else None
        self._is_filling = False
        nothing = '<div role="status">No claim is of this kind.</div>'
        self._card.value = claim_card(self.ledger) if names else nothing

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with the bars and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = {"image/svg+xml": ledger_svg(self.ledger), "text/plain": self.ledger.describe()}
        return dict(data or {}) | still, metadata


def claim_card(ledger: Ledger) -> str:
    """The open claim as HTML: what is said, what was done, and every number with the code that made it."""
    claim, raised = ledger.claims[ledger.claim], ledger.objections(ledger.claim)
    mark, _ = MARKS[claim.outcome]
    figure = f" <strong>{escape(claim.figure)}</strong>" if claim.figure else ""
    parts = [
        f'<div role="status"><h3>{mark} {escape(claim.outcome.value)} · {escape(claim.examined.value)}</h3>',
        f"<p>{escape(claim.statement)}{figure}<br><small>{escape(claim.source)}</small></p><p>{escape(claim.because)}</p>",
        *(_number_card(item) for item in ledger.found[claim.name]),
    ]
    told = "; ".join(OBJECTIONS[name] for name in sorted(raised)) or "none"
    return "".join([*parts, f"<p>Objections by rule: {escape(told)}.</p></div>"])


def goals_card(goals: Sequence[Goal], origin: str) -> Card:
    """Goals of this project as a table: limit, value, met or missed.

    Args:
        goals: in order.
        origin: kind, device, date and commit of the measurement.
    """
    rows = [
        (
            goal.name,
            goal.shown(goal.at_most),
            goal.shown(goal.value),
            "✓ met" if goal.is_met else "✗ missed",
            goal.remark or "–",
        )
        for goal in goals
    ]
    return table_card(origin, ("goal", "at most", "measured", "outcome", "remark"), rows)


def ledger_svg(ledger: Ledger) -> str:
    """A bar for each way to examine, divided by outcome."""
    counts = ledger.counts()
    height = 64 + ROW * len(counts) + 40
    width = LEFT + UNIT * max(row.total() for row in counts.values()) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="13" fill="{INK}">',
        f"<title>Claims by how they were examined</title><desc>{escape(ledger.describe())}</desc>",
        f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>',
        f'<text x="14" y="28" font-size="15" font-weight="bold">{len(ledger.claims)} claims of the paper</text>',
    ]
    for place, (way, row) in enumerate(counts.items()):
        y, x = 44 + ROW * place, LEFT
        parts.append(f'<text x="{LEFT - 10:.0f}" y="{y + 18:.0f}" text-anchor="end">{escape(way.value)}</text>')
        for outcome, count in row.items():
            if count:
                parts.append(_segment(x, y, count, outcome))
                x += UNIT * count
    x, y = 14.0, height - 18
    for outcome, (mark, colour) in MARKS.items():
        look = f'fill="{text_on_paper(colour)}" font-weight="bold"'
        parts.append(f'<text x="{x:.0f}" y="{y:.0f}" {look}>{mark} {outcome.value}</text>')
        x += 34 + 8.5 * len(outcome.value)
    return "\n".join([*parts, "</svg>"])


def _segment(x: float, y: float, count: int, outcome: Outcome) -> str:
    mark, colour = MARKS[outcome]
    return (
        f'<rect x="{x + 1:.0f}" y="{y:.0f}" width="{UNIT * count - 2:.0f}" height="24" fill="none" stroke="{colour}" '
        f'stroke-width="2"/><text x="{x + UNIT * count / 2:.0f}" y="{y + 17:.0f}" text-anchor="middle" '
        f'fill="{text_on_paper(colour)}" font-weight="bold">{mark} {count}</text>'
    )


def _number_card(item: Found) -> str:
    where = f"notebook {item.place}, cell {item.cell}" if item.cell else f"{item.place}: {item.origin}"
    summary = f"{item.link.what}: <strong>{escape(item.text)}</strong> <small>({escape(where)})</small>"
    return f"<details><summary>{summary}</summary><pre>{escape(item.code)}</pre></details>"


def _numbers(found: Sequence[Found]) -> str:
    return "<br>".join(
        f'{item.link.what}: <span style="white-space:nowrap">{item.text} ([{_short(item)}]({item.href}))</span>'
        for item in found
    )


def _short(item: Found) -> str:
    return item.place.split(",")[0] if item.cell else "result"
