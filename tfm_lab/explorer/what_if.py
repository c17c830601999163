"""Spend the budget by hand on candidates, and compare: best-first on the same knowledge, and the best there is.

The learner sees what best-first growth sees, the Weaver's path probabilities. The score is the target's: the expected
tokens of a step, 1 + the sum of the target's path probabilities.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tfm_lab.explorer.records import NodeFacts, TokenPath
from tfm_lab.explorer.survey import expected_tokens

Facts = Mapping[TokenPath, NodeFacts]


class Score(NamedTuple):
    """Expected tokens per target call of trees with equally many nodes.

    Attributes:
        yours: the tree that was placed by hand.
        best_first: the tree that best-first growth takes from the same candidates, by the Weaver's probabilities.
        possible: the best tree of these candidates, which only the target knows.
    """

    yours: float
    best_first: float
    possible: float


def choices(facts: Facts, placed: Sequence[TokenPath], budget: int) -> list[TokenPath]:
    """Candidates that may be placed next, best by the Weaver first; none once the budget is spent.

    A candidate needs its parent in the tree.
    """
    if len(placed) >= budget:
        return []
    inside = {(), *placed}
    waiting = [path for path in facts if path not in inside and path[:-1] in inside]
    return sorted(waiting, key=lambda path: (-facts[path].weaver_path, path))


def best_first(facts: Facts, budget: int, worth: Callable[[NodeFacts], float]) -> tuple[TokenPath, ...]:
    """Always the candidate of the greatest worth whose parent is there, until the budget is spent.

    Where no child is worth more than its parent, as with path probabilities, no tree of this size has a larger sum.
    """
    placed: list[TokenPath] = []
    inside: set[TokenPath] = {()}
    while len(placed) < budget:
        open_paths = [path for path in facts if path not in inside and path[:-1] in inside]
        if not open_paths:
            break
        taken = min(open_paths, key=lambda path: (-worth(facts[path]), path))
        placed.append(taken)
        inside.add(taken)
    return tuple(placed)


def score(facts: Facts, placed: Sequence[TokenPath]) -> Score:
    """What the target expects of the tree placed by hand and of its rivals."""
    by_weaver = best_first(facts, len(placed), lambda node: node.weaver_path)
    by_target = best_first(facts, len(placed), lambda node: node.target_path)
    return Score(*(expected_tokens(paths, facts) for paths in (placed, by_weaver, by_target)))
