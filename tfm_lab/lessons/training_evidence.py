"""How to tell that a training is sound, and how far from perfect its models are: evidence for notebook 05."""

from collections.abc import Callable

import torch
from jaxtyping import Bool
from torch import Tensor

from tfm_lab.drafting import Marginals, OpenNode, TreeBuilder, best_first, chain, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.lessons.tiny_world import MASK, path_chances
from tfm_lab.lessons.weaver_training import DEPTH, HALT, TREE, Setting, held_out_blocks
from tfm_lab.models import FactorisedDrafter, Weaver, WeaverSession
from tfm_lab.theory.worlds import perfect_source
from tfm_lab.training.tasks import PoolScores

CHANGED, COMPARED = 1e-6, 4

Scores = Callable[..., PoolScores]
"""``pool_scores``, or what trains in its place."""


def lowest_cross_entropy(scores: PoolScores) -> float:
    """What no Weaver without a leak can go below on these pools, in nats: the entropy of the target there.

    A next token outside the pool counts as 0, as in the loss.
    """
    mass = scores.target_probabilities.sum(-1, keepdim=True)
    return float(-(scores.target_probabilities * (scores.target_probabilities / mass).log()).sum(-1).mean())


@torch.no_grad()
def sees(
    scores: Scores, setting: Setting, drafter: FactorisedDrafter, weaver: Weaver
) -> Bool[Tensor, "predicted changed"]:
    """Whether the Weaver's word on a token after the root changes when a token after the root is exchanged.

    Entry [i, j] is about the prediction of token i + 1 and an exchange of token j + 1. Without a leak it is false for
    j >= i: only what stands before a token may be known to those who predict it.

    Args:
        scores: what is trained on.
        weaver: one that has been trained; an untouched one says nothing yet.
    """
    tokens, anchors = setting.held_out()
    plain = scores(setting.target, drafter, weaver, tokens, anchors).residual
    changes = []
    for place in range(HALT + 1, HALT + 1 + DEPTH):
        other = tokens.clone()
        other[:, place] = (tokens[:, place] + 1) % MASK
        changed = scores(setting.target, drafter, weaver, other, anchors).residual
        changes.append((changed - plain).abs().amax((0, 2)) > CHANGED)
    return torch.stack(changes, dim=1)


@torch.no_grad()
def training_minus_decode(scores: Scores, setting: Setting, drafter: FactorisedDrafter, weaver: Weaver) -> float:
    """Largest difference between the Weaver's log-probabilities in training and in drafting, on the same paths.

    Args:
        scores: what is trained on.
    """
    tokens, anchors = setting.held_out()
    found = scores(setting.target, drafter, weaver, tokens, anchors)
    trained = (found.drafter_logits + found.residual).log_softmax(-1)
    _, before, hidden, logits = held_out_blocks(setting, drafter)
    largest = 0.0
    for text in range(COMPARED):
        marginals = Marginals(logits[text], hidden[text])
        session = WeaverSession(weaver, setting.target, marginals, before[text], weaver.config.pool_size)
        path = tokens[text, HALT : HALT + DEPTH].tolist()
        for depth, token in enumerate(path):
            (proposal,) = session.expand([OpenNode(depth, depth - 1, token, depth)])
            largest = max(largest, float((proposal.log_probs - trained[text, depth]).abs().max()))
    return largest


def ideal_lengths(setting: Setting) -> dict[str, float]:
    """Expected tokens per target call with the world's own marginals (chain, ddtree) and conditionals (tfm)."""
    roots = setting.held_out()[0][:, HALT].tolist()
    sources = [perfect_source(setting.world.at(root), DEPTH) for root in roots]

    def worth(build: TreeBuilder) -> float:
        pairs = zip(roots, sources, strict=True)
        trees = [build(root, source, TREE, SeededDraws(0)).tree for root, source in pairs]
        chances = [path_chances(setting.world, tree.tokens[None], tree.parents[None]).sum() for tree in trees]
        return float(sum(chances)) / len(roots)

    return {"chain": worth(chain), "ddtree": worth(best_first), "tfm": worth(woven)}
