"""WRONG ON PURPOSE. Measurements that answer another question than the one asked: exhibits 10 and 11."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.drafting import TreeBuilder, TreeConfig, conditional_chain, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.theory import MarkovWorld
from tfm_lab.theory.worlds import perfect_source
from tfm_lab.zoo.exhibit import Exhibit, Measurement
from tfm_lab.zoo.interpreted import addition, launch_addition

# Exhibit 10.

BUDGETS = (4, 8, 16)
DEPTH = 6
CLOSE, OPEN = 6, 18
"""Tokens with two likely successors, and tokens after which most others may follow."""

POSITIONS = 400
"""Length of the text over which steps are counted; where steps start has long settled by then."""


def stretches() -> MarkovWorld:
    """A text of close stretches, where a tree helps, and open ones, where no drafter does."""
    rows = torch.zeros(CLOSE + OPEN, CLOSE + OPEN, dtype=torch.float64)
    for token in range(CLOSE):
        rows[token, CLOSE:] = 0.1 / OPEN
        rows[token, (token + 1) % CLOSE] = 0.6
        rows[token, (token + 3) % CLOSE] = 0.3
    rows[CLOSE:, CLOSE:] = 0.7 / OPEN
    rows[CLOSE:, :CLOSE] = 0.3 / CLOSE
    return MarkovWorld(rows)


class Steps(NamedTuple):
    """What one decoding step does, exactly: ``ends[k - 1, a, b]`` is the probability that, from the committed token a,
    it emits k tokens of which the last is b."""

    ends: Float[Tensor, "lengths tokens tokens"]

    @classmethod
    def of(cls, world: MarkovWorld, builder: TreeBuilder, budget: int) -> "Steps":
        """By following every path of every context's tree, under acceptance by membership."""
        config = TreeConfig(budget=budget, max_depth=DEPTH, children=8, width=1)
        ends = torch.zeros(DEPTH + 1, world.vocab, world.vocab, dtype=torch.float64)
        for context in range(world.vocab):
            tree = builder(context, perfect_source(world.at(context), DEPTH), config, SeededDraws(0)).tree
            tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
            reached = [1.0]
            for node, children in enumerate(tree.children()):
                if node:
                    parent = parents[node]
                    reached.append(reached[parent] * float(world.transitions[tokens[parent], tokens[node]]))
                bonus = reached[node] * world.transitions[tokens[node]]
                bonus[[tokens[child] for child in children]] = 0.0
                ends[int(tree.depths[node]), context] += bonus
        return cls(ends)

    def starts(self) -> Float[Tensor, " tokens"]:
        """Law of the committed token from which a step starts, in a long decode."""
        change = self.ends.sum(0).T - torch.eye(self.ends.shape[1], dtype=torch.float64)
        change[-1] = 1.0
        return torch.linalg.solve(change, torch.eye(len(change), dtype=torch.float64)[-1])

    def tokens_from(self, starts: Float[Tensor, " tokens"]) -> float:
        """Expected tokens of a step that starts where ``starts`` says."""
        lengths = torch.arange(1, len(self.ends) + 1, dtype=torch.float64)
        return float(lengths @ self.ends.sum(2) @ starts)

    def steps_per_token(self) -> float:
        """End to end: the chance that a step starts at a place far inside the text, place after place from the first.

        An independent way to the same speed: it neither solves for the law of the starts nor averages lengths.
        """
        begins = [torch.eye(self.ends.shape[1], dtype=torch.float64)[0]]
        for place in range(1, POSITIONS):
            arrivals = [begins[place - k] @ self.ends[k - 1] for k in range(1, min(place, len(self.ends)) + 1)]
            begins.append(torch.stack(arrivals).sum(0))
        return float(begins[-1].sum())


Gain = Callable[[Steps, Steps], float]


def wrong_gain(tree: Steps, chain: Steps) -> float:
    """WRONG in its second line: the chain is asked what it would have done at the places where the tree's steps start.

    A tree's steps start where the tree stopped, so those places are no fair sample; the chain starts elsewhere. (Asking
    the tree at the chain's places is no better. How far off either is, and to which side, depends on the text.)
    """
    starts = tree.starts()
    return tree.tokens_from(starts) / chain.tokens_from(starts) - 1.0


