"""Notebook 04: solutions by hand against the package, laws after every node of a tree, and the sibling explorer."""

from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import traitlets
from models.oracle import VOCABULARY, random_tokens
from models.small import drafter_for, tiny_target, weaver_for
from tokenizers import Tokenizer
from tokenizers.models import BPE

from tfm_lab import lab
from tfm_lab.bundle import Bundle
from tfm_lab.distributions import total_variation
from tfm_lab.drafting import DraftSource
from tfm_lab.lessons.node_laws import NodeLaws, expand_all, likeliest_siblings, mean_fit, node_laws
from tfm_lab.lessons.path_mask_picture import path_mask_picture
from tfm_lab.lessons.read_outs import path_read_out, silenced, tree_read_outs
from tfm_lab.lessons.siblings import (
    POOLS,
    SHOWN,
    SiblingsExplorer,
    SiblingsState,
    megabytes,
    siblings_picture,
    siblings_svg,
)
from tfm_lab.lessons.weaver_by_hand import PUBLISHED, call_bytes, path_mask, pool_log_probs
from tfm_lab.models import Weaver, WeaverConfig, WeaverSession
from tfm_lab.tree import DraftTree

FORMS: dict[str, dict[str, Any]] = {
    "learned-gelu": {},
    "rotary": {"positions": "rotary"},
    "two-blocks": {"layers": 2},
}
PARENTS = (-1, 0, 0, 1, 1, 2, 3)
POOL = 20


def tiny_bundle(**weaver: Any) -> Bundle:
    target = tiny_target()
    return Bundle("tiny", target, Tokenizer(BPE()), None, drafter_for(target), weaver_for(target, **weaver))


def tiny_step(models: Bundle) -> tuple[lab.OpenStep, DraftTree]:
    step = lab.open_step(models, random_tokens(12), POOL)
    tree = DraftTree.from_parents(
        [step.root, 3, 8, 9, 5, 3, 1], list(PARENTS), [0.0, -0.3, -1.5, -0.2, -2.0, -0.1, -1.0]
    )
    return step, tree


@pytest.fixture(scope="module")
def models() -> Bundle:
    return tiny_bundle()


@pytest.fixture(scope="module")
def laws(models: Bundle) -> NodeLaws:
    return node_laws(models, *tiny_step(models))


@pytest.mark.parametrize("form", FORMS)
def test_the_tree_in_one_pass_is_one_pass_per_path(form: str) -> None:
    models = tiny_bundle(**FORMS[form])
    step, tree = tiny_step(models)
    assert step.source.marginals is not None
    prefix = 1 + len(step.source.marginals.hidden)
    together = tree_read_outs(models, step, tree, path_mask(PARENTS, prefix))
    alone = torch.stack([path_read_out(models, step, tree, node) for node in range(len(tree))])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    leaky = torch.ones(len(tree), prefix + len(tree), dtype=torch.bool).tril(prefix)
    assert float((tree_read_outs(models, step, tree, leaky) - alone).abs().amax(1)[2:].min()) > 1e-6
    with pytest.raises(ValueError, match=r"this tree and prefix need \(7, 15\)"):
        tree_read_outs(models, step, tree, leaky[:, 1:])


@pytest.mark.parametrize("form", FORMS)
def test_the_law_by_hand_is_the_sessions(form: str) -> None:
    models = tiny_bundle(**FORMS[form])
    step, tree = tiny_step(models)
    marginals = step.source.marginals
    assert marginals is not None
    assert step.source.open_session is not None
    pool, found = marginals.pool(POOL), expand_all(step.source.open_session(), tree)
    for node in range(len(tree)):
        depth = int(tree.depths[node])
        tokens = pool.tokens[depth]
        correction = models.target.head_weight[tokens] @ path_read_out(models, step, tree, node)
        own = pool_log_probs(marginals.logits[depth], tokens, correction)
        torch.testing.assert_close(own, found[node], rtol=0, atol=1e-12)


def test_a_silenced_weaver_is_the_drafter_on_its_pool(models: Bundle) -> None:
    step, tree = tiny_step(models)
    marginals, weaver = step.source.marginals, models.weaver
    assert marginals is not None
    assert weaver is not None
    silent = WeaverSession(silenced(weaver), models.target, marginals, step.hidden, POOL)
    wanted = torch.log_softmax(marginals.pool(POOL).logits[tree.depths], dim=1)
    torch.testing.assert_close(expand_all(silent, tree), wanted, rtol=0, atol=1e-12)
    assert float(weaver.lm_head_query_in.weight.abs().max()) > 0


