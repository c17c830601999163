"""Seconds of one decode step, part by part.

    step = floor + rows + verification + draft + weave + rest

* floor: every weight of the target is read once, for all rows of all requests (weight bytes / bandwidth);
* rows: what the rows add to that: some time per row, or whatever the arithmetic takes longer than the reading;
* verification: the memories of the Gated DeltaNet layers, which every request has its own of;
* draft: one pass of the block drafter; weave: the sequential calls of the Weaver; rest: everything else.

Left out: attention over the context, which every method pays once per request and step, and what a program loses
between its kernels unless it is entered as ``rest_seconds``. The defaults are lower bounds in most parts; each has
its origin in :data:`FIGURES`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tfm_lab.drafting import TreeConfig
from tfm_lab.planning import shapes
from tfm_lab.planning.published import LAYERS, PAPER, Figure, KernelName, kernel_seconds, plain_step_seconds

BLOCK = 16
"""Rows of a drafter pass for one request: the root and fifteen places."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a device can do.

    Attributes:
        bandwidth: bytes per second that it reads from memory.
        arithmetic: floating-point operations per second in the model's dtype.

    Raises:
        ValueError: if one is not positive.
    """

    bandwidth: float
    arithmetic: float

    def __post_init__(self) -> None:
        if not (self.bandwidth > 0.0 and self.arithmetic > 0.0):
            raise ValueError(f"bandwidth and arithmetic must be positive, got {self.bandwidth} and {self.arithmetic}")


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """What a target, its drafter and its Weaver ask for.

    Attributes:
        weight_bytes: read once per step of the target.
        row_flops: operations of one row of the target.
        delta_net_layers: layers that keep a matrix as memory.
        state_bytes: of one such matrix memory (all heads), for one request.
        draft_bytes: read once per pass of the drafter.
        draft_row_flops: operations of one of its rows.
        call_seconds: one call of the Weaver, without what its nodes gather.
        gather_bytes: that every expanded node gathers in such a call.
        row_seconds: that one more row of the target costs although its weights have been read.
        rest_seconds: per drafted step, for all that is not in the other parts.

    Raises:
        ValueError: if one is negative, or there are no weights.
    """

    weight_bytes: float
    row_flops: float
    delta_net_layers: int
    state_bytes: float
    draft_bytes: float
    draft_row_flops: float
    call_seconds: float
    gather_bytes: float
    row_seconds: float
    rest_seconds: float

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if not self.weight_bytes > 0.0:
            raise ValueError("a target without weights has no cost to plan with: give weight_bytes above 0")


class StepSeconds(NamedTuple):
    """Seconds of one step by part; see the module."""

    floor: float
    rows: float
    verification: float
    draft: float
    weave: float
    rest: float

    @property
    def total(self) -> float:
        return sum(self)


class Plan(NamedTuple):
    """How to decode.

    Attributes:
        method: ``ar``, ``chain``, ``ddtree`` or ``tfm``.
        budget: drafted nodes per request, the root left out; 0 for plain decoding.
        width: nodes that one call of the Weaver expands; 0 where there is no Weaver.
        batch: requests that share every step.
        kernel: that verifies the memories of Gated DeltaNet layers.
    """

    method: str
    budget: int = 0
    width: int = 0
    batch: int = 1
    kernel: KernelName = "fused"

    @property
    def calls(self) -> int:
        """Calls of the Weaver in one step: ceil(budget / width)."""
        return math.ceil(self.budget / self.width) if self.width else 0

    @property
    def rows(self) -> int:
        """Rows of the target in one step: the nodes of all requests, roots included."""
        return self.batch * (self.budget + 1)


PLAIN = "ar"


def rule_width(budget: int) -> int:
    """Nodes per call in the paper's released code: ceil(budget / 16)."""
    return TreeConfig(budget=budget).expand_width


