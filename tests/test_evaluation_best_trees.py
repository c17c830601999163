"""The best tree of B nodes: against all trees of a toy world, and against whole texts read by a small target."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from models.oracle import VOCABULARY, random_tokens
from models.small import autoregressive_for, drafter_for, tiny_target, weaver_for
from tokenizers import Tokenizer
from tokenizers.models import BPE

from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, DecodeSession
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import Draft, TreeKind
from tfm_lab.drafting.growth import pairs
from tfm_lab.evaluation import Context
from tfm_lab.evaluation import best_paths as paths_module
from tfm_lab.evaluation.best_paths import Children, Path, TargetPaths, best_paths, path_probabilities, tree_of
from tfm_lab.evaluation.best_trees import BEST, MACRO, BestTrees, comparable, expected_tokens, measure_best_trees
from tfm_lab.evaluation.records import Prompt
from tfm_lab.evaluation.settings import Setting
from tfm_lab.evaluation.statistics import gain_of_ratios
from tfm_lab.exact import Table, enumerate_verdicts, expected_length, random_table, sparse_table, uniform_table
from tfm_lab.methods import make_speculator
from tfm_lab.verification import RULES

TABLES = {
    "random": random_table(3, 3, 1),
    "another": random_table(3, 3, 2),
    "sparse": sparse_table(3, 3, 3),
    "uniform": uniform_table(3, 3),
}
METHODS = ("chain", "ddtree", "tfm", "ard-chain", "ard-tree")


def asker(table: Table, calls: list[int] | None = None) -> Callable[[Sequence[Path]], list[Children]]:
    """Answers from a table, best children first."""

    def ask(paths: Sequence[Path]) -> list[Children]:
        if calls is not None:
            calls.append(len(paths))
        best = torch.stack([table.probabilities(path).log() for path in paths]).sort(descending=True, stable=True)
        return list(pairs(best.indices, best.values))

    return ask


def probability(table: Table, path: Path) -> float:
    return float(np.prod([float(table.probabilities(path[:place])[token]) for place, token in enumerate(path)]))


def every_tree(vocab: int, budget: int, depth: int, open_paths: Sequence[Path]) -> Iterator[tuple[Path, ...]]:
    """All trees of ``budget`` nodes, each once, as sets of paths."""
    if budget == 0:
        yield ()
        return
    for place, path in enumerate(open_paths):
        below = [(*path, token) for token in range(vocab)] if len(path) < depth else []
        for rest in every_tree(vocab, budget - 1, depth, [*open_paths[place + 1 :], *below]):
            yield (path, *rest)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("together", [1, 2, 8])
def test_no_tree_of_as_many_nodes_is_accepted_more(name: str, together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths_module, "TOGETHER", together)
    table = TABLES[name]
    for depth, budget in ((1, 2), (2, 5), (3, 1), (3, 4), (3, 6)):
        trees = list(every_tree(3, budget, depth, [(token,) for token in range(3)]))
        assert len(set(map(frozenset, trees))) == len(trees) > 0
        chance = {path: probability(table, path) for path in {path for tree in trees for path in tree}}
        largest = max(sum(chance[path] for path in tree) for tree in trees)
        found = best_paths(asker(table), budget, depth)
        assert sum(np.exp(reached.log_prob) for reached in found) == pytest.approx(largest, abs=1e-12)
        for path, log_prob in found:
            assert np.exp(log_prob) == pytest.approx(probability(table, path), abs=1e-12)
            assert len(path) <= depth
            assert not path[:-1] or path[:-1] in {reached.path for reached in found}


def test_the_sum_is_the_length_that_exact_enumeration_of_a_step_gives() -> None:
    table = TABLES["random"]
    for budget in range(1, 8):
        found = best_paths(asker(table), budget, 3)
        tree, _ = tree_of(0, [path for path, _ in found])
        assert len(tree) == budget + 1
        verdicts = enumerate_verdicts(
            [(1.0, Draft(tree, TreeKind.FIXED))], RULES["target_sample"], table, SamplingConfig()
        )
        wanted = 1.0 + sum(float(np.exp(reached.log_prob)) for reached in found)
        assert expected_length(verdicts) == pytest.approx(wanted, abs=1e-12)
        rows = torch.stack([table.probabilities(tree.path_tokens(node)[1:]).log() for node in range(len(tree))])
        assert float(path_probabilities(tree, rows).sum()) == pytest.approx(wanted, abs=1e-12)


def test_smaller_trees_are_parts_of_larger_ones_and_all_paths_may_fit() -> None:
    found = best_paths(asker(TABLES["random"]), 39, 3)
    assert len(found) == 3 + 9 + 27
    assert best_paths(asker(TABLES["random"]), 5, 3) == found[:5]
    assert best_paths(asker(TABLES["random"]), 100, 3) == found
    assert best_paths(asker(TABLES["random"]), 5, 0) == best_paths(asker(TABLES["random"]), 0, 3) == []
    possible = {path for path, _ in best_paths(asker(TABLES["sparse"]), 39, 3)}
    everything = [path for path, _ in found]
    assert possible == {path for path in everything if probability(TABLES["sparse"], path) > 0}
    assert len(possible) < 39


def test_what_is_known_is_not_asked_again_and_changes_nothing() -> None:
    table, calls = TABLES["random"], []
    wanted = best_paths(asker(table, calls), 8, 3)
    asked = sum(calls)
    calls.clear()
    known = dict(zip([(), (0,), (1,), (2,)], asker(table)([(), (0,), (1,), (2,)]), strict=True))
    assert best_paths(asker(table, calls), 8, 3, known) == wanted
    assert sum(calls) < asked


@pytest.fixture(scope="module", params=["hybrid-grouped", "llama-plain"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    """Random models in float64 over 97 tokens; the drafters look at different layers of the target."""
    target = tiny_target(request.param)
    drafters = drafter_for(target), weaver_for(target), autoregressive_for(target, tap_layers=(1,), block_size=6)
    return Bundle("tiny", target, Tokenizer(BPE()), None, *drafters)


def speculators(bundle: Bundle, settings: Sequence[Setting]):
    return {
        s: make_speculator(s.method, bundle.drafter, bundle.weaver, s.sampling, autoregressive=bundle.autoregressive)
        for s in settings
    }


def test_every_tree_is_the_one_of_decoding_and_its_paths_are_read_as_whole_texts(bundle: Bundle) -> None:
    prompt = random_tokens(9, seed=4)
    settings = [Setting(m, b, 1.0, pool_size=20, max_depth=d) for m in METHODS for b, d in ((5, 4), (12, 7), (12, 4))]
    named = speculators(bundle, settings)
    decodes = {
        setting: DecodeSession(
            bundle.target, speculator, prompt, DecodeConfig(60, setting.sampling, setting.tree, seed=3)
        )
        for setting, speculator in named.items()
    }
    (root,) = {session.last_token for session in decodes.values()}
    assert root is not None
    found = expected_tokens(bundle, named, [*prompt, root])
    for setting, session in decodes.items():
        tree, wanted = session.step().tree, 1.0
        for node in range(1, len(tree)):
            path = list(tree.path_tokens(node))
            rows = bundle.target(torch.tensor([prompt + path]))[0].softmax(-1)
            places = range(len(prompt), len(prompt) + len(path) - 1)
            wanted += float(np.prod([float(rows[place, token]) for place, token in zip(places, path[1:], strict=True)]))
        assert found[setting] == pytest.approx(wanted, abs=1e-9), setting
        assert 1.0 < wanted < found[Setting(BEST, setting.budget, 1.0, max_depth=setting.max_depth)]


@pytest.mark.parametrize("together", [3, 8])
def test_the_best_tree_of_a_target_is_the_best_of_all_paths(
    bundle: Bundle, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All 97 + 97 * 97 paths of at most two tokens, each read from an empty state."""
    monkeypatch.setattr(paths_module, "TOGETHER", together)
    text = random_tokens(9, seed=5)
    everything = torch.arange(VOCABULARY)
    rows = bundle.target(torch.cat([torch.tensor([text]).expand(VOCABULARY, -1), everything.unsqueeze(1)], dim=1))
    first, second = rows[0, -2].softmax(0), rows[:, -1].softmax(1)
    every = torch.cat([first, (first.unsqueeze(1) * second).flatten()]).sort(descending=True).values
    settings = [Setting("ddtree", budget, 1.0, max_depth=2) for budget in (1, 16, 120)]
    found = expected_tokens(bundle, speculators(bundle, settings), text)
    for budget in (1, 16, 120):
        best = found[Setting(BEST, budget, 1.0, max_depth=2)]
        assert best == pytest.approx(1.0 + float(every[:budget].sum()), abs=1e-9)


