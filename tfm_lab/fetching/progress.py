"""How a fetch says what it is doing."""

from collections.abc import Callable

Tell = Callable[[str], None]
"""Takes a short line for the reader, for example ``downloading flexeval 0.18.3 (0.4 MB)``."""


def silent(_: str) -> None:
    """Say nothing."""


def megabytes(count: int) -> str:
    """``93 MB``; one decimal below ten.

    >>> megabytes(92_871_040), megabytes(428_857)
    ('93 MB', '0.4 MB')
    """
    size = count / 1e6
    return f"{size:.0f} MB" if size >= 10 else f"{size:.1f} MB"
