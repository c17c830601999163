"""WRONG ON PURPOSE. A tree that scores the children of siblings by marginals made for another path: exhibit 9.

Nothing is biased here: acceptance by membership is lossless on any tree. What goes wrong is the tree's own idea of how
many tokens it will bring, and with it where the budget goes.
"""

import math
from collections import defaultdict
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.drafting import DraftSource, Marginals, TreeConfig, best_first, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.theory import MarkovWorld
from tfm_lab.theory.worlds import perfect_source
from tfm_lab.tree import DraftTree
from tfm_lab.zoo.exhibit import Exhibit, Measurement

WORLD = MarkovWorld.dirichlet(16, 0.1, seed=1)
CONFIG = TreeConfig(budget=24, max_depth=5, children=8, width=1)

Grow = Callable[[MarkovWorld], DraftTree]


def spine_rows(world: MarkovWorld, depth: int) -> Float[Tensor, "depth vocab"]:
    """The world's conditionals along its likeliest path: what block drafters tend to report as marginals."""
    path: list[int] = []
    rows: list[Tensor] = []
    for _ in range(depth):
        rows.append(world.conditional(tuple(path)))
        path.append(int(rows[-1].argmax()))
    return torch.stack(rows)


def wrong_scores(world: MarkovWorld) -> DraftTree:
    """WRONG in the line that makes the source: one row per depth, however a path got there.

    On the spine the row of a depth is the truth. Below a sibling it is the conditional of a token that is not there.
    """
    rows = Marginals(spine_rows(world, CONFIG.max_depth).log(), torch.zeros(CONFIG.max_depth, 1))
    return best_first(world.context, DraftSource(rows), CONFIG, SeededDraws(0)).tree


def right_scores(world: MarkovWorld) -> DraftTree:
    """Right: every node's children are scored given the whole path to it, as the Weaver does."""
    return woven(world.context, perfect_source(world, CONFIG.max_depth), CONFIG, SeededDraws(0)).tree


def orphans(tree: DraftTree) -> list[int]:
    """Nodes below a node that is not on the spine, the path of every node's first child."""
    spine, children = {0}, tree.children()
    node = 0
    while children[node]:
        node = children[node][0]
        spine.add(node)
    return [node for node in range(1, len(tree)) if int(tree.parents[node]) not in spine]


def undelivered(grow: Grow) -> Measurement:
    """The tool: which part of the tokens promised in orphan subtrees the target does not deliver.

    Promised and delivered are exact expectations: sums over the orphans of the path's probability, by the tree's own
    scores and by the world, averaged over contexts by their frequency.
    """
    promised: defaultdict[int, float] = defaultdict(float)
    delivered: defaultdict[int, float] = defaultdict(float)
    for context, frequency in enumerate(WORLD.stationary().tolist()):
        world = WORLD.at(context)
        tree = grow(world)
        scores = tree.path_log_probs().exp().tolist()
        for node in orphans(tree):
            path, depth = tree.path_tokens(node)[1:], int(tree.depths[node])
            promised[depth] += frequency * scores[node]
            delivered[depth] += frequency * _chance(world, path)
    depths = sorted(promised)
    kept = {depth: delivered[depth] / promised[depth] for depth in depths}
    error = abs(1.0 - sum(delivered.values()) / sum(promised.values()))
    return Measurement(error, {float(depth): share for depth, share in kept.items()}, {float(d): 1.0 for d in depths})


def next_choice_is_right() -> dict[str, dict[float, float]]:
    """How often the first choice of the wrong rows for the next place is the target's token, by depth of the node.

    Exact, over the nodes of the trees of all contexts, by the probability that the target's draws lead to them:
    ``on the spine`` and ``below a sibling``.
    """
    reached: defaultdict[tuple[str, int], float] = defaultdict(float)
    hits: defaultdict[tuple[str, int], float] = defaultdict(float)
    for context, frequency in enumerate(WORLD.stationary().tolist()):
        world = WORLD.at(context)
        tree, favourites = wrong_scores(world), spine_rows(world, CONFIG.max_depth).argmax(1).tolist()
        for node in range(1, len(tree)):
            path = tree.path_tokens(node)[1:]
            if len(path) < CONFIG.max_depth:
                where = "on the spine" if list(path) == favourites[: len(path)] else "below a sibling"
                chance = frequency * _chance(world, path)
                reached[where, len(path)] += chance
                hits[where, len(path)] += chance * float(world.conditional(path)[favourites[len(path)]])
    found: dict[str, dict[float, float]] = {"on the spine": {}, "below a sibling": {}}
    for where, depth in sorted(reached):
        found[where][float(depth)] = hits[where, depth] / reached[where, depth]
    return found


def _chance(world: MarkovWorld, path: tuple[int, ...]) -> float:
    """Probability that the target's draws spell out the path."""
    return math.prod(float(world.conditional(path[:place])[token]) for place, token in enumerate(path))


ORPHAN_SUBTREES = Exhibit(
    number=9,
    name="orphan_subtrees",
    title="Orphan subtrees: children judged for another parent",
    symptom="A wider tree promises many more accepted tokens below its siblings than ever arrive.",
    cause="A block drafter has one row per depth, made for the likeliest path; below a sibling it is mostly noise.",
    fix="Score a child given its whole path, or spend the budget of siblings on leaves.",
    threads=("https://github.com/vllm-project/vllm/pull/42910",),
    wrong=wrong_scores,
    right=right_scores,
    tool=undelivered,
    figure_of_merit="part of the tokens promised in orphan subtrees that do not arrive",
    tolerance=1e-12,
    threshold=0.1,
    x_title="depth",
    y_title="accepted orphans, delivered / promised",
)
