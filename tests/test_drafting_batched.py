"""Trees grown in lockstep are the trees that grow one at a time."""

from collections.abc import Callable

import pytest
import torch
from models.oracle import VOCABULARY, random_tokens
from models.small import autoregressive_for, drafter_for, tiny_target, weaver_for

from tfm_lab.drafting import Draft, DraftSource, Marginals, TreeConfig, best_first, chain, woven
from tfm_lab.drafting.batched import TreeBatch, best_first_batch, chain_batch, woven_batch
from tfm_lab.draws import SeededDraws
from tfm_lab.models import AutoregressiveSession, WeaverSession
from tfm_lab.models.autoregressive import AutoregressiveBatch
from tfm_lab.models.weaver_batch import WeaverBatch
from tfm_lab.tree import DraftTree

TEXTS, DEPTH = 6, 7
ROOTS = torch.tensor([3, 9, 1, 4, 7, 3])
CAPS = [DEPTH, DEPTH, 4, 1, 0, 2]
CONFIGS = [
    TreeConfig(budget=12, max_depth=7, children=4, width=3, pool_size=20),
    TreeConfig(budget=30, max_depth=5, children=30, width=1, pool_size=20),
    TreeConfig(budget=16, max_depth=7, children=2, width=8, pool_size=3),
    TreeConfig(budget=1, pool_size=20),
    TreeConfig(budget=9, max_depth=3, children=1, width=1, pool_size=20),
    TreeConfig(budget=VOCABULARY + 20, children=1, width=1, pool_size=VOCABULARY + 20),
    TreeConfig(budget=0),
]


def nodes_of(tree: DraftTree) -> list[tuple[int, int]]:
    return list(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True))


def batch_nodes(trees: TreeBatch, text: int) -> list[tuple[int, int]]:
    size = int(trees.sizes[text])
    assert trees.parents[text, size:].eq(-1).all()
    return list(zip(trees.tokens[text, :size].tolist(), trees.parents[text, :size].tolist(), strict=True))


def paths(nodes: list[tuple[int, int]]) -> set[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in nodes:
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert len(set(found)) == len(found)
    return set(found)


def capped(config: TreeConfig, cap: int) -> TreeConfig:
    depth = min(config.max_depth, cap)
    budget = config.budget if depth > 0 else 0
    return TreeConfig(budget, max(1, depth), config.children, config.width, config.pool_size)


def random_logits(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(TEXTS, DEPTH, VOCABULARY, generator=generator, dtype=torch.float64)
    logits[1] = logits[1].round()  # many ties
    logits[2, 1, 5:] = -torch.inf  # few possible tokens
    return logits


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("batched", "single"), [(chain_batch, chain), (best_first_batch, best_first)])
def test_trees_from_marginals_are_the_same_one_by_one_and_all_at_once(
    batched: Callable[..., TreeBatch], single: Callable[..., Draft], config: TreeConfig
) -> None:
    logits = random_logits()
    trees = batched(ROOTS, logits, config, torch.tensor(CAPS))
    for text in range(TEXTS):
        if text == 1 and single is best_first:
            continue  # among equally probable prefixes each may choose its own; the next test counts them
        source = DraftSource(Marginals(logits[text], logits[text, :, :4]))
        draft = single(int(ROOTS[text]), source, capped(config, CAPS[text]), SeededDraws(0))
        assert paths(batch_nodes(trees, text)) == paths(nodes_of(draft.tree))


def test_probabilities_of_half_precision_logits_are_not_rounded_again() -> None:
    logits, config = random_logits().bfloat16(), TreeConfig(budget=30)
    found = best_first_batch(ROOTS, logits, config, torch.tensor(CAPS))
    for got, wanted in zip(found, best_first_batch(ROOTS, logits.float(), config, torch.tensor(CAPS)), strict=True):
        assert torch.equal(got, wanted)


def test_with_ties_best_first_trees_are_equally_probable() -> None:
    config = TreeConfig(budget=25, max_depth=7)
    logits = random_logits()
    trees = best_first_batch(ROOTS, logits, config, torch.tensor(CAPS))
    log_probs = logits[1].log_softmax(-1)
    draft = best_first(9, DraftSource(Marginals(logits[1], logits[1, :, :4])), config, SeededDraws(0))

    def mass(nodes: list[tuple[int, int]]) -> float:
        return sum(
            float(torch.stack([log_probs[depth, token] for depth, token in enumerate(path[1:])]).sum().exp())
            for path in paths(nodes)
            if len(path) > 1
        )

    assert len(batch_nodes(trees, 1)) == len(draft.tree) == 26
    assert mass(batch_nodes(trees, 1)) == pytest.approx(mass(nodes_of(draft.tree)), rel=1e-12)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    "form", [{}, {"positions": "rotary", "mlp": "swiglu", "max_depth": 4}, {"layers": 2, "max_depth": 9}]
)
def test_woven_trees_are_the_same_node_for_node(config: TreeConfig, form: dict[str, object]) -> None:
    target = tiny_target()
    weaver, drafter = weaver_for(target, **form), drafter_for(target)
    marginals: list[Marginals] = []
    hidden: list[torch.Tensor] = []
    for text in range(TEXTS):
        prefilled = target.prefill(random_tokens(12, seed=text), drafter.config.tap_layers)
        context = drafter.extend_context(drafter.empty_context(), prefilled.taps)
        marginals.append(drafter.propose(context, int(ROOTS[text]), target))
        hidden.append(prefilled.hidden)
    logits, drafts = (torch.stack([getattr(m, name) for m in marginals]) for name in ("logits", "hidden"))
    session = WeaverBatch(weaver, target, logits, drafts, torch.stack(hidden), config.pool_size, config.budget)
    trees = woven_batch(ROOTS, session, config, torch.tensor(CAPS))
    for text in range(TEXTS):
        single = WeaverSession(weaver, target, marginals[text], hidden[text], config.pool_size)
        source = DraftSource(marginals[text], lambda single=single: single)
        draft = woven(int(ROOTS[text]), source, capped(config, CAPS[text]), SeededDraws(0))
        assert batch_nodes(trees, text) == nodes_of(draft.tree)