def step_seconds(hardware: Hardware, costs: ModelCosts, plan: Plan) -> StepSeconds:
    """Seconds of one step that serves all requests of the plan.

    Raises:
        ValueError: if plain decoding has a budget, a drafted method has none, or there is no request.
    """
    if plan.batch < 1 or (plan.budget == 0) != (plan.method == PLAIN):
        raise ValueError(f"a plan serves 1 request or more, and all but plain decoding draft nodes; got {plan}")
    floor = costs.weight_bytes / hardware.bandwidth
    arithmetic = plan.rows * costs.row_flops / hardware.arithmetic
    rows = max(plan.rows * costs.row_seconds, arithmetic - floor, 0.0)
    verification = _verification(hardware, costs, plan)
    if plan.method == PLAIN:
        return StepSeconds(floor, rows, verification, 0.0, 0.0, 0.0)
    drafting = plan.batch * BLOCK * costs.draft_row_flops / hardware.arithmetic
    draft = max(costs.draft_bytes / hardware.bandwidth, drafting)
    gathered = plan.batch * plan.width * costs.gather_bytes / hardware.bandwidth
    weave = plan.calls * (costs.call_seconds + gathered)
    return StepSeconds(floor, rows, verification, draft, weave, costs.rest_seconds)


def _verification(hardware: Hardware, costs: ModelCosts, plan: Plan) -> float:
    """Memories of all layers and requests.

    Plain decoding reads and writes each once. For a tree the paper's time per layer stands for the first request; every
    further one adds what it moves: its memory once in and once out, or in and out at every node.
    """
    moved = 2.0 * costs.state_bytes / hardware.bandwidth
    if plan.method == PLAIN:
        return costs.delta_net_layers * plan.batch * moved
    nodes = plan.budget + 1
    if plan.kernel == "state per node":
        moved *= nodes
    return costs.delta_net_layers * (kernel_seconds(plan.kernel, nodes) + (plan.batch - 1) * moved)


def _figures() -> dict[str, Figure]:
    target, drafter, weaver = shapes.paper_shapes()
    config = "from the published config of Qwen3.6-27B"
    weights = shapes.MODEL_BYTES * shapes.target_weights(target)
    states = 2 * shapes.delta_net_layers(target) * shapes.state_bytes(target)
    bandwidth = (weights + states) / plain_step_seconds()
    call = shapes.MODEL_BYTES * shapes.weaver_weights(weaver) / bandwidth
    return {
        "bandwidth": Figure(
            bandwidth, "bytes/s", "derived", f"bytes of a plain step over its reported time; {PAPER}"
        ),
        "arithmetic": Figure(1e15, "FLOP/s", "assumed", "a round number: enter that of your device"),
        "weight_bytes": Figure(weights, "bytes", "computed", f"{config}, bfloat16, head included"),
        "row_flops": Figure(2 * shapes.target_weights(target), "FLOP", "computed", f"{config}: 2 per weight"),
        "delta_net_layers": Figure(LAYERS, "layers", "computed", config),
        "state_bytes": Figure(shapes.state_bytes(target), "bytes", "computed", f"{config}, float32"),
        "draft_bytes": Figure(
            shapes.MODEL_BYTES * shapes.drafter_weights(drafter), "bytes", "computed", "published config of its drafter"
        ),
        "draft_row_flops": Figure(
            2 * shapes.drafter_weights(drafter), "FLOP", "computed", "published config of its drafter: 2 per weight"
        ),
        "call_seconds": Figure(
            call, "s", "derived", "bytes of the published Weaver over the bandwidth: a lower bound, without launches"
        ),
        "gather_bytes": Figure(shapes.pool_bytes(weaver), "bytes", "computed", "512 lines of the head in bfloat16"),
        "row_seconds": Figure(0.0, "s", "assumed", "rows are free until arithmetic takes longer than reading"),
        "rest_seconds": Figure(0.0, "s", "assumed", "nothing else: a lower bound"),
    }  # fmt: skip


FIGURES: Mapping[str, Figure] = MappingProxyType(_figures())
"""Field of :class:`Hardware` or :class:`ModelCosts` -> its default, with unit, origin and source."""


def paper_hardware() -> Hardware:
    """The defaults as a device."""
    return Hardware(**{name: FIGURES[name].value for name in Hardware.__dataclass_fields__})


def paper_costs() -> ModelCosts:
    """The defaults as models; most parts are lower bounds."""
    names = [name for name in ModelCosts.__dataclass_fields__ if name != "delta_net_layers"]
    return ModelCosts(delta_net_layers=LAYERS, **{name: FIGURES[name].value for name in names})
