"""The two exercises of notebook 08 about a whole tree at once. ``wrong_...`` is WRONG ON PURPOSE."""

from collections.abc import Callable

import torch
from torch import Tensor

from tfm_lab.lessons.exercise import Exercise, Misconception, Property
from tfm_lab.lessons.memory_by_hand import solve, system, update
from tfm_lab.lessons.memory_cases import (
    CLOSE,
    MemoryTree,
    forgetful,
    is_off,
    solve_arguments,
    system_arguments,
    told,
    trees,
)
from tfm_lab.lessons.properties import failing

# system


System = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _entries(answer: System, which: int, is_checked: Callable[[bool, int, int], bool]) -> str:
    """The first wrong entry of X (0) or Y (1) among those that are checked: by mask, row and column."""

    def one(case: MemoryTree) -> str:
        found = torch.as_tensor(answer(*system_arguments(case))[which], dtype=torch.float64)
        right, mask = system(*system_arguments(case))[which], case.tree.ancestors()
        if found.shape != right.shape:
            return f"{'XY'[which]} has shape {tuple(found.shape)}, the tree {len(mask)} nodes"
        for i in range(len(mask)):
            for j in range(len(mask)):
                value, wanted = float(found[i, j]), float(right[i, j])
                if is_checked(bool(mask[i, j]), i, j) and not abs(value - wanted) <= CLOSE:
                    return (
                        f"parents {case.tree.parents.tolist()}: {'XY'[which]}[{i}, {j}] is {value:.4f}, "
                        f"not {wanted:.4f}"
                    )
        return ""

    return failing([*trees(), forgetful()], one)


def _has_no_nan(answer: System) -> str:
    for name, found in zip("XY", answer(*system_arguments(forgetful())), strict=True):
        if not bool(torch.as_tensor(found).isfinite().all()):
            return f"a sibling with log decay -800: {name} holds NaN or infinity"
    return ""