def test_bytes_are_those_of_the_matrices_that_a_call_reads() -> None:
    with torch.device("meta"):
        for target_width, width, mlp_width in ((48, 32, 24), PUBLISHED[:3]):
            weaver = Weaver(WeaverConfig(target_width, width, 1, 2, mlp_width))
            names = {name: p for name, p in weaver.named_parameters() if p.ndim == 2 and name != "pos_emb"}
            assert len(names) == 9
            numbers = sum(p.numel() for name, p in names.items() if not name.startswith("proposal_in"))
            assert call_bytes(target_width, width, mlp_width, 0, 1) == numbers
            assert call_bytes(target_width, width, mlp_width, 10, 2) == 2 * (numbers + 10 * target_width)


def test_a_smaller_pool_is_cut_from_a_larger_one(models: Bundle, laws: NodeLaws) -> None:
    step, tree = tiny_step(models)
    marginals, weaver = step.source.marginals, models.weaver
    assert marginals is not None
    assert weaver is not None
    for size in (1, 7, POOL, VOCABULARY):
        rows = expand_all(WeaverSession(weaver, models.target, marginals, step.hidden, size), tree)
        for node in range(len(tree)):
            found = laws.weaver(node, size)
            torch.testing.assert_close(found[laws.pool(node, size)], rows[node].exp(), rtol=0, atol=1e-12)
            assert float(found.sum()) == pytest.approx(1.0)
    few = node_laws(models, step, tree, largest_pool=7)
    assert torch.equal(few.pool(3, 7), laws.pool(3, 7))
    with pytest.raises(ValueError, match="pools of up to 7 candidates were kept, not of 8"):
        few.weaver(0, 8)


def test_target_and_marginals_are_those_of_the_models(models: Bundle, laws: NodeLaws) -> None:
    _, tree = tiny_step(models)
    for node in range(len(tree)):
        path = [*random_tokens(12)[:-1], *tree.path_tokens(node)]
        plain = torch.softmax(models.target.prefill(path).logits, dim=0)
        torch.testing.assert_close(laws.target[node], plain, rtol=0, atol=1e-10)
    assert torch.equal(laws.marginal(3), laws.marginal(5))
    assert laws.same_depth(4) == [3, 4, 5]


def test_the_fit_is_the_overlap_and_stays_below_the_ceiling(laws: NodeLaws) -> None:
    for node in range(len(laws.tree)):
        fit = laws.fit(node, POOL)
        p = laws.target[node]
        assert fit.marginal == pytest.approx(float(torch.minimum(p, laws.marginal(node)).sum()))
        assert fit.weaver == pytest.approx(1 - float(total_variation(p, laws.weaver(node, POOL))))
        assert fit.ceiling == pytest.approx(float(p[laws.pool(node, POOL)].sum()))
        assert fit.weaver <= fit.ceiling + 1e-12
    deep = [laws.fit(node, POOL) for node in (3, 4, 5)]
    assert mean_fit([laws], POOL, depth=2).weaver == pytest.approx(sum(fit.weaver for fit in deep) / 3)
    assert mean_fit([laws, laws], POOL) == pytest.approx(mean_fit([laws], POOL))
    with pytest.raises(ValueError, match="no tree has a node of depth 9"):
        mean_fit([laws], POOL, depth=9)


def test_what_cannot_be_asked_is_refused(models: Bundle) -> None:
    step, tree = tiny_step(models)
    bare = step._replace(source=DraftSource(None))
    for ask in (lambda: node_laws(models, bare, tree), lambda: path_read_out(models, bare, tree, 0)):
        with pytest.raises(ValueError, match="use the hybrid bundle"):
            ask()
    chain = DraftTree.from_parents([1] * 8, list(range(-1, 7)))
    with pytest.raises(ValueError, match=r"after a node of depth 7: grow the tree with TreeConfig\(max_depth=6\)"):
        node_laws(models, step, chain)
    with pytest.raises(ValueError, match="this tree is a chain"):
        likeliest_siblings(chain)


def test_the_likeliest_siblings_are_those_whose_second_is_best() -> None:
    _, tree = tiny_step(tiny_bundle())
    assert likeliest_siblings(tree) == (1, 2)


def words(token: int) -> str:
    return f" <{token}>"


