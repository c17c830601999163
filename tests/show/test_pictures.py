"""Pictures in all their forms: well-formed, deterministic, the same figures in each."""

from xml.etree import ElementTree

import pytest
from show.samples import ROUNDS, TREE, decode, step

from tfm_lab.show import bars_picture, growth_view, lines_picture, step_view, tree_picture
from tfm_lab.show.picture import PLOTLY, Picture
from tfm_lab.show.plots import STRONG_EDGES, tree_figure
from tfm_lab.show.style import STYLES
from tfm_lab.show.svg import tree_svg
from tfm_lab.show.views import Role, TreeView

SVG = "{http://www.w3.org/2000/svg}"
VIEWS = {
    "step": step_view(step(), decode, "a <step> & more"),
    "growth": growth_view(TREE, ROUNDS, 1, decode, "growing"),
    "root": step_view(step(path=(0,), committed=(6,)), decode),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("standalone", [True, False])
def test_svg_is_well_formed_described_and_the_same_every_time(view: TreeView, standalone: bool) -> None:
    text = tree_svg(view, standalone=standalone)
    assert tree_svg(view, standalone=standalone) == text
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert (root.findtext(f"{SVG}desc"), root.findtext(f"{SVG}title")) == (view.description, view.title or "Draft tree")
    groups = root.findall(f"{SVG}g")
    assert [group.findtext(f"{SVG}text") for group in groups] == [node.label for node in view.nodes]
    assert len([path for path in root.findall(f"{SVG}path") if path.get("fill") == "none"]) == len(view.nodes) - 1
    assert ("currentColor" in text) is not standalone


def test_every_role_has_a_look_that_does_without_colour() -> None:
    looks = {(s.shape, s.filled, s.strong, s.dashed) for role, s in STYLES.items() if role is not Role.WAITING}
    assert set(STYLES) == set(Role)
    shown_together = [
        [Role.ROOT, Role.ACCEPTED, Role.UNUSED, Role.BONUS],
        [Role.ROOT, Role.PLACED, Role.NEW, Role.WAITING],
    ]
    shown_together += [[Role.ROOT, Role.CHOSEN, Role.PLACED]]
    for roles in shown_together:
        looks_of = {(STYLES[r].shape, STYLES[r].filled, STYLES[r].strong, STYLES[r].dashed) for r in roles}
        assert len(looks_of) == len(roles)
    assert len(looks) >= 5


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_plotly_draws_the_same_nodes_and_an_edge_to_each_but_the_root(view: TreeView) -> None:
    """The traces are the same for every view, so that a player can update them in place."""
    *edges, nodes = tree_figure(view).data
    assert [trace.name for trace in edges] == ["edges", *(f"edges: {role.value}" for role in STRONG_EDGES)]
    assert len(nodes.x) == len(view.nodes)
    assert sum(len(trace.x) for trace in edges) == 3 * (len(view.nodes) - 1)
    assert [row[0] for row in nodes.customdata] == [node.role.value for node in view.nodes]


def test_plotly_colours_the_edges_of_the_accepted_path() -> None:
    view = VIEWS["step"]
    figure = tree_figure(view)
    (accepted,) = (trace for trace in figure.data if trace.name == f"edges: {Role.ACCEPTED.value}")
    ends = {(x, y) for x, y in zip(accepted.x[1::3], accepted.y[1::3], strict=True)}
    spots = zip(view.nodes, figure.data[-1].x, figure.data[-1].y, strict=True)
    assert ends == {(x, y) for node, x, y in spots if node.role is Role.ACCEPTED}
    assert accepted.line.color == STYLES[Role.ACCEPTED].colour


def test_token_text_cannot_inject_markup() -> None:
    assert "<b>" not in tree_svg(VIEWS["step"])
    assert not any("<b><b>" in text or "⏎<b>" in text for text in tree_figure(VIEWS["step"]).data[-1].text)


def test_a_picture_offers_svg_and_words_and_plotly_only_if_it_has_one() -> None:
    plain, interactive = tree_picture(VIEWS["step"]), tree_picture(VIEWS["step"], interactive=True)
    assert set(plain._repr_mimebundle_()) == {"image/svg+xml", "text/plain"}
    bundle = interactive._repr_mimebundle_()
    assert set(bundle) == {"image/svg+xml", "text/plain", PLOTLY}
    assert [trace["name"] for trace in bundle[PLOTLY]["data"]][-1] == "nodes"


@pytest.mark.parametrize(
    "picture",
    [
        bars_picture({"chain": 9.0, "tfm": 4.0}, "Calls", "target calls"),
        lines_picture({"tfm": {1.0: 2.0, 4.0: 2.5}, "chain": {1.0: 1.5}}, "Width", "w", "tokens"),
        bars_picture({}, "Nothing", "x"),
        lines_picture({}, "Nothing", "x", "y"),
    ],
    ids=["bars", "lines", "no-bars", "no-lines"],
)
def test_charts_say_their_numbers_in_every_form(picture: Picture) -> None:
    root = ElementTree.fromstring(picture.svg)
    told = root.findtext(f"{SVG}desc") or ""
    for number in ("9", "4") if "Calls" in picture.description else ():
        assert number in told
        assert number in picture.description
    assert picture._repr_mimebundle_()["text/plain"] == picture.description
