"""How many tokens one step can yield at most: every method's tree beside the best tree of as many nodes.

At temperature 1, with noise of its own and the ``target_sample`` rule, a target accepts the drafts of a fixed tree that
its own draws spell. The expected yield of a step is then exactly 1 (the bonus) plus the target's probabilities of all
nodes' paths: nothing has to be drawn. The best tree holds the target's own most probable paths
(:mod:`tfm_lab.evaluation.best_paths`); no drafter that grows fixed trees, however it was trained, gets beyond it.

Trees whose siblings are *drawn* are accepted by other rules, and this bound does not hold for them.

All trees grow at the same anchors, which are drawn evenly from texts of the target. Decoding, whose steps are long
where the text is easy, meets more of the hard places; so a mean over these anchors is not its MAL.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tfm_lab.bundle import Bundle
from tfm_lab.decoding import Speculator
from tfm_lab.drafting import DraftSource
from tfm_lab.draws import SeededDraws
from tfm_lab.evaluation.anchors import check_prompts, to_anchors
from tfm_lab.evaluation.best_paths import TargetPaths, best_paths, path_probabilities
from tfm_lab.evaluation.emissions import merge_trees
from tfm_lab.evaluation.records import Prompt
from tfm_lab.evaluation.settings import Setting
from tfm_lab.evaluation.statistics import UNKNOWN, Bounded, Counts, bootstrap, gain_of_ratios, mean_ratio
from tfm_lab.evaluation.summary import ALL
from tfm_lab.methods import make_speculator
from tfm_lab.models.autoregressive import AutoregressiveDrafter, AutoregressiveSession
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.weaver import WeaverSession
from tfm_lab.replay import REPLAYED
from tfm_lab.tree import DraftTree

BEST, BASELINE, MACRO = "best tree", "ddtree", "macro average"


class Yield(NamedTuple):
    """Expected tokens of one step with one kind of tree, on one kind of text.

    Attributes:
        setting: method and shape; the method is ``BEST`` for the best tree.
        kind: of text; ``ALL`` for all texts, ``MACRO`` for the average in which every kind counts alike.
        tokens: mean over anchors, bonus included.
        gain: over DDTree of the same budget and depth.
        share: of the way from DDTree to the best tree.
        left: what the best tree gains over this one.
    """

    setting: Setting
    kind: str
    anchors: int
    tokens: Bounded
    gain: Bounded
    share: Bounded
    left: Bounded


@dataclass(frozen=True, slots=True, eq=False)
class BestTrees:
    """Expected tokens of one step at temperature 1, bonus included.

    Attributes:
        kinds: of the text that each anchor lies in.
        by_anchor: one figure per anchor, by setting; for every budget and depth there are DDTree and the best tree.
    """

    kinds: tuple[str, ...]
    by_anchor: dict[Setting, NDArray[np.float64]]

    @property
    def anchors(self) -> int:
        return len(self.kinds)

    def yields(self) -> list[Yield]:
        """All texts, then the macro average and every kind where there are several."""
        found = list(dict.fromkeys(self.kinds))
        members = {kind: np.array([kind == own for own in self.kinds]) for kind in found}
        groups = {ALL: [np.ones(self.anchors, dtype=bool)]}
        if len(found) > 1:
            groups |= {MACRO: list(members.values())} | {kind: [mask] for kind, mask in members.items()}
        settings = sorted(self.by_anchor, key=lambda setting: setting.budget)
        return [self._yield(setting, kind, masks) for kind, masks in groups.items() for setting in settings]

    def _yield(self, setting: Setting, kind: str, masks: Sequence[NDArray[np.bool_]]) -> Yield:
        own, baseline, best = (
            self.by_anchor[key] for key in (setting, _same_shape(setting, BASELINE), _same_shape(setting, BEST))
        )
        counts = [
            np.stack([column[mask] for column in (own, np.ones_like(own), baseline, best)], axis=1) for mask in masks
        ]
        is_baseline, is_best = setting.method == BASELINE, setting.method == BEST
        return Yield(
            setting,
            kind,
            sum(map(len, counts)),
            mean_ratio([group[:, :2] for group in counts]),
            UNKNOWN if is_baseline else gain_of_ratios([group[:, [0, 1, 2, 1]] for group in counts]),
            UNKNOWN if is_baseline or is_best else bootstrap(counts, _share_of_way),
            UNKNOWN if is_best else gain_of_ratios([group[:, [3, 1, 0, 1]] for group in counts]),
        )


@torch.no_grad()
def measure_best_trees(
    bundle: Bundle,
    prompts: Sequence[Prompt],
    settings: Sequence[Setting],
    *,
    written: int = 64,
    seed: int = 0,
    on_anchor: Callable[[int], None] | None = None,
) -> BestTrees:
    """Grow every method's tree and the best one at one anchor in each prompt's continuation.

    Args:
        prompts: with room for ``written`` tokens and the longest path.
        settings: methods and shapes. Temperatures, shared noise, and methods without fixed trees play no part; DDTree
            joins where it is missing.
        written: the anchor is one of so many tokens that the target writes.
        on_anchor: called with the number of anchors done.

    Raises:
        ValueError: if no setting has a fixed tree, a model is missing, or a prompt does not fit.
    """
    methods = comparable(settings)
    speculators = {setting: _speculator(bundle, setting) for setting in methods}
    texts = [prompt.tokens for prompt in prompts]
    check_prompts(bundle.target, texts, written + max(setting.max_depth for setting in methods))
    generator = torch.Generator(bundle.target.device).manual_seed(seed)
    kinds: list[str] = []
    figures: dict[Setting, list[float]] = {}
    for done, anchored in enumerate(to_anchors(bundle.target, texts, written, generator), start=1):
        kinds.append(prompts[anchored.prompt].context.kind)
        for setting, tokens in expected_tokens(bundle, speculators, anchored.tokens).items():
            figures.setdefault(setting, []).append(tokens)
        if on_anchor is not None:
            on_anchor(done)
    return BestTrees(tuple(kinds), {setting: np.array(values) for setting, values in figures.items()})


def comparable(settings: Sequence[Setting]) -> list[Setting]:
    """The settings with fixed trees, at temperature 1 with noise of the target's own, each once; DDTree joins them.

    Raises:
        ValueError: if there are none.
    """
    fixed = [
        replace(setting.essential, temperature=1.0, shared_noise=False)
        for setting in settings
        if setting.method in REPLAYED and setting.budget > 0
    ]
    if not fixed:
        raise ValueError(
            f"a best tree needs a method with fixed trees ({', '.join(REPLAYED)}) and a budget of 1 or more"
        )
    baselines = [_same_shape(setting, BASELINE) for setting in fixed]
    order = REPLAYED.index
    return sorted(dict.fromkeys([*fixed, *baselines]), key=lambda setting: (setting.budget, order(setting.method)))


@torch.no_grad()
def expected_tokens(
    bundle: Bundle, speculators: dict[Setting, Speculator], text: Sequence[int]
) -> dict[Setting, float]:
    """Expected tokens of a step below ``text``, at least two tokens, with every method's tree and the best ones."""
    place = _Place(bundle, speculators, text)
    trees = {setting: place.grow(setting, speculator) for setting, speculator in speculators.items()}
    merged, nodes = merge_trees(list(trees.values()))
    log_probs = place.paths.log_probs(merged)
    probabilities = path_probabilities(merged, log_probs)
    known = {merged.path_tokens(node)[1:]: row for node, row in enumerate(place.paths.children(log_probs))}
    found = {setting: float(probabilities[rows].sum()) for setting, rows in zip(trees, nodes, strict=True)}
    for depth in {setting.max_depth for setting in speculators}:
        budgets = sorted({setting.budget for setting in speculators if setting.max_depth == depth})
        best = np.exp([reached.log_prob for reached in best_paths(place.paths.ask, budgets[-1], depth, known)])
        found |= {Setting(BEST, budget, 1.0, max_depth=depth): 1.0 + float(best[:budget].sum()) for budget in budgets}
    return found


