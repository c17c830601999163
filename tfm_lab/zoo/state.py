"""WRONG ON PURPOSE. A recurrent state that is kept in half precision between steps: exhibit 8."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab import gdn
from tfm_lab.tree import DraftTree
from tfm_lab.zoo.exhibit import Exhibit, Measurement

ROUNDS, HEADS, DIM = 60, 2, 16
DECAY = 0.005
"""Mean log decay: a memory of some 200 tokens, so that an error stays for many steps."""

TREE = DraftTree.from_parents([0, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 1, 3])
ACCEPTED = (0, 1, 3)


class Tokens(NamedTuple):
    """Arguments of the delta rule but the state, one row per node of a tree; float64, [heads, nodes, dim]."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor
    beta: Tensor

    def along(self, path: tuple[int, ...]) -> "Tokens":
        """The rows of a path, in its order."""
        return Tokens(*(tensor[:, list(path)] for tensor in self))


State = Float[Tensor, "heads key_dim value_dim"]
Commit = Callable[[State, Tokens, tuple[int, ...]], State]


def wrong_commit(state: State, tokens: Tokens, path: tuple[int, ...]) -> State:
    """WRONG in the line that takes the snapshots: they are stored in float16 to save memory.

    A rollback then makes the rounded state of the accepted node the truth of all later steps.
    """
    snapshots = []
    for node in path:
        _, state = gdn.delta_rule_recurrent(*tokens.along((node,)), state)
        snapshots.append(state.half())
    return snapshots[-1].float()


def right_commit(state: State, tokens: Tokens, path: tuple[int, ...]) -> State:
    """Right: no snapshots; the verified writes of the path are added to a state that stays in float32."""
    _, writes = gdn.tree_verify(*tokens, state, TREE.ancestors())
    return gdn.commit_path(state, writes, path)


def drift(commit: Commit) -> Measurement:
    """The tool: relative RMS distance of the committed state from plain decoding in float64, after many steps.

    Both decode the same tokens: ``ROUNDS`` trees, of which the same path is accepted. The points give every fifth step.
    """
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    exact = 0.3 * normal(HEADS, DIM, DIM)
    state = exact.float()
    errors: list[float] = []
    for _ in range(ROUNDS):
        nodes = len(TREE)
        query, key = gdn.normalised_query_and_key(normal(HEADS, nodes, DIM), normal(HEADS, nodes, DIM))
        gates = -DECAY * normal(HEADS, nodes).square(), torch.sigmoid(2 * normal(HEADS, nodes))
        tokens = Tokens(query, key, normal(HEADS, nodes, DIM), *gates)
        _, exact = gdn.delta_rule_recurrent(*tokens.along(ACCEPTED), exact)
        state = commit(state, Tokens(*(tensor.float() for tensor in tokens)), ACCEPTED)
        errors.append(float((state - exact).square().mean().sqrt() / exact.square().mean().sqrt()))
    return Measurement(max(errors), {float(step): errors[step - 1] for step in (1, *range(5, ROUNDS + 1, 5))})


HALF_PRECISION_ROLLBACK = Exhibit(
    number=8,
    name="half_precision_rollback",
    title="Rolling back to a state kept in half precision",
    symptom="The state drifts from plain decoding, and a tree may accept less than the chain that it contains.",
    cause="The state after every node is stored in float16, and the accepted one becomes the state of the next step.",
    fix="Keep the state in float32 and rebuild it from the writes of the accepted path, without snapshots.",
    threads=("https://github.com/Luce-Org/lucebox/pull/415", "https://github.com/Luce-Org/lucebox/pull/414"),
    wrong=wrong_commit,
    right=right_commit,
    tool=drift,
    figure_of_merit="relative error of the state against float64",
    tolerance=1e-6,
    threshold=1e-4,
    x_title="step",
    y_title="relative error of the state",
)
