"""Choose a node of a real draft tree: the marginal stays, the Weaver and the target move.

``SiblingsState`` knows the chosen node and the size of the pool; ``SiblingsExplorer`` wires it to a list, buttons and a
slider; ``siblings_svg`` draws the three laws of the next token.
"""

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets
import torch
import traitlets

from tfm_lab.lessons.node_laws import NodeFit, NodeLaws
from tfm_lab.lessons.weaver_by_hand import PUBLISHED, call_bytes
from tfm_lab.show.picture import Picture
from tfm_lab.show.style import BLUE, GREEN, GREY, INK, ORANGE, PAPER
from tfm_lab.show.svg import tree_svg
from tfm_lab.show.views import Decode, TreeView, chosen_view, visible

POOLS = (32, 64, 128, 256, 512, 1024)
SHOWN, ORDINARY_POOL, LONGEST_NAME = 8, 512, 52
WIDTH, LEFT, TOP, ROW, BAR, SCALE = 660.0, 128.0, 84.0, 33.0, 8.0, 300.0
COLUMNS = (LEFT + SCALE + 62, LEFT + SCALE + 134, LEFT + SCALE + 202)
HOLLOW = f'fill="none" stroke="{BLUE}" stroke-width="1.6"'
DASHED = f'fill="none" stroke="{ORANGE}" stroke-width="1.6" stroke-dasharray="4 3"'
SOLID = f'fill="{GREEN}" fill-opacity="0.75"'
LOOKS = HOLLOW, DASHED, SOLID


class TokenLaw(NamedTuple):
    """The probability of one next token by each of the three; ``label`` is its text."""

    label: str
    target: float
    marginal: float
    weaver: float


class SiblingsState(traitlets.HasTraits):
    """The chosen node, and how many candidates the Weaver chooses from."""

    node = traitlets.Int(0)
    pool = traitlets.Enum(POOLS, default_value=ORDINARY_POOL)

    def __init__(self, laws: NodeLaws, decode: Decode, **traits: Any) -> None:
        self.laws, self.decode = laws, decode
        super().__init__(**traits)

    @traitlets.validate("node")
    def _is_a_node(self, proposal: Any) -> int:
        if not 0 <= proposal["value"] < len(self.laws.tree):
            raise traitlets.TraitError(f"the nodes are numbered from 0 to {len(self.laws.tree) - 1}")
        return proposal["value"]

    def name(self, node: int) -> str:
        """The text from the root to a node, its beginning cut off if it is long."""
        text = "".join(self.decode(token) for token in self.laws.tree.path_tokens(node)).replace("\n", "⏎")
        return text if len(text) <= LONGEST_NAME else "…" + text[1 - LONGEST_NAME :]

    def turn(self, places: int) -> None:
        """Choose another node of the same depth, so many places further round."""
        nodes = self.laws.same_depth(self.node)
        self.node = nodes[(nodes.index(self.node) + places) % len(nodes)]

    def shown(self) -> list[int]:
        """Next tokens worth a row, the same for all nodes of a depth and every pool: the drafter's best first."""
        laws, nodes = self.laws, self.laws.same_depth(self.node)
        weight = laws.marginal(self.node) + laws.target[nodes].mean(0)
        weight = weight + torch.stack([laws.weaver(node, ORDINARY_POOL) for node in nodes]).mean(0)
        best = weight.topk(SHOWN).indices.tolist()
        return sorted(best, key=lambda token: -float(laws.marginal(self.node)[token]))

    def rows(self) -> list[TokenLaw]:
        """The tokens shown, and all others together."""
        tokens = self.shown()
        laws = torch.stack(
            [self.laws.target[self.node], self.laws.marginal(self.node), self.laws.weaver(self.node, self.pool)]
        )
        labels = [*(visible(self.decode(token)) for token in tokens), "all others"]
        values = torch.cat([laws[:, tokens], 1.0 - laws[:, tokens].sum(1, keepdim=True)], dim=1).clamp_min(0.0)
        return [TokenLaw(label, *column) for label, column in zip(labels, values.T.tolist(), strict=True)]

    def fit(self) -> NodeFit:
        """How often a draft for the next token is accepted."""
        return self.laws.fit(self.node, self.pool)

    def call_sizes(self) -> tuple[int, int]:
        """Computed: what a call of the published Weaver reads with this pool, and with the whole vocabulary."""
        width, inner, mlp, vocab = PUBLISHED
        return call_bytes(width, inner, mlp, self.pool, 2), call_bytes(width, inner, mlp, vocab, 2)

    def view(self) -> TreeView:
        """The tree with the path to the chosen node marked."""
        return chosen_view(self.laws.tree, self.node, self.decode, "the draft tree")

    def describe(self) -> str:
        """The picture in words."""
        fit, (pooled, everything) = self.fit(), self.call_sizes()
        top = max(self.rows()[:-1], key=lambda row: row.target)
        return (
            f"After {self.name(self.node)!r} (node {self.node}) the target's likeliest token is {top.label!r}: target "
            f"{top.target:.2f}, marginal {top.marginal:.2f}, Weaver {top.weaver:.2f}. A draft from the marginal is "
            f"accepted with {fit.marginal:.1%} (TV {1 - fit.marginal:.3f}), one from the Weaver with {fit.weaver:.1%} "
            f"(TV {1 - fit.weaver:.3f}); the {self.pool} candidates hold {fit.ceiling:.2%} of the target. For a 27B "
            f"target a call would read {megabytes(pooled)} with this pool, {megabytes(everything)} with the whole "
            "vocabulary (computed)."
        )


