"""One visual grammar for all pictures: Okabe-Ito colours, and a shape for every role."""

from typing import NamedTuple

from tfm_lab.show.views import Role

INK, PAPER = "#1f2328", "#ffffff"
BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#007F5F", "#A8509D", "#6b7280"


class NodeStyle(NamedTuple):
    """How a role looks.

    Attributes:
        shape: ``circle``, ``square`` or ``diamond``.
        filled: solid or hollow.
        strong: heavy edge and bold label, in colour.
        dashed: broken outline and edge.
    """

    colour: str
    shape: str
    filled: bool
    strong: bool
    dashed: bool


STYLES: dict[Role, NodeStyle] = {
    Role.ROOT: NodeStyle(BLUE, "diamond", True, True, False),
    Role.ACCEPTED: NodeStyle(GREEN, "circle", True, True, False),
    Role.UNUSED: NodeStyle(GREY, "circle", False, False, True),
    Role.BONUS: NodeStyle(PURPLE, "square", True, True, False),
    Role.PLACED: NodeStyle(GREY, "circle", True, False, False),
    Role.NEW: NodeStyle(ORANGE, "circle", True, True, False),
    Role.WAITING: NodeStyle(GREY, "circle", False, False, True),
    Role.CHOSEN: NodeStyle(BLUE, "circle", True, True, False),
}
SERIES = (BLUE, ORANGE, GREEN, PURPLE, GREY, INK)
"""For curves that stand for no method, in turn."""

METHOD_COLOURS = {"ar": GREY, "chain": BLUE, "ddtree": ORANGE, "tfm": GREEN, "dyspec": PURPLE}
TEXT_ON_PAPER = {ORANGE: "#A84A00"}


def text_on_paper(colour: str) -> str:
    """A colour of the pictures for text on their paper: darker where the colour itself could hardly be read."""
    return TEXT_ON_PAPER.get(colour, colour)
