"""The kernel microscope: every cut gives the updates of one solve, and reads nothing that it must not."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch

from tfm_lab.bench.kernel_trees import TREES
from tfm_lab.lessons.closure import closure_blocks
from tfm_lab.lessons.microscope import (
    BLOCKS,
    TILES,
    KernelMicroscope,
    MicroscopeState,
    block_stages,
    microscope_still,
    tile_stages,
)
from tfm_lab.lessons.microscope_picture import microscope_svg

SVG = "{http://www.w3.org/2000/svg}"


def state_of(kind: str = "best-first", nodes: int = 24, method: str = TILES, tile: int = 4) -> MicroscopeState:
    state = MicroscopeState()
    state.kind, state.nodes, state.method, state.tile = kind, nodes, method, tile
    return state


@pytest.mark.parametrize("kind", list(TREES))
@pytest.mark.parametrize("method", [TILES, BLOCKS])
def test_every_cut_ends_with_the_updates_of_one_solve(kind: str, method: str) -> None:
    for nodes, tile in ((2, 4), (16, 4), (17, 16), (40, 8)):
        state = state_of(kind, nodes, method, tile)
        known: set[int] = set()
        for index, stage in enumerate(state.stages):
            state.go(index)
            known |= set(stage.finishes)
            assert state.done() == known
            finite = torch.isfinite(state.updates()).all(1)
            assert set(finite.nonzero().flatten().tolist()) == known, "what is not known yet must not be a number"
            assert state.error() <= 1e-12
        assert known == set(range(nodes))


def test_a_stage_that_may_not_read_an_ancestor_goes_wrong() -> None:
    state = state_of("chain", 16, BLOCKS, 8)
    state.stages[1] = replace(state.stages[1], reads=state.stages[1].reads[:-1])
    state.go(1)
    assert state.error() > 1e-3


def test_tiles_without_an_ancestor_are_skipped_and_blocks_are_those_of_the_kernel() -> None:
    star = state_of("star", 16).case.tree
    last = tile_stages(star, 4)[-2]
    assert (last.kind, last.reads, last.skipped) == ("subtract", (0, 1, 2, 3), tuple(range(4, 12)))
    tree = state_of("random", 40).case.tree
    cuts = [(stage.reads, stage.rows) for stage in block_stages(tree, 16)]
    assert cuts == [(closure.path, closure.block) for closure in closure_blocks(tree)]


def test_the_picture_says_what_it_shows() -> None:
    state = state_of(method=BLOCKS, tile=8)
    state.go(1)
    state.node = 20
    still = microscope_still(state)
    tree = ElementTree.fromstring(still.svg)
    texts = [item.text for item in tree.iter(f"{SVG}text")]
    assert {"closure blocks, stage 2 of 3", "16 of 24 known", "20"} <= set(texts)
    assert still.description == state.describe()
    assert "Nodes 8 to 15 with the" in still.description
    above = ", ".join(map(str, state.case.tree.path(20)[:-1]))
    assert f"Node 20 reads the writes of {above};" in still.description
    assert microscope_svg(state.glimpse(), "x", standalone=False).count("currentColor") > 0
    state.node = 0
    assert "Node 0 is the root and reads no other write" in state.describe()


def test_controls_and_state_follow_each_other() -> None:
    state = MicroscopeState()
    microscope = KernelMicroscope(state)
    first, second, stepping, node, _, words = microscope.children
    kind, nodes = first.children
    tile, method = second.children
    slider, back, forward = stepping.children
    assert (back.disabled, forward.disabled) == (True, False)
    forward.click()
    assert (state.index, slider.value) == (1, 2)
    slider.value = slider.max
    assert forward.disabled
    method.value = BLOCKS
    assert slider.max == len(state.stages) == slider.value, "the stage stays inside"
    node.value = 23
    nodes.value = 5
    assert (state.node, node.max, node.value) == (4, 4, 4)
    tile.value, kind.value = 8, "star"
    assert state.describe() in words.value
    assert words.value.startswith('<div role="status">Star tree of 5 nodes')
    data, _ = microscope._repr_mimebundle_()
    assert data["text/plain"] == state.describe()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("nodes", 1, "takes 2 to 40 nodes, got 1"),
        ("nodes", 41, "got 41"),
        ("node", 24, "has nodes 0 to 23, got 24"),
        ("index", 99, "the solve has stages 0 to 10, got 99"),
        ("index", 11, "got 11"),
        ("index", -1, "got -1"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        setattr(MicroscopeState(), name, value)
