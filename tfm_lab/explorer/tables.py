"""HTML beside the tree: counters, the heap, the nodes as a table, and the three methods compared."""

from collections.abc import Sequence
from html import escape

from tfm_lab.explorer.records import Exploration, TokenPath
from tfm_lab.explorer.reducers import ExplorerState, Mode, current, growth_of, is_verified, leading, selectable
from tfm_lab.explorer.scenes import counts, hides_target, mean_gain, name, scene, where_selected
from tfm_lab.explorer.settings import METHODS
from tfm_lab.lab import TITLES, frontier_table
from tfm_lab.show.marked_text import marked_html
from tfm_lab.show.player import SPACED
from tfm_lab.show.views import Role


def caption_html(state: ExplorerState, shown: Exploration) -> str:
    """The text so far with its tokens marked, and the counters."""
    steps = state.round + 1 if is_verified(state, shown) else state.round
    cells = " &nbsp; ".join(f"{escape(key)}: <b>{escape(value)}</b>" for key, value in counts(state, shown))
    return f"{marked_html(shown.trace, shown.pieces, steps)}<p>{cells}</p>"


def side_html(state: ExplorerState, shown: Exploration) -> str:
    """The heap of the growing tree; the three methods in side-by-side mode; the score in what-if mode."""
    tree = leading(state, shown)
    if tree is None or state.mode is Mode.WHAT_IF:
        return ""
    if state.mode is Mode.SIDE:
        return _methods_table(state, shown)
    if is_verified(state, shown):
        return ""
    method = shown.settings.method
    growth = growth_of(state, shown, method)
    popped = tree.rounds[growth].added
    tokens, scores = tree.step.tree.tokens.tolist(), tree.step.tree.path_log_probs().tolist()
    taken = ", ".join(f"{escape(shown.decode(tokens[n]))!s} ({scores[n]:.2f})" for n in popped)
    expanded = len(tree.rounds[growth].expanded)
    call = f"{expanded} expanded in one Weaver call; " if expanded else ""
    if method == "chain":
        return f"<p>one pass of the drafter gives the whole chain: {taken}</p>"
    waiting = frontier_table(tree.step.tree, tree.rounds, growth, shown.decode)
    return f"<p>{call}popped with their cumulative log-probability: {taken}</p>{waiting}"


def nodes_table(state: ExplorerState, shown: Exploration) -> str:
    """The nodes on the screen as a table."""
    here, picture = current(state, shown), scene(state, shown)
    if here is None or picture is None:
        return ""
    roles: dict[TokenPath, str] = {}
    for path, node in zip(picture.paths, picture.view.nodes, strict=True):
        if node.role is not Role.BONUS:  # it has no row: the caption names it
            roles.setdefault(path, node.role.value)
    rows = []
    for path in selectable(state, shown):
        facts = here.facts[path]
        probabilities = facts.marginal, facts.weaver, facts.target, facts.weaver_path, facts.target_path
        hidden = hides_target(state, shown)
        shares = ["" if hidden and place in (2, 4) else f"{p:.4f}" for place, p in enumerate(probabilities)]
        rows.append([name(path, shown), str(len(path)), roles.get(path, ""), *shares])
    heads = "path", "depth", "part", "drafter", "Weaver", "target", "path by Weaver", "path by target"
    return _table(heads, rows, picture.view.description)


def _methods_table(state: ExplorerState, shown: Exploration) -> str:
    here = current(state, shown)
    assert here is not None
    found = where_selected(state, shown)
    rows = []
    for method in METHODS:
        tree = here.trees[method]
        rows.append(
            [
                TITLES[method],
                str(tree.step.tree.budget),
                str(tree.step.drafter_calls),
                f"{tree.expected:.3f}",
                str(len(tree.step.committed)),
                f"{mean_gain(shown, method):.2f}",
                found[method],
            ]
        )
    heads = (
        "method", "nodes", "Weaver calls", "expected tokens", "gained here", "mean over these contexts",
        "selected path",
    )  # fmt: skip
    return _table(heads, rows, "the same context and budget, three ways")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    head = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
    return f"<table {SPACED}>{head}<tbody>{body}</tbody></table>"
