"""Exact checks for drafting and acceptance: every random decision is enumerated, on tables small enough for that."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor

from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting import Draft, DraftSource, Marginals, OpenNode, Proposal, TreeBuilder, TreeConfig, TreeKind
from tfm_lab.draws import Draws, SeededDraws
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance, AcceptanceRule

Result = TypeVar("Result")

ROOT = 0
"""Token at the root of every toy tree; the tables speak about what follows it."""


class EnumeratingDraws:
    """Replays the decisions of a script, then takes the first open outcome; notes how many outcomes each one had."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = tuple(script)
        self.taken: list[int] = []
        self.outcomes: list[int] = []
        self.probability = 1.0

    def categorical(self, weights: Tensor) -> int:
        values = weights.double().tolist()
        assert all(0.0 <= value < math.inf for value in values), "weights must be finite and non-negative"
        possible = [index for index, value in enumerate(values) if value > 0.0]
        total = math.fsum(values)
        return possible[self._decide([values[index] / total for index in possible])]

    def bernoulli(self, probability: float) -> bool:
        assert not math.isnan(probability), "an acceptance probability must be a number"
        if probability >= 1.0:
            return True
        if probability <= 0.0:
            return False
        return self._decide([probability, 1.0 - probability]) == 0

    def _decide(self, probabilities: list[float]) -> int:
        step = len(self.taken)
        choice = self._script[step] if step < len(self._script) else 0
        self.taken.append(choice)
        self.outcomes.append(len(probabilities))
        self.probability *= probabilities[choice]
        return choice


def enumerate_outcomes(function: Callable[[Draws], Result]) -> list[tuple[float, Result]]:
    """Probability and result of ``function`` for every sequence of decisions that it can meet."""
    results: list[tuple[float, Result]] = []
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = scripts.pop()
        draws = EnumeratingDraws(script)
        result = function(draws)
        results.append((draws.probability, result))
        for step in range(len(script), len(draws.taken)):
            scripts.extend((*draws.taken[:step], other) for other in range(1, draws.outcomes[step]))
    return results


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


@dataclass(frozen=True)
class Table:
    """A language model as a table: logits (float64) of the next token after every prefix, the root left out."""

    vocab: int
    rows: Mapping[tuple[int, ...], Tensor]

    @classmethod
    def fill(cls, vocab: int, depth: int, row: Callable[[tuple[int, ...]], Tensor]) -> "Table":
        """``row(prefix)`` gives the probabilities, on any scale, after each prefix of up to ``depth`` tokens."""
        prefixes = [prefix for length in range(depth + 1) for prefix in product(range(vocab), repeat=length)]
        return cls(vocab, {prefix: row(prefix).double().log() for prefix in prefixes})

    def marginals(self, depth: int) -> Marginals:
        """A factorised reading of the table: its rows along the path 0, 0, 0, ..."""
        return Marginals(torch.stack([self.rows[(0,) * place] for place in range(depth)]), torch.zeros(depth, 1))

    def source(self, depth: int) -> DraftSource:
        return DraftSource(self.marginals(depth), lambda: TableSession(self, depth))


class TableSession:
    """The table as an autoregressive drafter. ``calls`` holds the node indices of each call."""

    def __init__(self, table: Table, max_depth: int) -> None:
        self._table = table
        self._max_depth = max_depth
        self._prefixes: dict[int, tuple[int, ...]] = {}
        self.calls: list[tuple[int, ...]] = []

    @property
    def max_depth(self) -> int:
        return self._max_depth

    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        prefixes = {node.index: self._prefix(node) for node in nodes}
        self._prefixes.update(prefixes)
        self.calls.append(tuple(prefixes))
        everything = torch.arange(self._table.vocab)
        return [Proposal(everything, self._table.rows[prefix].log_softmax(0)) for prefix in prefixes.values()]

    def _prefix(self, node: OpenNode) -> tuple[int, ...]:
        assert node.index not in self._prefixes, "a node is expanded once"
        assert node.depth < self._max_depth, "a node at the deepest level cannot be expanded"
        if node.index == 0:
            assert (node.parent, node.depth) == (-1, 0)
            return ()
        prefix = (*self._prefixes[node.parent], node.token)
        assert len(prefix) == node.depth
        return prefix


def random_table(vocab: int, depth: int, seed: int, spread: float = 1.5) -> Table:
    """Softmax of normal logits."""
    generator = torch.Generator().manual_seed(seed)
    return Table.fill(
        vocab, depth, lambda _: (spread * torch.randn(vocab, generator=generator, dtype=torch.float64)).softmax(0)
    )


