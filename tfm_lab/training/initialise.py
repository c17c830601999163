"""Starting weights."""

import math
from dataclasses import replace

import torch
from torch import nn

from tfm_lab.models.autoregressive import AutoregressiveDrafter
from tfm_lab.models.config import DrafterConfig, TargetConfig, WeaverConfig
from tfm_lab.models.context_drafter import ContextDrafter
from tfm_lab.models.delta_net import GatedDeltaNet
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver, WeaverBlock

DEPTH_SCALED = ("o_proj.weight", "down_proj.weight", "out_proj.weight")
SHORTEST_STEP, LONGEST_STEP = 1e-3, 1e-1


def new_target(config: TargetConfig, seed: int) -> TargetModel:
    """A fresh target: normal weights of 0.02, residual outputs scaled down by depth, memories of many lengths.

    The decay gates start with time steps spread log-uniformly over [1e-3, 1e-1] and rates over [1, 16], so that some
    heads remember hundreds of tokens from the first step on (2412.06464 keeps this scheme from Mamba-2).
    """
    generator = torch.Generator().manual_seed(seed)
    model = TargetModel(config)
    _normal_matrices(model, generator, residual_branches=2 * config.layers)
    for module in model.modules():
        if isinstance(module, GatedDeltaNet):
            heads = module.A_log.numel()
            with torch.no_grad():
                module.A_log.copy_(torch.empty(heads).uniform_(1.0, 16.0, generator=generator).log())
                low, high = math.log(SHORTEST_STEP), math.log(LONGEST_STEP)
                step = torch.empty(heads).uniform_(low, high, generator=generator).exp()
                module.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus(dt_bias) == step
                module.conv1d.weight.uniform_(-0.5, 0.5, generator=generator)
    return model


def new_drafter(config: DrafterConfig, target: TargetModel, seed: int) -> FactorisedDrafter:
    """A fresh drafter whose final norm starts as the target's, so that its hidden states suit the shared head."""
    model = FactorisedDrafter(config)
    _start_drafter(model, target, seed)
    return model


def new_autoregressive(config: DrafterConfig, target: TargetModel, seed: int) -> AutoregressiveDrafter:
    """A fresh autoregressive drafter, its final norm as that of :func:`new_drafter`."""
    model = AutoregressiveDrafter(config)
    _start_drafter(model, target, seed)
    return model


def new_weaver(config: WeaverConfig, target: TargetModel, seed: int) -> Weaver:
    """A fresh Weaver with a zero read-out: it starts as the bare marginals."""
    generator = torch.Generator().manual_seed(seed)
    model = Weaver(config)
    model.check_target(target)
    _normal_matrices(model, generator, residual_branches=2 * config.layers)
    with torch.no_grad():
        model.lm_head_query_in.weight.zero_()
        if model.pos_emb is not None:
            model.pos_emb.normal_(0.0, 0.02, generator=generator)
    return model


@torch.no_grad()
def take_over(model: Weaver, known: Weaver) -> bool:
    """Give a fresh Weaver the weights of one that has perhaps fewer blocks, or sees no temperatures.

    Blocks beyond those start with outputs of zero and offsets for temperatures as zero, so that both say the same.

    Returns:
        False, with nothing done, if the shapes differ in any other way.
    """
    blocks, sees = min(known.config.layers, model.config.layers), model.config.sees_temperature
    if replace(known.config, layers=blocks, sees_temperature=sees) != replace(model.config, layers=blocks):
        return False
    if known.config.layers > model.config.layers or (known.config.sees_temperature and not sees):
        return False
    model.load_state_dict(known.state_dict(), strict=False)
    for block in list(model.blocks)[blocks:]:
        assert isinstance(block, WeaverBlock)
        for output in (block.o_proj.weight, block.fc2.weight, block.fc2.bias):
            output.zero_()
    return True


def _start_drafter(model: ContextDrafter, target: TargetModel, seed: int) -> None:
    model.check_target(target)
    _normal_matrices(model, torch.Generator().manual_seed(seed), residual_branches=2 * model.config.layers)
    with torch.no_grad():
        norm = target.model.norm
        model.norm.weight.copy_(norm.weight.float() + (1.0 if norm.zero_centred else 0.0))


def _normal_matrices(model: nn.Module, generator: torch.Generator, residual_branches: int) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                scale = 0.02 / math.sqrt(residual_branches) if name.endswith(DEPTH_SCALED) else 0.02
                parameter.normal_(0.0, scale, generator=generator)
            elif name.endswith(".bias"):
                parameter.zero_()
