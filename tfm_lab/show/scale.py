"""Round numbers for axes."""

import math

SIZES = (0.2, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0)


def decades(smallest: float, largest: float) -> list[float]:
    """The numbers 1, 2 and 5 times powers of ten from just below the smallest to just above the largest value.

    Args:
        smallest, largest: positive.
    """
    first = math.floor(math.log10(smallest))
    numbers = [size * 10.0**power for power in range(first, math.ceil(math.log10(largest)) + 1) for size in (1, 2, 5)]
    start = max(index for index, number in enumerate(numbers) if number <= smallest)
    end = next((index for index, number in enumerate(numbers) if number >= largest and index > start), len(numbers) - 1)
    return numbers[start : end + 1]


def ticks(largest: float) -> list[float]:
    """At most five round numbers, evenly spaced from 0 to the largest value or just above it.

    Args:
        largest: of the values; 1 is taken where it is not positive.
    """
    largest = largest if largest > 0.0 else 1.0
    decade = 10.0 ** math.floor(math.log10(largest))
    step = next(size * decade for size in SIZES if largest <= 4 * size * decade * (1 + 1e-9))
    return [step * number for number in range(math.ceil(largest / step - 1e-9) + 1)]
