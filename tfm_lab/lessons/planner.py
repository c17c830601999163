"""Plan a decode for one's own hardware and model: the best budget and width, and where trees stop paying.

``PlannerState`` turns the numbers of the sliders into costs, or takes those that were fitted to measured steps, and
asks :mod:`tfm_lab.planning`; ``SpeedupPlanner`` wires it to controls. The picture is in ``planner_picture``.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, cast

import ipywidgets as widgets
import traitlets

from tfm_lab.lessons.planner_picture import PlannerView, planner_svg
from tfm_lab.planning import (
    Hardware,
    MalCurve,
    ModelCosts,
    Outcome,
    break_even_mal,
    fastest,
    fastest_by_method,
    fit_costs,
    fitted_outcomes,
    paper_costs,
    paper_hardware,
    read_full_model,
    result_curves,
    typed_curve,
)
from tfm_lab.planning.measured import KIND
from tfm_lab.planning.plans import by_batch
from tfm_lab.planning.published import KernelName
from tfm_lab.show.picture import Picture
from tfm_lab.show.stepping import stepping_buttons

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
KERNELS: tuple[KernelName, ...] = ("fused", "state per node")
BOUNDS, FITTED = "bounds", "measured"
SOURCES = (BOUNDS, FITTED)
"""Where the seconds of a step come from: bounds from the sliders, or a fit to the steps that this package measured."""
NAMES = {"ar": "plain decoding", "chain": "DFlash chain", "ddtree": "DDTree", "tfm": "TfM"}
BOUNDS_ALONE = ("bandwidth", "arithmetic", "weights", "layers", "call", "rest", "batch", "kernel")
CONTROLS = (*BOUNDS_ALONE, "source", "context", "curve", "typed")


class PlannerState(traitlets.HasTraits):
    """What the planner knows of hardware, models and accepted lengths; the defaults are those of the paper's setting.

    Traits: ``bandwidth`` in TB/s, ``arithmetic`` in TFLOP/s, ``weights`` of the target in GB, ``layers`` of Gated
    DeltaNet, ``call`` of the Weaver in microseconds, ``rest`` of a drafted step in milliseconds, ``batch``,
    ``kernel``, ``source`` of the step's seconds, ``context`` in tokens, ``curve`` (a name from the result files) and
    ``typed`` (a curve as text; it goes first). With measured steps ``context`` counts, and curve or text, and nothing
    else: device and models are those that were measured, with one request.
    """

    bandwidth = traitlets.Float(round(paper_hardware().bandwidth / 1e12, 1), min=0.05, max=20.0)
    arithmetic = traitlets.Float(paper_hardware().arithmetic / 1e12, min=1.0, max=5000.0)
    weights = traitlets.Float(round(paper_costs().weight_bytes / 1e9, 1), min=0.1, max=500.0)
    layers = traitlets.Int(paper_costs().delta_net_layers, min=0, max=200)
    call = traitlets.Float(round(paper_costs().call_seconds * 1e6), min=0.0, max=1000.0)
    rest = traitlets.Float(0.0, min=0.0, max=20.0)
    batch = traitlets.Int(1, min=1, max=BATCHES[-1])
    kernel = traitlets.Enum(KERNELS, default_value=KERNELS[0])
    source = traitlets.Enum(SOURCES, default_value=BOUNDS)
    context = traitlets.Int(CONTEXTS[0], min=CONTEXTS[0], max=CONTEXTS[-1])
    curve = traitlets.Unicode()
    typed = traitlets.Unicode("")

    def __init__(self, curves: Mapping[str, MalCurve] | None = None) -> None:
        super().__init__()
        self.curves = dict(result_curves() if curves is None else curves)
        self.curve = next(iter(self.curves))
        self.measured = read_full_model()
        self.fitted = fit_costs(self.measured.table())

    def lengths(self) -> MalCurve:
        """The typed curve if something is typed, else the chosen one.

        Raises:
            ValueError: if what is typed is no curve.
        """
        return typed_curve(self.typed) if self.typed.strip() else self.curves[self.curve]

    def hardware(self) -> Hardware:
        """The device of the sliders."""
        return Hardware(self.bandwidth * 1e12, self.arithmetic * 1e12)

    def costs(self) -> ModelCosts:
        """The paper's models, with target and drafter scaled to these weights (2 bytes and 2 operations each)."""
        paper = paper_costs()
        scale = self.weights * 1e9 / paper.weight_bytes
        return dataclasses.replace(
            paper,
            weight_bytes=paper.weight_bytes * scale,
            row_flops=paper.row_flops * scale,
            draft_bytes=paper.draft_bytes * scale,
            draft_row_flops=paper.draft_row_flops * scale,
            delta_net_layers=self.layers,
            call_seconds=self.call * 1e-6,
            rest_seconds=self.rest * 1e-3,
        )

    def found(self) -> list[Outcome]:
        """Every plan at this batch size, or at this context for one request."""
        return self._table([self._column()])[self._column()]

    def view(self) -> PlannerView:
        """What the picture shows: the best plan of each method, and TfM's speed for every budget and column."""
        table = self._table(sorted({*(CONTEXTS if self.source == FITTED else BATCHES), self._column()}))
        best = {NAMES[method]: item for method, item in fastest_by_method(self.found()).items()}
        cells: dict[int, dict[int, Outcome]] = {}
        for column, items in table.items():
            for budget in sorted({item.plan.budget for item in items if item.plan.method == "tfm"}):
                mine = [item for item in items if item.plan.method == "tfm" and item.plan.budget == budget]
                cells.setdefault(budget, {})[column] = fastest(mine)
        chain = {
            column: fastest([item for item in items if item.plan.method in ("chain", "ar")]).speedup
            for column, items in table.items()
        }
        words = ("weights", "batch size", "best w")
        if self.source == FITTED:
            words = ("step without rows", "context", "w = ⌈B / 16⌉")
        return PlannerView(best, cells, chain, self._column(), *words, self._setting(), self.describe())

    def _column(self) -> int:
        return self.context if self.source == FITTED else self.batch

    def _setting(self) -> str:
        return f"{self.context} tokens of context" if self.source == FITTED else f"batch {self.batch}"

    def _table(self, columns: Sequence[int]) -> Mapping[int, list[Outcome]]:
        """Column -> all plans: contexts with measured steps, else batch sizes."""
        if self.source == FITTED:
            return {column: fitted_outcomes(self.lengths(), self.fitted, column) for column in columns}
        return by_batch(self.lengths(), self.hardware(), self.costs(), columns, cast(KernelName, self.kernel))

    def describe(self) -> str:
        """The advice in words; what is wrong with the typed curve if it is none."""
        try:
            curve = self.lengths()
        except ValueError as error:
            return str(error)
        best = fastest(self.found())
        by_method = fastest_by_method(self.found())
        plan, plain = best.plan, by_method["ar"]
        width = f", w = {plan.width}" if plan.width else ""
        chosen = NAMES[plan.method] + (f" with B = {plan.budget}{width}" if plan.budget else "")
        origin = f"kernel: {self.kernel}"
        if self.source == FITTED:
            origin = f"one request, fitted to steps measured on one {self.measured.device} ({KIND})"
        words = [
            f"{curve.name}, {self._setting()}, {origin}. Best: {chosen}, {best.speedup:.2f} times plain "
            f"decoding ({1e3 * best.step.total:.1f} ms a step, {best.tokens_per_second:.0f} tokens/s in all)."
        ]
        if "tfm" in by_method:
            tree = by_method["tfm"]
            words.append(
                f"The best TfM tree needs a MAL of {break_even_mal(tree.step.total, plain.step.total):.2f} to match "
                f"plain decoding and has {tree.mal:.2f}."
            )
        return " ".join(words)


