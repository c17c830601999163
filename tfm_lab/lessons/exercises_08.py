"""Exercises of notebook 08, with the wrong answers that their checks must reject. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.exercises_08_tree import SOLVE, SYSTEM
from tfm_lab.lessons.memory_by_hand import commit, solve, update
from tfm_lab.lessons.memory_cases import MemoryTree, is_off, solve_arguments, told, trees
from tfm_lab.lessons.properties import failing

# update


class WriteCase(NamedTuple):
    """One token, and the memory that it meets, as plain numbers."""

    name: str
    state: Sequence[Sequence[float]]
    key: Sequence[float]
    value: Sequence[float]
    alpha: float
    beta: float

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, float, float]:
        """Fresh arguments of ``memory_by_hand.update``, float64."""
        state, key, value = (torch.tensor(x, dtype=torch.float64) for x in (self.state, self.key, self.value))
        return state, key, value, self.alpha, self.beta


MEMORY = ((1.0, 0.5), (-0.5, 2.0))
WRITES = (
    WriteCase("an empty memory", ((0.0, 0.0), (0.0, 0.0)), (1.0, 0.0), (3.0, -1.0), 0.5, 0.5),
    WriteCase("one number, S = 4, k = 1, v = 6", ((4.0,),), (1.0,), (6.0,), 0.5, 0.5),
    WriteCase("beta = 1, alpha = 1", MEMORY, (0.6, 0.8), (2.0, -1.0), 1.0, 1.0),
    WriteCase("beta = 1, alpha = 0.5", MEMORY, (0.6, 0.8), (2.0, -1.0), 0.5, 1.0),
    WriteCase("beta = 0.25, alpha = 0.5", MEMORY, (0.0, 1.0), (2.0, -1.0), 0.5, 0.25),
)

Update = Callable[[Tensor, Tensor, Tensor, float, float], Tensor]


def _answers_value(answer: Update) -> str:
    def one(case: WriteCase) -> str:
        state, key, value, alpha, beta = case.arguments()
        if beta < 1.0:
            return ""
        written = torch.as_tensor(answer(*case.arguments()), dtype=torch.float64)
        found = (alpha * state + torch.outer(key, written)).T @ key
        return f"the memory answers {told(found)}, not v = {told(value)}" if is_off(found, value) else ""

    return failing(WRITES, one)


def _is_update(answer: Update) -> str:
    def one(case: WriteCase) -> str:
        found, right = answer(*case.arguments()), update(*case.arguments())
        return f"u = {told(found)}, not {told(right)}" if is_off(found, right) else ""

    return failing(WRITES, one)


def wrong_no_erase(state: Tensor, key: Tensor, value: Tensor, alpha: float, beta: float) -> Tensor:
    return beta * value


def wrong_unfaded(state: Tensor, key: Tensor, value: Tensor, alpha: float, beta: float) -> Tensor:
    return beta * (value - state.T @ key)


def wrong_side(state: Tensor, key: Tensor, value: Tensor, alpha: float, beta: float) -> Tensor:
    return beta * (value - alpha * (state @ key))


def wrong_half_strength(state: Tensor, key: Tensor, value: Tensor, alpha: float, beta: float) -> Tensor:
    return beta * value - alpha * (state.T @ key)


def wrong_value_fades(state: Tensor, key: Tensor, value: Tensor, alpha: float, beta: float) -> Tensor:
    return beta * alpha * (value - state.T @ key)


UPDATE = Exercise(
    name="08.update",
    title="what a token writes",
    task="Write <code>update(state, key, value, alpha, beta)</code>: the vector u that is written under the key, so "
    "that the new memory is <code>alpha * state + outer(key, u)</code>. <code>state</code> is a tensor [key_dim, "
    "value_dim]; alpha and beta are numbers; the key has length 1.",
    difficulty=1,
    importance=3,
    minutes=6,
    reread="Erase, then write",
    hints=(
        "Ask the memory first: what does it answer to this key today? Only the difference has to be written.",
        "The memory answers Sᵀk. But it fades before the token writes, so the answer is alpha Sᵀk by then.",
        "u is beta times (value − alpha · state.T @ key).",
    ),
    solution=update,
    explanation="After the write the memory answers alpha Sᵀk + u, because k has length 1: a beta-mixture of the old "
    "answer and the value. With beta = 1 the old answer is gone.",
    properties=(
        Property("with beta = 1 the memory answers v to k afterwards, whatever it held before", _answers_value),
        Property("u is beta times what the faded memory gets wrong", _is_update),
    ),
    behaviour=lambda answer: [torch.as_tensor(answer(*case.arguments())) for case in WRITES],
    misconceptions=(
        Misconception(
            "The value is added and nothing is erased. That is linear attention: a second write under the same key "
            "leaves the sum of both values.",
            wrong_no_erase,
        ),
        Misconception(
            "The memory is read before it fades. First comes the decay, then the correction of what is left.",
            wrong_unfaded,
        ),
        Misconception(
            "S k instead of Sᵀk. Rows of S belong to key entries, columns to value entries: an answer is a sum over "
            "rows.",
            wrong_side,
        ),
        Misconception(
            "beta weighs only the value. It is the strength of the whole correction: a token with beta = 0 must "
            "change nothing.",
            wrong_half_strength,
        ),
        Misconception(
            "The decay is put on the new value too. It is the past that fades, not what is just being written.",
            wrong_value_fades,
        ),
    ),
)


# commit


Commit = Callable[[Tensor, Tensor, Tensor, Tensor, tuple[int, ...]], Tensor]


def _commit_arguments(case: MemoryTree) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    own, _ = solve(*solve_arguments(case))
    return case.state.clone(), case.key.clone(), own, case.log_decay.clone()


def _commits(answer: Commit, is_checked: Callable[[MemoryTree, int], bool]) -> str:
    """The first node after which the memory is not that of its own path."""

    def one(case: MemoryTree) -> str:
        for node in filter(lambda node: is_checked(case, node), range(len(case.tree))):
            path = case.tree.path(node)
            found, right = answer(*_commit_arguments(case), path), case.along(node)[1]
            if is_off(found, right):
                return f"path {path}: the memory is {told(found)}, plain decoding leaves {told(right)}"
        return ""

    return failing(trees(), one)


def _is_undisturbed(answer: Commit) -> str:
    case = trees()[-1]
    state, key, own, log_decay = _commit_arguments(case)
    before = state.clone()
    answer(state, key, own, log_decay, case.tree.path(len(case.tree) - 1))
    return "" if torch.equal(state, before) else "the memory that was handed over has been changed"


def wrong_everything(state: Tensor, key: Tensor, own: Tensor, log_decay: Tensor, path: Sequence[int]) -> Tensor:
    return commit(state, key, own, log_decay, range(len(key)))


def wrong_leaf_only(state: Tensor, key: Tensor, own: Tensor, log_decay: Tensor, path: Sequence[int]) -> Tensor:
    return commit(state, key, own, log_decay, path[-1:])


def wrong_without_root(state: Tensor, key: Tensor, own: Tensor, log_decay: Tensor, path: Sequence[int]) -> Tensor:
    return commit(state, key, own, log_decay, path[1:])


def wrong_writes_stay(state: Tensor, key: Tensor, own: Tensor, log_decay: Tensor, path: Sequence[int]) -> Tensor:
    nodes = list(path)
    return log_decay[nodes].sum().exp() * state + key[nodes].T @ own[nodes]


def wrong_old_stays(state: Tensor, key: Tensor, own: Tensor, log_decay: Tensor, path: Sequence[int]) -> Tensor:
    nodes = list(path)
    return commit(state, key, own, log_decay, path) + (1 - log_decay[nodes].sum().exp()) * state


def wrong_fades_after(state: Tensor, key: Tensor, own: Tensor, log_decay: Tensor, path: Sequence[int]) -> Tensor:
    for node in path:
        state = log_decay[node].exp() * (state + torch.outer(key[node], own[node]))
    return state


def wrong_corrects_again(state: Tensor, key: Tensor, own: Tensor, log_decay: Tensor, path: Sequence[int]) -> Tensor:
    for node in path:
        fading = float(log_decay[node].exp())
        state = fading * state + torch.outer(key[node], update(state, key[node], own[node], fading, 1.0))
    return state


COMMIT = Exercise(
    name="08.commit",
    title="commit along a path",
    task="Write <code>commit(state, key, update, log_decay, path)</code>: the memory after the nodes of an accepted "
    "path, given as node numbers from the root 0 down. <code>update</code> holds the solved u of every node of the "
    "tree, also of those that were rejected. Leave <code>state</code> as it is and return a new tensor.",
    difficulty=1,
    importance=3,
    minutes=8,
    reread="Commit what was accepted",
    hints=(
        "Everything that had to be read was read in the solve. What is left is fading and adding.",
        "S = a S₀ + sum over j on the path of D_j k_j u_jᵀ: S₀ fades by every node of the path, what j wrote by those "
        "after j.",
        "Loop over the path: state = exp(log_decay[node]) * state + outer(key[node], update[node]).",
    ),
    solution=commit,
    explanation="An update depends on ancestors alone, so that of an accepted node is right whatever else was drafted. "
    "<code>tfm_lab.gdn.commit_path</code> does the same in one product instead of a loop.",
    properties=(
        Property(
            "after the root alone, the memory is that of one plain step", lambda a: _commits(a, lambda _, n: n == 0)
        ),
        Property(
            "after any path, the memory is that of plain decoding along it", lambda a: _commits(a, lambda _, n: n > 0)
        ),
        Property("the memory that was verified against is left alone", _is_undisturbed),
    ),
    behaviour=lambda answer: [
        torch.as_tensor(answer(*_commit_arguments(case), case.tree.path(node)))
        for case in trees()
        for node in range(len(case.tree))
    ],
    misconceptions=(
        Misconception(
            "All drafted nodes are written, the rejected ones too. Their updates are right for their own branches and "
            "must leave no trace.",
            wrong_everything,
        ),
        Misconception(
            "Only the last node is written. It corrects its ancestors' writes; they must be there.", wrong_leaf_only
        ),
        Misconception(
            "The root is left out. It is the last committed token, but the memory has not taken it in before.",
            wrong_without_root,
        ),
        Misconception(
            "The old memory fades, what the path wrote does not: a write fades with every later node.",
            wrong_writes_stay,
        ),
        Misconception("The writes fade, the old memory does not.", wrong_old_stays),
        Misconception("The memory fades after a write instead of before it.", wrong_fades_after),
        Misconception(
            "u is treated as a value and corrected a second time. It is already what was missing.", wrong_corrects_again
        ),
    ),
)

EXERCISES_08: Sequence[Exercise] = (UPDATE, SYSTEM, SOLVE, COMMIT)
