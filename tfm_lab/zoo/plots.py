"""The symptom plot of an exhibit: what its evidence tool sees of the wrong code, of the right one, and of the truth."""

import math
from typing import Any

import plotly.graph_objects as go

from tfm_lab.show.grouped import grouped_picture
from tfm_lab.show.picture import Picture, lines_picture
from tfm_lab.show.plots import FAINT, ON_PAPER
from tfm_lab.show.style import BLUE, GREY, ORANGE
from tfm_lab.zoo.exhibit import Evidence, Exhibit

COLOURS = {"truth": GREY, "right": BLUE, "wrong": ORANGE}
LOGARITHMIC = 1e3
"""Ratio of the largest to the smallest value from which the y axis of lines is logarithmic."""


def symptom_plot(exhibit: Exhibit[Any], evidence: Evidence | None = None) -> go.Figure:
    """Bars where x holds names, lines where it holds numbers; one trace per series of the evidence.

    Args:
        exhibit: titles and axes come from it.
        evidence: what it showed; gathered anew if it is not given.

    Raises:
        ModuleNotFoundError: if the evidence needs a package that is not installed.
    """
    evidence = evidence or exhibit.evidence()
    figure = go.Figure()
    has_names = any(isinstance(x, str) for series in evidence.series for x in series.x)
    for name, x, y in evidence.series:
        if has_names:
            figure.add_bar(x=x, y=y, name=name, marker_color=COLOURS[name])
        else:
            line = {"color": COLOURS[name], "width": 8 if name == "truth" else 2}  # right lies on truth
            figure.add_scatter(x=x, y=y, name=name, mode="lines+markers", line=line)
    values = [value for series in evidence.series for value in series.y]
    is_wide = not has_names and min(values) > 0.0 and max(values) > LOGARITHMIC * min(values)
    margin = {"l": 20, "r": 20, "t": 50, "b": 40}
    figure.update_layout(title=f"Exhibit {exhibit.number}: {exhibit.title}", height=360, margin=margin, **ON_PAPER)
    figure.update_xaxes(title=exhibit.x_title, gridcolor=FAINT, zerolinecolor=FAINT)
    figure.update_yaxes(title=exhibit.y_title, gridcolor=FAINT, zerolinecolor=FAINT)
    if is_wide:
        decades = math.log10(max(values) / min(values))
        figure.update_yaxes(type="log", exponentformat="power", dtick=math.ceil(decades / 6))
    return figure


def symptom_picture(exhibit: Exhibit[Any], evidence: Evidence | None = None) -> Picture:
    """The symptom plot with an SVG beside it, for places where plotly cannot run.

    Args and errors as :func:`symptom_plot`.
    """
    evidence = evidence or exhibit.evidence()
    title = f"Exhibit {exhibit.number}: {exhibit.title}"
    series: Any = {name: dict(zip(x, y, strict=True)) for name, x, y in evidence.series}
    if any(isinstance(x, str) for name in series for x in series[name]):
        still = grouped_picture(series, title, exhibit.x_title, exhibit.y_title, COLOURS)
    else:
        still = lines_picture(series, title, exhibit.x_title, exhibit.y_title, COLOURS)
    return Picture(still.svg, still.description, symptom_plot(exhibit, evidence))
