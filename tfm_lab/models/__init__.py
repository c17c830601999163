"""Target, drafter and Weaver: readable PyTorch that reads ordinary Hugging Face checkpoint folders."""

from tfm_lab.models.autoregressive import AutoregressiveDrafter, AutoregressiveSession
from tfm_lab.models.checkpoint import (
    load_autoregressive,
    load_drafter,
    load_target,
    load_weaver,
    save_autoregressive,
    save_drafter,
    save_target,
    save_weaver,
)
from tfm_lab.models.config import DeltaNetConfig, DrafterConfig, TargetConfig, WeaverConfig, evenly_spaced_taps
from tfm_lab.models.context_drafter import DraftContext
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.state import PendingWrites, TargetState
from tfm_lab.models.target import Prefilled, TargetModel, TreeOutputs
from tfm_lab.models.weaver import Weaver, WeaverSession

__all__ = [
    "AutoregressiveDrafter",
    "AutoregressiveSession",
    "DeltaNetConfig",
    "DraftContext",
    "DrafterConfig",
    "FactorisedDrafter",
    "PendingWrites",
    "Prefilled",
    "TargetConfig",
    "TargetModel",
    "TargetState",
    "TreeOutputs",
    "Weaver",
    "WeaverConfig",
    "WeaverSession",
    "evenly_spaced_taps",
    "load_autoregressive",
    "load_drafter",
    "load_target",
    "load_weaver",
    "save_autoregressive",
    "save_drafter",
    "save_target",
    "save_weaver",
]
