"""Grouped bars, heat maps, and the switch between pictures."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tfm_lab.show import HeatCell, Picture, PictureSwitch, grouped_picture, heat_map_picture, style
from tfm_lab.show.charts import lines_svg
from tfm_lab.show.picture import PLOTLY
from tfm_lab.show.scale import decades

SVG = "{http://www.w3.org/2000/svg}"
SERIES = {"target": {"a": 0.5, "<b>": 0.25}, "other": {"a": 0.1, "<b>": 0.0}}
CELLS = {
    "first rule": {"tree": HeatCell(0.0, "0"), "a chain with a long name": HeatCell(0.5, "0.500", "refused")},
    "second": {"tree": HeatCell(0.1, "0.100"), "a chain with a long name": HeatCell(0.0, "0")},
}


def heights(svg: str, colour: str) -> list[float]:
    root = ElementTree.fromstring(svg)
    bars = [bar for bar in root.findall(f"{SVG}rect") if bar.get("stroke") == colour and bar.get("height") != "12"]
    return [float(bar.get("height", "nan")) for bar in bars]


def test_grouped_bars_are_as_long_as_their_values_in_both_forms() -> None:
    picture = grouped_picture(SERIES, "A title", "token", "probability", {"target": "blue", "other": "red"})
    root = ElementTree.fromstring(picture.svg)
    assert root.findtext(f"{SVG}desc") == picture.description
    assert "target: a 0.5, <b> 0.25; other: a 0.1, <b> 0" in picture.description
    long, short = heights(picture.svg, "blue")
    assert long == pytest.approx(2 * short, abs=0.11)
    assert heights(picture.svg, "red") == [pytest.approx(long / 5, abs=0.11), 0.0]
    assert picture.figure is not None
    assert [list(trace.y) for trace in picture.figure.data] == [[0.5, 0.25], [0.1, 0.0]]
    assert PLOTLY in picture._repr_mimebundle_()


@pytest.mark.parametrize(("largest", "ticks"), [(1.0, [0, 0.25, 0.5, 0.75, 1]), (0.38, [0, 0.1, 0.2, 0.3, 0.4])])
def test_ticks_are_round_numbers(largest: float, ticks: list[float]) -> None:
    svg = grouped_picture({"x": {"a": largest}}, "A title", "token", "probability", {}).svg
    labels = [
        text.text for text in ElementTree.fromstring(svg).findall(f"{SVG}text") if text.get("text-anchor") == "end"
    ]
    assert labels == [f"{tick:.3g}" for tick in ticks]


def test_nothing_but_zeros_can_be_drawn() -> None:
    assert heights(
        grouped_picture({"x": {"a": 0.0}}, "A title", "token", "probability", {"x": "blue"}).svg, "blue"
    ) == [0]


def test_a_heat_map_says_every_value_and_frames_what_has_a_note() -> None:
    picture = heat_map_picture(CELLS, "A table", "rule, by tree")
    root = ElementTree.fromstring(picture.svg)
    texts = [text.text for text in root.findall(f"{SVG}text")]
    for word in ("0.500", "refused", "0.100", "first rule", "second", "a chain with a", "long name"):
        assert word in texts
    cells = [rect for rect in root.findall(f"{SVG}rect") if rect.get("fill-opacity")]
    assert [bool(cell.get("stroke-dasharray")) for cell in cells] == [False, True, False, False]
    green, strong, weak, _ = cells
    assert green.get("fill") != strong.get("fill") == weak.get("fill")
    assert float(strong.get("fill-opacity", 0)) > float(weak.get("fill-opacity", 0))
    assert "a chain with a long name 0.500 (refused)" in picture.description
    assert picture.figure is not None
    assert [list(line) for line in picture.figure.data[0].z] == [[0.0, 0.5], [0.1, 0.0]]


@pytest.mark.parametrize("cells", [{}, {"row": {}}, {"row": {"x": HeatCell(0, "0")}, "other": {"y": HeatCell(0, "0")}}])
def test_a_heat_map_needs_cells_in_columns(cells: dict[str, dict[str, HeatCell]]) -> None:
    with pytest.raises(ValueError, match="the same columns in every row"):
        heat_map_picture(cells, "A table", "rows")


def test_a_switch_makes_each_picture_once_and_only_when_asked() -> None:
    made: list[str] = []

    def maker(name: str) -> Picture:
        made.append(name)
        return Picture(f"<svg><title>{name}</title></svg>", f"picture {name}")

    switch = PictureSwitch({"x": lambda: maker("x"), "y": lambda: maker("y")}, "show")
    assert made == ["x"]
    switch.choose("y")
    switch.choose("x")
    switch.choose("y")
    assert made == ["x", "y"]
    data, _ = switch._repr_mimebundle_()
    assert data["image/svg+xml"] == "<svg><title>y</title></svg>"
    assert data["text/plain"] == "picture y"
    assert switch._drawing.value == data["image/svg+xml"]
    with pytest.raises(ValueError, match="there is no picture 'z'; use one of x, y"):
        switch.choose("z")
    with pytest.raises(ValueError, match="at least one picture"):
        PictureSwitch({}, "show")


@pytest.mark.parametrize(
    ("smallest", "largest", "marks"),
    [(3.4, 46.0, [2, 5, 10, 20, 50]), (0.02, 0.05, [0.02, 0.05]), (7.0, 7.0, [5, 10]), (1.0, 1.0, [1, 2])],
)
def test_decades_enclose_their_values(smallest: float, largest: float, marks: list[float]) -> None:
    assert decades(smallest, largest) == pytest.approx(marks)


def test_a_logarithmic_axis_gives_equal_ratios_equal_room_and_every_curve_a_name_of_its_own() -> None:
    curves = {"slow": {1.0: 10.0, 2.0: 100.0, 3.0: 1000.0}, "fast": {1.0: 10.0, 2.0: 20.0}, "close": {1.0: 20.0}}
    root = ElementTree.fromstring(lines_svg(curves, "Times", "nodes", "us", {"fast": style.BLUE}, logarithmic=True))
    heights = [float(circle.get("cy", "nan")) for circle in root.iter(f"{SVG}circle")]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.11)
    assert heights[3] == pytest.approx(heights[0])
    names = {text.text: (text.get("x"), float(text.get("y", "nan"))) for text in root.iter(f"{SVG}text")}
    columns = {names[name][0] for name in curves}
    rows = sorted(names[name][1] for name in curves)
    assert len(columns) == 1
    assert min(lower - upper for upper, lower in pairwise(rows)) >= 13.9
    assert "1,000" in names
    with pytest.raises(ValueError, match="a logarithmic axis takes positive values, got 0"):
        lines_svg({"none": {1.0: 0.0}}, "Times", "nodes", "us", logarithmic=True)
