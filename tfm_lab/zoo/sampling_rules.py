"""WRONG ON PURPOSE. Sampling rules that draw from one distribution and account for another: exhibits 1, 3 and 4."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting import Draft, TreeConfig, TreeKind
from tfm_lab.draws import Draws
from tfm_lab.exact import random_table
from tfm_lab.verification import Acceptance, rejection_swor, target_sample
from tfm_lab.zoo.exhibit import Exhibit
from tfm_lab.zoo.laws import BIAS, BIASED, EXACT, PROBABILITY, TEXT, EmittedText, Pair, draw, sampled_chain

CHAIN = TreeConfig(budget=2, max_depth=2)

# Exhibit 1.

TOP_TWO = SamplingConfig(top_k=2)


def draw_from_the_best_two(logits: Float[Tensor, " vocab"], draws: Draws) -> tuple[int, Float[Tensor, " vocab"]]:
    """Right: the drafter obeys top-k, and reports the distribution after top-k."""
    q = TOP_TWO.probabilities(logits)
    return draws.categorical(q), q


def wrong_report_of_q(logits: Float[Tensor, " vocab"], draws: Draws) -> tuple[int, Float[Tensor, " vocab"]]:
    """WRONG in its last line: it reports the whole softmax, from which nothing was drawn.

    The ratio p/q comes out larger by 1/Z, Z the mass of the best two, so that too much is accepted; and the residual
    max(p - q, 0) makes room for tokens that were never going to be proposed.
    """
    token = draws.categorical(TOP_TWO.probabilities(logits))
    return token, logits.double().softmax(0)


UNSAMPLED_Q = Exhibit(
    number=1,
    name="unsampled_q",
    title="The ratio uses a q that nothing was drawn from",
    symptom="Acceptance looks better than it should, and the text drifts towards the drafter's favourites.",
    cause="Tokens are drawn after top-k, but the ratio p/q and the residual get the drafter's q from before it.",
    fix="Keep, with every drafted token, the very distribution that it was drawn from, and judge by that.",
    threads=("https://github.com/huggingface/transformers/issues/47932",),
    wrong=Pair(sampled_chain(wrong_report_of_q), rejection_swor),
    right=Pair(sampled_chain(draw_from_the_best_two), rejection_swor),
    tool=EmittedText(random_table(4, 2, seed=21), random_table(4, 2, seed=22), CHAIN, 3),
    figure_of_merit=BIAS,
    tolerance=EXACT,
    threshold=BIASED,
    x_title=TEXT,
    y_title=PROBABILITY,
)

# Exhibit 3.


@dataclass(frozen=True, slots=True)
class WrongResidual:
    """WRONG in its last line: after a rejection the token comes from p, not from the residual max(p - q, 0).

    Accepted drafts already bring min(p, q) of every token; p on top of that counts the tokens that both like twice.
    """

    name: str = "wrong_residual"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        rejection_swor.supports(kind, sampling)

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        accepted = rejection_swor(draft, target, draws)
        return Acceptance(accepted.path, draws.categorical(target.probabilities(accepted.path[-1])))


RESIDUAL_SKIPPED = Exhibit(
    number=3,
    name="residual_skipped",
    title="A rejected token is replaced by a draw from p",
    symptom="Acceptance is as it should be, yet tokens that target and drafter both like come up too often.",
    cause="After a rejection the replacement is drawn from p, although accepted drafts already brought min(p, q).",
    fix="Draw the replacement from the normalised residual max(p - q, 0).",
    threads=("https://github.com/NJUNLP/MCSD/issues/5", "https://github.com/vllm-project/vllm/pull/54282"),
    wrong=Pair(sampled_chain(draw), WrongResidual()),
    right=Pair(sampled_chain(draw), rejection_swor),
    tool=EmittedText(random_table(3, 2, seed=21), random_table(3, 2, seed=22), CHAIN, 3),
    figure_of_merit=BIAS,
    tolerance=EXACT,
    threshold=BIASED,
    x_title=TEXT,
    y_title=PROBABILITY,
)

# Exhibit 4.


@dataclass(frozen=True, slots=True)
class WrongMatch:
    """WRONG in its last line: the sample that the draft failed to match is thrown away, and a new one is drawn.

    Matching itself is exact: where the draft equals the target's own sample it is accepted, and where it does not, that
    sample is emitted, so every token is the target's own. A second draw gives each token another chance to come up.
    """

    name: str = "wrong_match"

    def supports(self, kind: TreeKind, sampling: SamplingConfig) -> None:
        target_sample.supports(kind, sampling)

    def __call__(self, draft: Draft, target: TargetRows, draws: Draws) -> Acceptance:
        accepted = target_sample(draft, target, draws)
        is_leaf = accepted.path[-1] not in draft.tree.parents.tolist()
        if is_leaf:
            return accepted
        return Acceptance(accepted.path, draws.categorical(target.probabilities(accepted.path[-1])))


MATCH_A_SAMPLE = Exhibit(
    number=4,
    name="match_a_sample",
    title="Match a sample: exact or not?",
    symptom="Drafts that equal a sample of the target are accepted; the text is biased, and the rule gets the blame.",
    cause="Matching is exact if the sample that did not match is emitted; here another one is drawn in its place.",
    fix="Emit the sample that was compared; if too few drafts match, use a ratio rule, which accepts more.",
    threads=("https://github.com/ml-explore/mlx-swift-lm/pull/459",),
    wrong=Pair(sampled_chain(draw), WrongMatch()),
    right=Pair(sampled_chain(draw), target_sample),
    tool=EmittedText(random_table(3, 2, seed=21), random_table(3, 2, seed=22), CHAIN, 3),
    figure_of_merit=BIAS,
    tolerance=EXACT,
    threshold=BIASED,
    x_title=TEXT,
    y_title=PROBABILITY,
)
