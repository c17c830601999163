"""Where the reports are replayed: the shipped hybrid and a tiny random llama, and drafters with foreknowledge."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from models.oracle import random_tokens
from models.small import drafter_for, tiny_target, weaver_for

from tfm_lab.bundle import load_bundle
from tfm_lab.decoding import DecodeConfig, DecodeSession, Speculator, autoregressive_decode
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import Draft, DraftSource, TreeConfig, TreeKind
from tfm_lab.draws import Draws
from tfm_lab.evaluation import load_contexts
from tfm_lab.methods import make_speculator
from tfm_lab.models import FactorisedDrafter, TargetModel, Weaver
from tfm_lab.trace import DecodeTrace
from tfm_lab.tree import DraftTree
from tfm_lab.verification import AcceptanceRule

GREEDY, SAMPLED = SamplingConfig(temperature=0.0), SamplingConfig(temperature=1.0)
WORLDS = ("hybrid", "llama")
"""The trained bundle that ships, and random weights of another architecture."""


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """Models that belong together, and two prompts for them."""

    target: TargetModel
    drafter: FactorisedDrafter
    weaver: Weaver
    prompts: tuple[tuple[int, ...], tuple[int, ...]]
    tree: TreeConfig

    def speculator(self, method: str, sampling: SamplingConfig = GREEDY, rule: str | None = None) -> Speculator:
        return make_speculator(method, self.drafter, self.weaver, sampling, rule)

    def config(self, tokens: int, sampling: SamplingConfig = GREEDY, seed: int = 0) -> DecodeConfig:
        return DecodeConfig(tokens, sampling, self.tree, seed=seed)

    def plain(self, tokens: int, prompt: int = 0) -> tuple[int, ...]:
        """What greedy decoding writes after a prompt."""
        return autoregressive_decode(self.target, self.prompts[prompt], self.config(tokens)).tokens


@cache
def world(name: str, dtype: torch.dtype = torch.float32) -> World:
    if name == "hybrid":
        bundle = load_bundle("hybrid", dtype=dtype)
        assert bundle.weaver is not None
        chat, code = (tuple(bundle.encode(context.prompt)) for context in load_contexts(limit=2))
        return World(bundle.target, bundle.drafter, bundle.weaver, (chat, code), TreeConfig(budget=12, width=6))
    target = tiny_target("llama-plain", dtype)
    tree = TreeConfig(budget=12, max_depth=7, children=4, width=3, pool_size=20)
    prompts = tuple(random_tokens(14, seed=2)), tuple(random_tokens(31, seed=9))
    return World(target, drafter_for(target), weaver_for(target), prompts, tree)


class Foreknowing:
    """Proposes the tokens that are to come, or their successors, which are all wrong; two branches at every node.

    Attributes:
        position: place of the next root in the text; set it before each step.

    Args:
        text: prompt and continuation.
        vocab: number of tokens.
        is_right: whether the true tokens are among the proposed ones.
        depth: of every tree, whatever the config allows; by default what it allows.
    """

    def __init__(self, text: Sequence[int], vocab: int, is_right: bool, depth: int | None = None) -> None:
        self.position = 0
        self._text, self._vocab, self._depth = list(text), vocab, depth
        self._offsets = (1, 0) if is_right else (1, 2)

    def __call__(self, root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
        assert self._text[self.position] == root
        depth = min(config.budget, config.max_depth) if self._depth is None else self._depth
        ahead = self._text[self.position + 1 : self.position + 1 + depth]
        tokens, parents, last = [root], [-1], 0
        for token in ahead:
            tokens += [(token + offset) % self._vocab for offset in self._offsets]
            parents += [last, last]
            last = len(tokens) - 1
        return Draft(DraftTree.from_parents(tokens, parents), TreeKind.FIXED)


def decode_foreknowing(
    where: World,
    text: Sequence[int],
    prompt: int,
    config: DecodeConfig,
    rule: AcceptanceRule,
    *,
    is_right: bool,
    depth: int | None = None,
) -> DecodeTrace:
    """Decode after the first ``prompt`` tokens of a text whose continuation the drafter knows."""
    builder = Foreknowing(text, where.target.config.vocab_size, is_right, depth)
    speculator = Speculator("foreknowing", where.drafter, None, builder, TreeKind.FIXED, rule)
    session = DecodeSession(where.target, speculator, text[:prompt], config)
    while not session.is_finished:
        builder.position = session.state.length
        session.step()
    return session.trace()


def without_times(trace: DecodeTrace) -> list[object]:
    """Everything that a decode decided."""
    steps = [(s.tree.tokens.tolist(), s.tree.parents.tolist(), s.acceptance, s.committed) for s in trace.steps]
    return [trace.first_token, trace.stop, *steps]
