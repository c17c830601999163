"""Exercises of notebook 09: six kernels. Their wrong answers, which the checks must reject, are ``wrong_kernels``."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tfm_lab.lessons import by_hand_kernels, wrong_kernels
from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.interpreting import Launch, plain_function
from tfm_lab.lessons.puzzles import CLOSE, FORGETFUL, PUZZLES, REPEATED, STEEP, Head, relative_error

HARD = (FORGETFUL, STEEP, REPEATED)
DECIMALS = 3
"""Answers that behave like a wrong one are recognised by so many decimals, whatever the order of their sums."""

Complaint = Callable[[Launch, Head], str]


@functools.lru_cache(maxsize=512)
def _kept_run(name: str, kernel: Callable[..., Any], place: int) -> Launch:
    """A launch of one of this package's kernels, which do not change."""
    return PUZZLES[name].run(kernel, PUZZLES[name].heads()[place])


def _runs(name: str, answer: Any) -> Sequence[tuple[Head, Callable[[], Launch]]]:
    """Every head of a puzzle, with a launch of the answer on it."""
    puzzle, kernel = PUZZLES[name], plain_function(answer)
    if kernel.__module__ in (by_hand_kernels.__name__, wrong_kernels.__name__):
        return [(h, functools.partial(_kept_run, name, kernel, place)) for place, h in enumerate(puzzle.heads())]
    return [(h, functools.partial(puzzle.run, answer, h)) for h in puzzle.heads()]


def _first(name: str, complaint: Complaint, wanted: Callable[[Head], bool] = lambda head: True) -> Callable[[Any], str]:
    """A check of all launches on some heads: the first complaint, with the name of its head."""

    def check(answer: Any) -> str:
        for head, run in _runs(name, answer):
            if wanted(head) and (found := complaint(run(), head)):
                return f"{head.name}: {found}"
        return ""

    return check


def _stray(ran: Launch, head: Head) -> str:
    return next(iter(ran.strays), "")


def _differs(name: str) -> Complaint:
    def complaint(ran: Launch, head: Head) -> str:
        for output, right in PUZZLES[name].right(head).items():
            got = ran.tensors[output]
            if not relative_error(got, right) <= CLOSE:
                return _worst(output, got.double(), right)
        return ""

    return complaint


def _worst(output: str, got: Tensor, right: Tensor) -> str:
    """The entry that is furthest off, one without a number if there is any."""
    off = torch.nan_to_num((got - right).abs(), nan=torch.inf)
    row, column = divmod(int(off.argmax()), right.shape[1])
    value = float(got[row, column])
    seen = "NaN (computed, or never written)" if value != value else f"{value:.5g}"
    return f"{output}[{row}, {column}] is {seen}, not {float(right[row, column]):.5g}"


def _common(name: str, hard: str) -> tuple[Property, ...]:
    """In bounds; right where the numbers are tame; right where they are not."""
    properties = (
        Property("it touches nothing outside of its tensors", _first(name, _stray)),
        Property("every entry is right", _first(name, _differs(name), lambda head: head.name not in HARD)),
    )
    if not any(head.name in HARD for head in PUZZLES[name].heads()):
        return properties
    return (*properties, Property(hard, _first(name, _differs(name), lambda head: head.name in HARD)))


def _behaviour(name: str) -> Callable[[Any], Any]:
    """What an answer leaves, to a few decimals, where it strays, and what it makes of the state."""

    def shown(answer: Any) -> list[Any]:
        found: list[Any] = []
        for head, run in _runs(name, answer):
            if head.dim == 16:  # at 32 some wrong answers raise
                ran = run()
                outputs = [ran.tensors[output].round(decimals=DECIMALS) for output in PUZZLES[name].right(head)]
                found.append([outputs, list(ran.strays), _state_changes(ran, head), _reads_again(ran, head)])
        return found

    return shown


def _state_changes(ran: Launch, head: Head) -> str:
    changed = "state" in ran.tensors and not torch.equal(ran.tensors["state"], head.state)
    return "the state has changed: whoever rejects this tree needs the old one" if changed else ""


