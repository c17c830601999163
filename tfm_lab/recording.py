"""Numbers that a notebook stands for: ``record`` shows one and marks it, the notebook runner compares it.

The mark is an output of type ``METRIC_MIME`` beside the plain text that a reader sees. The mark holds all digits of a
number, the text six.
"""

import math
import re
from dataclasses import asdict, dataclass
from typing import Literal, SupportsFloat, cast, get_args

METRIC_MIME = "application/vnd.tfm-lab.metric+json"

MetricKind = Literal["exact", "identity", "stat", "trained", "info"]
Scalar = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Metric:
    """One recorded number.

    Attributes:
        name: lower-case words, digits and underscores, joined by dots: ``mal.woven``.
        value: the number; also a truth value or a short text where the kind is exact or info.
        kind: how it is judged.
            ``exact``: equal to the expected value (floats within 1e-9).
            ``identity``: the error of something that should be zero; it stays below an upper bound.
            ``stat``: the mean of ``n`` independent samples; its z-score is judged, two-sided at 1e-6.
            ``trained``: depends on training; lies in a band or satisfies an inequality.
            ``info``: time, memory and the like; kept, never judged.
        n: number of samples behind a ``stat``, otherwise None.

    Raises:
        ValueError: if name, value, kind or n break these rules.
    """

    name: str
    value: Scalar
    kind: MetricKind
    n: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", self.name):
            raise ValueError(f"metric name {self.name!r}: use lower-case words joined by dots, such as 'mal.woven'")
        if self.kind not in get_args(MetricKind):
            raise ValueError(f"metric {self.name}: kind {self.kind!r} is none of {', '.join(get_args(MetricKind))}")
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise ValueError(f"metric {self.name}: the value is {self.value}, record a finite number")
        if self.kind not in ("exact", "info") and (isinstance(self.value, bool | str)):
            raise ValueError(f"metric {self.name}: kind {self.kind} needs a number, got {self.value!r}")
        if self.kind == "identity" and cast(float, self.value) < 0:
            raise ValueError(f"metric {self.name}: an identity records an error, which cannot be {self.value}")
        if (self.kind == "stat") != (self.n is not None):
            raise ValueError(f"metric {self.name}: give n, the number of samples, for kind stat and only there")
        if self.n is not None and self.n < 1:
            raise ValueError(f"metric {self.name}: n must be at least 1, got {self.n}")


def record(name: str, value: SupportsFloat | Scalar, kind: MetricKind = "exact", n: int | None = None) -> None:
    """Show a number below the cell and mark it for the notebook runner.

    Args:
        name: see ``Metric``.
        value: a number, truth value or text; a tensor or array of one element counts as a number.
        kind: how the runner judges it, see ``Metric``.
        n: number of independent samples, for kind ``stat`` only.

    Raises:
        ValueError: if the metric breaks a rule of ``Metric`` or the value is no single number.
    """
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import display

    metric = Metric(name, _plain(name, value), kind, n)
    shown = f"{metric.value:.6g}" if isinstance(metric.value, float) else repr(metric.value)
    text = f"metric {metric.name} = {shown}  ({kind}{f', n = {n}' if n else ''})"
    if InteractiveShell.initialized():
        display({METRIC_MIME: asdict(metric), "text/plain": text}, raw=True)
    else:
        print(text)


def _plain(name: str, value: object) -> Scalar:
    """The value as a Python scalar; tensors and numpy numbers of one element are unpacked."""
    if type(value) in (bool, int, float, str):
        return cast(Scalar, value)
    unpack = getattr(value, "item", None)
    if unpack is None:
        raise ValueError(f"metric {name}: record a number, a truth value or a text, got {type(value).__name__}")
    try:
        return unpack()
    except (RuntimeError, ValueError):
        raise ValueError(f"metric {name}: record one number, not an array of many") from None
