"""Solutions of notebook 10 where the package has the same thing in another form; tests hold them against it."""

from collections.abc import Mapping

from tfm_lab.planning import break_even_mal, tokens_per_second


def break_even(
    baseline_mal: float, baseline_ms: float, step_ms: float, layers: int, fused_us: float, other_us: float
) -> tuple[float, float]:
    """MAL at which a tree is as fast as a baseline, with the fused kernel and with the other one in its place.

    Args:
        baseline_mal, baseline_ms: MAL and step length of the baseline.
        step_ms: step length of the tree with the fused kernel.
        layers: Gated DeltaNet layers, each of which runs the kernel once per step.
        fused_us, other_us: microseconds per layer of the two kernels.
    """
    other_ms = step_ms + layers * (other_us - fused_us) / 1000.0
    with_fused, with_other = (break_even_mal(step, baseline_ms, baseline_mal) for step in (step_ms, other_ms))
    return with_fused, with_other


def choose_budget(mal: Mapping[int, float], step_ms: Mapping[int, float], plain_ms: float) -> int:
    """The budget with the most tokens per second, of equal ones the smallest; 0 if plain decoding is at least as fast.

    Args:
        mal, step_ms: MAL and step length by budget.
        plain_ms: length of a plain step, which emits one token.
    """
    speeds = {0: tokens_per_second(1.0, plain_ms)}
    speeds |= {budget: tokens_per_second(mal[budget], step_ms[budget]) for budget in mal}
    return min(speeds, key=lambda budget: (-speeds[budget], budget))
