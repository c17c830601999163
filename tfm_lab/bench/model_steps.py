"""One configuration of a full-size step: whole, by stage, and by what the target spends its time on."""

import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tfm_lab.bench.kernel_cases import error_ratio
from tfm_lab.bench.model_bytes import StepShape, memory_bytes, shortage, stage_bytes
from tfm_lab.bench.model_clock import Clock, Milliseconds, Run
from tfm_lab.bench.model_peers import recurrent_builder
from tfm_lab.bench.model_weights import fill_context
from tfm_lab.drafting.types import TreeConfig
from tfm_lab.engine import Engine, EngineConfig, EngineModels, Snapshot
from tfm_lab.engine.attention import Visible, attention_kinds, padded, products_attention, tree_mask
from tfm_lab.engine.memories import PlainMemories
from tfm_lab.engine.target_rows import fuse_layer
from tfm_lab.models.target import DecoderLayer
from tfm_lab.planning.shapes import Shapes

RECURRENT = "recurrent"
"""Verification that writes a state per node, in place of a name that the engine knows."""

ATTENTION_BOUND = 1e-2
"""Largest error ratio of an attention implementation that may be chosen; bfloat16 alone costs 3e-3."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is measured.

    Attributes:
        method: of the engine.
        budget: proposed nodes; 0 for plain decoding.
        batch: texts side by side.
        context: committed tokens of every text.
        gdn: ``triton``, ``masked`` or ``recurrent``.
    """

    method: str
    budget: int
    batch: int
    context: int
    gdn: str

    @property
    def key(self) -> str:
        """Identifies the configuration in a file of results."""
        return f"{self.method} B={self.budget} batch={self.batch} context={self.context} gdn={self.gdn}"


@dataclass(frozen=True, slots=True)
class Settings:
    """What all configurations of a run share.

    Attributes:
        repeats: timed runs.
        accepted: drafts that every timed step is told to accept.
        children: most children of a node.
        width: nodes per call of the Weaver; the published rule, a sixteenth of the budget, if ``None``.
        folds: whether the Weaver's products with all tokens are tables.
        compiles: whether what stands between the products is fused.
        room: tokens that a text may grow by.
        weaving: ``torch`` or ``triton``: what scores a Weaver's candidates and grows its trees.
    """

    repeats: int = 20
    accepted: int = 4
    children: int = 8
    width: int | None = None
    folds: bool = False
    compiles: bool = False
    room: int = 512
    weaving: str = "torch"


class Built(NamedTuple):
    """An engine that stands at the end of a random context, and how its attention is computed."""

    engine: Engine
    step: StepShape
    attention: str
    draft_attention: str


def step_shape(models: EngineModels, configuration: Configuration, settings: Settings) -> StepShape:
    """What the bytes of this configuration depend on."""
    config = _engine_config(configuration, settings)
    nodes, depth = config.nodes(models), config.depth(models)
    pool = min(config.tree.pool_size, models.target.config.vocab_size)
    return StepShape(
        configuration.method,
        nodes,
        depth,
        configuration.batch,
        configuration.context,
        config.capacity,
        width=config.tree.expand_width,
        pool=pool,
        item=models.target.dtype.itemsize,
        folds=settings.folds,
        by_kernels=settings.weaving == "triton",
        keeps_states=configuration.gdn == RECURRENT,
    )


def build(
    models: EngineModels, shapes: Shapes, configuration: Configuration, settings: Settings, clock: Clock
) -> Built:
    """The engine of a configuration.

    Raises:
        ValueError: if it would not fit into memory (nothing was allocated then), or cannot run.
    """
    step = step_shape(models, configuration, settings)
    parts = memory_bytes(shapes, 0, step)
    if refusal := shortage(parts, clock.free()):
        raise ValueError(f"{configuration.key} {refusal}")
    config = _engine_config(configuration, settings)
    target, drafter = shapes.target, shapes.drafter
    attention = choose_attention(
        clock, models.target, configuration.batch, step.nodes, step.capacity, target.attention_heads,
        target.key_value_heads, target.head_dim,
    )  # fmt: skip
    draft_attention = attention
    if configuration.method != "ar":
        draft_attention = choose_attention(
            clock, models.target, configuration.batch, drafter.block_size, step.capacity, drafter.attention_heads,
            drafter.key_value_heads, drafter.head_dim,
        )  # fmt: skip
    config = replace(config, attention=attention, draft_attention=draft_attention)
    builder = None
    if configuration.gdn == RECURRENT and target.delta_net is not None:
        builder = recurrent_builder(target.delta_net, models.target.dtype, models.target.device)
    engine = Engine(models, config, builder)
    fill_context(engine, configuration.context)
    return Built(engine, step, attention, draft_attention)