def test_the_marginal_stays_and_the_rest_moves(laws: NodeLaws) -> None:
    state = SiblingsState(laws, words, node=3)
    first = state.rows()
    state.turn(1)
    assert state.node == 4
    second = state.rows()
    assert len(first) == SHOWN + 1
    assert [row.label for row in first] == [row.label for row in second]
    assert [row.marginal for row in first] == [row.marginal for row in second]
    assert [row.marginal for row in first[:-1]] == sorted((row.marginal for row in first[:-1]), reverse=True)
    for field in ("target", "weaver"):
        assert sum(getattr(row, field) for row in first) == pytest.approx(1.0)
        assert max(abs(getattr(a, field) - getattr(b, field)) for a, b in zip(first, second, strict=True)) > 1e-3
    state.turn(-2)
    assert state.node == 5
    with pytest.raises(traitlets.TraitError, match="numbered from 0 to 6"):
        state.node = 7


def test_the_pool_moves_the_weaver_and_its_ceiling_alone(laws: NodeLaws) -> None:
    state = SiblingsState(laws, words, node=1, pool=32)
    before, rows = state.fit(), state.rows()
    state.pool = 64
    after = state.fit()
    assert after.marginal == before.marginal
    assert after.ceiling > before.ceiling
    assert [(row.label, row.target, row.marginal) for row in rows] == [
        (row.label, row.target, row.marginal) for row in state.rows()
    ]
    assert state.call_sizes()[0] == call_bytes(*PUBLISHED[:3], 64, 2)
    with pytest.raises(traitlets.TraitError):
        state.pool = 33


def test_list_buttons_and_slider_move_the_picture(laws: NodeLaws) -> None:
    state = SiblingsState(laws, words, node=3, pool=32)
    explorer = SiblingsExplorer(state)
    before = explorer._bars.value
    explorer._on.click()
    assert (state.node, explorer._node.value) == (4, 4)
    assert explorer._bars.value != before
    explorer._back.click()
    assert explorer._bars.value == before
    explorer._node.value = 1
    assert state.node == 1
    assert "(node 1)" in explorer._words.value
    assert "&lt;" in explorer._tree.value
    explorer._pool.value = 64
    assert state.pool == 64
    assert "the 64 candidates hold" in explorer._words.value
    data, _ = explorer._repr_mimebundle_()
    assert data["image/svg+xml"] == siblings_svg(state)
    assert data["text/plain"] == state.describe()
    assert "application/vnd.jupyter.widget-view+json" in data


@pytest.mark.parametrize("standalone", [True, False])
def test_the_siblings_svg_is_well_formed_and_described(laws: NodeLaws, standalone: bool) -> None:
    state = SiblingsState(laws, words, node=6, pool=POOLS[0])
    text = siblings_svg(state, standalone=standalone)
    root = ElementTree.fromstring(text)
    assert root.findtext("{http://www.w3.org/2000/svg}desc") == state.describe()
    shown = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {row.label for row in state.rows()} <= set(shown)
    assert f"{state.fit().weaver:.3f}" in shown
    assert ("#1f2328" in text) is standalone
    assert siblings_picture(state).svg == siblings_svg(state)


def test_a_long_path_loses_its_beginning(laws: NodeLaws) -> None:
    state = SiblingsState(laws, lambda token: f"long words {token} \n", node=6)
    assert state.name(6).startswith("…")
    assert len(state.name(6)) == 52
    assert "\n" not in state.name(6)


def test_bytes_are_told_in_decimal_units() -> None:
    assert megabytes(5_242_880) == "5.2 MB"
    assert megabytes(2_542_796_800) == "2.54 GB"


def test_the_mask_picture_says_who_sees_whom() -> None:
    mask = path_mask((-1, 0, 0), 4)
    mask[2, 0] = False
    picture = path_mask_picture(mask, ("The", "cat", "<dog>"))
    assert "cat sees 4 of 4 prefix tokens and The, cat; <dog> sees 3 of 4 prefix tokens and The, <dog>" in (
        picture.description
    )
    root = ElementTree.fromstring(picture.svg)
    prefix, ancestors, selves, dots = (path.get("d", "") for path in root.iter("{http://www.w3.org/2000/svg}path"))
    assert [text.count("M") for text in (prefix, ancestors, selves, dots)] == [11, 2, 3, 1 + 4]
    with pytest.raises(ValueError, match="the mask has 3 rows, and 2 of them have a name"):
        path_mask_picture(mask, ("The", "cat"))
