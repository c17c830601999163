"""Exercises of notebook 07, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab.distributions import SamplingConfig, first_argmax
from tfm_lab.drafting import Draft, TreeKind
from tfm_lab.draws import Draws
from tfm_lab.exact import Table, Verdict, bias, emission_distribution, enumerate_outcomes, expected_length, random_table
from tfm_lab.exact import target_rows as rows_of
from tfm_lab.lessons.by_hand import ancestor_mask, membership_walk
from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.properties import LimitedDraws, failing
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance

PLAIN = SamplingConfig()
LENGTH = 4
Walk = Callable[[DraftTree, Tensor, Draws], tuple[Sequence[int], int]]


class Shape(NamedTuple):
    """A tree by its parents."""

    name: str
    parents: tuple[int, ...]


SHAPES = (
    Shape("the root alone", (-1,)),
    Shape("a chain of three", (-1, 0, 1)),
    Shape("two siblings", (-1, 0, 0)),
    Shape("a comb", (-1, 0, 0, 1, 1, 3)),
    Shape("a bush", (-1, 0, 0, 1, 2, 2, 4, 0)),
)


# ancestor_mask


def wrong_parent_only(parents: Sequence[int]) -> Tensor:
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node in range(1, len(parents)):
        mask[node, parents[node]] = True
    return mask


def wrong_without_self(parents: Sequence[int]) -> Tensor:
    return ancestor_mask(parents) & ~torch.eye(len(parents), dtype=torch.bool)


def wrong_descendants(parents: Sequence[int]) -> Tensor:
    return ancestor_mask(parents).T


def wrong_causal(parents: Sequence[int]) -> Tensor:
    return torch.ones(len(parents), len(parents), dtype=torch.bool).tril()


def _entries(answer: Callable[[list[int]], Tensor], matters: Callable[[Tensor, int, int], bool], text: str) -> str:
    def one(shape: Shape) -> str:
        mask, right = torch.as_tensor(answer(list(shape.parents))), ancestor_mask(shape.parents)
        if mask.shape != right.shape:
            return f"the mask has shape {tuple(mask.shape)}, the tree {len(shape.parents)} nodes"
        size = range(len(shape.parents))
        bad = [(i, j) for i in size for j in size if matters(right, i, j) and bool(mask[i, j]) != bool(right[i, j])]
        return f"parents {list(shape.parents)}: {text.format(*bad[0])}" if bad else ""

    return failing(SHAPES, one)


ANCESTOR_MASK = Exercise(
    name="07.ancestor_mask",
    title="who may look at whom",
    task="Write <code>ancestor_mask(parents)</code>. <code>parents</code> is a list; entry 0 is -1 (the root), and "
    "every "
    "parent comes before its children. Return a square boolean tensor: entry [i, j] says whether node i may look at "
    "node j.",
    difficulty=1,
    importance=3,
    minutes=8,
    reread="One pass for all branches",
    hints=(
        "Node i must see what it would see if its own path were the whole text.",
        "The row of a node is the row of its parent, and the node itself.",
        "Start with the identity; for i = 1, 2, ... add row parents[i] to row i.",
    ),
    solution=ancestor_mask,
    explanation="Parents come first, so the parent's row is complete when its children are filled in.",
    properties=(
        Property(
            "every node sees itself", lambda a: _entries(a, lambda _, i, j: i == j, "node {0} does not see itself")
        ),
        Property(
            "every node sees its whole path",
            lambda a: _entries(a, lambda right, i, j: bool(right[i, j]), "node {0} does not see node {1}"),
        ),
        Property(
            "no node sees other branches, or what comes after it",
            lambda a: _entries(
                a, lambda right, i, j: not right[i, j], "node {0} sees node {1}, which is not on its path"
            ),
        ),
    ),
    behaviour=lambda answer: [torch.as_tensor(answer(list(shape.parents))) for shape in SHAPES],
    misconceptions=(
        Misconception("Only the parent: from depth 2 on, a node forgets the beginning of its path.", wrong_parent_only),
        Misconception("Ancestors without the node itself: its own token has to be read as well.", wrong_without_self),
        Misconception(
            "The transpose: rows look, columns are looked at. Here a node sees its future.", wrong_descendants
        ),
        Misconception(
            "The causal mask of a plain text: what stands before a node in memory need not be on its path.",
            wrong_causal,
        ),
    ),
)


# membership_walk


class WalkCase(NamedTuple):
    """A tree, and a target by whose rows it is judged."""

    name: str
    tree: DraftTree
    target: Table


def walk_cases() -> list[WalkCase]:
    """Small trees on a vocabulary of three, below random targets."""
    return [
        WalkCase("one draft", DraftTree.from_parents([0, 1], [-1, 0]), random_table(3, 3, seed=31)),
        WalkCase("two siblings", DraftTree.from_parents([0, 1, 2], [-1, 0, 0]), random_table(3, 3, seed=32)),
        WalkCase(
            "two branches", DraftTree.from_parents([0, 1, 2, 1, 0, 2], [-1, 0, 0, 1, 2, 4]), random_table(3, 3, seed=33)
        ),
    ]


def _rows(case: WalkCase) -> Tensor:
    rows = rows_of(Draft(case.tree, TreeKind.FIXED), case.target, PLAIN)
    return torch.stack([rows.probabilities(node) for node in range(len(case.tree))])


def walk_verdicts(answer: Walk, case: WalkCase) -> list[Verdict]:
    """Every way in which the walk can go.

    Raises:
        ValueError: if one walk takes more than ten random decisions.
    """
    rows, draft = _rows(case), Draft(case.tree, TreeKind.FIXED)
    outcomes = enumerate_outcomes(lambda draws: answer(case.tree, rows.clone(), LimitedDraws(draws)))
    return [Verdict(chance, draft, Acceptance(tuple(map(int, path)), int(bonus))) for chance, (path, bonus) in outcomes]


def _steps_down(answer: Walk) -> str:
    def one(case: WalkCase) -> str:
        parents = case.tree.parents.tolist()
        for verdict in walk_verdicts(answer, case):
            path = verdict.acceptance.path
            if path[:1] != (0,) or any(parents[b] != a for a, b in pairwise(path)):
                return f"the path {path} does not lead from the root (0) from parent to child"
        return ""

    return failing(walk_cases(), one)


def _is_lossless(answer: Walk) -> str:
    def one(case: WalkCase) -> str:
        law = emission_distribution(walk_verdicts(answer, case), case.target, LENGTH, PLAIN)
        distance = bias(law, case.target, PLAIN)
        return "" if distance <= 1e-12 else f"the text is off by TV = {distance:.3f}"

    return failing(walk_cases(), one)


def _is_longest(answer: Walk) -> str:
    def one(case: WalkCase) -> str:
        tokens, most = (expected_length(walk_verdicts(walk, case)) for walk in (answer, membership_walk))
        return (
            "" if abs(tokens - most) <= 1e-12 else f"{tokens:.4f} expected tokens, 1 + the sum of p(path) is {most:.4f}"
        )

    return failing(walk_cases(), one)


def wrong_redraw(tree: DraftTree, rows: Tensor, draws: Draws) -> tuple[tuple[int, ...], int]:
    path, _ = membership_walk(tree, rows, draws)
    return path, draws.categorical(rows[path[-1]])


def wrong_draw_per_child(tree: DraftTree, rows: Tensor, draws: Draws) -> tuple[tuple[int, ...], int]:
    path, tokens, children = [0], tree.tokens.tolist(), tree.children()
    while True:
        node = path[-1]
        matching = (child for child in children[node] if draws.categorical(rows[node]) == tokens[child])
        if (child := next(matching, None)) is None:
            return tuple(path), draws.categorical(rows[node])
        path.append(child)


def wrong_any_parent(tree: DraftTree, rows: Tensor, draws: Draws) -> tuple[tuple[int, ...], int]:
    path, tokens, depths = [0], tree.tokens.tolist(), tree.depths.tolist()
    while True:
        token = draws.categorical(rows[path[-1]])
        following = [n for n in range(len(tree)) if depths[n] == len(path) and tokens[n] == token]
        if not following:
            return tuple(path), token
        path.append(following[-1])


def wrong_argmax(tree: DraftTree, rows: Tensor, draws: Draws) -> tuple[tuple[int, ...], int]:
    class Favourites:
        def categorical(self, weights: Tensor) -> int:
            return int(first_argmax(weights))

        def bernoulli(self, probability: float) -> bool:
            return probability >= 0.5

    return membership_walk(tree, rows, Favourites())


def wrong_first_only(tree: DraftTree, rows: Tensor, draws: Draws) -> tuple[tuple[int, ...], int]:
    path, tokens, children = [0], tree.tokens.tolist(), tree.children()
    while True:
        token = draws.categorical(rows[path[-1]])
        if not children[path[-1]] or tokens[children[path[-1]][0]] != token:
            return tuple(path), token
        path.append(children[path[-1]][0])


MEMBERSHIP_WALK = Exercise(
    name="07.membership_walk",
    title="the judge",
    task="Write <code>membership_walk(tree, rows, draws)</code>. <code>rows[node]</code> is the target's "
    "distribution after "
    "that node; <code>draws.categorical(weights)</code> draws from it. Return the accepted path (node numbers, from "
    "the "
    "root 0) and the bonus token. <code>tree.tokens[node]</code> is a node's token, "
    "<code>tree.children()[node]</code> are "
    "its children.",
    difficulty=2,
    importance=3,
    minutes=12,
    reread="The judge",
    hints=(
        "Let the target speak first; only then look whether the tree has what it said.",
        "One draw per emitted token and no other. The draw that no child carries is not lost: it is the bonus token.",
        "Start at 0. Draw from rows[path[-1]]; if a child has that token, append it and go on, else return path and "
        "token.",
    ),
    solution=membership_walk,
    explanation="Every emitted token is the target's own draw after the tokens before it, so the text is that of plain "
    "sampling, with the same draws in the same order. The tree decides only where the step ends.",
    properties=(
        Property("the path leads from the root down, from parent to child", _steps_down),
        Property("the text has exactly the law of plain sampling", _is_lossless),
        Property("nothing that the tree offers is given away: E = 1 + the sum of p(path)", _is_longest),
    ),
    behaviour=lambda answer: [
        [(v.probability, v.acceptance.path, v.acceptance.bonus) for v in walk_verdicts(answer, case)]
        for case in walk_cases()
    ],
    misconceptions=(
        Misconception(
            "The token that no child carried is thrown away, and the bonus is drawn anew. That gives the "
            "offered tokens a second chance.",
            wrong_redraw,
        ),
        Misconception(
            "A fresh draw for every child: siblings get more chances than the target gives them.", wrong_draw_per_child
        ),
        Misconception(
            "Any node of the next depth with the right token will do. It must be a child of the node where "
            "the walk stands; others continue another text.",
            wrong_any_parent,
        ),
        Misconception(
            "The target's likeliest token instead of a draw: that is greedy decoding, at any temperature.", wrong_argmax
        ),
        Misconception(
            "Only the first child is looked at: lossless, but the siblings were drafted for nothing.", wrong_first_only
        ),
    ),
)


# biased

BIASED = frozenset("ADF")


def letters(answer: str | Iterable[str]) -> str:
    """The letters of an answer such as ``"AB"``, ``"a, b"`` or ``{"A", "B"}``, in order."""
    return "".join(sorted({letter for letter in "".join(answer).upper() if letter.isalpha()}))


def _missed(answer: str | Iterable[str]) -> str:
    return "a biased pair is missing" if BIASED - set(letters(answer)) else ""


def _accused(answer: str | Iterable[str]) -> str:
    return "a lossless pair is among them" if set(letters(answer)) - BIASED else ""


BIASED_TREES = Exercise(
    name="07.biased",
    title="seven pairs, some of them biased",
    task="Set <code>biased</code> to the letters of all pairs with a text that is not the target's, such as "
    '<code>"AB"</code>.',
    difficulty=2,
    importance=2,
    minutes=8,
    reread="The whole table",
    hints=(
        "A rule is not biased by itself, and neither is a tree. Pairs are.",
        "exact_emission_distribution(pair.builder, pair.rule, P, Q, 3, CONFIG) is the law, bias its distance.",
        "Loop over LINE_UP.items() and list the letters whose bias is above 1e-12.",
    ),
    solution="ADF",
    explanation="A takes the top of q for draws from it; D draws and then keeps the best; F tries siblings in the "
    "order of their rank. B prunes like D, but membership asks only the target and takes any tree. E draws the order "
    "of the siblings, which is all that F lacks.",
    properties=(
        Property("every biased pair is named", _missed),
        Property("no lossless pair is named", _accused),
    ),
    behaviour=letters,
    misconceptions=(
        Misconception(
            "Pruning after drawing (B) is wrong only for rules that divide by q. Membership takes any tree.", "ABDF"
        ),
        Misconception("The order of siblings matters for the ratio rules: F always tries the best one first.", "AD"),
        Misconception("Traversal on a fixed tree (E) is exact when the order of the siblings is drawn.", "ADEF"),
        Misconception("The tree of D was really drawn, but what was kept of it was chosen by what came up.", "AF"),
    ),
)

EXERCISES_07: Sequence[Exercise] = (ANCESTOR_MASK, MEMBERSHIP_WALK, BIASED_TREES)