def measure_step(
    models: EngineModels, shapes: Shapes, configuration: Configuration, settings: Settings, clock: Clock
) -> dict[str, Any]:
    """Times, bytes and memory of one configuration as a plain record; only a ``refusal`` if it cannot run."""
    record: dict[str, Any] = {"kind": "step", "key": configuration.key, **asdict(configuration)}
    clock.peak()
    try:
        built = build(models, shapes, configuration, settings, clock)
        return record | _measured(built, shapes, settings, clock)
    except Exception as error:  # whatever a device or a foreign kernel raises: one configuration, not the run
        return record | refused(error)


def refused(error: Exception) -> dict[str, str]:
    """Why a configuration has no figures: the first line of the error, and where in this project."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if "tfm_" in frame.filename), frames[-1])
    sentence = str(error).strip().split("\n")[0] or type(error).__name__
    return {"refusal": sentence, "error": type(error).__name__, "where": f"{Path(frame.filename).name}:{frame.lineno}"}


def _measured(built: Built, shapes: Shapes, settings: Settings, clock: Clock) -> dict[str, Any]:
    engine = built.engine
    engine.schedule.fill_(settings.accepted)
    place = Snapshot(engine)
    whole = clock.record(engine.step, engine)
    stages: dict[str, Run] = {}
    for name, run in engine.stages.items():
        stages[name] = clock.record(run, engine)
        stages[name]()  # what it leaves is what the next one reads
    place.restore()
    parts = {name: clock.record(run, engine) for name, run in target_parts(engine).items()}
    seconds: dict[str, list[float]] = {name: [] for name in ("step", *stages, *parts)}
    for _ in range(settings.repeats):
        seconds["step"].append(clock.seconds(whole))
        place.restore()
        for name, run in stages.items():
            seconds[name].append(clock.seconds(run))
        place.restore()
        for name, run in parts.items():
            seconds[name].append(clock.seconds(run))
        place.restore()
    times = {name: Milliseconds.of(measured)._asdict() for name, measured in seconds.items()}
    bytes_needed = memory_bytes(shapes, 0, built.step)
    return {
        "rows": built.step.nodes * built.step.batch,
        "step_ms": times.pop("step"),
        "parts_ms": {name: times.pop(name) for name in parts},
        "stages_ms": times,
        "bytes": stage_bytes(shapes, built.step),
        "foreseen_bytes": sum(bytes_needed.values()),
        "peak_bytes": clock.peak(),
        "attention": built.attention,
        "draft_attention": built.draft_attention,
        "fused": engine.fusing.compiles,
        "not_fused": engine.fusing.failures,
    }


def target_parts(engine: Engine) -> dict[str, Run]:
    """What the target's pass consists of, each kind of work on its own for all layers: where its time goes.

    The memories' part holds verification and commit, the products' part every matrix and the head.
    """
    rows, config = engine.rows, engine.config
    assert engine.tree is not None
    target, width = rows.target, rows.config.hidden_size
    x = torch.randn(config.batch, engine.nodes, width, device=target.device).to(target.dtype)
    projected = {part: F.linear(x, rows.inputs[index]) for part, index in _first_layers(engine).items()}
    parts: dict[str, Run] = {"products": lambda: _products(engine, x)}
    if "memory" in projected and rows.memories is not None:
        parts["memories"] = lambda: _memories(engine, projected["memory"])
    if "attention" in projected:
        heads = rows.config.key_value_heads
        query = torch.randn(config.batch, heads, rows.groups * engine.nodes, rows.config.head_dim, device=target.device)
        query = query.to(target.dtype)
        parts["attention"] = lambda: _attention(engine, query)
    return parts


def weight_sweep(models: EngineModels, only: str = "") -> Callable[[], None]:
    """Reads every matrix of the target once and does nothing else: the floor of a step.

    Args:
        only: ``head`` for the output head alone, one large matrix: what the memory can give at best.
    """
    words = [matrix.view(-1).view(torch.int32) for matrix in _matrices(models, only)]

    def sweep() -> None:
        for part in words:
            part.amax()

    return sweep


def sweep_bytes(models: EngineModels, only: str = "") -> int:
    """Bytes that :func:`weight_sweep` reads."""
    return sum(matrix.nbytes for matrix in _matrices(models, only))


def _matrices(models: EngineModels, only: str) -> list[Tensor]:
    """The target's matrices as the engine multiplies with them: fused where they share an input."""
    target, matrices = models.target, []
    for layer in target.model.layers if only != "head" else ():
        assert isinstance(layer, DecoderLayer)
        mixer = layer.linear_attn.out_proj if layer.is_linear else layer.self_attn.o_proj
        matrices += [*fuse_layer(layer), mixer.weight.detach(), layer.mlp.down_proj.weight.detach()]
    return [*matrices, target.head_weight.detach()]