class SpeedupPlanner(widgets.VBox):
    """Controls over picture and advice; elsewhere the SVG of the present plan."""

    def __init__(self, state: PlannerState) -> None:
        self.state = state
        self._controls: dict[str, Any] = {
            "bandwidth": _slider("TB/s", state.bandwidth, 0.05, 20.0, 0.05, ".2f"),
            "arithmetic": _slider("TFLOP/s", state.arithmetic, 1.0, 5000.0, 1.0, ".0f"),
            "weights": _slider("weights, GB", state.weights, 0.1, 500.0, 0.1, ".1f"),
            "layers": widgets.IntSlider(state.layers, 0, 200, description="GDN layers", layout=WIDE, style=LABEL),
            "call": _slider("Weaver call, us", state.call, 0.0, 1000.0, 1.0, ".0f"),
            "rest": _slider("rest, ms", state.rest, 0.0, 20.0, 0.1, ".1f"),
            "batch": widgets.IntSlider(state.batch, 1, BATCHES[-1], description="batch", layout=WIDE, style=LABEL),
            "kernel": widgets.ToggleButtons(options=list(KERNELS), value=state.kernel, description="kernel"),
            "source": widgets.ToggleButtons(options=list(SOURCES), value=state.source, description="steps"),
            "context": widgets.IntSlider(
                state.context, CONTEXTS[0], CONTEXTS[-1], CONTEXTS[0], description="context", layout=WIDE, style=LABEL
            ),
            "curve": widgets.Dropdown(
                options=list(state.curves), value=state.curve, description="MAL curve", layout=WIDE, style=LABEL
            ),
            "typed": widgets.Text(
                state.typed, description="or typed", continuous_update=False, layout=WIDE, style=LABEL,
                placeholder="chain 15: 2.6; tfm 16: 3.9, 32: 4.4",
            ),
        }  # fmt: skip
        self._picture, self._words = widgets.HTML(), widgets.HTML()
        for name, control in self._controls.items():
            control.observe(lambda change, name=name: setattr(state, name, change["new"]), "value")
        state.observe(lambda _: self._refresh(), list(CONTROLS))
        shown = self._controls | {
            "curve": widgets.HBox([self._controls["curve"], *stepping_buttons(self._controls["curve"], "curve")])
        }
        columns = [widgets.VBox([shown[name] for name in names]) for names in (CONTROLS[:6], CONTROLS[6:])]
        grid = widgets.Box(columns, layout=widgets.Layout(flex_flow="row wrap"))
        scrolled = widgets.Box([self._picture], layout=widgets.Layout(overflow="auto", max_width="100%"))
        super().__init__([grid, self._words, scrolled])
        self._refresh()

    def _refresh(self) -> None:
        for name, control in self._controls.items():
            control.value = getattr(self.state, name)
            if name in BOUNDS_ALONE or name == "context":
                control.disabled = (name == "context") is not (self.state.source == FITTED)
        self._words.value = f'<div role="status">{escape(self.state.describe())}</div>'
        self._picture.value = self._drawn(standalone=False)

    def _drawn(self, *, standalone: bool) -> str:
        try:
            return planner_svg(self.state.view(), standalone=standalone)
        except ValueError:
            return ""  # the status line says what is wrong with the typed curve

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget view, with SVG and words beside it for places where no widget can live."""
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        still = {"image/svg+xml": self._drawn(standalone=True), "text/plain": self.state.describe()}
        return dict(data or {}) | {mime: value for mime, value in still.items() if value}, metadata


def planner_picture(state: PlannerState) -> Picture:
    """The picture alone, without controls.

    Raises:
        ValueError: if what is typed is no curve.
    """
    return Picture(planner_svg(state.view()), state.describe())


WIDE, LABEL = widgets.Layout(width="360px"), {"description_width": "105px"}


def _slider(name: str, value: float, low: float, high: float, step: float, form: str) -> widgets.FloatSlider:
    return widgets.FloatSlider(
        value, min=low, max=high, step=step, description=name, readout_format=form, layout=WIDE, style=LABEL,
        continuous_update=False,
    )  # fmt: skip