def test_paths_are_asked_about_in_one_call_and_in_any_order(bundle: Bundle) -> None:
    text = random_tokens(6, seed=2)
    view = TargetPaths(bundle.target, bundle.target.prefill(text[:-1]).state, text[-1], 4)
    paths: list[Path] = [(5, 6, 7), (), (5,), (8, 6)]
    for path, children in zip(paths, view.ask(paths), strict=True):
        best = bundle.target(torch.tensor([[*text, *path]]))[0, -1].log_softmax(0).topk(4)
        assert [token for token, _ in children] == best.indices.tolist()
        assert [log_prob for _, log_prob in children] == pytest.approx(best.values.tolist(), abs=1e-9)


def prompts_of(*shapes: tuple[str, int]) -> list[Prompt]:
    """Random prompts of these kinds and lengths."""
    return [
        Prompt(Context(str(index), kind, "", "-"), tuple(random_tokens(size, seed=index)), str(index), True)
        for index, (kind, size) in enumerate(shapes)
    ]


def test_figures_belong_to_their_kind_of_text_and_never_pass_the_best_tree(bundle: Bundle) -> None:
    prompts, done = prompts_of(("code", 12), ("chat", 5), ("code", 7)), []
    settings = [Setting("chain", 8, 0.0), Setting("tfm", 8, 1.0, shared_noise=True), Setting("dyspec", 8, 1.0)]
    settings += [Setting("tfm", 3, 1.0, pool_size=20), Setting("ar", 0, 1.0)]
    found = measure_best_trees(bundle, prompts, settings, written=4, seed=1, on_anchor=done.append)
    assert (found.kinds, found.anchors, done) == (("chat", "code", "code"), 3, [1, 2, 3])
    assert {(s.method, s.budget) for s in found.by_anchor} == {
        *(("ddtree", budget) for budget in (3, 8)),
        *((BEST, budget) for budget in (3, 8)),
        *(("chain", 8), ("tfm", 8), ("tfm", 3)),
    }
    assert {s.temperature for s in found.by_anchor} == {1.0}
    for setting, figures in found.by_anchor.items():
        assert (figures <= found.by_anchor[Setting(BEST, setting.budget, 1.0)] + 1e-12).all()
        assert (figures > 1.0).all()
    again, other = (measure_best_trees(bundle, prompts, settings, written=4, seed=seed) for seed in (1, 2))
    assert all(np.array_equal(again.by_anchor[setting], figures) for setting, figures in found.by_anchor.items())
    assert not np.array_equal(found.by_anchor[Setting(BEST, 8, 1.0)], other.by_anchor[Setting(BEST, 8, 1.0)])


