"""Draft trees for tests: builders of typical shapes, and the one table of cases that tests share."""

from random import Random

from tfm_lab.tree import DraftTree


def tree_of(parents: list[int]) -> DraftTree:
    """The tree with these parents; every node's token is its own index, so siblings differ."""
    return DraftTree.from_parents(tokens=list(range(len(parents))), parents=parents)


def chain(nodes: int) -> DraftTree:
    return tree_of(list(range(-1, nodes - 1)))


def star(nodes: int) -> DraftTree:
    """All proposed nodes hang from the root."""
    return tree_of([-1] + [0] * (nodes - 1))


def binary(nodes: int) -> DraftTree:
    """Complete binary tree, level by level."""
    return tree_of([-1] + [(node - 1) // 2 for node in range(1, nodes)])


def comb(depth: int, nodes: int | None = None, seed: int = 0) -> DraftTree:
    """A spine of ``depth`` proposed nodes; the other nodes are leaves beside it."""
    draws = Random(seed)
    spine = list(range(-1, depth))
    return tree_of(spine + [draws.randrange(depth) for _ in range((nodes or 2 * depth + 1) - depth - 1)])


def random_tree(nodes: int, seed: int, max_depth: int = 15) -> DraftTree:
    """Each new node hangs from a node drawn evenly from the earlier ones above ``max_depth``."""
    draws = Random(seed)
    parents, depths = [-1], [0]
    for node in range(1, nodes):
        parents.append(draws.choice([other for other in range(node) if depths[other] < max_depth]))
        depths.append(depths[parents[-1]] + 1)
    return tree_of(parents)


def shuffled(tree: DraftTree, seed: int) -> DraftTree:
    """The same tree in a random order in which parents still precede their children."""
    draws = Random(seed)
    children, order, ready = tree.children(), [], [0]
    while ready:
        order.append(ready.pop(draws.randrange(len(ready))))
        ready.extend(children[order[-1]])
    return tree.reordered(order)


def preordered(tree: DraftTree) -> DraftTree:
    """The same tree in depth-first pre-order."""
    return tree.reordered(tree.preorder())


TREES: dict[str, DraftTree] = {
    "root": chain(1),
    "chain-2": chain(2),
    "chain-17": chain(17),
    "chain-64": chain(64),
    "star-33": star(33),
    "binary-31": binary(31),
    "comb-15": comb(15),
    "comb-30-shuffled": shuffled(comb(30), seed=1),
    "random-16": random_tree(16, seed=2),
    "random-65": random_tree(65, seed=3),
    "random-65-preorder": preordered(random_tree(65, seed=3)),
    "random-65-shuffled": shuffled(random_tree(65, seed=3), seed=4),
    "random-257": random_tree(257, seed=5),
}
