"""Read-outs z(path) of a Weaver on a real step: the whole tree in one pass under a mask, and one path at a time."""

import copy

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.drafting import Marginals
from tfm_lab.lab import OpenStep
from tfm_lab.models import Weaver
from tfm_lab.tree import DraftTree


@torch.no_grad()
def tree_read_outs(
    models: Bundle, step: OpenStep, tree: DraftTree, mask: Bool[Tensor, "nodes keys"]
) -> Float[Tensor, "nodes channels"]:
    """All nodes in one pass.

    Args:
        mask: what each node attends to; the columns of the prefix stand before those of the nodes.

    Raises:
        ValueError: if the bundle has no Weaver or the step no marginals, or the mask does not fit the tree.
    """
    weaver, marginals = _drafters(models, step)
    cache = weaver.read_prefix(weaver.prefix_tokens(step.hidden[None], marginals.hidden[None]))
    keys = cache[0][0].shape[2] + len(tree)
    if mask.shape != (len(tree), keys):
        raise ValueError(f"the mask has shape {tuple(mask.shape)}; this tree and prefix need ({len(tree)}, {keys})")
    nodes = weaver.node_tokens(models.target.model.embed_tokens(tree.tokens)[None], tree.depths)
    return weaver.run(nodes, weaver.rotary(tree.depths + 1, nodes.dtype), mask[None], cache)[0][0]


@torch.no_grad()
def path_read_out(models: Bundle, step: OpenStep, tree: DraftTree, node: int) -> Float[Tensor, " channels"]:
    """One node from its own path alone, as if there were no other: prefix and path as one plain causal text.

    Raises:
        ValueError: if the bundle has no Weaver or the step no marginals.
    """
    weaver, marginals = _drafters(models, step)
    path = models.target.model.embed_tokens(torch.tensor(tree.path_tokens(node)))
    return weaver(step.hidden[None], marginals.hidden[None], path[None])[0, -1]


def silenced(weaver: Weaver) -> Weaver:
    """A copy whose read-out is zero: what training starts from."""
    silent = copy.deepcopy(weaver)
    with torch.no_grad():
        silent.lm_head_query_in.weight.zero_()
    return silent


def _drafters(models: Bundle, step: OpenStep) -> tuple[Weaver, Marginals]:
    if models.weaver is None or step.source.marginals is None:
        raise ValueError("a read-out needs a drafter and a Weaver; use the hybrid bundle")
    return models.weaver, step.source.marginals
