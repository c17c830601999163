"""Exercises of notebook 03, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from tfm_lab.lessons.by_hand import TokenPath, best_first_paths, expected_tokens
from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.properties import failing
from tfm_lab.theory import MarkovWorld

Rows = Sequence[Sequence[float]]
Conditional = Callable[[TokenPath], Tensor]

# order

FIRST, SECOND = {"a": 0.5, "b": 0.4, "c": 0.1}, {"x": 0.7, "y": 0.3}
"""Marginals of the two places in the exercise; also shown by the notebook."""

ORDER = ("a", "b", "ax", "bx")


def _words(answer: str | Iterable[str]) -> list[str]:
    return answer.replace(",", " ").split() if isinstance(answer, str) else [str(word) for word in answer]


def _parents_first(answer: str | Iterable[str]) -> str:
    words = _words(answer)
    orphan = next((w for place, w in enumerate(words) if len(w) == 2 and w[0] not in words[:place]), "")
    return f"{orphan} comes before its parent {orphan[0]}" if orphan else ""


def _takes_the_best(answer: str | Iterable[str]) -> str:
    wrong = [place for place, pair in enumerate(zip(_words(answer), ORDER, strict=False)) if pair[0] != pair[1]]
    if wrong:
        return f"node {wrong[0] + 1} is not {_words(answer)[wrong[0]]}"
    return "" if len(_words(answer)) == len(ORDER) else f"four nodes are asked for, got {len(_words(answer))}"


ORDER_BY_HAND = Exercise(
    name="03.order",
    title="four nodes by hand",
    task="The drafter's marginals: a 0.5, b 0.4, c 0.1 for the first place, x 0.7, y 0.3 for the second. Set "
    '<code>order</code> to the first four nodes in the order in which best-first adds them, such as <code>"a ax b c"'
    "</code> (ax is the child x of a).",
    difficulty=1,
    importance=2,
    minutes=4,
    reread="Where to spend the next node",
    hints=(
        "A node counts with the probability of its whole path, not with that of its own token.",
        "ax has 0.5 times 0.7, bx has 0.4 times 0.7.",
        "Sort a 0.5, b 0.4, ax 0.35, bx 0.28, ay 0.15 and so on.",
    ),
    solution=" ".join(ORDER),
    explanation="a 0.5, b 0.4, ax 0.35, bx 0.28: the sibling b comes before the child ax, although x is the surer "
    "token.",
    properties=(
        Property("no node comes before its parent", _parents_first),
        Property("the path that is most probable comes next", _takes_the_best),
    ),
    behaviour=_words,
    misconceptions=(
        Misconception("The surest token next: x has 0.7, but its path only 0.35, less than b.", "a ax b bx"),
        Misconception("Level by level: c has 0.1, less than the children of a and b.", "a b c ax"),
        Misconception("Down first: that is a chain with siblings added at its end.", "a ax ay b"),
        Misconception("Sorted by the probability of the token alone, x comes even before its parent.", "ax a b bx"),
    ),
)


# expected_tokens


class Case(NamedTuple):
    """A tree by its paths, and a target."""

    name: str
    paths: tuple[TokenPath, ...]
    world: MarkovWorld


def cases() -> list[Case]:
    """From the empty tree to a small bush."""
    world = MarkovWorld.dirichlet(3, 1.0, seed=7)
    return [
        Case("no drafts", (), world),
        Case("one draft", ((1,),), world),
        Case("a chain of three", ((0,), (0, 1), (0, 1, 2)), world),
        Case("a bush", ((0,), (1,), (0, 2), (1, 0), (1, 0, 0)), world),
    ]


def _chances(path: TokenPath, conditional: Conditional) -> list[float]:
    return [float(conditional(path[:place])[token]) for place, token in enumerate(path)]


def wrong_without_bonus(paths: Sequence[TokenPath], conditional: Conditional) -> float:
    return expected_tokens(paths, conditional) - 1.0


def wrong_token_alone(paths: Sequence[TokenPath], conditional: Conditional) -> float:
    return 1.0 + sum(_chances(path, conditional)[-1] for path in paths)


def wrong_leaves_only(paths: Sequence[TokenPath], conditional: Conditional) -> float:
    leaves = [path for path in paths if not any(other[:-1] == path for other in paths)]
    return 1.0 + sum(len(path) * math.prod(_chances(path, conditional)) for path in leaves)


def wrong_best_path(paths: Sequence[TokenPath], conditional: Conditional) -> float:
    ends = [[path[:depth] for depth in range(1, len(path) + 1)] for path in paths]
    return max((expected_tokens(prefixes, conditional) for prefixes in ends), default=1.0)


def _worth_is(answer: Callable[[Sequence[TokenPath], Conditional], float]) -> str:
    def one(case: Case) -> str:
        value, right = (float(count(list(case.paths), case.world.conditional)) for count in (answer, expected_tokens))
        return "" if abs(value - right) <= 1e-9 else f"got {value:.4f}, not {right:.4f}"

    return failing(cases(), one)


def _at_least_one(answer: Callable[[Sequence[TokenPath], Conditional], float]) -> str:
    case = cases()[0]
    value = float(answer([], case.world.conditional))
    return "" if abs(value - 1.0) <= 1e-9 else f"without drafts a step emits 1 token, not {value:g}"


EXPECTED_TOKENS = Exercise(
    name="03.expected_tokens",
    title="what a tree is worth",
    task="Write <code>expected_tokens(paths, conditional)</code>. <code>paths</code> holds one tuple of tokens per "
    "node, "
    "<code>conditional(path)</code> is the target's distribution after a path (after <code>()</code>: at the root). "
    "Return "
    "the expected number of tokens that one step emits when the target's own draws walk through the tree.",
    difficulty=1,
    importance=3,
    minutes=6,
    reread="What a node is worth",
    hints=(
        "When does a node contribute a token? And what is emitted even if no node does?",
        "A node contributes exactly when the target's draws spell out its path.",
        "1 plus, for every path, the product of conditional(path[:i])[path[i]] over its places i.",
    ),
    solution=expected_tokens,
    explanation="The number of accepted drafts is the number of nodes that the walk passes. Its expectation is the "
    "sum of "
    "the probabilities of being passed, whatever depends on what. The 1 is the bonus token.",
    properties=(
        Property("without drafts there is the bonus token", _at_least_one),
        Property("every node adds the probability of its path under the target", _worth_is),
    ),
    behaviour=lambda answer: [float(answer(list(case.paths), case.world.conditional)) for case in cases()],
    misconceptions=(
        Misconception("The bonus token is missing: a step emits one token more than it accepts.", wrong_without_bonus),
        Misconception(
            "Each node with the probability of its own token. To be accepted its ancestors must be accepted too.",
            wrong_token_alone,
        ),
        Misconception(
            "Only whole paths to the leaves are counted; a path that is accepted half way counts as well.",
            wrong_leaves_only,
        ),
        Misconception("Only the best path counts: that is what a chain is worth, not a tree.", wrong_best_path),
    ),
)


# best_first


class Marginals(NamedTuple):
    """A drafter's marginals and a budget."""

    name: str
    rows: tuple[tuple[float, ...], ...]
    budget: int