def right_gain(tree: Steps, chain: Steps) -> float:
    """Right: two decodes, each with the places where its own steps start."""
    return tree.tokens_from(tree.starts()) / chain.tokens_from(chain.starts()) - 1.0


def misread_gain(gain: Gain) -> Measurement:
    """The tool: how far a claimed gain of tree over chain is from that of exact step counts, at the largest budget."""
    world = stretches()
    chain = Steps.of(world, conditional_chain, DEPTH)
    claimed: dict[float, float] = {}
    counted: dict[float, float] = {}
    for budget in BUDGETS:
        tree = Steps.of(world, woven, budget)
        claimed[budget] = 100.0 * gain(tree, chain)
        counted[budget] = 100.0 * (chain.steps_per_token() / tree.steps_per_token() - 1.0)
    return Measurement(abs(claimed[BUDGETS[-1]] - counted[BUDGETS[-1]]), claimed, counted)


SINGLE_TRACE = Exhibit(
    number=10,
    name="single_trace",
    title="The chain, judged from the tree's trace",
    symptom="By one recorded run the tree gains far more over the chain than the step counts of two runs confirm.",
    cause="The chain is judged at the places where the tree's steps start, which are not where its own steps start.",
    fix="Decode the same text twice and compare the numbers of steps.",
    threads=("https://github.com/vllm-project/vllm/pull/42910",),
    wrong=wrong_gain,
    right=right_gain,
    tool=misread_gain,
    figure_of_merit="claimed gain minus counted gain, percentage points",
    tolerance=1e-6,
    threshold=5.0,
    x_title="budget of the tree",
    y_title="gain over the chain, percent",
)

# Exhibit 11.

PROGRAMS = (2, 4, 8)

Benchmark = Callable[[Any, int], object]
"""Launches a kernel with so many programs; a clock around it would take the time."""


def wrong_benchmark(kernel: Any, programs: int) -> None:
    """WRONG in its only line: it never asks who executes the kernel, and here Python does, program by program."""
    launch_addition(kernel, programs)


def right_benchmark(kernel: Any, programs: int) -> None:
    """Right: it refuses to time anything but a compiled kernel.

    Raises:
        ValueError: if the kernel is interpreted.
    """
    import triton

    if not isinstance(kernel, triton.JITFunction):
        raise ValueError(
            "this kernel runs in Triton's interpreter, whose time says nothing about it: unset TRITON_INTERPRET and "
            "use a GPU (tfm-lab doctor tells which mode is on)"
        )
    launch_addition(kernel, programs)


def python_per_program(benchmark: Benchmark) -> Measurement:
    """The tool: calls of Python functions that every further program of the grid adds to the timed region.

    No clock is needed: launching a compiled kernel is the same work for any grid. A refusal times nothing.
    """
    kernel = addition()
    _python_calls(benchmark, kernel, PROGRAMS[0])  # the first launch also rewrites the kernel's source
    calls: dict[float, float] = {programs: _python_calls(benchmark, kernel, programs) for programs in PROGRAMS}
    first, last = PROGRAMS[0], PROGRAMS[-1]
    return Measurement((calls[last] - calls[first]) / (last - first), calls)


def _python_calls(benchmark: Benchmark, kernel: Any, programs: int) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        benchmark(kernel, programs)
    except ValueError:
        return 0
    finally:
        sys.setprofile(before)
    return calls


INTERPRETER_BENCHMARK = Exhibit(
    number=11,
    name="interpreter_benchmark",
    title="A benchmark of Triton's interpreter",
    symptom="A kernel looks hundreds of times slower than PyTorch, and its time grows with every program of the grid.",
    cause="TRITON_INTERPRET was set, so the timed region runs Python for every program, and the benchmark never asked.",
    fix="Let the benchmark ask whether the kernel is compiled, and refuse if it is not.",
    threads=("https://github.com/triton-lang/triton/issues/5995",),
    wrong=wrong_benchmark,
    right=right_benchmark,
    tool=python_per_program,
    figure_of_merit="calls of Python functions in the timed region per program of the grid",
    tolerance=0.0,
    threshold=1.0,
    x_title="programs in the grid",
    y_title="calls of Python functions",
    needs="triton",
)
