"""A small decode step and a small growth record, made by hand, for the tests of the pictures."""

from tfm_lab.drafting import Candidate, GrowthRound, TreeKind
from tfm_lab.trace import DecodeStep, StageSeconds
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance

WORDS = {0: "The", 1: " cat", 2: " dog", 3: " sat", 4: "\n<b>", 5: " ran", 6: " and"}
TREE = DraftTree.from_parents([0, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 1, 2], [0.0, -0.5, -1.0, -0.2, -2.0, -0.1])
ROUNDS = (
    GrowthRound((0,), (Candidate(0, 1, -0.5), Candidate(0, 2, -1.0)), (1, 2)),
    GrowthRound((1, 2), (Candidate(1, 3, -0.7), Candidate(2, 5, -1.1), Candidate(1, 4, -2.5)), (3, 4)),
    GrowthRound((3, 4), (Candidate(2, 6, -3.0),), (5,)),
)


def decode(token: int) -> str:
    return WORDS[token]


def step(path: tuple[int, ...] = (0, 1, 3), committed: tuple[int, ...] = (1, 3, 6)) -> DecodeStep:
    seconds = StageSeconds(0.1, 0.2, 0.3, 0.4, 0.5)
    return DecodeStep(TREE, TreeKind.FIXED, ROUNDS, 3, Acceptance(path, 6), committed, seconds)
