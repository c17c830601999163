"""The Weaver on the device: prefix once per step, then rounds of nodes, every shape the same in every round.

A node's keys and values go to column ``prefix + node`` of a cache as long as the tree, and its row of the tree's
ancestor mask says what it sees. In PyTorch the read-out is multiplied with the candidate rows of all depths at once,
and of the result each node takes its own depth; the kernels read the rows of that depth alone, where they lie.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from tfm_kernels.weave_round import candidate_scores, grow
from torch import Tensor

from tfm_lab.engine import pointwise
from tfm_lab.engine.fusing_weights import fuse
from tfm_lab.engine.growth import Rounds, WovenGrowth
from tfm_lab.engine.pointwise import Fusing
from tfm_lab.engine.tree_arrays import TreeArrays
from tfm_lab.models.layers import at_least_float32
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver, WeaverBlock

ALIGNED = 8
"""Columns of the Weaver's cache come in multiples of this: attention kernels want aligned masks."""


class Tables(NamedTuple):
    """Products of a Weaver with all tokens of its target, made once: a round reads rows of them instead of matrices.

    Attributes:
        read_out: head times read-out matrix; scores candidates from the Weaver's inner state.
        inputs: what the Weaver makes of a drafted token before it knows the depth.
    """

    read_out: Float[Tensor, "vocab width"]
    inputs: Float[Tensor, "vocab width"]


@torch.no_grad()
def folded(weaver: Weaver, target: TargetModel, rows: int = 8192) -> Tables:
    """The tables of a Weaver, in its dtype."""
    matrix = weaver.lm_head_query_in.weight.detach()
    embedding = target.model.embed_tokens.weight.detach()
    return Tables(
        torch.cat([part @ matrix for part in target.head_weight.detach().split(rows)]),
        torch.cat([weaver.token_in(_normed(part, weaver.embed_norm)) for part in embedding.split(rows)]),
    )


