"""Plotly figures of an evaluation, made by pure functions."""

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from tfm_lab.evaluation.best_trees import BEST, BestTrees
from tfm_lab.evaluation.ceiling import AUTOREGRESSIVE, DRAFTER, ORACLE, POINT, POOL, WEAVER, Ceiling
from tfm_lab.evaluation.statistics import Bounded
from tfm_lab.evaluation.summary import ALL, Summary
from tfm_lab.methods import ALL_METHODS

INK = "#1f2328"
BLUE, ORANGE, GREEN, PURPLE, GREY, SKY, YELLOW, PINK = (
    "#0072B2",
    "#D55E00",
    "#007F5F",
    "#A8509D",
    "#6b7280",
    "#56B4E9",
    "#B58900",
    "#CC79A7",
)
METHOD_COLOURS = {"ar": GREY, "chain": BLUE, "ddtree": ORANGE, "tfm": GREEN, "dyspec": PURPLE}
METHOD_COLOURS |= {"ranked": PINK, "ard-chain": SKY, "ard-tree": YELLOW, "ard-dyspec": GREY, BEST: INK}
CEILING_COLOURS = {ORACLE: ORANGE, POINT: YELLOW, DRAFTER: BLUE, WEAVER: GREEN, POOL: GREY, AUTOREGRESSIVE: SKY}
DASHES, SYMBOLS = ("solid", "dash", "dot", "dashdot"), ("circle", "square", "diamond", "cross")
PATTERNS = ("", "/", "x", ".")
LAYOUT: dict[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"size": 13, "color": INK},
    "margin": {"l": 60, "r": 20, "t": 60, "b": 60},
    "height": 420,
    "legend": {"orientation": "h", "y": -0.22},
}
GRID: dict[str, Any] = {"gridcolor": "rgba(107,114,128,0.25)", "zerolinecolor": "rgba(107,114,128,0.4)"}


def budget_figure(summaries: Sequence[Summary], temperature: float) -> go.Figure:
    """MAL against budget, one curve per method and kind of tree, with 95 % intervals."""
    figure = _figure(f"Mean accepted length at temperature {temperature:g}", "tree budget", "MAL, bonus included")
    chosen = [s for s in summaries if s.setting.temperature == temperature and s.setting.budget]
    labels = _labels(chosen)
    for index, label in enumerate(labels):
        curve = sorted((s for s in chosen if s.setting.label == label), key=lambda s: s.setting.budget)
        aside = 1.015 ** (index - (len(labels) - 1) / 2)  # so that the intervals do not cover each other
        figure.add_scatter(
            x=[s.setting.budget * aside for s in curve],
            y=[s.interval.value for s in curve],
            error_y=_bars([s.interval for s in curve]),
            customdata=[[s.setting.budget, s.interval.low, s.interval.high] for s in curve],
            hovertemplate="B = %{customdata[0]}: %{y:.3f} (%{customdata[1]:.3f} to %{customdata[2]:.3f})",
            **_curve(curve[0].setting.method, label, index),
        )
    figure.update_xaxes(type="log", tickvals=sorted({s.setting.budget for s in chosen}))
    return figure


def depth_figure(summaries: Sequence[Summary], temperature: float) -> go.Figure:
    """Share of target calls that accepted at least d drafts, at each method's largest budget."""
    figure = _figure(f"Acceptance by depth at temperature {temperature:g}", "depth d", "calls that accepted d drafts")
    for index, summary in enumerate(_largest(summaries, temperature)):
        if summary.acceptance:
            label = f"{summary.setting.label}, B = {summary.setting.budget}"
            figure.add_scatter(
                x=list(range(1, len(summary.acceptance) + 1)),
                y=list(summary.acceptance),
                **_curve(summary.setting.method, label, index),
            )
    figure.update_yaxes(rangemode="tozero")
    return figure


def kind_figure(by_kind: Sequence[Summary], temperature: float) -> go.Figure:
    """MAL by kind of text, at each method's largest budget, with 95 % intervals."""
    figure = _figure(f"By kind of text at temperature {temperature:g}", "kind of text", "MAL, bonus included")
    largest = {s.setting for s in _largest(by_kind, temperature)}
    seen: list[str] = []
    for setting in dict.fromkeys(s.setting for s in by_kind if s.setting in largest):
        chosen = [s for s in by_kind if s.setting == setting]
        figure.add_bar(
            x=[s.kind for s in chosen],
            y=[None if math.isnan(s.interval.value) else s.interval.value for s in chosen],
            error_y=_bars([s.interval for s in chosen]),
            name=f"{setting.label}, B = {setting.budget}" if setting.budget else setting.label,
            marker_color=METHOD_COLOURS.get(setting.method, GREY),
            marker_pattern_shape=PATTERNS[seen.count(setting.method) % len(PATTERNS)],
        )
        seen.append(setting.method)
    figure.update_layout(barmode="group")
    return figure