MARGINALS = (
    Marginals("one node", ((0.6, 0.4), (0.9, 0.1)), 1),
    Marginals("open, then settled", ((0.4, 0.35, 0.25), (0.95, 0.03, 0.02)), 5),
    Marginals("settled, then open", ((0.9, 0.06, 0.04), (0.36, 0.34, 0.3)), 5),
    Marginals("three places", ((0.5, 0.3, 0.2), (0.65, 0.25, 0.1), (0.8, 0.15, 0.05)), 9),
)

Grow = Callable[[list[list[float]], int], Sequence[TokenPath]]


def _mass(rows: Rows, path: TokenPath) -> float:
    return math.prod(rows[place][token] for place, token in enumerate(path))


def _ranked(row: Sequence[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda token: -row[token])


def wrong_chain(rows: Rows, budget: int) -> list[TokenPath]:
    spine = tuple(_ranked(row)[0] for row in rows)
    return [spine[:depth] for depth in range(1, min(budget, len(rows)) + 1)]


def wrong_level_by_level(rows: Rows, budget: int) -> list[TokenPath]:
    found: list[TokenPath] = []
    level: list[TokenPath] = [()]
    for row in rows:
        level = [(*path, token) for path in level for token in _ranked(row)]
        found += level
    return found[:budget]


def wrong_surest_token(rows: Rows, budget: int) -> list[TokenPath]:
    heap: list[tuple[float, TokenPath]] = [(-value, (token,)) for token, value in enumerate(rows[0])]
    heapq.heapify(heap)
    found: list[TokenPath] = []
    while heap and len(found) < budget:
        _, path = heapq.heappop(heap)
        found.append(path)
        if len(path) < len(rows):
            for token, value in enumerate(rows[len(path)]):
                heapq.heappush(heap, (-value, (*path, token)))
    return found


def wrong_first_siblings(rows: Rows, budget: int) -> list[TokenPath]:
    spine = tuple(_ranked(row)[0] for row in rows)
    found = [spine[:depth] for depth in range(1, len(rows) + 1)][:budget]
    siblings = ((*spine[:depth], token) for depth, row in enumerate(rows) for token in _ranked(row)[1:])
    return [*found, *siblings][:budget]


def _paths(answer: Grow, case: Marginals) -> list[TokenPath]:
    return [tuple(map(int, path)) for path in answer([list(row) for row in case.rows], case.budget)]


def _each(complaint: Callable[[Marginals, list[TokenPath]], str]) -> Callable[[Grow], str]:
    return lambda answer: failing(MARGINALS, lambda case: complaint(case, _paths(answer, case)))


def _spends_all(case: Marginals, paths: list[TokenPath]) -> str:
    return (
        "" if len(set(paths)) == len(paths) == case.budget else f"{len(set(paths))} nodes for a budget of {case.budget}"
    )


def _is_a_tree(case: Marginals, paths: list[TokenPath]) -> str:
    orphan = next((p for place, p in enumerate(paths) if len(p) > 1 and p[:-1] not in paths[:place]), None)
    return f"{orphan} stands without, or before, its parent {orphan[:-1]}" if orphan else ""


def _is_best(case: Marginals, paths: list[TokenPath]) -> str:
    found, best = (sum(_mass(case.rows, p) for p in some) for some in (paths, best_first_paths(case.rows, case.budget)))
    return "" if found >= best - 1e-9 else f"the paths sum to {found:.4f}, {best:.4f} is possible"


BEST_FIRST = Exercise(
    name="03.best_first",
    title="DDTree",
    task="Write <code>best_first(rows, budget)</code>. <code>rows[d]</code> lists the drafter's probabilities for "
    "place d. "
    "Return the paths (tuples of tokens) of the tree of that many nodes with the largest sum of path probabilities, "
    "parents "
    "before children.",
    difficulty=2,
    importance=3,
    minutes=15,
    reread="Where to spend the next node",
    hints=(
        "Keep the candidates in a heap, and always take the most probable path.",
        "A taken path offers its children; nothing else becomes possible by taking it.",
        "heapq with entries (-probability, path); begin with the paths of length 1, and after each pop push the "
        "children.",
    ),
    solution=best_first_paths,
    explanation="A path is never more probable than its parent, so the B most probable paths form a tree by "
    "themselves, and "
    "no other set of B paths has a larger sum. The package's builder offers next siblings one at a time to keep the "
    "heap "
    "small.",
    properties=(
        Property("the budget is spent, on different nodes", _each(_spends_all)),
        Property("parents come before their children", _each(_is_a_tree)),
        Property("no tree of this size has a larger sum of path probabilities", _each(_is_best)),
    ),
    behaviour=lambda answer: [sorted(_paths(answer, case)) for case in MARGINALS],
    misconceptions=(
        Misconception("A chain ends with the block; what is left of the budget buys siblings.", wrong_chain),
        Misconception("Level by level: a good child is worth more than a poor sibling.", wrong_level_by_level),
        Misconception(
            "The surest token next: a node counts with its whole path, and a sure child of a poor parent is poor.",
            wrong_surest_token,
        ),
        Misconception(
            "The spine first, and siblings with the rest: the deep end of the spine may be worth less than a sibling "
            "at the top.",
            wrong_first_siblings,
        ),
    ),
)

EXERCISES_03: Sequence[Exercise] = (EXPECTED_TOKENS, ORDER_BY_HAND, BEST_FIRST)