class SiblingsExplorer(widgets.VBox):
    """A list of nodes, two buttons for the same depth, a slider for the pool, tree and bars; elsewhere the SVG."""

    def __init__(self, state: SiblingsState) -> None:
        self.state = state
        numbers = range(len(state.laws.tree))
        options = [(f"{node}: {state.name(node)}", node) for node in numbers]
        self._node = widgets.Dropdown(
            options=options, value=state.node, description="after", layout=widgets.Layout(width="420px")
        )
        self._back = widgets.Button(description="◀ same depth", tooltip="the node of this depth before")
        self._on = widgets.Button(description="same depth ▶", tooltip="the next node of this depth")
        self._pool = widgets.SelectionSlider(
            options=POOLS, value=state.pool, description="pool K", layout=widgets.Layout(width="420px")
        )
        self._tree, self._bars, self._words = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._node.observe(lambda change: setattr(state, "node", change["new"]), "value")
        self._pool.observe(lambda change: setattr(state, "pool", change["new"]), "value")
        self._back.on_click(lambda _: state.turn(-1))
        self._on.on_click(lambda _: state.turn(1))
        state.observe(lambda _: self._refresh(), ["node", "pool"])
        wrapped = widgets.Layout(flex_flow="row wrap")
        scrolled = widgets.Layout(overflow="auto", max_width="100%")
        super().__init__(
            [
                widgets.Box([self._node, self._back, self._on], layout=wrapped),
                self._pool,
                widgets.Box([self._bars], layout=scrolled),
                widgets.Box([self._tree], layout=scrolled),
                self._words,
            ]
        )
        self._refresh()

    def _refresh(self) -> None:
        self._node.value, self._pool.value = self.state.node, self.state.pool
        self._tree.value = tree_svg(self.state.view(), standalone=False)
        self._bars.value = siblings_svg(self.state, standalone=False)
        self._words.value = f'<div role="status">{escape(self.state.describe())}</div>'

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = {"image/svg+xml": siblings_svg(self.state), "text/plain": self.state.describe()}
        return dict(data or {}) | still, metadata


def siblings_picture(state: SiblingsState) -> Picture:
    """The bars alone, without controls."""
    return Picture(siblings_svg(state), state.describe())