def _reads_again(ran: Launch, head: Head) -> str:
    if "state" not in ran.access:
        return ""
    times = ran.access["state"].bytes_read / head.state.nbytes
    return f"the state is read {times:g} times" if times > 1 else ""


def _exercise(name: str, **parts: Any) -> Exercise:
    """An exercise about the kernel of this name, with the solution of that name."""
    solution = getattr(by_hand_kernels, name.removeprefix("09."))
    return Exercise(name=name, solution=solution, behaviour=_behaviour(name), **parts)


LOAD_TILE = _exercise(
    "09.load_tile",
    title="a tile, and nothing behind it",
    task="Write <code>load_tile(rows, tile, nodes, DIM)</code>. <code>rows</code> is a matrix [nodes, DIM]; program p "
    "copies its rows 16 p to 16 p + 15 to the same places of <code>tile</code>. Rows that do not exist are written as "
    "zeros: <code>tile</code> has 16 rows for every program, also for the last one.",
    difficulty=1,
    importance=3,
    minutes=8,
    reread="Kernels, programs, pointers",
    hints=(
        "A program needs the numbers of its rows (a vector of 16) and of its columns (a vector of DIM). From both "
        "follows a 16 x DIM table of places.",
        "Entry (i, c) lies at <code>rows + i * DIM + c</code>; <code>[:, None]</code> and <code>[None, :]</code> make "
        "the table. A mask says which places may be read, <code>other</code> what stands for the rest.",
        "<code>i = tl.program_id(0) * 16 + tl.arange(0, 16)</code>, and the mask is "
        "<code>i[:, None] &lt; nodes</code>, with <code>other=0.0</code>.",
    ),
    explanation="The same table of places serves for the load and the store; only the load needs the mask.",
    properties=_common("09.load_tile", "also with other numbers"),
    misconceptions=(
        Misconception(
            "No mask: the last tile reads behind the last row. On a GPU that gives what happens to lie there, or a "
            "crash.",
            wrong_kernels.wrong_no_mask,
        ),
        Misconception(
            "A mask without other=: what is masked out is not zero but undefined. The checker puts NaN there.",
            wrong_kernels.wrong_no_other,
        ),
        Misconception(
            "Every program takes the first tile: tl.program_id says which one is meant.", wrong_kernels.wrong_first_tile
        ),
        Misconception(
            "The mask compares the row inside the tile with the number of nodes. It is the row of the matrix that may "
            "not exist.",
            wrong_kernels.wrong_mask_in_tile,
        ),
    ),
)

GRAM = _exercise(
    "09.gram",
    title="which keys resemble each other",
    task="Write <code>gram(key, product, nodes, DIM)</code>. Program (p, r) computes one 16 x 16 tile of "
    "<code>product</code> [nodes, nodes], in which entry [i, j] is the scalar product of keys i and j: rows of tile p, "
    "columns of tile r.",
    difficulty=1,
    importance=2,
    minutes=8,
    reread="Which keys resemble each other",
    hints=(
        "A program needs two tiles of the same matrix: one for its rows, one for its columns.",
        "<code>tl.dot(a, b)</code> is a matrix product: rows of a with <i>columns</i> of b. "
        "<code>tl.trans</code> turns a tile.",
        "<code>tl.dot(key_i, tl.trans(key_j), input_precision='ieee')</code>, stored at "
        "<code>product + i[:, None] * nodes + j[None, :]</code> where row <i>and</i> column exist.",
    ),
    explanation="Without <code>ieee</code>, a GPU would round the factors to TF32, ten bits of mantissa.",
    properties=_common("09.gram", "also where all keys are equal"),
    misconceptions=(
        Misconception(
            "The second tile is not transposed: tl.dot multiplies rows with columns.",
            wrong_kernels.wrong_not_transposed,
        ),
        Misconception(
            "Rows and columns from the same tile: that is right on the diagonal tiles alone.",
            wrong_kernels.wrong_diagonal_only,
        ),
        Misconception(
            "The product is stored as if it were 16 columns wide; it has as many as there are nodes.",
            wrong_kernels.wrong_stride,
        ),
        Misconception(
            "Only missing rows are masked: a column behind the last one is the beginning of the next row.",
            wrong_kernels.wrong_rows_masked,
        ),
    ),
)

