"""Decode by one method, and at every step look at what each of the others would have drafted in the same context."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from tfm_lab.bundle import Bundle
from tfm_lab.decoding import DecodeConfig, DecodeSession
from tfm_lab.drafting import Draft, DraftSource, GrowthRound, TreeConfig, TreeKind, woven
from tfm_lab.draws import SeededDraws
from tfm_lab.explorer.records import Exploration, GrownTree, NodeFacts, Round, TokenPath
from tfm_lab.explorer.settings import METHODS, Settings, prompt_tokens
from tfm_lab.explorer.survey import expected_tokens, paths_of, survey, united
from tfm_lab.lab import OpenStep
from tfm_lab.methods import METHODS as BUILDERS
from tfm_lab.methods import make_speculator
from tfm_lab.models import WeaverSession
from tfm_lab.trace import DecodeStep, StageSeconds
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance

CANDIDATES = 32
NO_TIME = StageSeconds(0.0, 0.0, 0.0, 0.0, 0.0)


class Progress(NamedTuple):
    """How far a decode has come: new tokens so far, and how many there may be."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class _Sight:
    """One context: drafts by method, and the facts about all their nodes."""

    drafts: Mapping[str, Draft]
    facts: Mapping[TokenPath, NodeFacts]


def explore(
    settings: Settings,
    models: Bundle,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Exploration:
    """Decode and keep what can be looked at.

    Args:
        on_progress: called before every step.
        is_cancelled: asked before every step; if so, the steps so far are all there is.

    Raises:
        ValueError: if the prompt is empty or too long.
    """
    prompt = prompt_tokens(settings, models)
    config = settings.config(models.target.config.stop_tokens)
    models = models.at_temperature(config.sampling.temperature)
    speculator = make_speculator(settings.method, models.drafter, models.weaver, config.sampling)
    session = DecodeSession(models.target, speculator, prompt, config)
    steps: list[DecodeStep] = []
    sights: list[_Sight] = []
    while not session.is_finished:
        on_progress(Progress(len(session.trace().tokens), settings.new_tokens))
        if is_cancelled():
            session.interrupt()
            break
        sight = _look(models, session, config)
        steps.append(session.step())
        sights.append(sight)
    trace = session.trace()
    on_progress(Progress(len(trace.tokens), settings.new_tokens))
    rounds: list[Round] = []
    done = 1
    for step, sight in zip(steps, sights, strict=True):
        ahead = trace.tokens[done:]
        trees = {
            name: _grown(step if name == settings.method else _follow(draft, ahead), draft, sight.facts)
            for name, draft in sight.drafts.items()
        }
        rounds.append(Round(trees, sight.facts))
        done += len(step.committed)
    pieces = tuple(models.pieces(trace.tokens))
    return Exploration(settings, trace, tuple(rounds), pieces, lambda token: models.decode([token]))


@torch.no_grad()
def _look(models: Bundle, session: DecodeSession, config: DecodeConfig) -> _Sight:
    """Grow the trees of all methods in the present context, and ask the models about their nodes."""
    target, weaver, root, hidden = models.target, models.weaver, session.last_token, session.hidden
    assert weaver is not None
    assert root is not None
    marginals = models.drafter.propose(session.context, root, target)
    pool = config.tree.pool_size
    source = DraftSource(marginals, lambda: WeaverSession(weaver, target, marginals, hidden, pool))
    shape, draws = session.next_tree, SeededDraws(config.seed)
    drafts = {name: _draft(name, root, source, shape) for name in METHODS}
    more = replace(shape, budget=max(shape.budget, min(2 * shape.budget, CANDIDATES)), width=None)
    paths = [path for draft in drafts.values() for path in paths_of(draft.tree)]
    if more.budget > shape.budget:
        paths += paths_of(woven(root, source, more, draws).tree)
    step = OpenStep(root, source, session.state, hidden)
    facts = survey(models, step, united(root, paths), config.sampling, lambda token: models.decode([token]))
    return _Sight(drafts, facts)


def _draft(method: str, root: int, source: DraftSource, shape: TreeConfig) -> Draft:
    if shape.budget == 0:
        return Draft(DraftTree.root_only(root), TreeKind.FIXED)
    return BUILDERS[method].build_tree(root, source, shape, SeededDraws(0))


def _follow(draft: Draft, ahead: tuple[int, ...]) -> DecodeStep:
    """The step that a fixed tree takes along the text: methods with the same draws write the same text."""
    path, children = [0], draft.tree.children()
    tokens = draft.tree.tokens.tolist()
    for token in ahead:
        fitting = [child for child in children[path[-1]] if tokens[child] == token]
        if not fitting:
            break
        path.append(fitting[0])
    committed = ahead[: len(path)]
    bonus = committed[-1] if len(committed) == len(path) else tokens[path[-1]]
    acceptance = Acceptance(tuple(path), bonus)
    return DecodeStep(draft.tree, draft.kind, draft.rounds, draft.drafter_calls, acceptance, committed, NO_TIME)


def _grown(step: DecodeStep, draft: Draft, facts: Mapping[TokenPath, NodeFacts]) -> GrownTree:
    everything = tuple(range(1, len(draft.tree)))
    rounds = draft.rounds or (GrowthRound((), (), everything),)
    paths = paths_of(draft.tree)
    return GrownTree(step, rounds, paths, expected_tokens(paths, facts))