def choose_attention(
    clock: Clock, like: Any, batch: int, rows: int, capacity: int, heads: int, shared: int, size: int
) -> str:
    """The fastest attention for these shapes that is right here; a fused one where nothing is timed (CPU).

    Raises:
        ValueError: if none is.
    """
    if clock.device == "cpu":
        return "fused"
    shape = (batch, rows, padded(capacity), heads, shared, size)
    if shape in clock.choices:
        return clock.choices[shape]
    device, dtype, grouped, capacity = like.device, like.dtype, rows * heads // shared, padded(capacity)
    query = torch.randn(batch, shared, grouped, size, device=device).to(dtype)
    key, value = (torch.randn(batch, capacity, shared, size, device=device).to(dtype) for _ in range(2))
    own = torch.ones(batch, rows, rows, dtype=torch.bool, device=device).tril()
    length = torch.full((batch,), capacity - capacity // 3 - rows, device=device).clamp_min(0)
    mask = tree_mask(length, own, capacity, heads // shared, dtype)
    visible, first = Visible(length, own, mask), Visible(length[:1], own[:1], mask[:1].float())
    exact = products_attention(query[:1].float(), key[:1].float(), value[:1].float(), first).double().cpu()
    best, least = "", float("inf")
    for name, attend in attention_kinds(capacity).items():
        try:
            if not error_ratio(exact, attend(query, key, value, visible)[:1]) <= ATTENTION_BOUND:
                continue
            run = clock.record(partial(_discarded, attend, query, key, value, visible))
        except Exception:  # a kernel that does not take these shapes here is no candidate
            continue
        seconds = min(clock.seconds(run) for _ in range(5))
        if seconds < least:
            best, least = name, seconds
    if not best:
        raise ValueError("no attention implementation is right for these shapes on this device")
    clock.choices[shape] = best
    return best


def _discarded(function: Callable[..., Tensor], *arguments: object) -> None:
    """Call for its time alone."""
    function(*arguments)


def _engine_config(configuration: Configuration, settings: Settings) -> EngineConfig:
    budget = configuration.budget
    tree = TreeConfig(budget=budget, children=settings.children, width=settings.width)
    return EngineConfig(
        configuration.method,
        tree,
        configuration.batch,
        padded(configuration.context + settings.room + max(16, budget + 1)),
        gdn="masked" if configuration.gdn == RECURRENT else configuration.gdn,
        folds=settings.folds,
        weaving=settings.weaving,
        compiles=settings.compiles,
    )


def _first_layers(engine: Engine) -> dict[str, int]:
    """Index of the first layer with a memory, and of the first with attention."""
    kinds = ["memory" if layer.is_linear else "attention" for layer in engine.rows.layers]
    return {kind: kinds.index(kind) for kind in dict.fromkeys(kinds)}


def _products(engine: Engine, x: Tensor) -> None:
    rows = engine.rows
    for layer, inputs, ups in zip(rows.layers, rows.inputs, rows.ups, strict=True):
        mixer = layer.linear_attn.out_proj if layer.is_linear else layer.self_attn.o_proj
        mixer(F.linear(x, inputs)[..., : mixer.in_features])
        layer.mlp.down_proj(F.linear(x, ups)[..., : layer.mlp.down_proj.in_features])
    rows.target.logits(x)


def _memories(engine: Engine, projected: Tensor) -> None:
    rows, memory = engine.rows, 0
    assert rows.memories is not None
    for layer in rows.layers:
        if layer.is_linear:
            config = layer.linear_attn.config
            heads = config.value_heads
            sizes = [config.convolution_channels, heads * config.value_dim, heads, heads]
            inputs, _, b, a = projected.split(sizes, dim=-1)
            rows.memories.mix(memory, layer.linear_attn, inputs, a, b)
            memory += 1
    if engine.walk is not None and not isinstance(rows.memories, PlainMemories):
        rows.memories.commit(engine.walk)


def _attention(engine: Engine, query: Tensor) -> None:
    assert engine.visible is not None
    for cache in engine.rows.cache:
        engine.rows.attend(query, cache[0], cache[1], engine.visible)