DECAY_MASK = _exercise(
    "09.decay_mask",
    title="what is left of an ancestor",
    task="Write <code>decay_mask(path_sum, ancestors, decay, nodes)</code>. <code>path_sum[i]</code> is the sum of the "
    "log decays from the root to node i; <code>ancestors</code> [nodes, nodes] is 1 where node j is an ancestor of "
    "node i or i itself. Program (p, r) writes its tile of <code>decay</code>: "
    "exp(path_sum[i] - path_sum[j]) there, and 0 elsewhere.",
    difficulty=2,
    importance=3,
    minutes=10,
    reread="What is left of an ancestor",
    hints=(
        "Between two branches the difference means nothing, and can be any number. What is exp(199) in float32?",
        "exp of minus infinity is 0, without a detour. Choose before the exponential.",
        "<code>tl.exp(tl.where(seen, sum_i[:, None] - sum_j[None, :], float('-inf')))</code>",
    ),
    explanation="The exponents that are left are sums of log decays, at most 0: nothing can overflow.",
    properties=_common("09.decay_mask", "it holds where a node forgets everything"),
    misconceptions=(
        Misconception(
            "exp first, mask after: for a sibling that forgot hard exp gives infinity, and infinity times 0 is NaN.",
            wrong_kernels.wrong_multiplied_mask,
        ),
        Misconception(
            "exp(g_i) exp(-g_j): on a path that forgets much the first is 0 and the second infinite.",
            wrong_kernels.wrong_quotient,
        ),
        Misconception(
            "Everything before a node counts as its past: in a tree that lets in other branches.",
            wrong_kernels.wrong_causal_decay,
        ),
        Misconception(
            "A node does not see itself: its own write does reach its output, undecayed.",
            wrong_kernels.wrong_strict_decay,
        ),
        Misconception(
            "The difference is the wrong way round: memories would grow with age.", wrong_kernels.wrong_upwards
        ),
    ),
)

SUBSTITUTE = _exercise(
    "09.substitute",
    title="node after node",
    task="Write <code>substitute(x, right, update, DIM)</code>: solve (I + X) U = R for one tile. X is strictly lower "
    "triangular, 16 x 16; R and U are 16 x DIM. In <code>x</code> stands what the Gram tile left: on and above the "
    "diagonal there are other numbers, which do not belong to X.",
    difficulty=3,
    importance=3,
    minutes=15,
    reread="Node after node",
    hints=(
        "Row 0 of U is row 0 of R. Row 1 needs row 0, row 2 needs rows 0 and 1, and so on.",
        "u_s = r_s - sum over r &lt; s of x_sr u_r. There is no indexing into a tile: pick a row by "
        "<code>tl.where</code> and <code>tl.sum</code>.",
        "For s = 1 to 15: <code>x_s = tl.sum(tl.where(row[:, None] == s, system, 0.0), axis=0)</code>, then "
        "<code>u = tl.where(row[:, None] == s, u - tl.sum(x_s[:, None] * u, axis=0)[None, :], u)</code>.",
    ),
    explanation="Row s of a strictly lower triangular X is 0 from column s on, so the sum over all of u takes in rows "
    "that are ready and no others.",
    properties=_common("09.substitute", "it is accurate where keys repeat"),
    misconceptions=(
        Misconception(
            "U = R - X R is the first step alone: an update depends on the finished rows of its ancestors.",
            wrong_kernels.wrong_one_step,
        ),
        Misconception(
            "X is taken with what stands on and above its diagonal.",
            wrong_kernels.wrong_whole_tile,
        ),
        Misconception(
            "Powers of X by squaring: exact on paper, and X^16 is 0. With repeated tokens its terms grow like "
            "binomial coefficients and cancel, and the digits are gone.",
            wrong_kernels.wrong_squaring,
        ),
        Misconception("Column s of X instead of row s: that asks the descendants.", wrong_kernels.wrong_column),
    ),
)

