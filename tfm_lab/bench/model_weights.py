"""Models of a real shape with random weights: what a step costs does not depend on what the weights say.

Two things are set on purpose. The drafter's last norm is scaled, so that its marginals are peaked and trees grow deep,
as they do with a trained drafter. Gates of the memories are drawn so that about a third of a memory fades per token.
"""

from dataclasses import replace

import torch
from torch import nn

from tfm_lab.engine import Engine, EngineModels
from tfm_lab.engine.draft_block import fuse_draft_layer
from tfm_lab.engine.target_rows import fuse_layer
from tfm_lab.models.config import (
    FULL_ATTENTION,
    LINEAR_ATTENTION,
    DeltaNetConfig,
    DrafterConfig,
    TargetConfig,
    WeaverConfig,
)
from tfm_lab.models.context_drafter import DrafterLayer
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.layers import RMSNorm
from tfm_lab.models.target import DecoderLayer, TargetModel
from tfm_lab.models.weaver import Weaver
from tfm_lab.planning.shapes import Shapes, paper_shapes

PEAKED = 16.0
"""Standard deviation of the drafter's logits."""


def shrunk(shapes: Shapes, layers: int) -> Shapes:
    """The same shapes with the first ``layers`` layers of the target; the drafter reads as many taps as before.

    Raises:
        ValueError: if the target has fewer layers than that.
    """
    if not 1 <= layers <= shapes.target.layers:
        raise ValueError(f"this shape has {shapes.target.layers} layers: --layers takes 1 to that many, got {layers}")
    taps = len(shapes.drafter.tap_layers)
    spread = tuple(round(index * (layers - 1) / max(1, taps - 1)) for index in range(taps))
    if layers == shapes.target.layers:
        return shapes
    target = replace(shapes.target, layer_types=shapes.target.layer_types[:layers])
    return Shapes(target, replace(shapes.drafter, target_layers=layers, tap_layers=spread), shapes.weaver)


def toy_shapes() -> Shapes:
    """A shape of no model: three memories and one attention layer, small enough for any machine."""
    target = TargetConfig(
        model_type="qwen3_5_text", vocab_size=320, hidden_size=64, intermediate_size=96,
        layer_types=(*[LINEAR_ATTENTION] * 3, FULL_ATTENTION), attention_heads=4, key_value_heads=2, head_dim=16,
        rotary_dim=8, rope_theta=1e4, rms_norm_epsilon=1e-6, max_positions=65536, tie_embeddings=False,
        delta_net=DeltaNetConfig(key_heads=1, value_heads=2, key_dim=32, value_dim=32, convolution_width=4),
    )  # fmt: skip
    drafter = DrafterConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, layers=2, attention_heads=4, key_value_heads=2,
        head_dim=16, rope_theta=1e4, rms_norm_epsilon=1e-6, max_positions=65536, target_layers=4, tap_layers=(0, 3),
        mask_token=319,
    )  # fmt: skip
    return Shapes(target, drafter, WeaverConfig(target_width=64, width=32, layers=1, attention_heads=2, mlp_width=32))


SHAPES = {"qwen3.6-27b": paper_shapes, "toy": toy_shapes}
"""Name -> shapes."""


def meta_models(shapes: Shapes, dtype: torch.dtype) -> EngineModels:
    """The models without memory: parameters have shapes and nothing else."""
    with torch.device("meta"):
        models = TargetModel(shapes.target), FactorisedDrafter(shapes.drafter), Weaver(shapes.weaver)
    target, drafter, weaver = models
    for model in models:
        model.to("meta", dtype).requires_grad_(False).eval()
    return EngineModels(target, drafter, weaver)


def weight_bytes(models: EngineModels) -> int:
    """Bytes of all parameters of all models."""
    return sum(p.numel() * p.element_size() for model in models if model is not None for p in model.parameters())


@torch.no_grad()
def fill_context(engine: Engine, context: int, seed: int = 0) -> None:
    """A random past of ``context`` tokens for every text: caches, memories, hidden states, the token to go on from."""
    generator = torch.Generator(engine.length.device).manual_seed(seed)
    caches = [engine.rows.cache] if engine.block is None else [engine.rows.cache, engine.block.cache]
    for cache in caches:
        cache[:, :, :, :context].normal_(generator=generator)
    if engine.rows.memories is not None:
        engine.rows.memories.states.normal_(0.0, 0.3, generator=generator)
        engine.rows.memories.windows.normal_(generator=generator)
        engine.rows.memories.reset()
    engine.hidden.normal_(generator=generator)
    engine.text.random_(0, engine.models.target.config.vocab_size, generator=generator)
    engine.length.fill_(context)
    engine.start_length.fill_(context)
    engine.steps.zero_()


@torch.no_grad()
def random_models(shapes: Shapes, dtype: torch.dtype, device: str, seed: int = 0) -> EngineModels:
    """The models on a device, filled there; matrices are fused layer by layer, so nothing is ever held twice."""
    models = meta_models(shapes, dtype)
    target, drafter, weaver = models
    assert drafter is not None
    assert weaver is not None
    generator = torch.Generator(device).manual_seed(seed)
    for layer in target.model.layers:
        assert isinstance(layer, DecoderLayer)
        layer.to_empty(device=device)
        fuse_layer(layer)
    for layer in drafter.layers:
        assert isinstance(layer, DrafterLayer)
        layer.to_empty(device=device)
        fuse_draft_layer(layer)
    for model in models:
        assert model is not None
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.is_meta:
                    empty = nn.Parameter(torch.empty_like(parameter, device=device), requires_grad=False)
                    setattr(module, name, empty)
                _fill(name, module, getattr(module, name), generator)
    drafter.norm.weight.fill_(PEAKED)
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    return models


def _fill(name: str, module: nn.Module, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Random matrices that keep the size of what they multiply, norms of 1, gates of a usual strength."""
    if isinstance(module, RMSNorm):
        parameter.fill_(0.0 if module.zero_centred or name == "bias" else 1.0)
    elif name == "A_log":
        parameter.normal_(-1.2, 0.2, generator=generator)
    elif name == "dt_bias":
        parameter.normal_(0.0, 0.1, generator=generator)
    elif parameter.ndim >= 2:
        parameter.normal_(0.0, parameter[0].numel() ** -0.5, generator=generator)
    else:
        parameter.zero_()
