"""What to draw of a draft tree: positions, labels and the part each node plays. No drawing library in here.

Trees are laid out from left to right, so that a path reads like the text it proposes. SVG and plotly draw the same
view and therefore always agree.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import networkx as nx

from tfm_lab.drafting import Candidate, GrowthRound
from tfm_lab.trace import DecodeStep
from tfm_lab.tree import DraftTree

Decode = Callable[[int], str]


class Role(Enum):
    """The part a node plays in a picture; every role has its own shape as well as its own colour."""

    ROOT = "last committed token"
    ACCEPTED = "accepted"
    UNUSED = "drafted, not used"
    BONUS = "bonus token"
    PLACED = "in the tree"
    NEW = "added in this round"
    WAITING = "waiting in the frontier"
    CHOSEN = "the chosen path"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node.

    ``x`` is its depth, ``y`` its row, both in units of one node; ``detail`` is for hovering and tables; a ``picked``
    node has a ring, whatever its role.
    """

    label: str
    role: Role
    x: float
    y: float
    parent: int
    detail: str
    picked: bool = False


class Heading(NamedTuple):
    """A line of text in a picture of several trees, at a row of its own."""

    text: str
    row: float


@dataclass(frozen=True, slots=True)
class TreeView:
    """A picture of a tree.

    Attributes:
        title: short, for headings.
        description: one sentence that says what the picture shows, for readers who do not see it.
        nodes: parents come before their children; ``parent`` is -1 at the root.
        rows: number of rows that the picture keeps room for.
        label_lengths: for every depth the characters of the longest label that the picture keeps room for.
        headings: of the trees in a picture of several.
    """

    title: str
    description: str
    nodes: tuple[NodeView, ...]
    rows: int
    label_lengths: tuple[int, ...]
    headings: tuple[Heading, ...] = ()

    def roles(self) -> list[Role]:
        """Roles that occur, in the order of :class:`Role`."""
        present = {node.role for node in self.nodes}
        return [role for role in Role if role in present]


def stacked(views: Sequence[TreeView], title: str, description: str) -> TreeView:
    """Several trees below one another, each under its title; equal depths stand in one column.

    The nodes follow each other in the order of the views.
    """
    nodes: list[NodeView] = []
    headings: list[Heading] = []
    depths = max(len(view.label_lengths) for view in views)
    row = 0
    for view in views:
        headings.append(Heading(view.title, row))
        first = len(nodes)
        for node in view.nodes:
            parent = node.parent + first if node.parent >= 0 else -1
            nodes.append(replace(node, y=node.y + row + 1, parent=parent))
        row += view.rows + 1
    lengths = [max((v.label_lengths[d] for v in views if d < len(v.label_lengths)), default=0) for d in range(depths)]
    return TreeView(title, description, tuple(nodes), row, tuple(lengths), tuple(headings))


def tidy_layout(graph: "nx.DiGraph[int]", root: int = 0) -> dict[int, tuple[float, float]]:
    """Positions (depth, row): leaves take the rows 0, 1, 2, ... and a parent sits midway between its outer children."""
    depth = nx.single_source_shortest_path_length(graph, root)
    row: dict[int, float] = {}
    leaves = 0
    for node in nx.dfs_postorder_nodes(graph, root):
        children = list(graph.successors(node))
        if children:
            row[node] = (row[children[0]] + row[children[-1]]) / 2
        else:
            row[node] = float(leaves)
            leaves += 1
    return {node: (float(depth[node]), row[node]) for node in row}


def step_view(step: DecodeStep, decode: Decode, title: str = "") -> TreeView:
    """A verified tree: the accepted path, the bonus token behind it, and everything that was drafted in vain."""
    tree = step.tree
    path = step.acceptance.path[: step.kept_drafts + 1]
    graph = tree.to_networkx(decode)
    bonus = len(tree)
    if step.has_kept_bonus:
        graph.add_edge(path[-1], bonus)
    positions = tidy_layout(graph)
    roles = [Role.ACCEPTED if node in path else Role.UNUSED for node in range(len(tree))]
    roles[0] = Role.ROOT
    nodes = _nodes(tree, decode, positions, roles)
    end = "the text ends inside the accepted path, so no bonus token is needed"
    if step.has_kept_bonus:
        label = visible(decode(step.acceptance.bonus))
        nodes.append(NodeView(label, Role.BONUS, *positions[bonus], path[-1], "the target's own token"))
        end = f"the target adds the bonus token {label!r}"
    description = (
        f"A tree of {tree.budget} drafted tokens, {tree.max_depth} deep. {step.kept_drafts} on one path are accepted, "
        f"{tree.budget - step.kept_drafts} are not used; {end}."
    )
    return assembled(title, description, nodes, nodes)


