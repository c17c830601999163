"""What an engine decodes with: method, tree, batch and caches, all fixed before the first step."""

from dataclasses import dataclass, field
from typing import NamedTuple

from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting.types import TreeConfig
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver

PLAIN = "ar"
ENGINE_METHODS = (PLAIN, "chain", "ddtree", "tfm")
ONE_TOKEN = "plain"
WEAVINGS = ("torch", "triton")


class EngineModels(NamedTuple):
    """Models of one target, on one device and in one dtype; ``None`` where the method needs none."""

    target: TargetModel
    drafter: FactorisedDrafter | None = None
    weaver: Weaver | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that decides the shapes of a step.

    Attributes:
        method: one of ``ENGINE_METHODS``.
        tree: budget, children, width, depth and pool; a chain takes the drafter's block, plain decoding nothing.
        batch: texts that are decoded side by side.
        capacity: most tokens of a text, prompt and the nodes of a last tree included.
        sampling: greedy, or temperature alone: top-k and top-p are for the readable path.
        gdn: what works on Gated DeltaNet memories: ``masked`` (PyTorch) or ``triton`` (the fused kernels). Plain
            decoding also has ``plain``, a recurrence of its own that commits at once; it takes that for ``masked`` too.
        attention: a name of :func:`tfm_lab.engine.attention.attention_kinds`.
        draft_attention: likewise, for the drafter.
        folds: keep what the Weaver multiplies with every token of the target as tables (twice vocabulary times width).
        weaving: what scores a Weaver's candidates and grows its trees: ``torch``, or ``triton`` (kernels of their own).
        compiles: fuse what stands between the products with ``torch.compile``.
        seed: of the sampled text; text i of a batch is sampled with ``seed + i``.

    Raises:
        ValueError: if a value is out of range.
    """

    method: str
    tree: TreeConfig
    batch: int = 1
    capacity: int = 4096
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(temperature=0.0))
    gdn: str = "masked"
    attention: str = "fused"
    draft_attention: str = "fused"
    folds: bool = False
    weaving: str = "torch"
    compiles: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in ENGINE_METHODS:
            raise ValueError(f"the engine has no method {self.method!r}; use one of {', '.join(ENGINE_METHODS)}")
        if self.weaving not in WEAVINGS:
            raise ValueError(f"weaving must be one of {', '.join(WEAVINGS)}, got {self.weaving!r}")
        if self.batch < 1 or self.capacity < 1:
            raise ValueError(f"batch and capacity must be at least 1, got {self.batch} and {self.capacity}")
        if self.gdn == ONE_TOKEN and self.method != PLAIN:
            raise ValueError("a recurrence of one token at a time verifies no trees: use masked or triton")
        if self.method != PLAIN and self.tree.budget < 1:
            raise ValueError("a tree without proposed nodes is plain decoding: use the method ar")
        if self.sampling.top_k or self.sampling.top_p < 1.0 or self.sampling.shared_noise:
            raise ValueError(
                "the engine samples by temperature alone; decode with top-k, top-p or shared noise elsewhere"
            )
        if self.method == "tfm" and self.tree.expand_width > self.tree.children:
            raise ValueError(
                f"a round of {self.tree.expand_width} nodes needs at least as many children of a node, and there are "
                f"{self.tree.children}: take a smaller width or more children"
            )

    def check(self, models: EngineModels) -> None:
        """Raise a ValueError if these models cannot be decoded with."""
        if self.method == PLAIN:
            return
        if models.drafter is None:
            raise ValueError(f"method {self.method!r} needs a drafter, and these models have none")
        models.drafter.check_target(models.target)
        if self.method == "tfm":
            if models.weaver is None:
                raise ValueError("method 'tfm' needs a Weaver; load one, or use chain or ddtree")
            models.weaver.check_target(models.target)
        vocabulary = models.target.config.vocab_size
        if self.method == "ddtree" and self.tree.budget > vocabulary:
            raise ValueError(f"a tree of {self.tree.budget} nodes needs as many tokens, and there are {vocabulary}")

    def depth(self, models: EngineModels) -> int:
        """Longest path of a tree in proposed tokens; 0 for plain decoding."""
        if self.method == PLAIN:
            return 0
        assert models.drafter is not None
        limits = [self.tree.max_depth, models.drafter.config.draft_depth, self.tree.budget]
        if self.method == "tfm" and models.weaver is not None:
            limits.append(models.weaver.config.max_depth)
        return min(limits)

    def nodes(self, models: EngineModels) -> int:
        """Rows of the target per text and step, the root included."""
        if self.method == PLAIN:
            return 1
        return 1 + (self.depth(models) if self.method == "chain" else self.tree.budget)
