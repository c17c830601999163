"""Decoding on the device: a whole step in fixed shapes, without a wait, recordable as one CUDA graph.

Same weights, same trees, same texts as :mod:`tfm_lab.decoding`, which is the one to read first.
"""

from tfm_lab.engine.capture import Snapshot, capture, record
from tfm_lab.engine.config import ENGINE_METHODS, EngineConfig, EngineModels
from tfm_lab.engine.engine import Engine

__all__ = ["ENGINE_METHODS", "Engine", "EngineConfig", "EngineModels", "Snapshot", "capture", "record"]