class Weaving:
    """Grows the woven trees of a batch.

    Args:
        depth: longest path of a tree.
        drafts: places of the drafter, all of which the prefix speaks of.
        tables: of :func:`folded`; ``None`` to multiply with the matrices and the head's own rows.
        fusing: compiles a whole round.
        by_kernels: score candidates and grow trees with the Triton kernels.
    """

    def __init__(
        self, weaver: Weaver, target: TargetModel, batch: int, budget: int, width: int, children: int, pool: int,
        depth: int, drafts: int, tables: Tables | None, fusing: Fusing, *, by_kernels: bool,
    ) -> None:  # fmt: skip
        self.weaver, self._target, self._tables, self._pool_size = weaver, target, tables, pool
        self._by_kernels = by_kernels
        device, config = target.device, weaver.config
        self.growth = WovenGrowth(batch, budget, children, depth, device)
        self._prefix, self._depth = min(config.max_depth, drafts) + 1, depth
        columns = self._prefix + budget + 1
        columns += -columns % ALIGNED
        self._blocks = [block for block in weaver.blocks if isinstance(block, WeaverBlock)]
        self.inputs = [fuse([block.q_proj, block.k_proj, block.v_proj]) for block in self._blocks]
        shape = (len(self._blocks), 2, batch, columns, config.attention_heads, config.head_dim)
        self._cache = torch.zeros(shape, dtype=target.dtype, device=device)
        self._request = torch.arange(batch, device=device)[:, None]
        rounds = Rounds.of(budget, width)
        self._rounds = [
            torch.arange(start, start + count, device=device)
            for start, count in zip(rounds.starts, rounds.widths, strict=True)
        ]
        self._spans = [(0, 1), *zip(rounds.starts, rounds.widths, strict=True)]
        self._root = torch.zeros(1, dtype=torch.long, device=device)
        places = torch.arange(self._prefix, device=device)
        self._causal = places[:, None] >= places
        self._expand, self._add = fusing(self._expand_nodes), fusing(self.growth.add)
        self._read = fusing(self._read_nodes)
        self._read_prefix = fusing(self._prefix_tokens)

    def grow(self, roots: Tensor, logits: Tensor, hidden: Tensor, target_hidden: Tensor) -> TreeArrays:
        """One tree per request.

        Args:
            logits: of the drafter, [batch, depth, vocab].
            hidden: of the drafter, [batch, drafts, channels].
            target_hidden: that produced the roots, [batch, channels].
        """
        pool = logits[:, : self._depth].topk(min(self._pool_size, logits.shape[-1]), dim=-1)
        source = self._target.head_weight if self._tables is None else self._tables.read_out
        self._read_prefix(target_hidden, hidden)
        self.growth.begin(roots)
        if self._by_kernels:
            self._grow_by_kernels(source, pool.indices, pool.values)
            return self.growth.tree
        heads = source[pool.indices]
        self._expand(self._root, pool.indices, pool.values, heads)
        for index, nodes in enumerate(self._rounds):
            self._add(nodes)
            if index + 1 < len(self._rounds):
                self._expand(nodes, pool.indices, pool.values, heads)
        return self.growth.tree

    def _grow_by_kernels(self, source: Tensor, pool: Tensor, pool_logits: Tensor) -> None:
        growth = self.growth
        rounds = zip(pairwise(self._spans), [self._root, *self._rounds], strict=False)
        for ((start, _), after), nodes in rounds:
            scores = candidate_scores(self._read(nodes), source, pool, pool_logits, growth.depths, start)
            grow(scores, pool, growth.memory, start, after, growth.children, growth.deepest)

    def _prefix_tokens(self, target_hidden: Tensor, hidden: Tensor) -> None:
        """Keys and values of the prefix into the first columns of the cache."""
        weaver, length = self.weaver, self._prefix
        first = target_hidden if weaver.config.sees_target else torch.zeros_like(target_hidden)
        tokens = torch.cat([first[:, None], hidden[:, : length - 1]], dim=1)
        x = weaver.proposal_in(_normed(tokens, weaver.output_norm))
        if weaver.pos_emb is not None:
            x = x + F.pad(weaver.pos_emb[: length - 1], (0, 0, 1, 0))
        positions = torch.arange(length, device=x.device).expand(len(x), -1)
        columns = positions
        visible = self._causal[None, None]
        for index, block in enumerate(self._blocks):
            attended = self._attended(index, block, x, positions, columns, visible, length)
            if index + 1 < len(self._blocks):
                x = _finish(block, x, attended)

    def _expand_nodes(self, nodes: Tensor, pool: Tensor, pool_logits: Tensor, heads: Tensor) -> None:
        """Conditionals of ``nodes``, whose best children join the frontier."""
        growth = self.growth
        read = self._read_nodes(nodes)
        depth = growth.depths[:, nodes].clamp_max(self._depth - 1)
        batch, depths, size, _ = heads.shape
        scores = (read @ heads.flatten(1, 2).mT).view(batch, len(nodes), depths, size)
        index = depth[:, :, None, None].expand(-1, -1, 1, size)
        own = scores.gather(2, index)[:, :, 0] + pool_logits.gather(1, depth[:, :, None].expand(-1, -1, size))
        tokens = pool.gather(1, depth[:, :, None].expand(-1, -1, size))
        growth.offer(nodes, tokens, torch.log_softmax(at_least_float32(own), dim=-1))

    def _read_nodes(self, nodes: Tensor) -> Tensor:
        """What ``nodes`` are scored with, [batch, nodes, channels of the head or table]."""
        weaver, growth = self.weaver, self.growth
        depth = growth.depths[:, nodes].clamp_max(self._depth - 1)
        tokens = growth.tokens[:, nodes]
        if self._tables is None:
            x = weaver.token_in(_normed(self._target.model.embed_tokens(tokens), weaver.embed_norm))
        else:
            x = self._tables.inputs[tokens]
        if weaver.pos_emb is not None:
            x = x + weaver.pos_emb[depth]
        columns = (self._prefix + nodes).expand(len(x), -1)
        seen = growth.ancestors[:, nodes]
        prefix = torch.ones_like(seen[:, :, :1]).expand(-1, -1, self._prefix)
        visible = torch.cat([prefix, seen], dim=2)
        visible = F.pad(visible, (0, self._cache.shape[3] - visible.shape[2]))[:, None]
        for index, block in enumerate(self._blocks):
            x = _finish(block, x, self._attended(index, block, x, depth + 1, columns, visible, self._cache.shape[3]))
        read = _normed(x, weaver.out_norm)
        return weaver.lm_head_query_in(read) if self._tables is None else read

    def _attended(
        self, index: int, block: WeaverBlock, x: Tensor, positions: Tensor, columns: Tensor, visible: Tensor, seen: int
    ) -> Tensor:
        """Attention output of one block, [batch, rows, width]; keys and values go to ``columns`` first."""
        projected = F.linear(_normed(x, block.norm_attn), self.inputs[index])
        query, key, value = (part.unflatten(-1, (block.heads, -1)) for part in projected.chunk(3, dim=-1))
        config = self.weaver.config
        if not self.weaver.has_table:
            angles = pointwise.angles(positions, config.head_dim, config.rope_theta, x.dtype)
            query, key = pointwise.rotate(query, *angles), pointwise.rotate(key, *angles)
        cache = self._cache[index]
        cache[0, self._request, columns] = key
        cache[1, self._request, columns] = value
        keys, values = cache[0, :, :seen].transpose(1, 2), cache[1, :, :seen].transpose(1, 2)
        attended = F.scaled_dot_product_attention(query.transpose(1, 2), keys, values, attn_mask=visible)
        return attended.transpose(1, 2).flatten(-2)


def _finish(block: WeaverBlock, x: Tensor, attended: Tensor) -> Tensor:
    x = x + block.o_proj(attended)
    inner = block.fc1(_normed(x, block.norm_mlp))
    if block.is_gated:
        return x + block.fc2(pointwise.gated(inner))
    return x + block.fc2(F.gelu(inner))


def _normed(x: Tensor, module: torch.nn.Module) -> Tensor:
    weight, bias, epsilon = module.weight, module.bias, module.epsilon
    return pointwise.biased_norm(x, weight, bias, epsilon)  # pyright: ignore[reportArgumentType]
