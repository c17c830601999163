"""Bytes of a step and of the memory it needs, counted from shapes before anything is allocated."""

from dataclasses import dataclass

from tfm_lab.engine.attention import padded
from tfm_lab.engine.growth import Rounds
from tfm_lab.models.config import FULL_ATTENTION
from tfm_lab.planning import shapes
from tfm_lab.planning.shapes import STATE_BYTES, Shapes


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the bytes of a step depend on, besides the models.

    Attributes:
        method: of the engine.
        nodes: rows of the target per text, the root included.
        depth: proposed tokens on the longest path; 0 for plain decoding.
        batch: texts.
        context: committed tokens per text.
        capacity: rows of the caches per text.
        width: nodes per call of the Weaver.
        pool: candidates per depth.
        item: bytes of a weight.
        folds: whether the Weaver's products with all tokens are tables.
        by_kernels: whether a round reads the candidates of its nodes' own depths alone.
        keeps_states: whether verification writes a state for every node (the recurrent kernel).
    """

    method: str
    nodes: int
    depth: int
    batch: int
    context: int
    capacity: int
    width: int = 1
    pool: int = 512
    item: int = 2
    folds: bool = False
    by_kernels: bool = False
    keeps_states: bool = False


def stage_bytes(models: Shapes, step: StepShape) -> dict[str, int]:
    """Bytes that each stage has to read or write at least: weights once, caches once, memories in and out.

    What fits into registers or is thousands of times smaller than the weights is left out, and so are logits, except
    where they are all that a stage works on.
    """
    target, drafter, weaver = models
    item, batch = step.item, step.batch
    head = item * target.vocab_size * target.hidden_size
    memory = batch * shapes.delta_net_layers(target) * shapes.state_bytes(target)
    moved = (1 + step.nodes if step.keeps_states else 2) * memory
    stages = {
        "verify": item * shapes.target_weights(target) - head + batch * step.context * cache_row(models, item) + moved,
        "head": head,
    }
    if step.method == "ar":
        return stages
    fusion = item * len(drafter.tap_layers) * drafter.hidden_size**2
    injected = item * 2 * drafter.layers * drafter.key_value_heads * drafter.head_dim * drafter.hidden_size
    stages["draft"] = item * shapes.drafter_weights(drafter) - fusion + batch * step.context * draft_row(models, item)
    stages["commit"] = fusion + injected
    if step.method == "tfm":
        rounds = len(Rounds.of(step.nodes - 1, step.width).starts)
        row = weaver.width if step.folds else weaver.target_width
        matrix = item * weaver.target_width * weaver.width
        call = item * shapes.weaver_weights(weaver) - (2 * matrix if step.folds else 0)
        scored = step.width if step.by_kernels else step.depth
        stages["grow"] = rounds * (call + batch * scored * step.pool * row * item)
    else:
        stages["grow"] = batch * step.depth * target.vocab_size * item
    return stages


def memory_bytes(models: Shapes, weights: int, step: StepShape) -> dict[str, int]:
    """What a configuration allocates, by name; ``weights`` are those of all models.

    Workspaces are those of the largest tensors that are alive at once, for the recording of the whole step and for
    those of its stages.
    """
    target, drafter, weaver = models
    batch, item, capacity = step.batch, step.item, padded(step.capacity)
    rows = 16 * (step.depth // 16 + 1)
    layers = shapes.delta_net_layers(target)
    parts = {"weights": weights, "key/value cache": batch * capacity * cache_row(models, item)}
    layout = target.delta_net
    if layout is not None:
        keys, values = layout.key_heads * layout.key_dim, layout.value_heads * layout.value_dim
        states = layers * shapes.state_bytes(target)
        parts["memories"] = batch * (
            states + layers * item * (layout.convolution_width - 1) * layout.convolution_channels
        )
        if step.method != "ar":
            stash = layers * (
                step.nodes * (item * (layout.convolution_channels + keys) + STATE_BYTES * values)
                + 2 * STATE_BYTES * step.nodes * layout.value_heads
            )
            pending = layers * rows * (item * keys + STATE_BYTES * values)
            parts["tree writes"] = batch * (stash + 2 * pending)
        if step.keeps_states:
            parts["a state per node"] = batch * step.nodes * states
        parts["copy of the memories"] = parts["memories"]
    widest = max(3 * target.intermediate_size, 4 * target.hidden_size)
    mask = step.nodes * (target.attention_heads // target.key_value_heads) * capacity * item
    scores = step.nodes * target.attention_heads * capacity * (2 * item + 4)
    logits = step.nodes * target.vocab_size * item
    if step.method != "ar":
        parts["drafter context"] = batch * capacity * draft_row(models, item)
        logits += (step.depth + 1) * target.vocab_size * (2 * item + 4)
        mask += 16 * (drafter.attention_heads // drafter.key_value_heads) * capacity * item
    if step.method == "tfm":
        row = weaver.width if step.folds else weaver.target_width
        logits += 0 if step.by_kernels else step.depth * step.pool * row * item
        if step.folds:
            parts["tables of the Weaver"] = 2 * item * target.vocab_size * weaver.width
    parts["workspaces"] = 2 * batch * (logits + 2 * mask + scores + step.nodes * widest * item)
    return parts


def cache_row(models: Shapes, item: int) -> int:
    """Bytes of one token in the target's caches."""
    target = models.target
    attention = sum(kind == FULL_ATTENTION for kind in target.layer_types)
    return item * attention * 2 * target.key_value_heads * target.head_dim


def draft_row(models: Shapes, item: int) -> int:
    """Bytes of one token in the drafter's context."""
    drafter = models.drafter
    return item * drafter.layers * 2 * drafter.key_value_heads * drafter.head_dim


def shortage(parts: dict[str, int], free: int) -> str:
    """A sentence if this does not fit; empty if it does."""
    needed = sum(parts.values())
    if needed <= free:
        return ""
    largest = sorted(parts, key=parts.__getitem__, reverse=True)[:3]
    named = ", ".join(f"{name} {parts[name] / 1e9:.1f}" for name in largest)
    return f"needs about {needed / 1e9:.1f} GB ({named} GB), and {free / 1e9:.1f} GB are free"
