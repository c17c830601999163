"""What stands beside a growing tree: the frontier, and what the next round takes from it."""

import re
from collections.abc import Iterable

import pytest
from show.samples import ROUNDS, TREE, decode

from tfm_lab.bundle import Bundle
from tfm_lab.drafting import Candidate, Draft, GrowthRound, TreeKind
from tfm_lab.lab import growth_frames

NEVER_TAKEN = Candidate(0, 6, -3.0)
FIRST = GrowthRound((0,), (*ROUNDS[0].offered, NEVER_TAKEN), ROUNDS[0].added)
DRAFT = Draft(TREE, TreeKind.FIXED, rounds=(FIRST, *ROUNDS[1:]))
WAITING = [
    [("", "·and", "The (0)")],
    [("▶", "·ran", "·dog (2)"), ("", "·and", "The (0)")],
    [("", "·and", "The (0)"), ("", "·and", "·dog (2)")],
]


class Words(Bundle):
    """Only the words of a bundle."""

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(decode(token) for token in tokens)


MODELS = Words.__new__(Words)


@pytest.mark.parametrize("last", range(len(WAITING)))
def test_the_frontier_marks_only_what_the_next_round_takes(last: int) -> None:
    """A round may take all of its nodes from what it has just been offered, which waited in no frontier before."""
    side = growth_frames(MODELS, DRAFT)[last].side
    rows = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td><td>.*?</td></tr>", side)
    assert rows == WAITING[last]


def test_one_node_is_not_written_as_nodes() -> None:
    captions = [frame.caption for frame in growth_frames(MODELS, DRAFT)]
    assert "expands 1 node;" in captions[0]
    assert "expands 2 nodes;" in captions[1]
