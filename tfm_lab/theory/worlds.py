"""Toy worlds: targets whose marginals and conditionals are known exactly, with one knob for how spread the future is.

A world starts at a context (a token) and knows the law of everything after it. Each row of its transition matrix is
drawn from a symmetric Dirichlet distribution: the smaller the concentration c, the more the next token is settled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.drafting import DraftSource, Marginals, OpenNode, Proposal

Path = tuple[int, ...]


class World(Protocol):
    """A target on a small vocabulary, below one context."""

    @property
    def vocab(self) -> int: ...

    def conditional(self, path: Path) -> Float[Tensor, " vocab"]:
        """p(. | path), float64, after the tokens of ``path`` that follow the context."""
        ...

    def marginals(self, depth: int) -> Float[Tensor, "depth vocab"]:
        """Law of the token at each of the next ``depth`` places, the earlier ones summed out; float64."""
        ...

    def conditionals(self, depth: int) -> tuple[Float[Tensor, " states"], Float[Tensor, "states vocab"]]:
        """The distinct conditionals of the token at place ``depth`` (1 is the next), and the probability of each."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MarkovWorld:
    """The next token depends on the last one alone.

    Attributes:
        transitions: float64, row i is the law of the token after token i.
        context: the token to start from.
    """

    transitions: Float[Tensor, "vocab vocab"]
    context: int = 0

    def __post_init__(self) -> None:
        rows = self.transitions.sum(1)
        if not torch.allclose(rows, torch.ones_like(rows)) or bool((self.transitions < 0).any()):
            raise ValueError("the rows of a transition matrix are distributions: non-negative, each with sum 1")
        if not 0 <= self.context < len(rows):
            raise ValueError(f"the context must be one of the {len(rows)} tokens, got {self.context}")

    @classmethod
    def dirichlet(cls, vocab: int, concentration: float, seed: int = 1, context: int | None = None) -> "MarkovWorld":
        """Rows from a symmetric Dirichlet distribution; by default the context is the most frequent token.

        Raises:
            ValueError: if the vocabulary has fewer than 2 tokens or the concentration is not positive.
        """
        rows = torch.from_numpy(_dirichlet_rows(vocab, vocab, concentration, np.random.default_rng(seed)))
        world = cls(rows)
        return cls(rows, int(world.stationary().argmax()) if context is None else context)

    @property
    def vocab(self) -> int:
        return self.transitions.shape[0]

    def at(self, context: int) -> "MarkovWorld":
        """The same world below another context."""
        return MarkovWorld(self.transitions, context)

    def stationary(self) -> Float[Tensor, " vocab"]:
        """How often each token comes up in a long text."""
        return _stationary(self.transitions)

    def conditional(self, path: Path) -> Float[Tensor, " vocab"]:
        return self.transitions[path[-1] if path else self.context]

    def marginals(self, depth: int) -> Float[Tensor, "depth vocab"]:
        return _powers(self.transitions[self.context], self.transitions, depth)

    def conditionals(self, depth: int) -> tuple[Float[Tensor, " states"], Float[Tensor, "states vocab"]]:
        if depth == 1:
            return torch.ones(1, dtype=torch.float64), self.transitions[self.context : self.context + 1]
        return self.marginals(depth - 1)[-1], self.transitions