OUTPUT_TILE = _exercise(
    "09.output_tile",
    title="what the nodes read",
    task="Write <code>output_tile(query, key, decay, from_root, state, update, output, nodes, DIM)</code> for a tree "
    "of at most 16 nodes: O = diag(a) Q S0 + (D * (Q K^T)) U. <code>from_root</code> holds a, <code>decay</code> "
    "[nodes, nodes] holds D, <code>state</code> [DIM, DIM] is S0.",
    difficulty=2,
    importance=2,
    minutes=10,
    reread="What the nodes read",
    hints=(
        "Two sources: the old memory, faded since the root, and what the nodes of the path wrote.",
        "D is multiplied entry by entry (<code>*</code>), everything else is <code>tl.dot</code>.",
        "<code>a[:, None] * tl.dot(q, s0)</code> plus <code>tl.dot(d * tl.dot(q, tl.trans(k)), u)</code>, all loads "
        "masked by row &lt; nodes.",
    ),
    explanation="D is 0 off the ancestors, so no branch reads what another wrote.",
    properties=_common("09.output_tile", "also where keys repeat"),
    misconceptions=(
        Misconception(
            "The old memory without a: it has faded since the root, for every node by its own path.",
            wrong_kernels.wrong_fresh_state,
        ),
        Misconception(
            "Ancestors without the node itself: an output is read after the node's own write.",
            wrong_kernels.wrong_strict_output,
        ),
        Misconception("D as a mask alone: what an ancestor wrote has faded too.", wrong_kernels.wrong_no_decay),
        Misconception(
            "Keys ask the old memory: K S0 belongs to the right-hand side, the output is asked for by queries.",
            wrong_kernels.wrong_by_key,
        ),
    ),
)

VERIFY_TREE = _exercise(
    "09.verify_tree",
    title="the whole, for one head",
    task="Write <code>verify_tree(query, key, value, path_sum, beta, state, ancestors, output, update, nodes, "
    "DIM)</code>: one program for a tree of any size. Go through the tiles of 16 nodes; write the rows of U "
    "and O, and leave the state as it is. Every tile of U that you have stored can be loaded again.",
    difficulty=3,
    importance=3,
    minutes=30,
    reread="The whole",
    hints=(
        "It is the five puzzles in a loop over tiles: what earlier tiles contribute is subtracted from the right-hand "
        "side, and the rest is <code>substitute</code>.",
        "For tile i start with u = beta (V - a K S0) and o = a Q S0. For every earlier tile j: "
        "u -= (beta D_ij * K_i K_j^T) U_j, o += (D_ij * Q_i K_j^T) U_j. Then the diagonal tile.",
        "<code>for first in range(0, nodes, 16):</code> ... <code>for start in range(0, first, 16):</code> ... "
        "substitution ... two stores. Load S0 once, above the loops.",
    ),
    explanation="Blocks without an ancestor are skipped: their D is 0. Nothing of this needs a state per node.",
    properties=(
        *_common("09.verify_tree", "it holds where a leaf forgets everything, or a token repeats"),
        Property("the state is only read", _first("09.verify_tree", _state_changes)),
        Property("the state is read once, however large the tree is", _first("09.verify_tree", _reads_again)),
    ),
    misconceptions=(
        Misconception("Each tile by itself: ancestors in earlier tiles are forgotten.", wrong_kernels.wrong_own_tile),
        Misconception(
            "All earlier nodes count as ancestors: branches see each other.", wrong_kernels.wrong_causal_tree
        ),
        Misconception(
            "X without beta: a node erases as strongly as it writes, and both by beta.", wrong_kernels.wrong_no_beta
        ),
        Misconception(
            "The state is loaded again for every tile. The result is right, but a state is as large as all keys of a "
            "big tree, and reading it once is what the kernel is for.",
            wrong_kernels.wrong_state_again,
        ),
        Misconception(
            "Verification commits: nobody knows yet which path will be accepted.", wrong_kernels.wrong_commit
        ),
    ),
)

EXERCISES_09: Sequence[Exercise] = (LOAD_TILE, GRAM, DECAY_MASK, SUBSTITUTE, OUTPUT_TILE, VERIFY_TREE)
