"""Exercises of notebook 06, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from tfm_lab.lessons.by_hand import TokenPath
from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.exercises_06_grow import GROW
from tfm_lab.lessons.growing_by_hand import first_orphan, length_by_width, places_world
from tfm_lab.lessons.properties import failing

# first_orphan


class Order(NamedTuple):
    """Paths in the order in which they were added."""

    name: str
    paths: tuple[TokenPath, ...]


ORDERS = (
    Order("nothing but the root", ()),
    Order("a chain", ((3,), (3, 1), (3, 1, 4))),
    Order("siblings", ((3,), (1,), (4,))),
    Order("deep first, then a sibling at the top", ((3,), (3, 1), (1,), (3, 1, 4), (1, 5))),
    Order("a child before its parent", ((1,), (3, 1), (3,))),
    Order("the parent never comes", ((1,), (3, 1), (1, 1))),
    Order("the grandparent is there, the parent is not", ((3,), (3, 1, 4), (3, 1))),
    Order("two orphans", ((2,), (4, 1), (2, 5), (6, 1, 1))),
    Order("sorted by depth, and yet an orphan", ((3,), (1,), (5, 2), (3, 1, 4))),
    Order("the parent's token is there, below another node", ((3,), (1,), (3, 4), (1, 4, 2))),
)

Finder = Callable[[list[TokenPath]], int]


def _finds(answer: Finder, orders: Sequence[Order]) -> str:
    def one(case: Order) -> str:
        found, right = int(answer(list(case.paths))), first_orphan(case.paths)
        return "" if found == right else f"{list(case.paths)}: {found}, not {right}"

    return failing(orders, one)


def wrong_anywhere(paths: Sequence[TokenPath]) -> int:
    return next((place for place, path in enumerate(paths) if len(path) > 1 and path[:-1] not in paths), -1)


def wrong_without_root(paths: Sequence[TokenPath]) -> int:
    return next((place for place, path in enumerate(paths) if path[:-1] not in paths[:place]), -1)


def wrong_by_depth(paths: Sequence[TokenPath]) -> int:
    return next((place for place in range(1, len(paths)) if len(paths[place]) < len(paths[place - 1])), -1)


def wrong_any_ancestor(paths: Sequence[TokenPath]) -> int:
    def has_some(place: int) -> bool:
        path = paths[place]
        return len(path) == 1 or any(path[:length] in paths[:place] for length in range(1, len(path)))

    return next((place for place in range(len(paths)) if not has_some(place)), -1)


def wrong_next_to_parent(paths: Sequence[TokenPath]) -> int:
    return next((p for p, path in enumerate(paths) if len(path) > 1 and paths[p - 1] != path[:-1]), -1)


def wrong_by_token(paths: Sequence[TokenPath]) -> int:
    def has_token(place: int) -> bool:
        path = paths[place]
        return len(path) == 1 or any(len(p) == len(path) - 1 and p[-1] == path[-2] for p in paths[:place])

    return next((place for place in range(len(paths)) if not has_token(place)), -1)


def wrong_last(paths: Sequence[TokenPath]) -> int:
    places = [p for p, path in enumerate(paths) if len(path) > 1 and path[:-1] not in paths[:p]]
    return places[-1] if places else -1


ORDER = Exercise(
    name="06.first_orphan",
    title="parents come first: write the property",
    task="Write <code>first_orphan(paths)</code>. <code>paths</code> lists the nodes of a tree in the order in which "
    "they were added, each as the tuple of tokens from the root (which is left out) to the node. Return the place "
    "(from 0) of the first path whose parent has not been added before it, or -1 if there is none.",
    difficulty=1,
    importance=2,
    minutes=6,
    reread="Step through the growth",
    hints=(
        "What is the parent of (3, 1, 4)? And of (3,)?",
        "The parent is path[:-1]. It must stand before the path, not merely somewhere. The root, (), is always there.",
        "Go through the paths with a set that begins as {()}; if path[:-1] is not in it, return the place, else add "
        "the path.",
    ),
    solution=first_orphan,
    explanation="That is the whole property. Everything that walks through a tree once from front to back relies on "
    "it: masks, path sums, the tree solve of notebook 08. And it holds by construction: a path enters the frontier "
    "only when its parent, already a node, is expanded.",
    properties=(
        Property("trees in order have no orphan", lambda a: _finds(a, ORDERS[:4])),
        Property("a parent that comes later, or never, is found out", lambda a: _finds(a, ORDERS[4:6])),
        Property("it is the parent that counts, and the first orphan", lambda a: _finds(a, ORDERS[6:])),
    ),
    behaviour=lambda answer: [int(answer(list(case.paths))) for case in ORDERS],
    misconceptions=(
        Misconception("The parent may stand anywhere in the list. It must come before its child.", wrong_anywhere),
        Misconception(
            "Children of the root are taken for orphans: their parent is (), which is in the tree from the start.",
            wrong_without_root,
        ),
        Misconception(
            "Depth never falls: that is the order of a level-by-level tree. Best-first goes deep and comes back.",
            wrong_by_depth,
        ),
        Misconception("Any ancestor will do. A node hangs from its parent.", wrong_any_ancestor),
        Misconception("The parent stands right before its child: true in a chain only.", wrong_next_to_parent),
        Misconception(
            "A node with the parent's token is there, but below another node. A node is its whole path.", wrong_by_token
        ),
        Misconception("This is the last orphan, not the first one.", wrong_last),
    ),
)


# a distribution where a wide round hurts

BUDGET, WIDE, KEPT = 16, 8, 0.8


@cache
def _lengths(rows: tuple[tuple[float, ...], ...]) -> tuple[float, float]:
    return length_by_width(rows, BUDGET, 1), length_by_width(rows, BUDGET, WIDE)


def _rows(answer: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(value) for value in row) for row in answer)


def _is_world(answer: Any) -> str:
    places_world(_rows(answer))
    return ""


def _hurts(answer: Any) -> str:
    one, wide = _lengths(_rows(answer))
    if wide <= KEPT * one:
        return ""
    return (
        f"one node at a time {one:.3f} tokens, {WIDE} at a time {wide:.3f}: {wide / one:.1%} are left, not {KEPT:.0%}"
    )


def _shown(answer: Any) -> list[Any]:
    """Rows themselves: two answers may be wrong in the same way and not be the same idea."""
    return [list(row) for row in _rows(answer)]


FLAT = [[0.125] * 8] * 15
ONE_HOT = [[1.0, 0.0]] * 15
SHORT = [[0.9, 0.1]] * 2
OPEN_LATER = [[0.9, 0.1], *[[0.0625] * 16] * 14]
TOO_MUCH = [[0.9, 0.9]] * 15

HURTS = Exercise(
    name="06.hurts",
    title="a world in which w = 8 hurts",
    task="Give <code>rows</code>: for each place (1 to 16 of them) a list of probabilities of at most 16 tokens. "
    "Target and drafter both follow them: the token at a place is drawn from its row, whatever came before. Find rows "
    f"for which the tree of {BUDGET} nodes, grown {WIDE} at a time, is worth at most {KEPT:.0%} of the one grown one "
    "at a time. Every answer is judged exactly, by the package's own trees.",
    difficulty=2,
    importance=2,
    minutes=8,
    reread="What does the width cost?",
    hints=(
        f"How deep can a tree of {BUDGET} nodes get with one node per round? And with {WIDE}?",
        "Depth is worth something only where deep paths are likely. So how settled should each place be?",
        "Two tokens, one of them far likelier than the other (but not certain), at many places.",
    ),
    solution=[[0.9, 0.1]] * 15,
    explanation="With one node at a time the tree follows the likely path down. Eight at a time, the first rounds must "
    "take what there is, unlikely siblings too, and the budget is gone after a few levels. The more predictable the "
    "text, the deeper the best tree, and the more a wide round costs.",
    properties=(
        Property("every row is a distribution", _is_world),
        Property(f"{WIDE} nodes at a time keep at most {KEPT:.0%} of the expected tokens", _hurts),
    ),
    behaviour=_shown,
    misconceptions=(
        Misconception(
            "An open future: all candidates are alike, so the best tree is broad, and a wide round takes just what one "
            "at a time would have taken.",
            FLAT,
        ),
        Misconception(
            "A certain future: tokens of probability 0 are never offered, so every round finds one candidate, and the "
            "tree is the same chain. What is lost are calls, not tokens.",
            ONE_HOT,
        ),
        Misconception(
            "Settled, but only for two places: there is no depth to lose. All paths fit into the budget.", SHORT
        ),
        Misconception(
            "Settled at the first place and open after it: there is nothing deep to reach for either width.",
            OPEN_LATER,
        ),
        Misconception("The rows do not sum to 1: no target can follow them.", TOO_MUCH),
    ),
)

EXERCISES_06: Sequence[Exercise] = (GROW, ORDER, HURTS)
