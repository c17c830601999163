"""The controls of an explorer: core ipywidgets only, so that each of them can be reached and used by keyboard.

Choices are buttons and sliders: JupyterLab takes the arrow keys away from a list that has the focus.
"""

from typing import Any

import ipywidgets as widgets

from tfm_lab.explorer.reducers import Mode
from tfm_lab.explorer.settings import LIMITS, METHODS, POOLS, Settings
from tfm_lab.lab import TITLES

WIDE = {"width": "330px", "max_width": "100%"}
LABEL = {"description_width": "95px"}
WRAPPED = {"flex_flow": "row wrap", "width": "100%"}
SCROLLED = {"overflow": "auto", "max_width": "100%"}


def setting_controls(settings: Settings, targets: tuple[str, ...]) -> dict[str, Any]:
    """One control for each setting, by its name."""
    pools = sorted({*POOLS, settings.pool})
    common: dict[str, Any] = {"layout": WIDE, "style": LABEL}
    return {
        "prompt": widgets.Textarea(
            settings.prompt, description="prompt", rows=2, placeholder="a question, or the beginning of a text",
            continuous_update=False, layout={"width": "674px", "max_width": "100%"}, style=LABEL,
        ),
        "is_chat": widgets.Checkbox(settings.is_chat, description="as a chat question", indent=False),
        "target": widgets.ToggleButtons(
            options=sorted({*targets, settings.target}), value=settings.target, description="target",
            style={"description_width": "95px", "button_width": "110px"},
        ),
        "method": widgets.ToggleButtons(
            options=[(TITLES[method], method) for method in METHODS], value=settings.method, description="method",
            style={"description_width": "95px", "button_width": "110px"},
        ),
        "budget": _slider("budget", settings.budget, "budget B"),
        "width": _slider("width", settings.width, "w (0: B/16)", "nodes per Weaver call; 0 means B / 16, rounded up"),
        "temperature": widgets.FloatSlider(
            settings.temperature, min=LIMITS["temperature"].least, max=LIMITS["temperature"].most, step=0.1,
            description="temperature", continuous_update=False, readout_format=".1f", **common,
        ),
        "pool": widgets.SelectionSlider(options=pools, value=settings.pool, description="pool K", **common),
        "seed": widgets.BoundedIntText(
            settings.seed, min=int(LIMITS["seed"].least), max=int(LIMITS["seed"].most), description="seed", **common
        ),
        "new_tokens": _slider("new_tokens", settings.new_tokens, "new tokens"),
    }  # fmt: skip


def show_value(control: Any, value: Any) -> None:
    """Set a control of ``setting_controls``; a choice that is not among its options becomes one."""
    if isinstance(control, widgets.SelectionSlider) and value not in control.options:
        control.options = sorted({*control.options, value})
    elif control.description == "target" and value not in control.options:
        control.options = (*control.options, value)
    control.value = value


def mode_switch() -> widgets.ToggleButtons:
    """One method, side by side, or what if."""
    return widgets.ToggleButtons(
        options=[(mode.value, mode) for mode in Mode], description="show", style={"description_width": "95px"}
    )


def stepper(description: str, tooltip: str) -> widgets.IntSlider:
    """A slider that redraws while it moves."""
    return widgets.IntSlider(1, 1, 1, description=description, tooltip=tooltip, layout=WIDE, style=LABEL)


def button(text: str, tooltip: str, *, wide: bool = False) -> widgets.Button:
    """A button as wide as its text needs."""
    return widgets.Button(description=text, tooltip=tooltip, layout={"width": "150px" if wide else "110px"})


def _slider(name: str, value: int, description: str, tooltip: str = "") -> widgets.IntSlider:
    least, most = LIMITS[name]
    return widgets.IntSlider(
        value, int(least), int(most), description=description, tooltip=tooltip, continuous_update=False, layout=WIDE,
        style=LABEL,
    )  # fmt: skip