def sparse_table(vocab: int, depth: int, seed: int) -> Table:
    """Small whole weights: many zeros, ties and one-hot rows."""
    generator = torch.Generator().manual_seed(seed)

    def row(_: tuple[int, ...]) -> Tensor:
        weights = torch.randint(0, 3, (vocab,), generator=generator)
        weights[torch.randint(vocab, (), generator=generator)] += 1
        return weights

    return Table.fill(vocab, depth, row)


def one_hot_table(vocab: int, depth: int, seed: int) -> Table:
    """All probability on one token, another one after each prefix."""
    generator = torch.Generator().manual_seed(seed)
    return Table.fill(
        vocab, depth, lambda _: torch.nn.functional.one_hot(torch.randint(vocab, (), generator=generator), vocab)
    )


def uniform_table(vocab: int, depth: int) -> Table:
    """Nothing but ties."""
    return Table.fill(vocab, depth, lambda _: torch.ones(vocab))


def random_marginals(depth: int, vocab: int, seed: int) -> Marginals:
    """Independent normal logits at every depth."""
    generator = torch.Generator().manual_seed(seed)
    return Marginals(2 * torch.randn(depth, vocab, generator=generator, dtype=torch.float64), torch.zeros(depth, 1))


def target_rows(draft: Draft, p: Table, sampling: SamplingConfig) -> TargetRows:
    """What the target says at each node of the draft."""
    tree = draft.tree
    return TargetRows(torch.stack([p.rows[tree.path_tokens(node)[1:]] for node in range(len(tree))]), sampling)


@dataclass(frozen=True)
class Verdict:
    """One way in which drafting and acceptance can go."""

    probability: float
    draft: Draft
    acceptance: Acceptance

    @property
    def emitted(self) -> tuple[int, ...]:
        return self.acceptance.emitted(self.draft.tree)


def enumerate_drafts(builder: TreeBuilder, q: Table, config: TreeConfig) -> list[tuple[float, Draft]]:
    """Every tree that the builder can grow on the table, with its probability."""
    return enumerate_outcomes(lambda draws: builder(ROOT, q.source(config.max_depth), config, draws))


def enumerate_verdicts(
    drafts: list[tuple[float, Draft]], rule: AcceptanceRule, p: Table, sampling: SamplingConfig
) -> list[Verdict]:
    """Every outcome of the rule on every draft."""
    verdicts: list[Verdict] = []
    for probability, draft in drafts:
        rows = target_rows(draft, p, sampling)
        outcomes = enumerate_outcomes(lambda draws, draft=draft, rows=rows: rule(draft, rows, draws))
        verdicts.extend(Verdict(probability * chance, draft, acceptance) for chance, acceptance in outcomes)
    return verdicts


def plain_distribution(p: Table, length: int, sampling: SamplingConfig, prefix: tuple[int, ...] = ()) -> Tensor:
    """Joint law of the next ``length`` tokens of plain sampling: shape [vocab] * length, float64."""
    if length == 0:
        return torch.ones((), dtype=torch.float64)
    first = sampling.probabilities(p.rows[prefix])
    rest = [plain_distribution(p, length - 1, sampling, (*prefix, token)) for token in range(p.vocab)]
    return torch.stack([weight * law for weight, law in zip(first, rest, strict=True)])


def emission_distribution(verdicts: list[Verdict], p: Table, length: int, sampling: SamplingConfig) -> Tensor:
    """Joint law of the first ``length`` tokens of the text; what a step leaves open is filled by plain sampling."""
    law = torch.zeros((p.vocab,) * length, dtype=torch.float64)
    continuations: dict[tuple[int, ...], Tensor] = {}
    for verdict in verdicts:
        emitted = verdict.emitted[:length]
        if emitted not in continuations:
            continuations[emitted] = plain_distribution(p, length - len(emitted), sampling, emitted)
        law[emitted] += verdict.probability * continuations[emitted]
    return law


def exact_emission_distribution(
    builder: TreeBuilder,
    rule: AcceptanceRule,
    p: Table,
    q: Table,
    length: int,
    config: TreeConfig,
    sampling: SamplingConfig | None = None,
) -> Tensor:
    """Exact joint law of the first ``length`` emitted tokens, over tree draws, acceptance and bonus."""
    sampling = sampling or SamplingConfig()
    verdicts = enumerate_verdicts(enumerate_drafts(builder, q, config), rule, p, sampling)
    return emission_distribution(verdicts, p, length, sampling)


def bias(law: Tensor, p: Table, sampling: SamplingConfig | None = None) -> float:
    """Total variation distance between a joint law of tokens and plain sampling."""
    plain = plain_distribution(p, law.dim(), sampling or SamplingConfig())
    return 0.5 * float((law - plain).abs().sum())


def expected_length(verdicts: list[Verdict]) -> float:
    """Expected number of emitted tokens, bonus included."""
    return sum(verdict.probability * len(verdict.emitted) for verdict in verdicts)


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
