"""Where a tree view goes on paper, in pixels. SVG and plotly share it, so that both show the same picture."""

from typing import NamedTuple

from tfm_lab.show.views import TreeView

ROW, MARGIN, RADIUS, CHARACTER, GAP = 20.0, 14.0, 5.0, 7.0, 44.0


class Place(NamedTuple):
    """Centre of a node's mark, and the right end of its label."""

    x: float
    y: float
    label_end: float


class Geometry(NamedTuple):
    """Places of all nodes, and the size of the drawing without its legend."""

    places: tuple[Place, ...]
    width: float
    height: float


def geometry(view: TreeView) -> Geometry:
    """Each depth begins far enough right for the longest label of the depth before it; y grows downwards."""
    starts = [MARGIN + RADIUS]
    for length in view.label_lengths[:-1]:
        starts.append(starts[-1] + 2 * RADIUS + CHARACTER * length + GAP)
    places = []
    for node in view.nodes:
        x = starts[int(node.x)]
        places.append(Place(x, MARGIN + ROW * (node.y + 0.5), x + RADIUS + 6 + CHARACTER * len(node.label)))
    width = starts[-1] + 2 * RADIUS + CHARACTER * view.label_lengths[-1] + MARGIN
    return Geometry(tuple(places), width, 2 * MARGIN + ROW * view.rows)