class _Place:
    """The end of a text, set up for growing trees there.

    Args:
        speculators: all that will be asked to grow one.
    """

    def __init__(self, bundle: Bundle, speculators: dict[Setting, Speculator], text: Sequence[int]) -> None:
        self._target, self._root = bundle.target, text[-1]
        drafters = list(dict.fromkeys(speculator.drafter for speculator in speculators.values()))
        before = bundle.target.prefill(
            text[:-1], [layer for drafter in drafters for layer in drafter.config.tap_layers]
        )
        self._hidden: Float[Tensor, " channels"] = before.hidden
        taps = before.taps.split([drafter.fc.in_features for drafter in drafters], dim=-1)
        self._contexts = {
            drafter: drafter.extend_context(drafter.empty_context(), own)
            for drafter, own in zip(drafters, taps, strict=True)
        }
        self._marginals = {
            drafter: drafter.propose(context, self._root, bundle.target)
            for drafter, context in self._contexts.items()
            if isinstance(drafter, FactorisedDrafter)
        }
        self.paths = TargetPaths(
            bundle.target, before.state, self._root, max(setting.budget for setting in speculators)
        )

    def grow(self, setting: Setting, speculator: Speculator) -> DraftTree:
        """The tree that decoding would draft here."""
        source = self._source(speculator, setting.pool_size)
        return speculator.build_tree(self._root, source, setting.tree, SeededDraws(0, "fixed trees draw nothing")).tree

    def _source(self, speculator: Speculator, pool_size: int) -> DraftSource:
        drafter, weaver, target = speculator.drafter, speculator.weaver, self._target
        if isinstance(drafter, AutoregressiveDrafter):
            context = self._contexts[drafter]
            return DraftSource(None, lambda: AutoregressiveSession(drafter, target, context, pool_size))
        marginals = self._marginals[drafter]
        if weaver is None:
            return DraftSource(marginals)
        return DraftSource(marginals, lambda: WeaverSession(weaver, target, marginals, self._hidden, pool_size))


def _speculator(bundle: Bundle, setting: Setting) -> Speculator:
    """The models of a method; the Weaver is the one for the setting's temperature, which is 1."""
    return make_speculator(
        setting.method, bundle.drafter, bundle.weaver, setting.sampling, autoregressive=bundle.autoregressive
    )


def _same_shape(setting: Setting, method: str) -> Setting:
    return Setting(method, setting.budget, 1.0, max_depth=setting.max_depth)


def _share_of_way(sums: Sequence[Counts]) -> NDArray[np.float64]:
    """From column 2 to column 3, of means over kinds of text."""
    own, baseline, best = (np.mean([s[:, column] / s[:, 1] for s in sums], axis=0) for column in (0, 2, 3))
    return (own - baseline) / (best - baseline)
