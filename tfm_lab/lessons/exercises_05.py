"""Exercises of notebook 05, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.exercises_05_loss import LK_LOSS
from tfm_lab.lessons.memory_cases import told
from tfm_lab.lessons.properties import failing
from tfm_lab.lessons.training_by_hand import forcing, pool_coverage

# forcing


class PathCase(NamedTuple):
    """A text, the place of the root in it, and the number of nodes on the path."""

    name: str
    text: tuple[int, ...]
    anchor: int
    depth: int


TEXT = (31, 4, 15, 9, 26, 5, 35, 8)
PATHS = (
    PathCase("one node, the root", TEXT, 2, 1),
    PathCase("a path of three", TEXT, 2, 3),
    PathCase("a path that begins with the text", TEXT, 0, 4),
    PathCase("a path that ends one before the text", TEXT, 3, 4),
)

Forcing = Callable[[list[int], int, int], tuple[Sequence[int], Sequence[int]]]


def _lists(answer: Forcing, case: PathCase) -> tuple[list[int], list[int]]:
    reads, answers = answer(list(case.text), case.anchor, case.depth)
    return [int(token) for token in reads], [int(token) for token in answers]


def _is_as_long(answer: Forcing) -> str:
    def one(case: PathCase) -> str:
        lengths = tuple(map(len, _lists(answer, case)))
        return "" if lengths == (case.depth, case.depth) else f"{lengths} tokens, not {case.depth} in both lists"

    return failing(PATHS, one)


def _part_is(part: int, name: str) -> Callable[[Forcing], str]:
    def complaint(answer: Forcing) -> str:
        def one(case: PathCase) -> str:
            found, right = _lists(answer, case)[part], forcing(case.text, case.anchor, case.depth)[part]
            where = f"text {list(case.text)}, root at place {case.anchor}"
            return "" if found == right else f"{where}: {name} {found}, not {right}"

        return failing(PATHS, one)

    return complaint


def _never_knows(answer: Forcing) -> str:
    """By experiment: another token as the answer must not change what has been read up to there."""

    def one(case: PathCase) -> str:
        for depth in range(case.depth):
            place = case.anchor + 1 + depth
            other = [*case.text[:place], 99, *case.text[place + 1 :]]
            if 99 in answer(other, case.anchor, case.depth)[0][: depth + 1]:
                return f"at depth {depth} the answer (place {place}) has been read already"
        return ""

    return failing(PATHS, one)


def wrong_leak(text: Sequence[int], anchor: int, depth: int) -> Any:
    _, answers = forcing(text, anchor, depth)
    return answers, answers


def wrong_behind(text: Sequence[int], anchor: int, depth: int) -> Any:
    return [text[max(0, anchor - 1 + place)] for place in range(depth)], forcing(text, anchor, depth)[1]


def wrong_same_place(text: Sequence[int], anchor: int, depth: int) -> Any:
    reads, _ = forcing(text, anchor, depth)
    return reads, reads


def wrong_answers_too_far(text: Sequence[int], anchor: int, depth: int) -> Any:
    reads, answers = forcing(text, anchor, depth)
    return reads, [*answers[1:], (*text, 0)[anchor + 1 + depth]]


def wrong_without_last(text: Sequence[int], anchor: int, depth: int) -> Any:
    reads, answers = forcing(text, anchor, depth)
    return reads[:-1], answers[:-1]


def wrong_root_repeated(text: Sequence[int], anchor: int, depth: int) -> Any:
    return [text[anchor]] * depth, forcing(text, anchor, depth)[1]


FORCING = Exercise(
    name="05.forcing",
    title="who reads what, and answers what",
    task="Write <code>forcing(text, anchor, depth)</code>. A draft tree hangs below the token at place "
    "<code>anchor</code> of <code>text</code> (the root, depth 0), and the text itself is a path in it. Return two "
    "lists of <code>depth</code> tokens: those at whose nodes the Weaver is asked (from depth 0 on), and those that it "
    "is asked for there.",
    difficulty=1,
    importance=3,
    minutes=5,
    reread="Teacher forcing on the realised path",
    hints=(
        "While a tree is drafted, which token is the last that a node knows? Which is drafted below it?",
        "The node of depth d carries the token at place anchor + d, and is asked for the one after it.",
        "text[anchor : anchor + depth], and the same slice one place later.",
    ),
    solution=forcing,
    explanation="The first list begins with the root, the second one place later. What is read at a depth is exactly "
    "what a drafted node would know at decode time; the answer is never among it.",
    properties=(
        Property("both lists have one token for each depth", _is_as_long),
        Property("no answer has been read when it is asked for", _never_knows),
        Property("what is read: the node's own token, from the root on", _part_is(0, "reads")),
        Property("what is asked for: the next token of the text", _part_is(1, "answers")),
    ),
    behaviour=lambda answer: [list(_lists(answer, case)) for case in PATHS],
    misconceptions=(
        Misconception(
            "The answer leaks: every node reads the token that it is asked for. Copying it makes the loss fall, and "
            "at decode time there is nothing to copy.",
            wrong_leak,
        ),
        Misconception(
            "One place behind: a node reads its parent's token and not its own. That token is known when the node is "
            "expanded, and it is what the Weaver is for.",
            wrong_behind,
        ),
        Misconception(
            "The answer is the node's own token. A node is expanded to draft its children: ask for the next place.",
            wrong_same_place,
        ),
        Misconception(
            "The answers are one place too far: the Weaver would learn to skip a token.", wrong_answers_too_far
        ),
        Misconception("The last node is missing: it has an answer in the text like all others.", wrong_without_last),
        Misconception(
            "The root at every depth: that is all a block drafter knows. Teacher forcing gives the path.",
            wrong_root_repeated,
        ),
    ),
)


# pool_coverage


class CoverageCase(NamedTuple):
    """Rows of a target and of a drafter, and the size of the pool."""

    name: str
    p: Sequence[Sequence[Sequence[float]]]
    q: Sequence[Sequence[Sequence[float]]]
    size: int

    def arguments(self) -> tuple[Tensor, Tensor, int]:
        """Fresh arguments of ``training_by_hand.pool_coverage``, float64."""
        p, q = (torch.tensor(x, dtype=torch.float64) for x in (self.p, self.q))
        return p, q.log(), self.size


COVERAGES = (
    CoverageCase("one row, one depth, a pool of one", [[[0.2, 0.5, 0.3]]], [[[0.6, 0.3, 0.1]]], 1),
    CoverageCase("one row, one depth, a pool of all", [[[0.2, 0.5, 0.3]]], [[[0.6, 0.3, 0.1]]], 3),
    CoverageCase(
        "two rows, two depths, a pool of two",
        [[[0.2, 0.1, 0.4, 0.3], [0.7, 0.1, 0.1, 0.1]], [[0.5, 0.2, 0.2, 0.1], [0.05, 0.05, 0.1, 0.8]]],
        [[[0.6, 0.2, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]], [[0.6, 0.1, 0.1, 0.2], [0.1, 0.2, 0.3, 0.4]]],
        2,
    ),
)

Coverage = Callable[[Tensor, Tensor, int], Tensor]


def _covers(answer: Coverage, cases: Sequence[CoverageCase]) -> str:
    def one(case: CoverageCase) -> str:
        found = torch.as_tensor(answer(*case.arguments()), dtype=torch.float64)
        right = pool_coverage(*case.arguments())
        if found.shape != right.shape:
            return f"it gives shape {tuple(found.shape)}, not one number for each of {len(right)} depths"
        return "" if torch.allclose(found, right, rtol=0, atol=1e-9) else f"{told(found)}, not {told(right)}"

    return failing(cases, one)


def wrong_drafters_mass(p: Tensor, logits: Tensor, size: int) -> Tensor:
    return logits.softmax(-1).topk(size, dim=-1).values.sum(-1).mean(0)


def wrong_targets_pool(p: Tensor, logits: Tensor, size: int) -> Tensor:
    return p.topk(size, dim=-1).values.sum(-1).mean(0)


def wrong_share_of_vocabulary(p: Tensor, logits: Tensor, size: int) -> Tensor:
    return torch.full((p.shape[1],), size / p.shape[2], dtype=p.dtype)


def wrong_one_number(p: Tensor, logits: Tensor, size: int) -> Tensor:
    return pool_coverage(p, logits, size).mean()


def wrong_first_pool(p: Tensor, logits: Tensor, size: int) -> Tensor:
    return pool_coverage(p, logits[:, :1].expand_as(logits), size)


def wrong_overlap(p: Tensor, logits: Tensor, size: int) -> Tensor:
    best = logits.softmax(-1).topk(size, dim=-1)
    return torch.minimum(p.gather(-1, best.indices), best.values).sum(-1).mean(0)


COVERAGE = Exercise(
    name="05.coverage",
    title="report the pool's coverage",
    task="Write <code>pool_coverage(p, logits, size)</code>. <code>p</code> holds the target's distribution for rows × "
    "depths × vocabulary, <code>logits</code> the drafter's for the same places. The pool of a place holds the "
    "<code>size</code> best tokens of the drafter. Return, for every depth, the mean over the rows of the target's "
    "probability that lies on the pool.",
    difficulty=1,
    importance=2,
    minutes=5,
    reread="What the pool leaves out",
    hints=(
        "Two models take part. Which of them chooses the tokens, and whose probabilities are added up?",
        "topk gives indices, gather takes the entries at indices.",
        "p.gather(-1, logits.topk(size, dim=-1).indices).sum(-1), then the mean over the first axis.",
    ),
    solution=pool_coverage,
    explanation="The drafter chooses, the target's mass is counted. No Weaver on this pool is accepted more often at "
    "that depth, however well it is trained: report the coverage beside every acceptance.",
    properties=(
        Property("a pool of the whole vocabulary covers everything", lambda a: _covers(a, COVERAGES[1:2])),
        Property("the drafter chooses, the target's probability counts", lambda a: _covers(a, COVERAGES[:1])),
        Property("one number for each depth, the mean over the rows", lambda a: _covers(a, COVERAGES[2:])),
    ),
    behaviour=lambda answer: [torch.as_tensor(answer(*case.arguments()), dtype=torch.float64) for case in COVERAGES],
    misconceptions=(
        Misconception(
            "The drafter's own mass on its pool: it says how sure the drafter is, not how right.", wrong_drafters_mass
        ),
        Misconception(
            "The target's best tokens were put into the pool. They are not known before verification; the drafter "
            "chooses.",
            wrong_targets_pool,
        ),
        Misconception("The share of the vocabulary: tokens are not equally likely.", wrong_share_of_vocabulary),
        Misconception("One number for all depths hides that the pool gets worse with depth.", wrong_one_number),
        Misconception("The pool of the first place was taken for all. Every depth has its own.", wrong_first_pool),
        Misconception(
            "This is the drafter's acceptance. Coverage is the ceiling that is left when q on the pool is ideal.",
            wrong_overlap,
        ),
    ),
)

EXERCISES_05: Sequence[Exercise] = (FORCING, LK_LOSS, COVERAGE)
