"""WRONG ON PURPOSE. Trees under rules that they were not made for: exhibits 5, 6 and 7."""

from collections.abc import Callable

import torch

from tfm_lab.drafting import (
    Draft,
    DraftSource,
    MarginalSession,
    OpenNode,
    Proposal,
    TreeBuilder,
    TreeConfig,
    TreeKind,
    best_first,
    dyspec_slots,
    woven,
)
from tfm_lab.drafting.growth import Growth
from tfm_lab.draws import Draws
from tfm_lab.exact import Table, random_table
from tfm_lab.tree import DraftTree
from tfm_lab.verification import rejection_swor, target_sample, traversal
from tfm_lab.zoo.exhibit import Exhibit
from tfm_lab.zoo.laws import BIAS, BIASED, EXACT, PROBABILITY, TEXT, EmittedText, Pair

P, Q = random_table(3, 2, seed=21), random_table(3, 2, seed=22)


def wrong_label(
    builder: TreeBuilder, proposals: Callable[[DraftTree, DraftSource], dict[int, Proposal]]
) -> TreeBuilder:
    """WRONG in its last line: a tree in which nothing was drawn is passed off as a sampled one, with these proposals.

    The rules of the package refuse a fixed tree where they would be biased; the label is what switches that off.
    """

    def build(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
        tree = builder(root, source, config, draws).tree
        return Draft(tree, TreeKind.SAMPLED, proposals(tree, source))

    return build


# Exhibit 5.


def whole_marginals(tree: DraftTree, source: DraftSource) -> dict[int, Proposal]:
    """For every node with children the drafter's whole distribution, as if its best tokens had been draws from it."""
    assert source.marginals is not None
    session = MarginalSession(source.marginals)
    parents = [node for node, children in enumerate(tree.children()) if children]
    nodes = [OpenNode(node, int(tree.parents[node]), 0, int(tree.depths[node])) for node in parents]
    return dict(zip(parents, session.expand(nodes), strict=True))


TOP_K_SIBLINGS = Exhibit(
    number=5,
    name="top_k_siblings",
    title="The ratio p/q on children picked by top-k",
    symptom="A tree of the drafter's best tokens accepts far too much, and tokens outside it never come up.",
    cause="The children are the top k of q, so they are there with probability 1; p/q treats them as draws from q.",
    fix="Accept by membership of the target's own sample, or draw the children from q without replacement.",
    threads=("https://github.com/warpfront/hipfire/pull/483",),
    wrong=Pair(wrong_label(best_first, whole_marginals), rejection_swor),
    right=Pair(best_first, target_sample),
    tool=EmittedText(
        Table.fill(4, 1, lambda _: torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)),
        Table.fill(4, 1, lambda _: torch.tensor([0.1, 0.6, 0.2, 0.1], dtype=torch.float64)),
        TreeConfig(budget=2, max_depth=1),
        1,
    ),
    figure_of_merit=BIAS,
    tolerance=EXACT,
    threshold=BIASED,
    x_title="first token of the text",
    y_title=PROBABILITY,
)

# Exhibit 6.


def wrong_pruning(root: int, source: DraftSource, config: TreeConfig, draws: Draws) -> Draft:
    """WRONG in the line that sorts: of two draws at every node it keeps those whose drawn tokens score best.

    What is left is no longer a draw from q: improbable tokens are proposed less often than q says.
    """
    assert source.open_session is not None
    session, growth = source.open_session(), Growth(root)
    proposals: dict[int, Proposal] = {}
    for node in range(3):
        (proposals[node],) = session.expand(growth.open_nodes([node]))
        weights = proposals[node].log_probs.exp()
        for _ in range(2):
            token = draws.categorical(weights)
            growth.add(node, token, float(proposals[node].log_probs[token]))
            weights[token] = 0.0
    scores = growth.path_log_probs
    kept = sorted(sorted(range(len(scores)), key=lambda node: (-scores[node], node))[: config.budget + 1])
    parents = [-1, *(kept.index(growth.parents[node]) for node in kept[1:])]
    tree = DraftTree.from_parents(
        [growth.tokens[node] for node in kept], parents, [growth.log_probs[node] for node in kept]
    )
    return Draft(tree, TreeKind.SAMPLED, {kept.index(node): q for node, q in proposals.items() if node in kept})


PRUNE_AFTER_DRAWING = Exhibit(
    number=6,
    name="prune_after_drawing",
    title="Draw a large tree, then keep its best nodes",
    symptom="A tree whose tokens were really drawn, under a rule for drawn trees, still emits a biased text.",
    cause="Pruning looks at the tokens that were drawn, so the survivors do not have the law q that p/q divides by.",
    fix="Decide which places to fill before their tokens are drawn, and keep every draw (dyspec_slots).",
    threads=("https://github.com/SafeAILab/EAGLE/issues/221",),
    wrong=Pair(wrong_pruning, rejection_swor),
    right=Pair(dyspec_slots, rejection_swor),
    tool=EmittedText(P, Q, TreeConfig(budget=2, max_depth=2), 3),
    figure_of_merit=BIAS,
    tolerance=EXACT,
    threshold=BIASED,
    x_title=TEXT,
    y_title=PROBABILITY,
)

# Exhibit 7.


def sibling_shares(tree: DraftTree, source: DraftSource) -> dict[int, Proposal]:
    """For every node with children their probabilities, renormalised among themselves."""
    return {
        node: Proposal(tree.tokens[list(children)], tree.log_probs[list(children)].log_softmax(0))
        for node, children in enumerate(tree.children())
        if children
    }


FIXED_ORDER_TRAVERSAL = Exhibit(
    number=7,
    name="fixed_order_traversal",
    title="Traversal of a fixed tree, best sibling first",
    symptom="Leaf-to-root verification of a top-k tree emits the best-ranked siblings too often.",
    cause="Siblings are tried best first, while the rule's q says that each comes first with its own probability.",
    fix="Draw the order of siblings from q without replacement, as the package's traversal does on fixed trees.",
    threads=("https://github.com/SafeAILab/EAGLE/issues/183",),
    wrong=Pair(wrong_label(woven, sibling_shares), traversal),
    right=Pair(woven, traversal),
    tool=EmittedText(P, Q, TreeConfig(budget=3, max_depth=2), 3),
    figure_of_merit=BIAS,
    tolerance=EXACT,
    threshold=BIASED,
    x_title=TEXT,
    y_title=PROBABILITY,
)
