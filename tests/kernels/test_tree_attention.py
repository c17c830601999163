"""Attention of a tree's rows to a cache, in parts, against the definition in float64."""

import pytest
import torch
from tfm_kernels.tree_attention import parts_for, tree_attention
from torch import Tensor
from trees import chain, random_tree, star

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(
    lengths: list[int], rows: int, groups: int, shared: int, size: int, capacity: int, kind: str = "random"
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + size)
    batch = len(lengths)
    query = torch.randn(batch, shared, groups * rows, size, generator=generator)
    key, value = torch.randn(2, batch, capacity, shared, size, generator=generator)
    build = {"chain": chain, "star": star, "random": lambda nodes: random_tree(nodes, seed=nodes)}[kind]
    own = build(rows).ancestors().expand(batch, -1, -1).contiguous()
    return tuple(x.to(DEVICE) for x in (query, key, value, torch.tensor(lengths), own))  # pyright: ignore[reportReturnType]


def defined(query: Tensor, key: Tensor, value: Tensor, length: Tensor, own: Tensor) -> Tensor:
    """One row at a time, in float64."""
    output = torch.empty_like(query, dtype=torch.float64)
    rows = own.shape[1]
    for request in range(query.shape[0]):
        committed = int(length[request])
        for grouped in range(query.shape[2]):
            tree = own[request, grouped % rows].nonzero()[:, 0] + committed
            seen = torch.cat([torch.arange(committed, device=query.device), tree])
            for head in range(query.shape[1]):
                k, v = (x[request, seen, head].double() for x in (key, value))
                scores = k @ query[request, head, grouped].double() * query.shape[3] ** -0.5
                output[request, head, grouped] = scores.softmax(0) @ v
    return output


@pytest.mark.parametrize(
    ("lengths", "rows", "groups", "shared", "size", "parts"),
    [
        ([70], 9, 3, 2, 32, 1),
        ([70, 3], 9, 3, 2, 32, 4),
        ([0, 1], 1, 6, 1, 64, 3),
        ([33], 20, 4, 1, 16, 7),
        ([200, 31, 64], 16, 1, 2, 32, None),
        ([5], 70, 1, 1, 16, 2),
    ],
)
@pytest.mark.parametrize("kind", ["random", "star"])
def test_every_row_sees_the_committed_rows_and_its_own_path(
    lengths: list[int], rows: int, groups: int, shared: int, size: int, parts: int | None, kind: str
):
    given = inputs(lengths, rows, groups, shared, size, 256, kind)
    found = tree_attention(*given, parts=parts)
    torch.testing.assert_close(found.double(), defined(*given), rtol=1e-5, atol=1e-5)


def test_any_rows_may_see_each_other():
    query, key, value, length, _ = inputs([40, 0], 7, 2, 1, 32, 64)
    generator = torch.Generator().manual_seed(5)
    own = (torch.rand(2, 7, 7, generator=generator) < 0.4) | torch.eye(7, dtype=torch.bool)
    given = (query, key, value, length, own.to(DEVICE))
    torch.testing.assert_close(tree_attention(*given).double(), defined(*given), rtol=1e-5, atol=1e-5)


def test_rows_behind_the_tree_are_not_read():
    query, key, value, length, own = inputs([40, 7], 6, 2, 2, 32, 128)
    before = tree_attention(query, key, value, length, own, parts=2)
    for request in range(2):
        key[request, int(length[request]) + 6 :] = float("nan")
        value[request, int(length[request]) + 6 :] = float("nan")
    assert torch.equal(tree_attention(query, key, value, length, own, parts=2), before)


def test_another_branch_changes_nothing():
    query, key, value, length, own = inputs([20], 5, 2, 1, 32, 64, "star")
    before = tree_attention(query, key, value, length, own)
    key[0, 22], value[0, 22] = 9.0, 9.0
    after = tree_attention(query, key, value, length, own)
    changed = (after != before).any(-1)[0, 0].view(2, 5)
    assert changed.tolist() == [[False, False, True, False, False]] * 2


def test_views_of_a_cache_of_all_layers_will_do():
    query, key, value, length, own = inputs([20, 30], 5, 2, 2, 32, 64)
    cache = torch.stack([key, value])
    transposed = query.transpose(1, 2).contiguous().transpose(1, 2)
    found = tree_attention(transposed, cache[0], cache[1], length, own)
    assert torch.equal(found, tree_attention(query, key, value, length, own))


def test_few_rows_cut_the_cache_into_more_parts():
    assert parts_for(6, 4, 1, 256) == 8
    assert parts_for(6, 4, 1, 32768) == 32
    assert parts_for(6 * 64, 4, 1, 1536) == 5
    assert parts_for(6 * 64, 4, 16, 1536) == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({0: torch.zeros(1, 1, 10, 24)}, "heads of 24 channels are not supported; use one of 16, 32"),
        ({0: torch.zeros(1, 1, 9, 32)}, "9 grouped queries are no multiple of a tree of 5 rows"),
        ({0: torch.zeros(1, 1, 10, 32, dtype=torch.float64)}, "in float32 or bfloat16, got torch.float64"),
        ({1: torch.zeros(1, 64, 2, 32)}, r"key has shape \[1, 64, 2, 32\]"),
        ({3: torch.zeros(1, dtype=torch.int32)}, "length must be torch.int64"),
        ({2: torch.zeros(1, 64, 1, 64)[..., ::2]}, "the channels of value must lie side by side"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[int, Tensor], sentence: str):
    given = [x.cpu() for x in inputs([20], 5, 2, 1, 32, 64)]
    for index, tensor in changes.items():
        given[index] = tensor
    with pytest.raises(ValueError, match=sentence):
        tree_attention(*given)