def ceiling_figure(ceiling: Ceiling) -> go.Figure:
    """Expected acceptance by depth, with 95 % intervals over anchors."""
    figure = _figure("The ceiling of factorised drafting (temperature 1)", "depth", "expected acceptance")
    columns = ceiling.figures()
    for index, (name, column) in enumerate(columns.items()):
        aside = 0.06 * (index - (len(columns) - 1) / 2)
        line = {"color": CEILING_COLOURS[name], "dash": "dot" if name in (ORACLE, POINT, POOL) else "solid"}
        figure.add_scatter(
            x=[depth + aside for depth in range(1, len(column) + 1)],
            y=[bounded.value for bounded in column],
            error_y=_bars(column),
            customdata=[[depth, *bounded[1:]] for depth, bounded in enumerate(column, start=1)],
            hovertemplate="depth %{customdata[0]}: %{y:.3f} (%{customdata[1]:.3f} to %{customdata[2]:.3f})",
            mode="lines+markers",
            name=name,
            line=line,
            marker={"symbol": SYMBOLS[index % 4]},
        )
    figure.update_yaxes(range=[0, 1.02])
    return figure


def best_tree_figure(found: BestTrees) -> go.Figure:
    """Expected tokens of one step against budget, one curve per kind of tree, with 95 % intervals over anchors."""
    figure = _figure("The best tree of B nodes (temperature 1)", "tree budget", "expected tokens of a step")
    chosen = [entry for entry in found.yields() if entry.kind == ALL]
    labels = list(dict.fromkeys(entry.setting.label for entry in chosen))
    for index, label in enumerate(labels):
        curve = [entry for entry in chosen if entry.setting.label == label]
        aside = 1.015 ** (index - (len(labels) - 1) / 2)
        figure.add_scatter(
            x=[entry.setting.budget * aside for entry in curve],
            y=[entry.tokens.value for entry in curve],
            error_y=_bars([entry.tokens for entry in curve]),
            customdata=[[entry.setting.budget, entry.tokens.low, entry.tokens.high] for entry in curve],
            hovertemplate="B = %{customdata[0]}: %{y:.3f} (%{customdata[1]:.3f} to %{customdata[2]:.3f})",
            **_curve(curve[0].setting.method, label, index),
        )
    figure.update_xaxes(type="log", tickvals=sorted({entry.setting.budget for entry in chosen}))
    return figure


def _largest(summaries: Sequence[Summary], temperature: float) -> list[Summary]:
    """The summaries of every label's largest budget, in the order of the methods."""
    chosen = [s for s in summaries if s.setting.temperature == temperature]
    most = {label: max(s.setting.budget for s in chosen if s.setting.label == label) for label in _labels(chosen)}
    return [s for label in most for s in chosen if s.setting.label == label and s.setting.budget == most[label]]


def _labels(summaries: Sequence[Summary]) -> list[str]:
    order = ["ar", *ALL_METHODS]
    found = dict.fromkeys((order.index(s.setting.method), s.setting.label) for s in summaries)
    return [label for _, label in sorted(found, key=lambda pair: pair[0])]


def _curve(method: str, name: str, index: int) -> dict[str, Any]:
    """Colour by method; dash and symbol tell apart what colour alone may not."""
    line = {"color": METHOD_COLOURS.get(method, GREY), "dash": DASHES[index % 4]}
    return {"mode": "lines+markers", "name": name, "line": line, "marker": {"symbol": SYMBOLS[index % 4], "size": 8}}


def _bars(figures: Sequence[Bounded]) -> dict[str, Any]:
    known = [0.0 if math.isnan(f.low) else 1.0 for f in figures]
    above = [f.high - f.value if k else 0.0 for f, k in zip(figures, known, strict=True)]
    below = [f.value - f.low if k else 0.0 for f, k in zip(figures, known, strict=True)]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1, "width": 3}


def _figure(title: str, x_title: str, y_title: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(title=title, **LAYOUT)
    figure.update_xaxes(title=x_title, **GRID)
    figure.update_yaxes(title=y_title, **GRID)
    return figure