@dataclass(frozen=True, slots=True, eq=False)
class HiddenWorld:
    """A hidden state walks; each state has its own law of tokens. What comes next depends on the whole path.

    Attributes:
        transitions: float64, law of the next state after each state.
        emissions: float64, law of the token in each state.
        belief: law of the state of the next token, as seen from the context.
    """

    transitions: Float[Tensor, "states states"]
    emissions: Float[Tensor, "states vocab"]
    belief: Float[Tensor, " states"]

    @classmethod
    def dirichlet(cls, states: int, vocab: int, concentration: float, seed: int = 1) -> "HiddenWorld":
        """Rows of both matrices from symmetric Dirichlet distributions; the walk starts stationary.

        Raises:
            ValueError: as :meth:`MarkovWorld.dirichlet`.
        """
        generator = np.random.default_rng(seed)
        transitions = torch.from_numpy(_dirichlet_rows(states, states, concentration, generator))
        emissions = torch.from_numpy(_dirichlet_rows(states, vocab, concentration, generator))
        return cls(transitions, emissions, _stationary(transitions))

    @property
    def vocab(self) -> int:
        return self.emissions.shape[1]

    def conditional(self, path: Path) -> Float[Tensor, " vocab"]:
        """By filtering: the belief about the state is conditioned on every token of the path.

        Raises:
            ValueError: if the path has probability 0.
        """
        return self._belief(path) @ self.emissions

    def marginals(self, depth: int) -> Float[Tensor, "depth vocab"]:
        beliefs = [self.belief]
        for _ in range(depth - 1):
            beliefs.append(beliefs[-1] @ self.transitions)
        return torch.stack(beliefs) @ self.emissions

    def conditionals(self, depth: int) -> tuple[Float[Tensor, " states"], Float[Tensor, "states vocab"]]:
        """One row per path of possible tokens: vocab ** (depth - 1) of them at most."""
        beliefs, weights = self.belief.unsqueeze(0), torch.ones(1, dtype=torch.float64)
        for _ in range(depth - 1):
            joint = beliefs.unsqueeze(1) * self.emissions.T  # paths, tokens, states
            chances = joint.sum(2)
            possible = chances > 0
            beliefs = (joint[possible] / chances[possible].unsqueeze(1)) @ self.transitions
            weights = (weights.unsqueeze(1) * chances)[possible]
        return weights, beliefs @ self.emissions

    def _belief(self, path: Path) -> Float[Tensor, " states"]:
        belief = self.belief
        for token in path:
            joint = belief * self.emissions[:, token]
            if float(joint.sum()) == 0.0:
                raise ValueError(f"the path {path} has probability 0 in this world: nothing can follow it")
            belief = (joint / joint.sum()) @ self.transitions
        return belief


class WorldSession:
    """A perfect Weaver: the world's own conditionals; implements :class:`tfm_lab.drafting.ConditionalSession`."""

    def __init__(self, world: World, max_depth: int) -> None:
        self._world, self._max_depth = world, max_depth
        self._paths: dict[int, Path] = {-1: ()}

    @property
    def max_depth(self) -> int:
        return self._max_depth

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        for node in nodes:
            self._paths[node.index] = () if node.parent < 0 else (*self._paths[node.parent], node.token)
        everything = torch.arange(self._world.vocab)
        return [Proposal(everything, self._world.conditional(self._paths[node.index]).log()) for node in nodes]


def perfect_source(world: World, depth: int) -> DraftSource:
    """An ideal drafter of ``depth`` places: the world's true marginals, and its true conditionals as a Weaver."""
    rows = Marginals(world.marginals(depth).log(), torch.zeros(depth, 1))
    return DraftSource(rows, lambda: WorldSession(world, depth))


def _dirichlet_rows(rows: int, columns: int, concentration: float, generator: np.random.Generator) -> np.ndarray:
    if rows < 2 or columns < 2:
        raise ValueError(f"a world needs at least 2 tokens and 2 states, got {rows} and {columns}")
    if not concentration > 0.0:
        raise ValueError(f"the concentration must be positive, got {concentration}")
    return generator.dirichlet(np.ones(columns) * concentration, size=rows)


def _powers(first: Tensor, transitions: Tensor, depth: int) -> Tensor:
    rows = [first]
    for _ in range(depth - 1):
        rows.append(rows[-1] @ transitions)
    return torch.stack(rows)


def _stationary(transitions: Tensor) -> Tensor:
    """The weights that a step leaves alone, with sum 1: least squares of w (P - I) = 0 and sum w = 1."""
    states = len(transitions)
    system = torch.cat([transitions.T - torch.eye(states, dtype=transitions.dtype), torch.ones_like(transitions[:1])])
    wanted = torch.zeros(states + 1, 1, dtype=transitions.dtype)
    wanted[-1] = 1.0
    return torch.linalg.lstsq(system, wanted).solution[:, 0].clamp_min(0.0)
