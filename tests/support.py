"""Draws that count, marginals and trees for tests of drafting and acceptance. Exact laws: :mod:`tfm_lab.exact`."""

import torch
from torch import Tensor

from tfm_lab.drafting import Draft, DraftSource, Marginals, OpenNode, Proposal, TreeBuilder, TreeConfig, TreeKind
from tfm_lab.draws import Draws, SeededDraws
from tfm_lab.exact import ROOT
from tfm_lab.tree import DraftTree


class CountingDraws:
    """Seeded draws that count what they are asked for."""

    def __init__(self, seed: int = 0, stream: str = "target") -> None:
        self._draws = SeededDraws(seed, stream)
        self.categoricals = 0
        self.bernoullis = 0

    def categorical(self, weights: Tensor) -> int:
        self.categoricals += 1
        return self._draws.categorical(weights)

    def bernoulli(self, probability: float) -> bool:
        self.bernoullis += 0.0 < probability < 1.0
        return self._draws.bernoulli(probability)


def random_marginals(depth: int, vocab: int, seed: int) -> Marginals:
    """Independent normal logits at every depth."""
    generator = torch.Generator().manual_seed(seed)
    return Marginals(2 * torch.randn(depth, vocab, generator=generator, dtype=torch.float64), torch.zeros(depth, 1))


def sampled_tree(*branches: int) -> TreeBuilder:
    """A static shape, filled with draws without replacement: ``branches[d]`` children for each node of depth d."""

    def build(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
        assert source.open_session is not None
        session = source.open_session()
        tokens, parents, depths, log_probs = [root], [-1], [0], [0.0]
        proposals: dict[int, Proposal] = {}
        for node in range(100):
            if node < len(tokens) and depths[node] < len(branches):
                (proposals[node],) = session.expand([OpenNode(node, parents[node], tokens[node], depths[node])])
                weights = proposals[node].log_probs.exp()
                for _ in range(min(branches[depths[node]], int(weights.count_nonzero()))):
                    token = draws.categorical(weights)
                    tokens.append(token)
                    parents.append(node)
                    depths.append(depths[node] + 1)
                    log_probs.append(float(proposals[node].log_probs[token]))
                    weights[token] = 0.0
        return Draft(DraftTree.from_parents(tokens, parents, log_probs), TreeKind.SAMPLED, proposals)

    return build


def fixed(tree: DraftTree) -> TreeBuilder:
    """The same tree whatever the drafter says."""
    return lambda root, source, config, draws: Draft(tree, TreeKind.FIXED)


def random_fixed_tree(vocab: int, nodes: int, max_depth: int, seed: int) -> DraftTree:
    """Random shape, tokens and log-probabilities, siblings in random order."""
    generator = torch.Generator().manual_seed(seed)
    tokens, parents, depths, free = [ROOT], [-1], [0], [list(range(vocab))]
    while len(tokens) < nodes:
        open_nodes = [node for node in range(len(tokens)) if free[node] and depths[node] < max_depth]
        parent = open_nodes[int(torch.randint(len(open_nodes), (), generator=generator))]
        tokens.append(free[parent].pop(int(torch.randint(len(free[parent]), (), generator=generator))))
        parents.append(parent)
        depths.append(depths[parent] + 1)
        free.append(list(range(vocab)))
    log_probs = torch.rand(nodes - 1, generator=generator, dtype=torch.float64).log()
    return DraftTree.from_parents(tokens, parents, [0.0, *log_probs.tolist()])