def growth_view(tree: DraftTree, rounds: Sequence[GrowthRound], last: int, decode: Decode, title: str = "") -> TreeView:
    """A tree while it grows, after round ``last``: new nodes, older nodes, and what still waits in the frontier.

    Positions and room are those of the finished tree, so that nothing moves from one round to the next.

    Raises:
        ValueError: if there is no such round.
    """
    if not 0 <= last < len(rounds):
        raise ValueError(f"there is no round {last}; this tree grew in {len(rounds)} rounds, numbered from 0")
    placed = {0, *(node for growth in rounds[: last + 1] for node in growth.added)}
    new = set(rounds[last].added)
    everything = tree.to_networkx(decode)
    positions = tidy_layout(everything)
    roles = [Role.NEW if node in new else Role.PLACED for node in range(len(tree))]
    roles[0] = Role.ROOT
    finished = _nodes(tree, decode, positions, roles)
    nodes = [node for index, node in enumerate(finished) if index in placed]
    waiting = frontier(tree, rounds, last)
    description = (
        f"Round {last + 1} of {len(rounds)}: {len(placed) - 1} of {tree.budget} nodes are in the tree, {len(new)} of "
        f"them new; {counted(len(waiting), 'candidate')} {'waits' if len(waiting) == 1 else 'wait'}."
    )
    return assembled(title, description, nodes, finished)


def chosen_view(tree: DraftTree, node: int, decode: Decode, title: str = "") -> TreeView:
    """A tree with the path to one of its nodes marked."""
    path = tree.path(node)
    roles = [Role.CHOSEN if index in path else Role.PLACED for index in range(len(tree))]
    roles[0] = Role.ROOT
    nodes = _nodes(tree, decode, tidy_layout(tree.to_networkx()), roles)
    words = " ".join(visible(decode(token)) for token in tree.path_tokens(node))
    description = f"A tree of {tree.budget} drafted tokens, {tree.max_depth} deep; the path {words} is marked."
    return assembled(title, description, nodes, nodes)


def frontier(tree: DraftTree, rounds: Sequence[GrowthRound], last: int) -> list[Candidate]:
    """Candidates that have been offered and not been taken when round ``last`` is over, best first."""
    taken = {
        (int(tree.parents[node]), int(tree.tokens[node])) for growth in rounds[: last + 1] for node in growth.added
    }
    offered = [candidate for growth in rounds[: last + 1] for candidate in growth.offered]
    left = [candidate for candidate in offered if (candidate.parent, candidate.token) not in taken]
    return sorted(left, key=lambda candidate: (-candidate.score, candidate.parent))


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 node``, ``2 nodes``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def visible(text: str) -> str:
    """Token text with its white space made visible, cut to a length that fits a label."""
    shown = text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·")
    return shown if len(shown) <= 14 else shown[:13] + "…"


def assembled(title: str, description: str, nodes: Sequence[NodeView], room: Sequence[NodeView]) -> TreeView:
    """A view of ``nodes`` with room for all of ``room``, so that nothing moves when more of them are shown."""
    lengths = [0] * (1 + int(max(node.x for node in room)))
    for node in room:
        lengths[int(node.x)] = max(lengths[int(node.x)], len(node.label))
    rows = 1 + math.ceil(max(node.y for node in room))
    return TreeView(title, description, tuple(nodes), rows, tuple(lengths))


def _nodes(
    tree: DraftTree, decode: Decode, positions: dict[int, tuple[float, float]], roles: Sequence[Role]
) -> list[NodeView]:
    shares = tree.path_log_probs().exp().tolist()
    rows = zip(tree.tokens.tolist(), tree.parents.tolist(), tree.log_probs.tolist(), shares, roles, strict=True)
    return [
        NodeView(
            visible(decode(token)),
            role,
            *positions[node],
            parent,
            f"q = {math.exp(log_prob):.3f}, path {share:.4f}" if node else "the last committed token",
        )
        for node, (token, parent, log_prob, share, role) in enumerate(rows)
    ]
