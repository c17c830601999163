"""The evidence tool for sampling bugs: the exact law of the emitted text, by enumeration, against plain sampling."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from string import ascii_lowercase

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import Draft, DraftSource, Proposal, TreeBuilder, TreeConfig, TreeKind
from tfm_lab.drafting.growth import Growth
from tfm_lab.draws import Draws
from tfm_lab.exact import Table, bias, exact_emission_distribution, plain_distribution
from tfm_lab.verification import AcceptanceRule
from tfm_lab.zoo.exhibit import Measurement, Points

EXACT = 1e-12
"""Total variation distance that a lossless pair may show: rounding in float64."""

BIASED = 1e-2
"""Total variation distance from which a pair counts as biased."""

BIAS = "total variation distance between the emitted text and plain sampling"

SHOWN = 2
"""Tokens of the text that the symptom plots show."""

TEXT, PROBABILITY = "first two tokens of the text", "probability"
"""Axes of these plots."""

PLAIN = SamplingConfig()


@dataclass(frozen=True, slots=True)
class Pair:
    """What drafts and what judges; a bug is in either."""

    builder: TreeBuilder
    rule: AcceptanceRule


@dataclass(frozen=True, slots=True)
class EmittedText:
    """The tool: how far the text of a pair is from plain sampling, on one small target and drafter.

    Attributes:
        p, q: target and drafter.
        config: of the trees.
        length: tokens of text that are looked at.
        sampling: of the target.
    """

    p: Table
    q: Table
    config: TreeConfig
    length: int
    sampling: SamplingConfig = PLAIN

    def __call__(self, pair: Pair) -> Measurement:
        """Exact: no sampling error, so that a distance above rounding is a bias."""
        law = exact_emission_distribution(
            pair.builder, pair.rule, self.p, self.q, self.length, self.config, self.sampling
        )
        truth = plain_distribution(self.p, self.length, self.sampling)
        return Measurement(bias(law, self.p, self.sampling), first_tokens(law), first_tokens(truth))


def first_tokens(law: Float[Tensor, "..."]) -> Points:
    """Probability of the first tokens of the text, at most ``SHOWN`` of them; tokens are named a, b, c, ..."""
    shown = min(SHOWN, law.dim())
    first = law.flatten(shown).sum(-1) if law.dim() > shown else law
    texts = map("".join, product(ascii_lowercase[: law.shape[0]], repeat=shown))
    return dict(zip(texts, first.flatten().tolist(), strict=True))


Step = Callable[[Float[Tensor, " vocab"], Draws], tuple[int, Float[Tensor, " vocab"]]]
"""Takes one row of drafter logits; returns the drafted token and the q that acceptance will be told."""


def sampled_chain(step: Step) -> TreeBuilder:
    """A chain drafted from the rows of a factorised drafter, one ``step`` per token."""

    def build(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
        assert source.marginals is not None
        growth = Growth(root)
        proposals: dict[int, Proposal] = {}
        for parent, logits in enumerate(source.marginals.logits[: min(config.budget, config.max_depth)]):
            token, q = step(logits, draws)
            proposals[parent] = Proposal(torch.arange(len(q)), q.log())
            growth.add(parent, token, float(proposals[parent].log_probs[token]))
        return Draft(growth.tree(), TreeKind.SAMPLED, proposals)

    return build


def draw(logits: Float[Tensor, " vocab"], draws: Draws) -> tuple[int, Float[Tensor, " vocab"]]:
    """The plain step: draw from q, and report this q."""
    q = logits.double().softmax(0)
    return draws.categorical(q), q
