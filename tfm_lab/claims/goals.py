"""What this project had set out to reach in the shape of the paper's model, and what was measured.

These are no claims of the paper. Every one is an upper limit, for the steps of one request with 1024 tokens of context.
"""

from typing import NamedTuple

from tfm_lab.planning import FullModel
from tfm_lab.planning.measured import NODES

CHAIN_ROWS = 16


class Goal(NamedTuple):
    """One goal.

    Attributes:
        name: what is measured, in a few words.
        at_most: the limit.
        value: what was measured.
        percent: whether both are shares.
        remark: what a reader has to know; empty if there is nothing.
    """

    name: str
    at_most: float
    value: float
    percent: bool = False
    remark: str = ""

    @property
    def is_met(self) -> bool:
        return self.value <= self.at_most

    def shown(self, value: float) -> str:
        """The limit or the value for a reader."""
        return f"{100 * value:.1f} %" if self.percent else f"{value:.3f}"


def goals(model: FullModel) -> list[Goal]:
    """All goals with their numbers.

    Raises:
        ValueError: if a step is missing.
    """
    plain, chain, tree = model.plain_step(), model.step("chain", CHAIN_ROWS), model.step("tfm", NODES)
    seconds, sweep, head = plain.seconds.median, model.all_weights, model.head
    floor = sweep.bytes * head.seconds / head.bytes
    return [
        Goal("TfM step of 64 rows over chain step", 1.15, tree.seconds.median / chain.seconds.median),
        Goal("TfM step of 64 rows over plain step", 1.32, tree.seconds.median / seconds),
        Goal(
            "Gated DeltaNet verification with commit, share of the TfM step", 0.06,
            tree.parts["memories"] / tree.seconds.median, percent=True,
        ),
        Goal(
            "plain step over reading all matrices, as the floor was defined", 1.20, seconds / sweep.seconds,
            remark=f"that sweep takes {1e3 * sweep.seconds:.1f} ms, longer than all matrix products of the step, "
            f"{1e3 * plain.parts['products']:.1f} ms: it is no floor",
        ),
        Goal(
            "plain step over the same bytes at the bandwidth of the output head", 1.20, seconds / floor,
            remark=f"{sweep.bytes / 1e9:.2f} GB at {head.bytes / head.seconds / 1e12:.2f} TB/s: {1e3 * floor:.1f} ms, "
            "the honest floor",
        ),
    ]  # fmt: skip