@pytest.mark.parametrize("config", CONFIGS)
def test_trees_of_an_autoregressive_drafter_are_the_same_node_for_node(config: TreeConfig) -> None:
    """Each text has its root somewhere else; what lies behind the root stays hidden."""
    target, lengths = tiny_target("llama-plain"), [12, 9, 15, 1, 7, 10]
    drafter = autoregressive_for(target)
    tokens = torch.tensor([random_tokens(17, seed=text) for text in range(TEXTS)])
    seen = drafter.read(target.features(tokens, drafter.config.tap_layers).taps)
    session = AutoregressiveBatch(drafter, target, seen, torch.tensor(lengths), config.pool_size, config.budget)
    roots = tokens[torch.arange(TEXTS), torch.tensor(lengths)]
    trees = woven_batch(roots, session, config, torch.tensor(CAPS))
    for text, length in enumerate(lengths):
        taps = target.prefill(tokens[text, :length].tolist(), drafter.config.tap_layers).taps
        context = drafter.extend_context(drafter.empty_context(), taps)
        single = AutoregressiveSession(drafter, target, context, config.pool_size)
        source = DraftSource(None, lambda single=single: single)
        draft = woven(int(roots[text]), source, capped(config, CAPS[text]), SeededDraws(0))
        assert batch_nodes(trees, text) == nodes_of(draft.tree)


def test_acceptance_follows_the_targets_tokens_from_the_root() -> None:
    tokens = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 8, 8]])
    parents = torch.tensor([[-1, 0, 0, 2, 3], [-1, 0, 1, -1, -1]])
    trees = TreeBatch(tokens, parents, torch.tensor([5, 3]))
    walk = trees.walk(torch.tensor([[7, 8, 9, 1], [6, 7, 8, 8]]))
    assert walk.accepted.tolist() == [3, 2]
    assert walk.could_go_on.tolist() == [False, False]
    walk = trees.walk(torch.tensor([[8, 7, 8, 9], [6, 6, 7, 8]]))
    assert walk.accepted.tolist() == [0, 1]
    assert walk.could_go_on.tolist() == [True, True]
