"""Acceptance theory in closed form, and toy worlds in which every expectation is exact."""

from tfm_lab.theory.ceiling import (
    DepthCeiling,
    acceptance_of,
    best_factorised,
    ceilings,
    crossover_depth,
    pool_ceiling,
)
from tfm_lab.theory.worlds import HiddenWorld, MarkovWorld, World

__all__ = [
    "DepthCeiling",
    "HiddenWorld",
    "MarkovWorld",
    "World",
    "acceptance_of",
    "best_factorised",
    "ceilings",
    "crossover_depth",
    "pool_ceiling",
]