def test_yields_by_hand() -> None:
    base, tfm, best = (Setting(method, 16, 1.0) for method in ("ddtree", "tfm", BEST))
    figures = {base: [1.0, 2.0, 3.0], tfm: [2.0, 2.0, 3.5], best: [3.0, 3.0, 5.0]}
    found = BestTrees(("a", "a", "b"), {setting: np.array(values) for setting, values in figures.items()})
    yields = {(y.kind, y.setting): y for y in found.yields()}
    assert [kind for kind, setting in yields if setting == tfm] == ["all", MACRO, "a", "b"]
    overall = yields["all", tfm]
    assert (overall.anchors, overall.tokens.value) == (3, 2.5)
    assert overall.gain.value == pytest.approx(7.5 / 6 - 1)
    assert overall.share.value == pytest.approx((7.5 - 6) / (11 - 6))
    assert overall.left.value == pytest.approx(11 / 7.5 - 1)
    assert overall.gain == gain_of_ratios([np.array([[2.0, 1, 1, 1], [2, 1, 2, 1], [3.5, 1, 3, 1]])])
    assert overall.share.low <= overall.share.value <= overall.share.high
    macro = yields[MACRO, tfm]
    assert macro.tokens.value == pytest.approx((2.0 + 3.5) / 2)
    assert macro.gain.value == pytest.approx((2.0 + 3.5) / (1.5 + 3.0) - 1)
    assert macro.share.value == pytest.approx((5.5 - 4.5) / (8.0 - 4.5))
    assert yields["b", tfm].share.value == pytest.approx(0.25)
    assert yields["all", base].left.value == yields["all", best].gain.value == pytest.approx(11 / 6 - 1)
    assert all(np.isnan(y.value) for y in (yields["all", base].gain, yields["all", base].share))
    assert all(np.isnan(y.value) for y in (yields["all", best].left, yields["all", best].share))
    assert {y.kind for y in replace(found, kinds=("a", "a", "a")).yields()} == {"all"}


def test_settings_that_differ_only_in_what_plays_no_part_count_once() -> None:
    settings = [
        Setting("tfm", 8, t, shared_noise=s, width=w) for t, s in ((0.0, False), (1.0, True)) for w in (1, None)
    ]
    assert comparable(settings) == [
        Setting("ddtree", 8, 1.0),
        Setting("tfm", 8, 1.0, width=1),
        Setting("tfm", 8, 1.0),
    ]
    assert comparable([Setting("chain", 4, 1.0, max_depth=3)])[1] == Setting("ddtree", 4, 1.0, max_depth=3)


def test_what_cannot_be_measured_is_refused(bundle: Bundle) -> None:
    tfm = [Setting("tfm", 4, 1.0)]
    for nothing in ([], [Setting("ar", 0, 1.0), Setting("dyspec", 8, 1.0), Setting("chain", 0, 1.0)]):
        with pytest.raises(ValueError, match="needs a method with fixed trees"):
            measure_best_trees(bundle, prompts_of(("a", 5)), nothing)
    with pytest.raises(ValueError, match="needs a Weaver"):
        measure_best_trees(replace(bundle, weaver=None), prompts_of(("a", 5)), tfm)
    with pytest.raises(ValueError, match="prompts of at least 2 tokens"):
        measure_best_trees(bundle, prompts_of(("a", 5), ("a", 1)), tfm)
    with pytest.raises(ValueError, match="leaves no room for 79 more in a context of 2304"):
        measure_best_trees(bundle, prompts_of(("a", 2226)), tfm)
