"""One decoding step on the device, from the drafter's pass to the commit, in fixed shapes and without a wait.

The stages of a step are methods that can be run, timed or recorded one by one; each leaves its results for the next.
``step`` runs them all. Nothing is read back to the host until somebody asks for the text.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tfm_lab.draws import SeededDraws
from tfm_lab.engine.attention import TREE, Visible, attention_kinds, padded, tree_mask
from tfm_lab.engine.config import PLAIN, EngineConfig, EngineModels
from tfm_lab.engine.draft_block import DraftBlock
from tfm_lab.engine.growth import BestFirst
from tfm_lab.engine.memories import Memories, PlainMemories, TreeMemories
from tfm_lab.engine.pointwise import Fusing
from tfm_lab.engine.sampling import wanted_tokens
from tfm_lab.engine.target_rows import RowOutputs, TargetRows
from tfm_lab.engine.tree_arrays import TreeArrays, Walk, depth_first, rooted, walk
from tfm_lab.engine.weaving import Weaving, folded
from tfm_lab.gdn.step_masked import plain_token
from tfm_lab.models.state import AttentionState

MemoryBuilder = Callable[[int, int, int, int], Memories]
"""(layers, batch, nodes, path rows) -> memories, in place of the engine's own."""


class Engine:
    """Decodes a batch of texts with one method.

    The models' weights are not copied: matrices that share an input become views of one. After ``start``, every
    ``step`` moves every text on; all of them run on whether they have ended or not.

    Args:
        models: target, drafter and Weaver.
        config: shapes, fixed for good.
        memories: builds what verifies trees in Gated DeltaNet layers, in place of ``config.gdn``.

    Raises:
        ValueError: if config and models do not belong together.
    """

    @torch.no_grad()
    def __init__(self, models: EngineModels, config: EngineConfig, memories: MemoryBuilder | None = None) -> None:
        config.check(models)
        self.models, self.config = models, config
        target, batch = models.target, config.batch
        device, self.nodes, depth = target.device, config.nodes(models), config.depth(models)
        self.path_rows, self.capacity = depth + 1, padded(config.capacity)
        self.fusing = fusing = Fusing(compiles=config.compiles)
        kinds = attention_kinds(self.capacity)
        for name in (config.attention, config.draft_attention):
            if name not in kinds:
                raise ValueError(f"there is no attention {name!r} for this cache; use one of {', '.join(kinds)}")
        taps = () if config.method == PLAIN or models.drafter is None else models.drafter.config.tap_layers
        kept = self._memories(memories, fusing)
        self.rows = TargetRows(target, batch, self.capacity, kept, kinds[config.attention], fusing, taps)
        self.block: DraftBlock | None = None
        self.weaving: Weaving | None = None
        self._best_first: Callable[[Tensor, Tensor], TreeArrays] | None = None
        if config.method != PLAIN and models.drafter is not None:
            drafts = models.drafter.config.draft_depth
            self.block = DraftBlock(models.drafter, target, batch, self.capacity, config.draft_attention, fusing)
            if config.method == "ddtree":
                self._best_first = fusing(BestFirst(config.tree.budget, depth, device).grow)
            if config.method == "tfm" and models.weaver is not None:
                weaver = models.weaver.for_temperature(config.sampling.temperature)
                tree, tables = config.tree, folded(weaver, target) if config.folds else None
                pool = min(tree.pool_size, target.config.vocab_size)
                self.weaving = Weaving(
                    weaver, target, batch, tree.budget, tree.expand_width, min(tree.children, pool), pool,
                    depth, drafts, tables, fusing, by_kernels=config.weaving == "triton",
                )  # fmt: skip
        self._depth_first, self._tree_mask, self._walk = fusing(depth_first), fusing(tree_mask), fusing(walk)
        block = 0 if self.block is None else drafts_of(models)
        self._depth, self._most = depth, target.config.max_positions - depth - 1
        self._room = min(self._most, self.capacity - max(self.nodes, block))
        self.length = torch.zeros(batch, dtype=torch.long, device=device)
        self.start_length = torch.zeros_like(self.length)
        self.text = torch.zeros(batch, self.capacity + depth + 2, dtype=torch.long, device=device)
        self.hidden = torch.zeros(batch, target.config.hidden_size, dtype=target.dtype, device=device)
        self.uniforms = torch.zeros(batch, self.text.shape[1], dtype=torch.float64, device=device)
        self.forced = torch.full_like(self.length, -1)
        self.schedule = torch.full((self.capacity, batch), -1, dtype=torch.long, device=device)
        self.steps = torch.zeros(1, dtype=torch.long, device=device)
        self._request = torch.arange(batch, device=device)[:, None]
        self._emitted = torch.arange(self.path_rows, device=device)
        self._roots = self.text[:, 0]
        self._drafted: tuple[Tensor, Tensor] | None = None
        self.grown: TreeArrays | None = None
        self.tree: TreeArrays | None = None
        self._outputs: RowOutputs | None = None
        self._wanted: Tensor | None = None
        self._positions: tuple[Tensor, Tensor] | None = None
        self.visible: Visible | None = None
        self.walk: Walk | None = None

    @property
    def stages(self) -> dict[str, Callable[[], None]]:
        """The parts of a step, in order. Each works on what the ones before it left."""
        drafting = {} if self.block is None else {"draft": self.draft, "grow": self.grow}
        return {"root": self.take_root, **drafting, "layout": self.lay_out, "verify": self.verify} | {
            "head": self.read_out,
            "accept": self.accept,
            "commit": self.commit,
        }

    @torch.no_grad()
    def step(self) -> None:
        """Draft, verify, accept and commit once, for all texts."""
        for stage in self.stages.values():
            stage()

    @torch.no_grad()
    def start(self, prompts: Sequence[Sequence[int]]) -> None:
        """Process prompts with the readable path and take over its states; the first token of each text is chosen.

        Raises:
            ValueError: if there are not as many prompts as the batch has texts, or one leaves no room for a tree.
        """
        if len(prompts) != self.config.batch:
            raise ValueError(f"this engine decodes {self.config.batch} texts, got {len(prompts)} prompts")
        for row, prompt in enumerate(prompts):
            if len(prompt) > self._room:
                raise ValueError(f"a prompt of {len(prompt)} tokens leaves no room in {self._limit()}")
            self._take_over(row, prompt)
        if self.rows.memories is not None:
            self.rows.memories.reset()
        self.start_length.copy_(self.length)
        self.steps.zero_()

    def tokens(self, row: int = 0) -> list[int]:
        """New tokens of one text so far, the first one included. Waits for the device."""
        first, last = int(self.start_length[row]), int(self.length[row])
        return self.text[row, first : last + 1].tolist()

    def decode(self, new_tokens: int, run: Callable[[], None] | None = None) -> list[list[int]]:
        """Step until every text has this many new tokens; longer ones are cut. Waits once per step.

        Args:
            run: in place of ``step``, for example the replay of its graph.

        Raises:
            ValueError: if a text would outgrow the cache or the model's context.
        """
        run = run or self.step
        while len(self.tokens_of_shortest()) < new_tokens:
            if int(self.length.max()) > self._room:
                raise ValueError(f"the texts have outgrown {self._limit()}")
            run()
        return [self.tokens(row)[:new_tokens] for row in range(self.config.batch)]

    def _limit(self) -> str:
        """What a text is too long for, and what to do about it."""
        if self._room == self._most:
            return f"a context of {self.models.target.config.max_positions} tokens: shorten the text"
        return f"a cache of {self.capacity}: raise the capacity"

    def tokens_of_shortest(self) -> list[int]:
        """New tokens of the text that has the fewest."""
        return self.tokens(int((self.length - self.start_length).argmin()))

    @torch.no_grad()
    def take_root(self) -> None:
        """The last token of every text, and what this step is told to accept, if it is."""
        self._roots = self.text.gather(1, self.length[:, None])[:, 0]
        self.forced.copy_(self.schedule[self.steps.clamp_max(len(self.schedule) - 1)][0])

    @torch.no_grad()
    def draft(self) -> None:
        """The drafter's pass and its logits."""
        assert self.block is not None
        hidden = self.block.propose(self._roots, self.length)
        self._drafted = self.models.target.logits(hidden[:, : self._depth]), hidden

    @torch.no_grad()
    def grow(self) -> None:
        """The tree."""
        assert self._drafted is not None
        logits, hidden = self._drafted
        if self.weaving is not None:
            self.grown = self.weaving.grow(self._roots, logits, hidden, self.hidden)
        elif self._best_first is not None:
            self.grown = self._best_first(self._roots, logits)
        else:
            self.grown = rooted(self._roots, logits.argmax(-1))

    @torch.no_grad()
    def lay_out(self) -> None:
        """Depth-first order, positions, masks and what the kernels read of the tree."""
        if self.grown is None:
            self.tree = rooted(self._roots, self.text[:, :0])
        else:
            self.tree = self.grown if self.config.method == "chain" else self._depth_first(self.grown)
        rows = self.length[:, None] + torch.arange(self.nodes, device=self.length.device)
        positions = self.length[:, None] + torch.where(self.tree.is_node, self.tree.depths, 0)
        own, mask = self.tree.ancestors, None
        if self.config.attention != TREE:
            mask = self._tree_mask(self.length, own, self.capacity, self.rows.groups, self.rows.cache.dtype)
        self._positions, self.visible = (rows, positions), Visible(self.length, own, mask)
        if self.rows.memories is not None:
            self.rows.memories.begin(self.tree)

    @torch.no_grad()
    def verify(self) -> None:
        """The target on all nodes, up to its final norm."""
        assert self.tree is not None
        assert self._positions is not None
        assert self.visible is not None
        rows, positions = self._positions
        self._outputs = self.rows.run(self.tree.tokens, positions, rows, self.visible)

    @torch.no_grad()
    def read_out(self) -> None:
        """The head, and the token that the target wants behind every node."""
        assert self._outputs is not None
        assert self.tree is not None
        logits = self.models.target.logits(self._outputs.hidden)
        at = self.length[:, None] - self.start_length[:, None] + 1 + self.tree.depths.clamp_min(0)
        self._wanted = wanted_tokens(logits, self.config.sampling, self.uniforms.gather(1, at))

    @torch.no_grad()
    def accept(self) -> None:
        """The path that the target agrees with, or that the schedule asks for."""
        assert self.tree is not None
        assert self._wanted is not None
        self.walk = self._walk(self.tree, self._wanted, self.path_rows, self.forced)

    @torch.no_grad()
    def commit(self) -> None:
        """Caches, memories, the drafter's context, the text."""
        assert self.tree is not None
        assert self.walk is not None
        assert self._outputs is not None
        path, count, last, bonus = self.walk
        self.rows.commit(self.walk, self.length)
        if self.block is not None:
            self.block.extend(self._outputs.taps[self._request, path], self.length)
        self.hidden.copy_(self._outputs.hidden[self._request[:, 0], last])
        emitted = self.tree.tokens.gather(1, path.roll(-1, dims=1))
        emitted = torch.where(self._emitted < count[:, None] - 1, emitted, bonus[:, None])
        self.text.scatter_(1, self.length[:, None] + 1 + self._emitted, emitted)
        self.length += count
        self.steps += 1

    def _memories(self, builder: MemoryBuilder | None, fusing: Fusing) -> Memories | None:
        """What verifies trees in the Gated DeltaNet layers; ``None`` if there are none."""
        target, config = self.models.target, self.config
        layout, layers = target.config.delta_net, target.config.layer_types.count("linear_attention")
        if layout is None:
            return None
        if config.method == PLAIN and config.gdn != "triton":
            return PlainMemories(layout, layers, config.batch, target.dtype, target.device, fusing(plain_token))
        if builder is not None:
            return builder(layers, config.batch, self.nodes, self.path_rows)
        shape = layers, config.batch, self.nodes, self.path_rows
        return TreeMemories(layout, *shape, config.gdn, target.dtype, target.device)

    def _take_over(self, row: int, prompt: Sequence[int]) -> None:
        """One prompt's states, context and first token."""
        target, drafter = self.models.target, self.models.drafter
        prefilled = target.prefill(prompt, self.rows_taps)
        length, memory, attention = prefilled.state.length, 0, 0
        for state in prefilled.state.layers:
            if isinstance(state, AttentionState):
                for part, stored in enumerate(state.buffer.rows(length)):
                    self.rows.cache[attention, part, row, :length] = stored[0].transpose(0, 1)
                attention += 1
            elif self.rows.memories is not None:
                self.rows.memories.states[memory, row] = state.matrix[0].mT
                self.rows.memories.windows[memory, row] = state.window[0]
                memory += 1
        if self.block is not None and drafter is not None:
            context = drafter.extend_context(drafter.empty_context(), prefilled.taps)
            for layer, buffer in enumerate(context.layers):
                for part, stored in enumerate(buffer.rows(length)):
                    self.block.cache[layer, part, row, :length] = stored[0].transpose(0, 1)
        draws = SeededDraws(self.config.seed + row)
        if not self.config.sampling.is_greedy:
            drawn = [draws.uniform() for _ in range(self.uniforms.shape[1])]
            self.uniforms[row] = torch.tensor(drawn, dtype=torch.float64)
        self.length[row] = length
        self.hidden[row] = prefilled.hidden
        first = wanted_tokens(prefilled.logits[None, None], self.config.sampling, self.uniforms[row, None, :1])
        self.text[row, length] = first[0, 0]

    @property
    def rows_taps(self) -> tuple[int, ...]:
        """Layers that the drafter reads."""
        return () if self.block is None else self.block.config.tap_layers


def drafts_of(models: EngineModels) -> int:
    """Rows that a drafter's block takes behind the committed ones."""
    return 0 if models.drafter is None else models.drafter.config.block_size
