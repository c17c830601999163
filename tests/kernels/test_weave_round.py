"""The kernels of a Weaver's round against PyTorch: scores of candidates, and trees grown by the best of them."""

from itertools import pairwise

import pytest
import torch
from tfm_kernels.weave_round import GrowingTrees, candidate_scores, grow

from tfm_lab.engine.growth import Rounds, WovenGrowth

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def pools(batch: int, depths: int, size: int, vocabulary: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randperm(vocabulary, generator=generator)[:size] for _ in range(batch * depths)])
    logits = torch.randn(batch, depths, size, generator=generator).sort(dim=-1, descending=True).values
    return rows.view(batch, depths, size).to(DEVICE), logits.to(DEVICE)


@pytest.mark.parametrize(("size", "channels"), [(512, 96), (20, 640), (1, 33)])
def test_candidates_are_scored_with_the_pool_of_their_own_depth(size: int, channels: int):
    batch, width, depths, nodes = 2, 3, 4, 9
    generator = torch.Generator().manual_seed(size)
    pool, logits = pools(batch, depths, size, 700, seed=size)
    read = torch.randn(batch, width, channels, generator=generator).to(DEVICE)
    table = torch.randn(700, channels, generator=generator).to(DEVICE)
    depth = torch.randint(0, depths + 2, (batch, nodes), generator=generator).to(DEVICE)
    found = candidate_scores(read, table, pool, logits, depth, 5)
    for request in range(batch):
        for node in range(width):
            at = min(int(depth[request, 5 + node]), depths - 1)
            wanted = table[pool[request, at]].double() @ read[request, node].double() + logits[request, at].double()
            torch.testing.assert_close(found[request, node].double(), wanted, rtol=1e-5, atol=1e-4)


def both_grown(
    batch: int, budget: int, width: int, children: int, deepest: int, size: int, *, sharp: float = 1.0
) -> tuple[WovenGrowth, WovenGrowth]:
    """The same random scores through the reference and through the kernel."""
    generator = torch.Generator().manual_seed(budget + width)
    pool, _ = pools(batch, deepest, size, 4 * size, seed=budget)
    scores = sharp * torch.randn(budget + 1, batch, size, generator=generator).to(DEVICE)
    reference, kernel = (WovenGrowth(batch, budget, children, deepest, torch.device(DEVICE)) for _ in range(2))
    rounds = Rounds.of(budget, width)
    spans = [(0, 1), *zip(rounds.starts, rounds.widths, strict=True)]
    roots = torch.arange(batch, device=DEVICE)
    reference.begin(roots)
    kernel.begin(roots)
    for (start, count), after in pairwise(spans):
        nodes = torch.arange(start, start + count, device=DEVICE)
        at = reference.depths[:, nodes].clamp_max(deepest - 1)
        tokens = pool.gather(1, at[:, :, None].expand(-1, -1, size))
        own = scores[start : start + count].transpose(0, 1).contiguous()
        reference.offer(nodes, tokens, torch.log_softmax(own, dim=-1))
        reference.add(torch.arange(after[0], sum(after), device=DEVICE))
        grow(own, pool, kernel.memory, start, after, children, deepest)
    return reference, kernel


@pytest.mark.parametrize(
    ("batch", "budget", "width", "children", "deepest", "size"),
    [(1, 16, 1, 4, 15, 40), (2, 23, 4, 8, 3, 64), (3, 9, 5, 5, 2, 5), (1, 5, 1, 2, 2, 512), (2, 3, 3, 3, 1, 16)],
)
def test_trees_grow_as_in_pytorch(batch: int, budget: int, width: int, children: int, deepest: int, size: int):
    reference, kernel = both_grown(batch, budget, width, children, deepest, size)
    is_node = reference.parents > -2
    assert torch.equal(kernel.parents, reference.parents)
    assert torch.equal(kernel.tokens[is_node], reference.tokens[is_node])
    assert torch.equal(kernel.depths[is_node], reference.depths[is_node])
    assert torch.equal(kernel.ancestors, reference.ancestors)
    torch.testing.assert_close(kernel.scores[is_node], reference.scores[is_node], rtol=1e-6, atol=1e-6)


def test_a_full_tree_leaves_rows_without_a_node():
    reference, kernel = both_grown(1, 9, 4, 2, 2, 16)
    assert (kernel.parents[0] == -2).sum() == (reference.parents[0] == -2).sum() == 3
    assert torch.equal(kernel.ancestors[0, -1], torch.arange(10, device=DEVICE) == 9)


def test_ties_go_to_what_the_drafter_prefers():
    growth = WovenGrowth(1, 4, 3, 2, torch.device(DEVICE))
    growth.begin(torch.zeros(1, dtype=torch.long, device=DEVICE))
    pool, _ = pools(1, 2, 6, 30, seed=0)
    grow(torch.zeros(1, 1, 6, device=DEVICE), pool, growth.memory, 0, (1, 3), 3, 2)
    assert growth.tokens[0, 1:4].tolist() == pool[0, 0, :3].tolist()
    torch.testing.assert_close(growth.scores[0, 1:4].exp().cpu(), torch.full((3,), 1 / 6, dtype=torch.float64))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": torch.zeros(1, 5, dtype=torch.int32)}, "tokens must be torch.int64 for the Triton kernel"),
        ({"ancestors": torch.zeros(1, 5, 4, dtype=torch.bool)}, r"ancestors has shape \[1, 5, 4\]"),
        ({"frontier": torch.zeros(15, 2, dtype=torch.float64)[:, 0][None]}, "frontier must be contiguous"),
    ],
)
@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU these tensors, which are on the CPU, get another sentence")
def test_trees_of_another_shape_are_refused(changes: dict[str, torch.Tensor], sentence: str):
    growth = WovenGrowth(1, 4, 3, 2, torch.device("cpu"))
    trees: GrowingTrees = growth.memory._replace(**changes)
    pool = torch.zeros(1, 2, 6, dtype=torch.long)
    with pytest.raises(ValueError, match=sentence):
        grow(torch.zeros(1, 1, 6), pool, trees, 0, (1, 3), 3, 2)


def test_what_is_too_much_for_a_program_is_refused():
    growth = WovenGrowth(1, 600, 32, 2, torch.device("cpu"))
    pool = torch.zeros(1, 2, 64, dtype=torch.long)
    with pytest.raises(ValueError, match="601 nodes with 32 children each are too many: at most 16384 may wait"):
        grow(torch.zeros(1, 1, 64), pool, growth.memory, 0, (1, 3), 32, 2)
    small = WovenGrowth(1, 6, 8, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match="a node has 4 candidates, and 8 children are asked for: take fewer"):
        grow(torch.zeros(1, 1, 4), pool[:, :, :4].contiguous(), small.memory, 0, (1, 3), 8, 2)
    read = torch.zeros(1, 2, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"read must be .* in float32 or bfloat16"):
        candidate_scores(read, torch.zeros(9, 8), pool, pool.float(), growth.depths, 0)
