"""Exercises of notebook 04, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab.lessons.by_hand import ancestor_mask
from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.exercises_04_pool import POOL_LOG_PROBS
from tfm_lab.lessons.properties import failing
from tfm_lab.lessons.weaver_by_hand import PUBLISHED, call_bytes, path_mask

# path_mask


class MaskCase(NamedTuple):
    """A tree by its parents, below a prefix."""

    name: str
    parents: tuple[int, ...]
    prefix: int


MASKS = (
    MaskCase("the root alone", (-1,), 4),
    MaskCase("a chain of three", (-1, 0, 1), 4),
    MaskCase("two siblings", (-1, 0, 0), 3),
    MaskCase("a comb", (-1, 0, 0, 1, 1, 3), 5),
    MaskCase("a bush", (-1, 0, 0, 1, 2, 2, 4, 0), 6),
)

MaskAnswer = Callable[[list[int], int], Tensor]
Matters = Callable[[MaskCase, Tensor, int, int], bool]


def _entries(answer: MaskAnswer, matters: Matters, text: str) -> str:
    def one(case: MaskCase) -> str:
        mask = torch.as_tensor(answer(list(case.parents), case.prefix))
        right = path_mask(case.parents, case.prefix)
        if mask.shape != right.shape:
            return f"the mask has shape {tuple(mask.shape)}, not {tuple(right.shape)}: a row per node, prefix + nodes"
        for node, column in torch.cartesian_prod(*map(torch.arange, right.shape)).tolist():
            if matters(case, right, node, column) and bool(mask[node, column]) != bool(right[node, column]):
                which = f"prefix {column}" if column < case.prefix else f"node {column - case.prefix}"
                return f"parents {list(case.parents)}, prefix {case.prefix}: node {node} {text} {which}"
        return ""

    return failing(MASKS, one)


def wrong_no_prefix(parents: Sequence[int], prefix: int) -> Tensor:
    return torch.cat([torch.zeros(len(parents), prefix, dtype=torch.bool), ancestor_mask(parents)], dim=1)


def wrong_prefix_up_to_depth(parents: Sequence[int], prefix: int) -> Tensor:
    mask, depths = path_mask(parents, prefix), ancestor_mask(parents).sum(1) - 1
    mask[:, :prefix] = torch.arange(prefix) <= depths.unsqueeze(1) + 1
    return mask


def wrong_all_before(parents: Sequence[int], prefix: int) -> Tensor:
    return torch.ones(len(parents), prefix + len(parents), dtype=torch.bool).tril(prefix)


def wrong_without_self(parents: Sequence[int], prefix: int) -> Tensor:
    mask = path_mask(parents, prefix)
    mask[:, prefix:] &= ~torch.eye(len(parents), dtype=torch.bool)
    return mask


def wrong_parent_only(parents: Sequence[int], prefix: int) -> Tensor:
    mask = path_mask(parents, prefix)
    mask[:, prefix:] = torch.eye(len(parents), dtype=torch.bool)
    for node in range(1, len(parents)):
        mask[node, prefix + parents[node]] = True
    return mask


def wrong_nodes_first(parents: Sequence[int], prefix: int) -> Tensor:
    return path_mask(parents, prefix).roll(len(parents), dims=1)


PATH_MASK = Exercise(
    name="04.path_mask",
    title="who attends to whom",
    task="Write <code>path_mask(parents, prefix)</code>: a boolean tensor with a row for each node and "
    "<code>prefix + len(parents)</code> columns, those of the prefix first. Entry [i, j] says whether node i attends "
    "to column j. <code>parents</code> is a list; entry 0 is -1 (the root), and parents come before their children.",
    difficulty=1,
    importance=3,
    minutes=8,
    reread="Every node reads its own path",
    hints=(
        "What would a node see if its path were a plain text that is drafted token by token?",
        "The prefix is the same for everybody and comes before all nodes in time, so all of it is visible to all of "
        "them. Among the nodes it is the ancestor mask of notebook 07.",
        "Set the first prefix columns to True. For the rest, start with the identity, and for i = 1, 2, ... add the "
        "row of parents[i] to row i.",
    ),
    solution=path_mask,
    explanation="A node may know what was there before the draft, and what was drafted on its own path. The places of "
    "the prefix for greater depths are no peep into the future: they hold what the drafter guessed before any token "
    "was chosen.",
    properties=(
        Property(
            "every node sees the whole prefix",
            lambda a: _entries(a, lambda case, _, i, j: j < case.prefix, "does not see"),
        ),
        Property(
            "every node sees itself and its ancestors",
            lambda a: _entries(a, lambda case, right, i, j: j >= case.prefix and bool(right[i, j]), "does not see"),
        ),
        Property(
            "no node sees another branch, or what comes after it",
            lambda a: _entries(a, lambda case, right, i, j: j >= case.prefix and not right[i, j], "sees"),
        ),
    ),
    behaviour=lambda answer: [torch.as_tensor(answer(list(case.parents), case.prefix)) for case in MASKS],
    misconceptions=(
        Misconception(
            "The prefix is missing: a node would know its path, and neither the text before it nor the drafter's "
            "guesses.",
            wrong_no_prefix,
        ),
        Misconception(
            "The prefix only up to the node's own depth. All places of it were there before the tree, so nothing has "
            "to be hidden.",
            wrong_prefix_up_to_depth,
        ),
        Misconception(
            "The causal mask of a plain text: what stands before a node in memory may be a sibling, whose token is "
            "not on this path.",
            wrong_all_before,
        ),
        Misconception(
            "Ancestors without the node itself: it is the token after which the next one is drafted.",
            wrong_without_self,
        ),
        Misconception("Only the parent: from depth 2 on, a node forgets the beginning of its path.", wrong_parent_only),
        Misconception("The columns of the nodes stand first. Keys of the prefix come first here.", wrong_nodes_first),
    ),
)


# call_bytes


class ByteCase(NamedTuple):
    """Sizes of a Weaver, head rows that are read, and bytes of a number."""

    name: str
    target_width: int
    width: int
    mlp_width: int
    rows: int
    number: int


WIDE, INNER, MLP, _ = PUBLISHED
SIZES = (
    ByteCase("widths 8, 4 and 6, no head rows, one byte", 8, 4, 6, 0, 1),
    ByteCase("widths 8, 4 and 6, one head row, one byte", 8, 4, 6, 1, 1),
    ByteCase("widths 8, 4 and 6, no head rows, two bytes", 8, 4, 6, 0, 2),
    ByteCase("widths 8, 4 and 6, three head rows, four bytes", 8, 4, 6, 3, 4),
    ByteCase("the published Weaver with 512 candidates, two bytes", WIDE, INNER, MLP, 512, 2),
)

Count = Callable[[int, int, int, int, int], int]


def _counts(answer: Count, is_meant: Callable[[ByteCase], bool]) -> str:
    def one(case: ByteCase) -> str:
        found, right = answer(*case[1:]), call_bytes(*case[1:])
        return "" if found == right else f"{found} bytes, not {right}"

    return failing(filter(is_meant, SIZES), one)


def _grows_by_rows(answer: Count) -> str:
    without, with_one = (case[1:] for case in SIZES[:2])
    grown = answer(*with_one) - answer(*without)
    return "" if grown == 8 else f"{SIZES[1].name}: the row adds {grown} bytes, and the target is 8 wide"


def wrong_numbers(target_width: int, width: int, mlp_width: int, rows: int, number: int) -> int:
    return call_bytes(target_width, width, mlp_width, rows, 1)


def wrong_narrow_rows(target_width: int, width: int, mlp_width: int, rows: int, number: int) -> int:
    return call_bytes(target_width, width, mlp_width, 0, number) + number * rows * width


def wrong_with_prefix(target_width: int, width: int, mlp_width: int, rows: int, number: int) -> int:
    return call_bytes(target_width, width, mlp_width, rows, number) + number * target_width * width


def wrong_without_output(target_width: int, width: int, mlp_width: int, rows: int, number: int) -> int:
    return call_bytes(target_width, width, mlp_width, rows, number) - number * width * width


def wrong_one_mlp_matrix(target_width: int, width: int, mlp_width: int, rows: int, number: int) -> int:
    return call_bytes(target_width, width, mlp_width, rows, number) - number * width * mlp_width


def wrong_head_only(target_width: int, width: int, mlp_width: int, rows: int, number: int) -> int:
    return number * rows * target_width


CALL_BYTES = Exercise(
    name="04.call_bytes",
    title="what a call reads",
    task="Write <code>call_bytes(target_width, width, mlp_width, rows, number)</code>: the bytes of weights that one "
    "Weaver call has to read. Count every matrix that a node token passes through (the table above), and "
    "<code>rows</code> rows of the target's head; a number has <code>number</code> bytes. Leave out norms, biases, "
    "positions, and the embedding of the node's own token.",
    difficulty=1,
    importance=2,
    minutes=6,
    reread="Why not the whole vocabulary",
    hints=(
        "Weights are read once per call, however many nodes it expands. So count matrices, not nodes.",
        "Two matrices lead between the target's width and the Weaver's (in and out); six stay inside. A head row is as "
        "wide as the target.",
        "number * (2 * target_width * width + 4 * width**2 + 2 * width * mlp_width + rows * target_width)",
    ),
    solution=call_bytes,
    explanation="The matrices cost the same whatever the pool, and <code>rows * target_width</code> is the only term "
    "that knows the vocabulary.",
    properties=(
        Property(
            "in numbers: all eight matrices", lambda a: _counts(a, lambda case: case.number == 1 and not case.rows)
        ),
        Property("in numbers: a head row is as wide as the target", _grows_by_rows),
        Property("in bytes, for every size", lambda a: _counts(a, lambda case: True)),
    ),
    behaviour=lambda answer: [answer(*case[1:]) for case in SIZES],
    misconceptions=(
        Misconception("Numbers are counted, not bytes. A number in bfloat16 has two.", wrong_numbers),
        Misconception(
            "Head rows as wide as the Weaver. They are the target's own rows, and the read-out z is brought to the "
            "target's width first.",
            wrong_narrow_rows,
        ),
        Misconception(
            "The projection of the prefix is counted too. It runs once per tree; a call finds its keys and values "
            "cached.",
            wrong_with_prefix,
        ),
        Misconception(
            "Attention has four matrices: what was attended to goes through an output projection as well.",
            wrong_without_output,
        ),
        Misconception("The MLP has two matrices, up and down again.", wrong_one_mlp_matrix),
        Misconception(
            "Only the head rows are counted. With a small pool the Weaver's own matrices are the larger part.",
            wrong_head_only,
        ),
    ),
)

EXERCISES_04: Sequence[Exercise] = (POOL_LOG_PROBS, PATH_MASK, CALL_BYTES)
