"""The Weaver (arXiv 2607.06763): it turns a factorised drafter's pool logits into conditionals, path by path.

Two kinds of tokens share one causal transformer block (or a few). Sixteen *prefix* tokens carry the target's last
hidden state and the drafter's hidden states; *node* tokens carry the drafted tokens of one path. A node's read-out is
multiplied with the target's own head rows of the candidate pool and added to the drafter's logits:

    logit(v | path) = drafter_logit_d(v) + <head(v), z(path)>      for v in the pool of depth d

so a Weaver whose read-out is zero is exactly the drafter restricted to its pool. Tokens outside the pool have
probability zero. Parameter names are those of the published checkpoint.

What a target will say depends on the temperature it samples at: at 0 its most probable token is certain. A Weaver may
know the temperature, as offsets of its position table: one table for greedy texts, one for temperature 1 and above,
mixed in between. :meth:`Weaver.for_temperature` adds them up, and what it returns is a Weaver like any other.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tfm_lab.drafting.types import CandidatePool, Marginals, OpenNode, Proposal
from tfm_lab.models.config import WeaverConfig
from tfm_lab.models.fingerprint import fingerprint
from tfm_lab.models.layers import RMSNorm, Rotary, attend, merge_heads, split_heads
from tfm_lab.models.packing import Packable, Packed, pack, product, products
from tfm_lab.models.target import TargetModel


class WeaverBlock(Packable):
    """Pre-norm attention and MLP. ``swiglu`` keeps its gate and up projections in one matrix, gate first."""

    def __init__(self, config: WeaverConfig) -> None:
        super().__init__()
        width, self.heads = config.width, config.attention_heads
        self.is_gated = config.mlp == "swiglu"
        self.norm_attn = RMSNorm(width, config.norm_epsilon, bias=True)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.norm_mlp = RMSNorm(width, config.norm_epsilon, bias=True)
        self.fc1 = nn.Linear(width, config.mlp_width * (2 if self.is_gated else 1))
        self.fc2 = nn.Linear(config.mlp_width, width)
        self._packed_inputs: Packed | None = None
        self._packed_rest: tuple[Packed | None, Packed | None, Packed | None] = (None, None, None)

    def query_key_value(self, x: Tensor, rotary: Rotary | None) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.norm_attn(x)
        projected = products(normed, self._packed_inputs, self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (split_heads(part, self.heads) for part in projected)
        if rotary is not None:
            query, key = rotary.rotate(query), rotary.rotate(key)
        return query, key, value

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        packed_output, packed_first, packed_second = self._packed_rest
        x = x + product(merge_heads(attended), packed_output, self.o_proj)
        inner = product(self.norm_mlp(x), packed_first, self.fc1)
        if self.is_gated:
            gate, up = inner.chunk(2, dim=-1)
            return x + product(F.silu(gate) * up, packed_second, self.fc2)
        return x + product(F.gelu(inner), packed_second, self.fc2)

    def pack_layers(self) -> None:
        self._packed_inputs = pack(self.q_proj, self.k_proj, self.v_proj)
        self._packed_rest = pack(self.o_proj), pack(self.fc1), pack(self.fc2)


class Weaver(Packable):
    """Autoregressive adapter over a candidate pool.

    Args:
        config: the Weaver's shape.
    """

    def __init__(self, config: WeaverConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_norm = RMSNorm(config.target_width, config.norm_epsilon, bias=True)
        self.output_norm = RMSNorm(config.target_width, config.norm_epsilon, bias=True)
        self.token_in = nn.Linear(config.target_width, config.width)
        self.proposal_in = nn.Linear(config.target_width, config.width)
        self.pos_emb = nn.Parameter(torch.randn(config.max_depth, config.width) * 0.02) if self.has_table else None
        offsets = torch.zeros(2, config.max_depth, config.width)
        self.temperature_emb = nn.Parameter(offsets) if config.sees_temperature else None
        self.blocks = nn.ModuleList(WeaverBlock(config) for _ in range(config.layers))
        self.out_norm = RMSNorm(config.width, config.norm_epsilon, bias=True)
        self.lm_head_query_in = nn.Linear(config.width, config.target_width, bias=False)
        nn.init.zeros_(self.lm_head_query_in.weight)
        self._packed_token: Packed | None = None
        self._packed_proposal: Packed | None = None
        self._packed_query: Packed | None = None

    @property
    def has_table(self) -> bool:
        """True for learned positions, False for rotary ones."""
        return self.config.positions == "learned"

    def check_target(self, target: TargetModel) -> None:
        """Raise a ValueError if this Weaver cannot have been made for ``target``."""
        if self.config.target_width != target.config.hidden_size:
            raise ValueError(
                f"the Weaver was made for another target: its width is {self.config.target_width}, "
                f"the target's is {target.config.hidden_size}; use a bundle that was made for this target"
            )

    def fingerprint(self) -> str:
        """Identity of config and weights."""
        return fingerprint(self, self.config)

    def for_temperature(self, temperature: float) -> "Weaver":
        """This Weaver for targets that sample at ``temperature`` (0: greedy); itself if it does not see temperatures.

        Raises:
            ValueError: if the temperature is negative.
        """
        if temperature < 0.0:
            raise ValueError(f"temperature must be 0 or more, got {temperature}")
        if self.temperature_emb is None or self.pos_emb is None:
            return self
        fixed = copy.copy(self)
        offset = self._offsets(torch.tensor([temperature], device=self.pos_emb.device))[0]
        table = nn.Parameter((self.pos_emb + offset).detach(), requires_grad=False)
        fixed._parameters = self._parameters | {"pos_emb": table, "temperature_emb": None}  # the copy's own table
        fixed.config = replace(self.config, sees_temperature=False)
        return fixed

    def _offsets(self, temperatures: Float[Tensor, " batch"]) -> Float[Tensor, "batch depth width"]:
        """What a Weaver that sees temperatures adds to its position table."""
        assert self.temperature_emb is not None
        greedy, sampled = self.temperature_emb
        share = temperatures.clamp(0.0, 1.0).to(greedy.dtype)[:, None, None]
        return greedy + share * (sampled - greedy)

    def prefix_tokens(
        self,
        target_hidden: Float[Tensor, "batch channels"],
        drafter_hidden: Float[Tensor, "batch drafts channels"],
        offsets: Float[Tensor, "batch depth width"] | None = None,
    ) -> Float[Tensor, "batch prefix width"]:
        """Inputs of the prefix: the target's hidden state that produced the root, then the drafter's, by depth.

        Drafts beyond the Weaver's own depth are left out.

        Args:
            offsets: of the position table, by the temperature of each row, in training.

        Raises:
            ValueError: if this Weaver sees temperatures and is not told any.
        """
        if self.config.sees_temperature and offsets is None:
            raise ValueError(
                "this Weaver knows temperatures: take models.at_temperature(...) of a bundle, or "
                "weaver.for_temperature(...)"
            )
        first = target_hidden if self.config.sees_target else torch.zeros_like(target_hidden)
        hidden = torch.cat([first.unsqueeze(1), drafter_hidden[:, : self.config.max_depth]], dim=1)
        prefix = product(self.output_norm(hidden), self._packed_proposal, self.proposal_in)
        if self.pos_emb is not None:
            table = self.pos_emb if offsets is None else self.pos_emb + offsets
            prefix = prefix + F.pad(table[..., : hidden.shape[1] - 1, :], (0, 0, 1, 0))
        return prefix

    def node_tokens(
        self, embedded: Float[Tensor, "batch nodes channels"], depths: Int[Tensor, "*#batch nodes"]
    ) -> Float[Tensor, "batch nodes width"]:
        """Inputs of drafted tokens: their target embeddings, by depth (the root has depth 0)."""
        nodes = product(self.embed_norm(embedded), self._packed_token, self.token_in)
        if self.pos_emb is not None:
            nodes = nodes + self.pos_emb[depths.clamp_max(self.config.max_depth - 1)]
        return nodes

    def run(
        self,
        x: Float[Tensor, "batch tokens width"],
        rotary: Rotary | None,
        visible: Bool[Tensor, "#batch tokens keys"],
        cache: Sequence[tuple[Tensor, Tensor]] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens channels"], list[tuple[Tensor, Tensor]]]:
        """Read-outs ``z`` and, per block, the keys and values seen so far (``cache`` first, then ``x``)."""
        seen: list[tuple[Tensor, Tensor]] = []
        for index, block in enumerate(self._blocks):
            query, key, value = block.query_key_value(x, rotary)
            if cache is not None:
                key, value = torch.cat([cache[index][0], key], dim=2), torch.cat([cache[index][1], value], dim=2)
            seen.append((key, value))
            x = block.finish(x, attend(query, key, value, visible.unsqueeze(1)))
        return product(self.out_norm(x), self._packed_query, self.lm_head_query_in), seen

    def pack_layers(self) -> None:
        self._packed_token, self._packed_proposal = pack(self.token_in), pack(self.proposal_in)
        self._packed_query = pack(self.lm_head_query_in)

    def read_prefix(
        self, prefix: Float[Tensor, "batch prefix width"]
    ) -> list[tuple[Float[Tensor, "batch heads prefix size"], Float[Tensor, "batch heads prefix size"]]]:
        """Keys and values of the prefix, per block: the ``cache`` of :meth:`run`. The last block stops there."""
        length = prefix.shape[1]
        rotary = self.rotary(torch.arange(length, device=prefix.device), prefix.dtype)
        visible = torch.ones(1, 1, length, length, dtype=torch.bool, device=prefix.device).tril()
        x, seen = prefix, []
        for block in self._blocks:
            query, key, value = block.query_key_value(x, rotary)
            seen.append((key, value))
            if len(seen) < len(self._blocks):
                x = block.finish(x, attend(query, key, value, visible))
        return seen

    def forward(
        self,
        target_hidden: Float[Tensor, "batch channels"],
        drafter_hidden: Float[Tensor, "batch drafts channels"],
        path_embedded: Float[Tensor, "batch depth channels"],
        temperatures: Float[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch depth channels"]:
        """Read-outs along one path per row (root first), teacher-forced. Differentiable.

        Args:
            temperatures: that the target samples at, for a Weaver that sees them.

        Raises:
            ValueError: if this Weaver sees temperatures and is not told any.
        """
        depth, prefix = path_embedded.shape[1], min(drafter_hidden.shape[1], self.config.max_depth) + 1
        depths = torch.arange(depth, device=path_embedded.device)
        offsets = self._offsets(temperatures) if self.config.sees_temperature and temperatures is not None else None
        nodes = self.node_tokens(path_embedded, depths)
        if offsets is not None:
            nodes = nodes + offsets[:, depths.clamp_max(self.config.max_depth - 1)]
        x = torch.cat([self.prefix_tokens(target_hidden, drafter_hidden, offsets), nodes], dim=1)
        positions = torch.cat([torch.arange(prefix, device=x.device), depths + 1])
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return self.run(x, self.rotary(positions, x.dtype), visible[None])[0][:, prefix:]

    def rotary(self, positions: Int[Tensor, "*batch tokens"], dtype: torch.dtype) -> Rotary | None:
        """Rotary form: prefix token i sits at position i, a node of depth d at d + 1."""
        if self.has_table:
            return None
        return Rotary(positions, self.config.head_dim, self.config.rope_theta, dtype)

    @property
    def _blocks(self) -> list[WeaverBlock]:
        return [block for block in self.blocks if isinstance(block, WeaverBlock)]


class WeaverSession:
    """A Weaver at work on one tree; implements :class:`tfm_lab.drafting.types.ConditionalSession`.

    Args:
        weaver: the adapter.
        target: supplies embedding and head rows.
        marginals: the drafter's block, which gives prefix and pool logits.
        target_hidden: final-norm hidden state of the last committed token, the one that produced the root.
        pool_size: candidates per depth (K).
        ranking: what to choose the candidates by, in place of the drafter's logits.
    """

    def __init__(
        self,
        weaver: Weaver,
        target: TargetModel,
        marginals: Marginals,
        target_hidden: Float[Tensor, " channels"],
        pool_size: int,
        ranking: Float[Tensor, "drafts vocab"] | None = None,
    ) -> None:
        self._weaver, self._target = weaver, target
        self._pool: CandidatePool = marginals.pool(pool_size, ranking)
        self._heads: dict[int, Tensor] = {}
        self._columns: dict[int, int] = {}
        self._ancestry: dict[int, list[int]] = {-1: []}
        with torch.no_grad():
            prefix = weaver.prefix_tokens(target_hidden[None], marginals.hidden[None])
            self._cache = weaver.read_prefix(prefix)
        self._prefix = prefix.shape[1]

    @property
    def max_depth(self) -> int:
        return min(self._weaver.config.max_depth, self._pool.tokens.shape[0])

    @torch.no_grad()
    def expand(self, nodes: Sequence[OpenNode]) -> list[Proposal]:
        """Conditionals of several nodes in one call; a node sees the prefix, its ancestors and itself.

        Raises:
            ValueError: if a parent was not expanded before, or a node is too deep to have children.
        """
        for node in nodes:
            if node.parent not in self._ancestry or not 0 <= node.depth < self.max_depth:
                raise ValueError(f"node {node.index} cannot be expanded: its parent was not, or it is too deep")
        device, cached = self._target.device, self._prefix + len(self._columns)
        depths = torch.tensor([node.depth for node in nodes], device=device)
        embedded = self._target.model.embed_tokens(torch.tensor([node.token for node in nodes], device=device))
        x = self._weaver.node_tokens(embedded[None], depths)
        visible = torch.zeros(len(nodes), cached + len(nodes), dtype=torch.bool)
        visible[:, : self._prefix] = True
        for row, node in enumerate(nodes):
            lineage = [*self._ancestry[node.parent], cached + row]
            visible[row, lineage] = True
            self._ancestry[node.index], self._columns[node.index] = lineage, cached + row
        rotary = self._weaver.rotary(depths + 1, x.dtype)
        read_outs, self._cache = self._weaver.run(x, rotary, visible[None].to(device), self._cache)
        return [self._proposal(node.depth, read_out) for node, read_out in zip(nodes, read_outs[0], strict=True)]

    def _proposal(self, depth: int, read_out: Tensor) -> Proposal:
        tokens = self._pool.tokens[depth]
        if depth not in self._heads:
            self._heads[depth] = self._target.head_weight.index_select(0, tokens)
        logits = self._pool.logits[depth] + self._heads[depth] @ read_out
        return Proposal(tokens, torch.log_softmax(logits.float() if logits.dtype != torch.float64 else logits, dim=-1))
