"""Small random drafters and Weavers for the tiny targets."""

import torch
from models.oracle import VOCABULARY, pair

from tfm_lab.models import AutoregressiveDrafter, DrafterConfig, FactorisedDrafter, TargetModel, Weaver, WeaverConfig
from tfm_lab.training.initialise import new_autoregressive, new_drafter, new_weaver

MASK = VOCABULARY - 1


def drafter_config(target: TargetModel, **changes: object) -> DrafterConfig:
    config = target.config
    shape: dict[str, object] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": 64,
        "layers": 2,
        "attention_heads": 4,
        "key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 1e4,
        "rms_norm_epsilon": 1e-6,
        "max_positions": config.max_positions,
        "target_layers": config.layers,
        "tap_layers": (0, 1),
        "mask_token": MASK,
        "block_size": 8,
    }
    return DrafterConfig(**(shape | changes))  # pyright: ignore[reportArgumentType]


def drafter_for(target: TargetModel, seed: int = 0, **changes: object) -> FactorisedDrafter:
    """A random drafter in the target's dtype, every weight away from its initial value."""
    return _perturbed(new_drafter(drafter_config(target, **changes), target, seed), target, seed)


def autoregressive_for(target: TargetModel, seed: int = 0, **changes: object) -> AutoregressiveDrafter:
    """A random autoregressive drafter in the target's dtype."""
    return _perturbed(new_autoregressive(drafter_config(target, **changes), target, seed), target, seed)


def weaver_for(target: TargetModel, seed: int = 0, **changes: object) -> Weaver:
    """A random Weaver in the target's dtype, its read-out away from zero."""
    shape: dict[str, object] = {"width": 32, "layers": 1, "attention_heads": 2, "mlp_width": 24, "max_depth": 7}
    shape |= {"pool_size": 20, "target_width": target.config.hidden_size} | changes
    weaver = new_weaver(WeaverConfig(**shape), target, seed)  # pyright: ignore[reportArgumentType]
    return _perturbed(weaver, target, seed)


def tiny_target(name: str = "hybrid-grouped", dtype: torch.dtype = torch.float64) -> TargetModel:
    return pair(name, dtype).target


def _perturbed(model: torch.nn.Module, target: TargetModel, seed: int):
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.to(target.dtype).requires_grad_(False).eval()
