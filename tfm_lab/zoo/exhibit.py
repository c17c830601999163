"""What an exhibit is: a wrong piece of code, the right one in its place, and the tool that tells them apart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Code = TypeVar("Code")
"""Whatever an exhibit gets wrong: a pair of builder and rule, a commit, a benchmark."""

Points = Mapping[str, float] | Mapping[float, float]


class Measurement(NamedTuple):
    """What an evidence tool says about one piece of code.

    Attributes:
        error: the figure of merit: 0 is perfect, the larger the worse.
        points: what the symptom plot shows of this code, x to y; x is a name or a number.
        truth: what these points should be, where the tool knows it.
    """

    error: float
    points: Points
    truth: Points | None = None


class Series(NamedTuple):
    """One curve of a symptom plot: ``truth``, ``right`` or ``wrong``."""

    name: str
    x: tuple[str | float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The wrong and the right code under the same tool.

    Attributes:
        figure_of_merit: what the tool measures.
        wrong, right: its value for either code.
        tolerance: the most that correct code may show, rounding included.
        threshold: the least that counts as a catch.
        series: for the symptom plot.
    """

    figure_of_merit: str
    wrong: float
    right: float
    tolerance: float
    threshold: float
    series: tuple[Series, ...] = ()

    @property
    def is_caught(self) -> bool:
        """The tool raises the alarm on the wrong code, and only on that."""
        return self.wrong > self.threshold and self.right <= self.tolerance


@dataclass(frozen=True, slots=True)
class Exhibit(Generic[Code]):
    """One bug of the zoo.

    Attributes:
        number: its place in the zoo, from 1.
        name: its key in ``EXHIBITS``.
        title: for headings.
        symptom: what a user sees.
        cause: which line is wrong, and why.
        fix: what to write in its place.
        threads: public threads in which it, or the question behind it, came up.
        wrong, right: the two pieces of code; ``tool`` takes either.
        tool: the evidence tool; deterministic, no clock, no sampling.
        figure_of_merit, tolerance, threshold: as in :class:`Evidence`.
        x_title, y_title: axes of the symptom plot.
        needs: package without which there is no evidence; empty if it needs none.
    """

    number: int
    name: str
    title: str
    symptom: str
    cause: str
    fix: str
    threads: tuple[str, ...]
    wrong: Code
    right: Code
    tool: Callable[[Code], Measurement] = field(repr=False)
    figure_of_merit: str
    tolerance: float
    threshold: float
    x_title: str
    y_title: str
    needs: str = ""

    def evidence(self) -> Evidence:
        """Both codes under the tool; the truth of the plot is taken from the right code's measurement.

        Raises:
            ModuleNotFoundError: if the package that the tool needs is not installed.
        """
        wrong, right = self.tool(self.wrong), self.tool(self.right)
        curves = {"truth": right.truth, "right": right.points, "wrong": wrong.points}
        series = tuple(
            Series(name, tuple(points), tuple(points.values())) for name, points in curves.items() if points is not None
        )
        return Evidence(self.figure_of_merit, wrong.error, right.error, self.tolerance, self.threshold, series)
