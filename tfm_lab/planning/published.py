"""What the paper reports about speed (arXiv 2607.06763), and what follows from it by arithmetic alone.

The setting of all reported figures: Qwen3.6-27B in bfloat16 on one NVIDIA B200, batch 1, temperature 1. Speeds are
means over eight data sets. The paper gives accepted lengths only as ratios.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

Origin = Literal["reported by the paper", "computed", "derived", "assumed"]
KernelName = Literal["fused", "state per node"]

PAPER = "arXiv 2607.06763: Qwen3.6-27B, one B200, batch 1"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with what it takes to judge it.

    Attributes:
        value: in ``unit``.
        unit: of the value.
        origin: ``reported by the paper``; ``computed`` from a published config; ``derived`` from reported figures by
            arithmetic; ``assumed``: a place holder for the reader's own number.
        source: where it comes from, in a sentence.
    """

    value: float
    unit: str
    origin: Origin
    source: str

    def __str__(self) -> str:
        return f"{self.value:.4g} {self.unit} ({self.origin}: {self.source})"


def _reported(value: float, unit: str, what: str) -> Figure:
    return Figure(value, unit, "reported by the paper", f"{what}; {PAPER}")


RATES: Mapping[str, Figure] = MappingProxyType(
    {
        "ar": _reported(89.9, "tokens/s", "plain decoding"),
        "chain": _reported(315.0, "tokens/s", "DFlash, a chain in blocks of 16"),
        "tfm": _reported(392.8, "tokens/s", "TfM, 64 drafted nodes"),
    }
)
LENGTH_GAIN = _reported(0.77, "of the chain's MAL", "accepted length of TfM over the chain")
SPEED_GAIN = _reported(0.247, "of the chain's speed", "speed of TfM over the chain")
LENGTH_GAIN_OVER_DDTREE = _reported(0.32, "of DDTree's MAL", "accepted length of TfM over DDTree of the same size")
SPEED_GAINS_OVER_DDTREE = (
    _reported(0.10, "of DDTree's speed", "speed of TfM over DDTree, lowest of the data sets"),
    _reported(0.30, "of DDTree's speed", "speed of TfM over DDTree, highest of the data sets"),
)
VERIFICATION_SHARE = _reported(0.12, "of the decode time", "share of the verification")
NODES, LAYERS = 64, 48
"""Nodes of the paper's trees, and Gated DeltaNet layers of its target (published config)."""


class KernelTimes(NamedTuple):
    """Microseconds that one Gated DeltaNet layer needs to verify a tree."""

    fused: float
    state_per_node: float


KERNEL_TIMES: Mapping[int, KernelTimes] = MappingProxyType(
    {
        16: KernelTimes(37.0, 55.2),
        32: KernelTimes(39.0, 103.9),
        64: KernelTimes(42.8, 195.0),
        128: KernelTimes(57.3, 408.3),
    }
)
"""Nodes -> times per layer, as the paper reports them: its fused kernel, and a recurrent one with a state per node."""


def step_ratio(length_gain: float, speed_gain: float) -> float:
    """How much longer a step lasts when accepted length and speed grow by these shares: (1 + length) / (1 + speed).

    Speed is tokens per second: MAL / step seconds. So a gain in MAL that does not show up in speed went into the step.
    """
    return (1.0 + length_gain) / (1.0 + speed_gain)


def plain_step_seconds() -> float:
    """A plain step of the paper: one token, one step, so the inverse of its speed."""
    return 1.0 / RATES["ar"].value


def kernel_seconds(kernel: KernelName, nodes: float) -> float:
    """Seconds of one layer for a tree of so many nodes: reported sizes, straight lines in between and beyond 128.

    Below 16 nodes the time of 16 is taken: nothing is reported there.
    """
    sizes = sorted(KERNEL_TIMES)
    times = {size: getattr(KERNEL_TIMES[size], kernel.replace(" ", "_")) for size in sizes}
    nodes = max(float(nodes), float(sizes[0]))
    high = next((size for size in sizes[1:] if nodes <= size), sizes[-1])
    low = sizes[sizes.index(high) - 1]
    return 1e-6 * (times[low] + (times[high] - times[low]) * (nodes - low) / (high - low))


def other_kernel_extra_seconds(nodes: int = NODES, layers: int = LAYERS) -> float:
    """What a step gains in length if the fused kernel is exchanged for the one that keeps a state per node."""
    return layers * (kernel_seconds("state per node", nodes) - kernel_seconds("fused", nodes))


def longest_chain_step_where_the_tree_loses(*, chain_pays: bool = False) -> float:
    """Seconds: with the other kernel TfM is slower than the chain unless a chain step lasts longer than this.

    The tree gains ``1 + LENGTH_GAIN`` in tokens and pays ``step_ratio`` chain steps and the extra of the other kernel;
    both are equal where chain step * (1 + LENGTH_GAIN - step_ratio) = extra. How long a chain step is was not reported.

    Args:
        chain_pays: the chain's 16 rows get the other kernel as well. (Which one it was timed with is not reported.)
    """
    lengths, ratio = 1.0 + LENGTH_GAIN.value, step_ratio(LENGTH_GAIN.value, SPEED_GAIN.value)
    chain_extra = other_kernel_extra_seconds(16) if chain_pays else 0.0
    return (other_kernel_extra_seconds() - lengths * chain_extra) / (lengths - ratio)


def chain_length_if_verification_is_the_kernel() -> float:
    """MAL of the chain under one reading of the paper: that its 12 % are the fused kernels of all layers, at 64 nodes.

    Then a TfM step lasts 48 kernels / 0.12, its MAL is that times its speed, and the chain's is 1.77 times smaller.
    A reading, not a report: the paper's accepted lengths are known as ratios only.
    """
    step = LAYERS * kernel_seconds("fused", NODES) / VERIFICATION_SHARE.value
    return step * RATES["tfm"].value / (1.0 + LENGTH_GAIN.value)
