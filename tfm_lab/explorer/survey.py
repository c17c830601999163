"""Ask drafter, Weaver and target about every node of several trees in one context, in one target call."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.distributions import SamplingConfig, total_variation
from tfm_lab.drafting import ConditionalSession, OpenNode, Proposal
from tfm_lab.explorer.records import NodeFacts, NodeLaw, TokenPath, TokenShare
from tfm_lab.lab import OpenStep
from tfm_lab.show.views import Decode, visible
from tfm_lab.tree import DraftTree

SHOWN = 6


def paths_of(tree: DraftTree) -> tuple[TokenPath, ...]:
    """For every node its tokens below the root."""
    return tuple(tree.path_tokens(node)[1:] for node in range(len(tree)))


def united(root: int, paths: Iterable[TokenPath]) -> DraftTree:
    """The smallest tree that holds all these paths, shallow nodes first; its log-probabilities mean nothing."""
    prefixes = {path[:length] for path in paths for length in range(len(path) + 1)} | {()}
    ordered = sorted(prefixes, key=lambda path: (len(path), path))
    index = {path: node for node, path in enumerate(ordered)}
    tokens = [path[-1] if path else root for path in ordered]
    return DraftTree.from_parents(tokens, [index[p[:-1]] if p else -1 for p in ordered], [0.0] * len(ordered))


@torch.no_grad()
def survey(
    models: Bundle, step: OpenStep, tree: DraftTree, sampling: SamplingConfig, decode: Decode
) -> dict[TokenPath, NodeFacts]:
    """What all three say about every node of ``tree`` and about the token after it.

    The drafters' probabilities are those that trees are grown by; the target's are those that it samples from, so at
    temperature 0 a single token has them all.

    Args:
        models: only the target is called; the Weaver is called through ``step``.
        step: where the decode was halted; ``tree`` grows from its root.
        sampling: of the target.

    Raises:
        ValueError: if the step has no marginals or no Weaver.
    """
    marginals = step.source.marginals
    if marginals is None or step.source.open_session is None:
        raise ValueError("the explorer needs a drafter and a Weaver; use the hybrid bundle")
    session = step.source.open_session()
    proposals = _expand(session, tree)
    logits = models.target.verify_tree(step.state, tree).logits
    drafted = torch.softmax(marginals.logits.double(), dim=1).cpu()
    parents, tokens, depths = tree.parents.tolist(), tree.tokens.tolist(), tree.depths.tolist()
    targets: list[Float[Tensor, " vocab"]] = []
    conditionals: dict[int, Float[Tensor, " vocab"]] = {}
    facts: list[NodeFacts] = []
    for node, path in enumerate(paths_of(tree)):
        p = sampling.probabilities(logits[node])
        targets.append(p)
        law = None
        if node in proposals:
            conditionals[node] = proposals[node].dense(len(p))
            law = _law(drafted[depths[node]], conditionals[node], p, decode)
        label, token, parent = visible(decode(tokens[node])), tokens[node], parents[node]
        if not path:
            facts.append(NodeFacts(label, 1.0, 1.0, 1.0, 1.0, 1.0, law))
            continue
        marginal = float(drafted[depths[parent], token])
        weaver, target = float(conditionals[parent][token]), float(targets[parent][token])
        above = facts[parent]
        facts.append(
            NodeFacts(label, marginal, weaver, target, above.weaver_path * weaver, above.target_path * target, law)
        )
    return dict(zip(paths_of(tree), facts, strict=True))


def expected_tokens(paths: Iterable[TokenPath], facts: Mapping[TokenPath, NodeFacts]) -> float:
    """Tokens per target call that the target expects of a tree: 1 + the sum of its path probabilities."""
    return 1.0 + sum(facts[path].target_path for path in paths if path)


def _expand(session: ConditionalSession, tree: DraftTree) -> dict[int, Proposal]:
    """The Weaver's proposal after every node that may have children, a call per depth."""
    tokens, parents, depths = tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist()
    laws: dict[int, Proposal] = {}
    for depth in range(min(tree.max_depth + 1, session.max_depth)):
        nodes = [node for node in range(len(tree)) if depths[node] == depth]
        proposals = session.expand([OpenNode(node, parents[node], tokens[node], depth) for node in nodes])
        laws |= zip(nodes, proposals, strict=True)
    return laws


def _law(marginal: Tensor, weaver: Tensor, target: Tensor, decode: Decode) -> NodeLaw:
    best: Sequence[int] = (marginal + weaver + target).topk(SHOWN).indices.tolist()
    shares = [TokenShare(visible(decode(t)), float(marginal[t]), float(weaver[t]), float(target[t])) for t in best]
    rest = (max(0.0, 1.0 - sum(column)) for column in list(zip(*shares, strict=True))[1:])
    return NodeLaw(
        (*shares, TokenShare("all others", *rest)),
        float(total_variation(marginal, target)),
        float(total_variation(weaver, target)),
        float(total_variation(marginal, weaver)),
    )
