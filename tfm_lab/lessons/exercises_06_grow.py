"""Notebook 06's exercise on growth, with the wrong answers that its check must reject. ``wrong_...`` is WRONG ON
PURPOSE.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfm_lab.lessons.by_hand import TokenPath
from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.growing_by_hand import Ask, first_orphan, grow
from tfm_lab.lessons.properties import failing
from tfm_lab.theory import HiddenWorld

MOST_CALLS = 100


class GrowthCase(NamedTuple):
    """A world in which no two paths are equally likely, and the arguments of ``grow``."""

    name: str
    world: HiddenWorld
    budget: int
    width: int
    depth: int


GROWTHS = (
    GrowthCase("budget 5, one at a time", HiddenWorld.dirichlet(3, 5, 0.3, 1), 5, 1, 6),
    GrowthCase("budget 8, two at a time", HiddenWorld.dirichlet(4, 6, 0.2, 2), 8, 2, 6),
    GrowthCase("budget 9, four at a time", HiddenWorld.dirichlet(4, 6, 0.3, 3), 9, 4, 6),
    GrowthCase("budget 10, three at a time, at most two deep", HiddenWorld.dirichlet(4, 6, 0.2, 4), 10, 3, 2),
)


class Drafter:
    """A drafter that knows the world, counts its calls, and remembers the longest path that it was asked about."""

    def __init__(self, world: HiddenWorld) -> None:
        self._world, self.calls, self.longest = world, 0, 0

    def __call__(self, paths: Sequence[TokenPath]) -> list[list[float]]:
        """The next token's probabilities after each path.

        Raises:
            ValueError: after far too many calls.
        """
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise ValueError(f"more than {MOST_CALLS} calls for one tree: does it ever stop?")
        self.longest = max([self.longest, *map(len, paths)])
        return [self._world.conditional(tuple(path)).tolist() for path in paths]


Grow = Callable[[Ask, int, int, int], Sequence[TokenPath]]


class Grown(NamedTuple):
    """The paths that an answer adds, the drafter calls that it took, and the longest path that it asked about."""

    paths: list[TokenPath]
    calls: int
    longest: int


def run(answer: Grow, case: GrowthCase) -> Grown:
    """Let an answer grow the tree of a case."""
    drafter = Drafter(case.world)
    paths = answer(drafter, case.budget, case.width, case.depth)
    return Grown([tuple(int(token) for token in path) for path in paths], drafter.calls, drafter.longest)


def _each(complaint: Callable[[GrowthCase, Grown], str]) -> Callable[[Grow], str]:
    return lambda answer: failing(GROWTHS, lambda case: complaint(case, run(answer, case)))


def _spends(case: GrowthCase, grown: Grown) -> str:
    paths = grown.paths
    if len(set(paths)) != len(paths) or len(paths) != case.budget:
        return f"{len(set(paths))} different paths for a budget of {case.budget}"
    deepest = max(map(len, paths))
    return "" if deepest <= case.depth else f"a path of {deepest} tokens, where {case.depth} are allowed"


def _is_in_order(case: GrowthCase, grown: Grown) -> str:
    paths = grown.paths
    place = first_orphan(paths)
    return "" if place < 0 else f"{paths[place]} stands without, or before, its parent {paths[place][:-1]}"


def _takes_the_best(case: GrowthCase, grown: Grown) -> str:
    paths, right = grown.paths, run(grow, case).paths
    place = next((place for place, pair in enumerate(zip(paths, right, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return ""
    chances = [_chance(case.world, path) for path in (paths[place], right[place])]
    return f"node {place + 1} is {paths[place]} ({chances[0]:.4f}), not {right[place]} ({chances[1]:.4f})"


def _calls_once_a_round(case: GrowthCase, grown: Grown) -> str:
    right = run(grow, case).calls
    return "" if grown.calls == right else f"{grown.calls} drafter calls, not {right}"


def _asks_nothing_in_vain(case: GrowthCase, grown: Grown) -> str:
    if grown.longest < case.depth:
        return ""
    return f"a path of {grown.longest} tokens is asked about, and none may be longer than {case.depth}"


def _chance(world: HiddenWorld, path: TokenPath) -> float:
    return math.prod(float(world.conditional(path[:place])[token]) for place, token in enumerate(path))


Offer = tuple[float, TokenPath]


def _offers(ask: Ask, fresh: Sequence[Offer]) -> list[Offer]:
    rows = ask([path for _, path in fresh]) if fresh else []
    return [
        (chance * probability, (*path, token))
        for (chance, path), row in zip(fresh, rows, strict=True)
        for token, probability in enumerate(row)
    ]


def wrong_own_token(ask: Ask, budget: int, width: int, depth: int) -> list[TokenPath]:
    found: list[TokenPath] = []
    frontier: list[Offer] = []
    fresh: list[Offer] = [(1.0, ())]
    while len(found) < budget:
        frontier += _offers(ask, [(1.0, path) for _, path in fresh])
        frontier.sort(reverse=True)
        taken, frontier = _split(frontier, min(width, budget - len(found)))
        found += [path for _, path in taken]
        fresh = [offer for offer in taken if len(offer[1]) < depth]
    return found


def wrong_single_calls(ask: Ask, budget: int, width: int, depth: int) -> list[TokenPath]:
    return grow(lambda paths: [ask([path])[0] for path in paths], budget, width, depth)


def wrong_last_round(ask: Ask, budget: int, width: int, depth: int) -> list[TokenPath]:
    found = grow(ask, budget, width, depth)
    ask(found[-(budget % width or width) :])
    return found


def wrong_beam(ask: Ask, budget: int, width: int, depth: int) -> list[TokenPath]:
    found: list[TokenPath] = []
    fresh: list[Offer] = [(1.0, ())]
    while len(found) < budget and fresh:
        taken, _ = _split(sorted(_offers(ask, fresh), reverse=True), min(width, budget - len(found)))
        found += [path for _, path in taken]
        fresh = [offer for offer in taken if len(offer[1]) < depth]
    return found


def wrong_one_parent(ask: Ask, budget: int, width: int, depth: int) -> list[TokenPath]:
    found: list[TokenPath] = []
    fresh: list[Offer] = [(1.0, ())]
    while len(found) < budget and fresh:
        fresh.sort(reverse=True)
        best, fresh = _split(fresh, 1)
        taken, _ = _split(sorted(_offers(ask, best), reverse=True), min(width, budget - len(found)))
        found += [path for _, path in taken]
        fresh += [offer for offer in taken if len(offer[1]) < depth]
    return found


def wrong_deepest_asked(ask: Ask, budget: int, width: int, depth: int) -> list[TokenPath]:
    found: list[TokenPath] = []
    frontier: list[Offer] = []
    fresh: list[Offer] = [(1.0, ())]
    while len(found) < budget:
        frontier += [offer for offer in _offers(ask, fresh) if len(offer[1]) <= depth]
        frontier.sort(reverse=True)
        fresh, frontier = _split(frontier, min(width, budget - len(found)))
        found += [path for _, path in fresh]
    return found


def wrong_root_counts(ask: Ask, budget: int, width: int, depth: int) -> list[TokenPath]:
    return grow(ask, budget - 1, width, depth)


def _split(offers: list[Offer], count: int) -> tuple[list[Offer], list[Offer]]:
    return offers[:count], offers[count:]


GROW = Exercise(
    name="06.grow",
    title="grow(B, w)",
    task="Write <code>grow(ask, budget, width, depth)</code>. <code>ask(paths)</code> is one drafter call: for a list "
    "of paths (tuples of tokens; <code>()</code> is the root) it returns a list of probabilities of the next token for "
    "each. Start with the root. In every round, call <code>ask</code> once on the nodes that the round before added, "
    "then add the <code>width</code> most probable paths that are waiting. Return the <code>budget</code> paths in the "
    "order in which they were added. Paths of <code>depth</code> tokens are not asked about, and nobody is asked once "
    "the budget is spent.",
    difficulty=2,
    importance=3,
    minutes=15,
    reread="By hand",
    hints=(
        "Two lists are enough: what waits (with the probability of its whole path), and what was added last.",
        "The probability of a child's path is the parent's times the row's entry. What is not taken in a round goes on "
        "waiting, and may be taken much later.",
        "heapq with entries (-probability, path). While the budget lasts: ask about the fresh paths and push all "
        "their children; pop up to width paths; those that are shorter than depth are the fresh ones of the next "
        "round.",
    ),
    solution=grow,
    explanation="The call stands at the beginning of a round, so the nodes of the last round are never asked about, "
    "and a tree of B nodes takes ⌈B / w⌉ calls. The package's builder offers siblings one at a time and works with "
    "logarithms; the tree is the same.",
    properties=(
        Property("the budget is spent, on different paths that are not too long", _each(_spends)),
        Property("parents come before their children", _each(_is_in_order)),
        Property("every round adds the most probable paths that wait, best first", _each(_takes_the_best)),
        Property("one call for all nodes of a round, and none after the last", _each(_calls_once_a_round)),
        Property("nobody asks about a path that can have no children", _each(_asks_nothing_in_vain)),
    ),
    behaviour=lambda answer: [list(run(answer, case)) for case in GROWTHS],
    misconceptions=(
        Misconception(
            "Candidates are ordered by their own token's probability. A sure child of an unlikely path is unlikely.",
            wrong_own_token,
        ),
        Misconception(
            "One call per node: the tree is right, and the calls are what w was to save. Ask about all nodes of a "
            "round at once.",
            wrong_single_calls,
        ),
        Misconception("The nodes of the last round are asked about: nobody needs their children.", wrong_last_round),
        Misconception("Beam search: what is not taken in a round is thrown away. It must go on waiting.", wrong_beam),
        Misconception(
            "w children of the best node. A round takes the w best paths, whoever their parents are.", wrong_one_parent
        ),
        Misconception(
            "The deepest nodes are asked about, and their children thrown away: that is a Weaver's row for nothing.",
            wrong_deepest_asked,
        ),
        Misconception("The root is counted. The budget is that of proposed tokens.", wrong_root_counts),
    ),
)