def siblings_svg(state: SiblingsState, *, standalone: bool = True) -> str:
    """Three bars for each next token, and below them what they mean for acceptance.

    Args:
        standalone: on a light background, for outputs; otherwise in the colour of the surrounding text.
    """
    ink, rows, fit = INK if standalone else "currentColor", state.rows(), state.fit()
    below = TOP + ROW * len(rows) + 22
    height = below + 3 * 22 + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {WIDTH:.0f} {height:.0f}" '
        f'width="{WIDTH:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="{ink}" '
        f'color="{ink}">',
        "<title>The next token by target, drafter and Weaver</title>",
        f"<desc>{escape(state.describe())}</desc>",
    ]
    if standalone:
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{PAPER}"/>')
    parts.append(
        f'<text x="14" y="24" font-size="14" font-weight="bold">after “{escape(state.name(state.node))}”, K = '
        f"{state.pool}</text>"
    )
    for x, name, look in zip((LEFT, LEFT + 96, LEFT + 242), ("target", "marginal", "Weaver"), LOOKS, strict=True):
        shown = "marginal (drafter)" if name == "marginal" else name
        parts.append(f'<rect x="{x:.0f}" y="42" width="14" height="10" {look}/>')
        parts.append(f'<text x="{x + 20:.0f}" y="51">{shown}</text>')
    for x, name in zip(COLUMNS, ("target", "marginal", "Weaver"), strict=True):
        parts.append(f'<text x="{x:.0f}" y="{TOP - 8:.0f}" text-anchor="end">{name}</text>')
    for place, row in enumerate(rows):
        parts += _row(row, TOP + ROW * place)
    return "\n".join([*parts, *_acceptance(fit, state.call_sizes(), state.pool, below), "</svg>"])


def megabytes(count: int) -> str:
    """Bytes in round decimal units."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _row(row: TokenLaw, y: float) -> list[str]:
    parts = [f'<text x="{LEFT - 8:.0f}" y="{y + 16:.0f}" text-anchor="end">{escape(row.label)}</text>']
    values = row.target, row.marginal, row.weaver
    for line, (value, look) in enumerate(zip(values, LOOKS, strict=True)):
        parts.append(_bar(y + line * (BAR + 1), value, BAR - 1, look))
    for x, value in zip(COLUMNS, values, strict=True):
        parts.append(f'<text x="{x:.0f}" y="{y + 16:.0f}" text-anchor="end">{value:.3f}</text>')
    return parts


def _acceptance(fit: NodeFit, sizes: Sequence[int], pool: int, y: float) -> list[str]:
    parts = [f'<text x="14" y="{y:.0f}" font-weight="bold">a draft from it is accepted (1 − TV)</text>']
    looks = {"marginal": (fit.marginal, DASHED), "Weaver": (fit.weaver, SOLID)}
    looks["pool’s ceiling"] = (fit.ceiling, f'fill="{GREY}" fill-opacity="0.35" stroke="{GREY}"')
    for place, (name, (value, look)) in enumerate(looks.items()):
        top = y + 10 + 22 * place
        parts.append(f'<text x="{LEFT - 8:.0f}" y="{top + 11:.0f}" text-anchor="end">{name}</text>')
        parts.append(_bar(top, value, 13, look))
        parts.append(f'<text x="{COLUMNS[0]:.0f}" y="{top + 11:.0f}" text-anchor="end">{value:.3f}</text>')
    words = (
        f"computed for a 27B target: a call reads {megabytes(sizes[0])} with K = {pool}, {megabytes(sizes[1])} with "
        "the whole vocabulary"
    )
    return [*parts, f'<text x="14" y="{y + 10 + 66 + 20:.0f}">{words}</text>']


def _bar(y: float, value: float, height: float, look: str) -> str:
    return f'<rect x="{LEFT:.0f}" y="{y:.1f}" width="{SCALE * value:.1f}" height="{height:.0f}" {look}/>'