def wrong_own_write(
    query: Tensor, key: Tensor, log_decay: Tensor, beta: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    X, Y = system(query, key, log_decay, beta, ancestors)
    return X + torch.diag(beta * key.square().sum(1)), Y


def wrong_reads_before_writing(
    query: Tensor, key: Tensor, log_decay: Tensor, beta: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    X, Y = system(query, key, log_decay, beta, ancestors)
    return X, Y.tril(-1)


def wrong_causal(
    query: Tensor, key: Tensor, log_decay: Tensor, beta: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    return system(query, key, log_decay, beta, torch.ones_like(ancestors).tril())


def wrong_beta_of_the_writer(
    query: Tensor, key: Tensor, log_decay: Tensor, beta: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    X, Y = system(query, key, log_decay, torch.ones_like(beta), ancestors)
    return X * beta[None, :], Y


def wrong_decay_from_root(
    query: Tensor, key: Tensor, log_decay: Tensor, beta: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    faded = (ancestors.to(key.dtype) @ log_decay).exp()[:, None] * ancestors
    return (beta[:, None] * faded * (key @ key.T)).tril(-1), faded * (query @ key.T)


def wrong_fades_at_once(
    query: Tensor, key: Tensor, log_decay: Tensor, beta: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    X, Y = system(query, key, log_decay, beta, ancestors)
    return X * log_decay.exp(), Y * log_decay.exp()


def wrong_mask_after_exp(
    query: Tensor, key: Tensor, log_decay: Tensor, beta: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    from_root = ancestors.to(key.dtype) @ log_decay
    between = ancestors * (from_root[:, None] - from_root[None, :]).exp()
    return (beta[:, None] * between * (key @ key.T)).tril(-1), between * (query @ key.T)


SYSTEM = Exercise(
    name="08.system",
    title="X and Y of a tree",
    task="Write <code>system(query, key, log_decay, beta, ancestors)</code>, which returns X and Y as square tensors. "
    "Queries and keys have one row per node; <code>ancestors[i, j]</code> is true when j is i or an ancestor of i. "
    "Some sibling may forget everything (log decay −800); nothing may become NaN.",
    difficulty=2,
    importance=3,
    minutes=15,
    reread="From a path to a tree",
    hints=(
        "Both matrices are a product of keys (or queries and keys), times a decay, times who may see whom.",
        "With g the sum of the log decays from the root to a node, <code>g = ancestors.double() @ log_decay</code>, "
        "the decay between j and i is exp(g_i − g_j). Only X carries beta, that of the row, and only X leaves out the "
        "diagonal.",
        "between = (g[:, None] − g[None, :]).masked_fill(~ancestors, −inf).exp(); X = (beta[:, None] * between * "
        "(key @ key.T)).tril(−1); Y = between * (query @ key.T).",
    ),
    solution=system,
    explanation="The mask stands inside the exponential: for a node beside a sibling that forgot everything g_i − g_j "
    "is +800, its exponential overflows, and infinity times a mask of 0 is NaN.",
    properties=(
        Property(
            "X is zero between nodes of different branches", lambda a: _entries(a, 0, lambda seen, i, j: not seen)
        ),
        Property("X is zero on the diagonal", lambda a: _entries(a, 0, lambda seen, i, j: i == j)),
        Property("X_ij = beta_i × decay between j and i × k_i·k_j", lambda a: _entries(a, 0, lambda seen, i, j: seen)),
        Property("Y is zero between branches", lambda a: _entries(a, 1, lambda seen, i, j: not seen)),
        Property("Y_ij = decay between j and i × q_i·k_j", lambda a: _entries(a, 1, lambda seen, i, j: seen)),
        Property("a sibling that forgets everything leaves no NaN", _has_no_nan),
    ),
    behaviour=lambda answer: [
        [torch.as_tensor(part) for part in answer(*system_arguments(case))] for case in (*trees(), forgetful())
    ],
    misconceptions=(
        Misconception(
            "The diagonal is counted in X. A node corrects what its ancestors wrote, not what it is about to write; "
            "its own row is in the I of I + X.",
            wrong_own_write,
        ),
        Misconception(
            "The diagonal is left out of Y. A token reads after it has written, and sees its own write.",
            wrong_reads_before_writing,
        ),
        Misconception(
            "What stands earlier in memory counts as an ancestor. That is right for a plain text; in a tree it lets "
            "branches see each other.",
            wrong_causal,
        ),
        Misconception(
            "The strength of the earlier write is used. Its update already contains its own beta; the row's beta "
            "says how strongly node i corrects.",
            wrong_beta_of_the_writer,
        ),
        Misconception(
            "Decay counted from the root. What j wrote has faded only since j: exp(g_i − g_j).",
            wrong_decay_from_root,
        ),
        Misconception(
            "A write fades by its own alpha. The memory fades before a token writes; a fresh write is whole.",
            wrong_fades_at_once,
        ),
        Misconception(
            "The mask is multiplied after the exponential. exp of +800 is infinite, and infinity times 0 is NaN: put "
            "−inf into the exponent.",
            wrong_mask_after_exp,
        ),
    ),
)


# solve


Solve = Callable[..., tuple[Tensor, Tensor]]


def _rows(answer: Solve, which: int) -> str:
    """The first node whose update (0) or output (1) is not that of its own path."""

    def one(case: MemoryTree) -> str:
        found = torch.as_tensor(answer(*solve_arguments(case))[which], dtype=torch.float64)
        if found.shape != case.value.shape:
            return f"the result has shape {tuple(found.shape)}, the values {tuple(case.value.shape)}"
        for node in range(len(case.tree)):
            right = _alone(case, node)[which]
            if is_off(found[node], right):
                what = ("update", "output")[which]
                return f"node {node}: {what} {told(found[node])}; its path alone gives {told(right)}"
        return ""

    return failing(trees(), one)


def _alone(case: MemoryTree, node: int) -> tuple[Tensor, Tensor]:
    """Update and output of a node by the recurrence along its own path."""
    path = case.tree.path(node)
    before = case.along(path[-2])[1] if len(path) > 1 else case.state
    own = update(before, case.key[node], case.value[node], float(case.log_decay[node].exp()), float(case.beta[node]))
    return own, case.along(node)[0]


def wrong_multiplies(
    X: Tensor, Y: Tensor, from_root: Tensor, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    right = beta[:, None] * (value - from_root[:, None] * (key @ state))
    own = right - X @ right
    return own, from_root[:, None] * (query @ state) + Y @ own


def wrong_transposed(
    X: Tensor, Y: Tensor, from_root: Tensor, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    right = beta[:, None] * (value - from_root[:, None] * (key @ state))
    own = torch.linalg.solve_triangular(torch.eye(len(X), dtype=X.dtype) + X.T, right, upper=True)
    return own, from_root[:, None] * (query @ state) + Y @ own


def wrong_fresh_state(
    X: Tensor, Y: Tensor, from_root: Tensor, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return solve(X, Y, torch.ones_like(from_root), query, key, value, beta, state)


def wrong_reads_fresh(
    X: Tensor, Y: Tensor, from_root: Tensor, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    own, _ = solve(X, Y, from_root, query, key, value, beta, state)
    return own, query @ state + Y @ own


def wrong_full_strength(
    X: Tensor, Y: Tensor, from_root: Tensor, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return solve(X, Y, from_root, query, key, value, torch.ones_like(beta), state)


def wrong_reads_values(
    X: Tensor, Y: Tensor, from_root: Tensor, query: Tensor, key: Tensor, value: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    own, _ = solve(X, Y, from_root, query, key, value, beta, state)
    return own, from_root[:, None] * (query @ state) + Y @ value


SOLVE = Exercise(
    name="08.solve",
    title="one solve for the whole tree",
    task="Write <code>solve(X, Y, from_root, query, key, value, beta, state)</code>, which returns the updates U and "
    "the outputs O of all nodes, one row each. <code>from_root[i]</code> is the product of the decays from the root to "
    "node i; <code>state</code> is the memory before the root.",
    difficulty=2,
    importance=3,
    minutes=12,
    reread="One solve for all branches",
    hints=(
        "No loop over nodes or branches is needed: the updates of all nodes are the unknowns of one linear system.",
        "The right-hand side is what every node would write if no ancestor had written anything: beta (V − a K S₀).",
        "U = torch.linalg.solve_triangular(I + X, right, upper=False); O = a · (query @ state) + Y @ U, with a as a "
        "column.",
    ),
    solution=solve,
    explanation="The solve goes down the rows once. Row i needs the updates of its ancestors only, which stand above "
    "it, because parents come before their children.",
    properties=(
        Property("every update is that of the node's own path", lambda a: _rows(a, 0)),
        Property("every output is that of the node's own path", lambda a: _rows(a, 1)),
    ),
    behaviour=lambda answer: [[torch.as_tensor(part) for part in answer(*solve_arguments(case))] for case in trees()],
    misconceptions=(
        Misconception(
            "(I − X) times the right-hand side instead of a solve. That is right for children of the root; from depth "
            "2 on, an ancestor's update has itself been corrected.",
            wrong_multiplies,
        ),
        Misconception(
            "The system is transposed, or solved from below: updates would depend on descendants.", wrong_transposed
        ),
        Misconception(
            "The old memory has not faded: S₀ reaches node i with the decays of its whole path.", wrong_fresh_state
        ),
        Misconception("The old memory fades in the updates but not in what is read.", wrong_reads_fresh),
        Misconception(
            "beta is missing on the right-hand side. It is in X too, but there it weighs the ancestors' part only.",
            wrong_full_strength,
        ),
        Misconception(
            "Values are read instead of updates: that is linear attention, where nothing was erased.",
            wrong_reads_values,
        ),
    ),
)
