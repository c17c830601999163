"""The decoding loop: draft a tree, verify it in one target call, accept a path, commit it.

``DecodeSession`` is the loop, one step at a time; ``speculative_decode`` runs it to the end.
``autoregressive_decode`` is plain decoding, one token per target call, written without trees: the text that every
lossless method has to reproduce.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tfm_lab.distributions import SamplingConfig, TargetRows
from tfm_lab.drafting.foresight import foresee, foresee_logits
from tfm_lab.drafting.types import Draft, DraftSource, TreeBuilder, TreeConfig, TreeKind
from tfm_lab.draws import Draws, SeededDraws
from tfm_lab.models.autoregressive import AutoregressiveDrafter, AutoregressiveSession
from tfm_lab.models.context_drafter import DraftContext
from tfm_lab.models.drafter import FactorisedDrafter
from tfm_lab.models.state import TargetState
from tfm_lab.models.target import TargetModel
from tfm_lab.models.weaver import Weaver, WeaverSession
from tfm_lab.noise import SharedNoise, noise_key
from tfm_lab.trace import DecodeStep, DecodeTrace, StageSeconds, StopReason
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance, AcceptanceRule


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """What to decode.

    Attributes:
        max_new_tokens: length limit, prompt excluded.
        sampling: temperature, top-k and top-p of the target, and whether drafters foresee its noise; temperature 0 is
            greedy.
        tree: size and shape of the draft trees.
        stop_tokens: token ids that end the text; the stop token itself is kept.
        seed: of all random decisions; drafting and acceptance draw from separate streams. Shared noise depends on the
            prompt, too.

    Raises:
        ValueError: if ``max_new_tokens`` is negative.
    """

    max_new_tokens: int = 128
    sampling: SamplingConfig = field(default_factory=lambda: SamplingConfig(temperature=0.0))
    tree: TreeConfig = field(default_factory=TreeConfig)
    stop_tokens: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be 0 or more, got {self.max_new_tokens}")


@dataclass(frozen=True, slots=True)
class Speculator:
    """Drafter, tree builder and acceptance rule that work together.

    Attributes:
        name: of the method, for traces.
        drafter: gives marginals, or conditionals if it is autoregressive.
        weaver: turns marginals into conditionals; ``None`` for methods that need none.
        build_tree: grows the tree.
        kind: whether ``build_tree`` draws siblings.
        rule: accepts a path of the verified tree.
    """

    name: str
    drafter: FactorisedDrafter | AutoregressiveDrafter
    weaver: Weaver | None
    build_tree: TreeBuilder
    kind: TreeKind
    rule: AcceptanceRule


class _Place(NamedTuple):
    """How far a decode has come. A step replaces all of it at once, so an interrupted step leaves no trace."""

    state: TargetState
    context: DraftContext
    hidden: Float[Tensor, " channels"]
    last: int | None
    produced: int
    draws: SeededDraws | SharedNoise
    draft_draws: SeededDraws
    steps: tuple[DecodeStep, ...] = ()


class DecodeSession:
    """A decode in progress. Nothing in the models changes: two sessions never disturb each other.

    Args:
        target: verifies.
        speculator: drafts and accepts.
        prompt: token ids, at least one.
        config: lengths, sampling, tree, seed.

    Raises:
        ValueError: if drafter, Weaver, rule and target do not belong together, or the prompt does not fit.
    """

    def __init__(
        self, target: TargetModel, speculator: Speculator, prompt: Sequence[int], config: DecodeConfig
    ) -> None:
        speculator.drafter.check_target(target)
        if speculator.weaver is not None:
            speculator.weaver.check_target(target)
        speculator.rule.supports(speculator.kind, config.sampling)
        if config.sampling.shared_noise and speculator.kind is TreeKind.SAMPLED:
            raise ValueError("under shared noise nothing is left to draw while drafting: use a method with fixed trees")
        self._target, self._speculator, self._config = target, speculator, config
        self._fingerprint = target.fingerprint()
        self._prompt = tuple(prompt)
        draws, draft_draws = _target_draws(config, prompt), SeededDraws(config.seed, "draft")
        started = _now(target)
        prefilled = target.prefill(self._prompt, speculator.drafter.config.tap_layers)
        context = speculator.drafter.extend_context(speculator.drafter.empty_context(), prefilled.taps)
        self._first: int | None = None
        if self._remaining(0) > 0:
            self._first = _sample(prefilled.logits, config.sampling, draws)
        produced = 0 if self._first is None else 1
        self._place = _Place(prefilled.state, context, prefilled.hidden, self._first, produced, draws, draft_draws)
        self._prefill_seconds = _now(target) - started
        self._is_interrupted = False

    @property
    def state(self) -> TargetState:
        """The target after all tokens of the text but the last, which is the root of the next tree."""
        return self._place.state

    @property
    def context(self) -> DraftContext:
        """The drafter's view of the same committed positions."""
        return self._place.context

    @property
    def hidden(self) -> Float[Tensor, " channels"]:
        """The target's hidden state that the last token was chosen from; a Weaver's prefix begins with it."""
        return self._place.hidden

    @property
    def last_token(self) -> int | None:
        """The root of the next tree; ``None`` if no token was asked for."""
        return self._place.last

    @property
    def next_tree(self) -> TreeConfig:
        """Size and shape of the next tree: the configured ones, cut to what may still be produced."""
        return self._tree_config(None)

    @property
    def is_finished(self) -> bool:
        return self._stop() is not StopReason.UNFINISHED

    def step(self, budget: int | None = None) -> DecodeStep:
        """Draft, verify, accept and commit once.

        Args:
            budget: of this step's tree, in place of the configured one.

        Raises:
            ValueError: if the decode has finished.
        """
        place = self._place
        if self.is_finished or place.last is None:
            raise ValueError(f"this decode has ended ({self._stop().value}); start a new session")
        target, speculator, root = self._target, self._speculator, place.last
        draws, draft_draws = place.draws.copy(), place.draft_draws.copy()
        config = self._tree_config(budget)
        times = [_now(target)]
        source = self._source(place, root, config)
        times.append(_now(target))
        if source is None:
            draft = Draft(DraftTree.root_only(root), speculator.kind)
        else:
            draft = speculator.build_tree(root, source, config, draft_draws)
        times.append(_now(target))
        outputs = target.verify_tree(place.state, draft.tree, speculator.drafter.config.tap_layers)
        times.append(_now(target))
        rows = TargetRows(outputs.logits, self._config.sampling)
        acceptance = speculator.rule(draft, rows, draws)
        times.append(_now(target))
        committed = self._clipped(acceptance.emitted(draft.tree))
        path = acceptance.path[: len(committed)]
        state = target.commit(place.state, outputs.pending, path)
        context = speculator.drafter.extend_context(place.context, outputs.taps[list(path)])
        times.append(_now(target))
        seconds = StageSeconds(*(end - start for start, end in pairwise(times)))
        step = DecodeStep(
            draft.tree, draft.kind, draft.rounds, draft.drafter_calls, acceptance, tuple(committed), seconds
        )
        produced, hidden = place.produced + len(committed), outputs.hidden[path[-1]]
        steps = (*place.steps, step)
        self._place = _Place(state, context, hidden, committed[-1], produced, draws, draft_draws, steps)
        return step

    def interrupt(self) -> None:
        """End the decode here; committed steps stay."""
        self._is_interrupted = not self.is_finished

    def trace(self) -> DecodeTrace:
        """Everything so far."""
        config, speculator = self._config, self._speculator
        return DecodeTrace(
            speculator.name,
            speculator.rule.name,
            self._fingerprint,
            config.sampling,
            config.tree,
            config.seed,
            config.max_new_tokens,
            config.stop_tokens,
            self._prompt,
            self._first,
            self._place.steps,
            self._stop(),
            self._prefill_seconds,
        )

    def _remaining(self, produced: int) -> int:
        """Tokens that may still be produced: the rest of the length limit, or of the context."""
        room = self._target.config.max_positions - len(self._prompt) - produced
        return min(self._config.max_new_tokens - produced, room)

    def _tree_config(self, budget: int | None) -> TreeConfig:
        """No path longer than what may still be produced, the bonus token left out."""
        tree = self._config.tree if budget is None else replace(self._config.tree, budget=budget)
        depth = min(
            tree.max_depth, self._speculator.drafter.config.draft_depth, self._remaining(self._place.produced) - 1
        )
        return replace(tree, max_depth=depth) if depth > 0 else replace(tree, budget=0)

    def _source(self, place: _Place, root: int, config: TreeConfig) -> DraftSource | None:
        if config.budget == 0:
            return None
        target, drafter, weaver = self._target, self._speculator.drafter, self._speculator.weaver
        hidden, context, temperature = place.hidden, place.context, self._config.sampling.temperature
        noise, pool_size = None, config.pool_size
        if isinstance(place.draws, SharedNoise):
            noise = place.draws.ahead(drafter.config.draft_depth, target.config.vocab_size)
        if isinstance(drafter, AutoregressiveDrafter):
            source = DraftSource(None, lambda: AutoregressiveSession(drafter, target, context, pool_size))
        else:
            marginals = drafter.propose(context, root, target, min(config.budget, config.max_depth))
            source = DraftSource(marginals)
            if weaver is not None:
                ranking = None
                if noise is not None:
                    ranking = foresee_logits(marginals.logits, noise[: marginals.max_depth], temperature)
                opened = lambda: WeaverSession(weaver, target, marginals, hidden, pool_size, ranking)  # noqa: E731
                source = DraftSource(marginals, opened)
        return source if noise is None else foresee(source, noise, temperature)

    def _clipped(self, emitted: Sequence[int]) -> list[int]:
        """The emitted tokens up to the first stop token and the length limit."""
        kept = list(emitted[: self._remaining(self._place.produced)])
        for index, token in enumerate(kept):
            if token in self._config.stop_tokens:
                return kept[: index + 1]
        return kept

    def _stop(self) -> StopReason:
        place = self._place
        if place.last in self._config.stop_tokens:
            return StopReason.STOP_TOKEN
        if place.produced >= self._config.max_new_tokens:
            return StopReason.LENGTH
        if self._remaining(place.produced) <= 0:
            return StopReason.CONTEXT_FULL
        return StopReason.INTERRUPTED if self._is_interrupted else StopReason.UNFINISHED


def speculative_decode(
    target: TargetModel,
    speculator: Speculator,
    prompt: Sequence[int],
    config: DecodeConfig,
    on_step: Callable[[DecodeStep], None] | None = None,
) -> DecodeTrace:
    """Decode until a stop token, the length limit or the end of the context.

    Ctrl-C ends the decode after the last committed step; the trace then says ``interrupted``.

    Args:
        on_step: called after every committed step, for progress and streaming.

    Raises:
        ValueError: as :class:`DecodeSession`.
    """
    session = DecodeSession(target, speculator, prompt, config)
    try:
        while not session.is_finished:
            step = session.step()
            if on_step is not None:
                on_step(step)
    except KeyboardInterrupt:
        session.interrupt()
    return session.trace()


@torch.no_grad()
def autoregressive_decode(
    target: TargetModel,
    prompt: Sequence[int],
    config: DecodeConfig,
    on_step: Callable[[DecodeStep], None] | None = None,
) -> DecodeTrace:
    """Plain decoding: one target call and one token at a time.

    Draws one random number per token, so sampled text depends on the seed alone; ``target_sample`` on any tree draws
    the same numbers for the same tokens.

    Raises:
        ValueError: if the prompt is empty or does not fit.
    """
    draws = _target_draws(config, prompt)
    started = _now(target)
    prefilled = target.prefill(prompt)
    prefill_seconds = _now(target) - started
    state, logits = prefilled.state, prefilled.logits
    limit = min(config.max_new_tokens, target.config.max_positions - len(prompt))
    first: int | None = None
    steps: list[DecodeStep] = []
    stop = StopReason.LENGTH if limit == config.max_new_tokens else StopReason.CONTEXT_FULL
    try:
        root = first = _sample(logits, config.sampling, draws) if limit > 0 else None
        while root is not None and root not in config.stop_tokens and len(steps) + 1 < limit:
            times = [_now(target)]
            features, state = target.extend(torch.tensor([[root]], device=target.device), state)
            logits = target.logits(features.hidden[0, -1])
            times.append(_now(target))
            token = _sample(logits, config.sampling, draws)
            times.append(_now(target))
            seconds = StageSeconds(0.0, 0.0, times[1] - times[0], times[2] - times[1], 0.0)
            tree, acceptance = DraftTree.root_only(root), Acceptance((0,), token)
            steps.append(DecodeStep(tree, TreeKind.FIXED, (), 0, acceptance, (token,), seconds))
            root = token
            if on_step is not None:
                on_step(steps[-1])
        if root in config.stop_tokens:
            stop = StopReason.STOP_TOKEN
    except KeyboardInterrupt:
        stop = StopReason.INTERRUPTED
    return DecodeTrace(
        "ar",
        "greedy" if config.sampling.is_greedy else "target_sample",
        target.fingerprint(),
        config.sampling,
        replace(config.tree, budget=0),
        config.seed,
        config.max_new_tokens,
        config.stop_tokens,
        tuple(prompt),
        first,
        tuple(steps),
        stop,
        prefill_seconds,
    )


def _target_draws(config: DecodeConfig, prompt: Sequence[int]) -> SeededDraws | SharedNoise:
    """What the target's tokens are drawn with."""
    return SharedNoise(noise_key(config.seed, prompt)) if config.sampling.shared_noise else SeededDraws(config.seed)


def _sample(logits: Float[Tensor, " vocab"], sampling: SamplingConfig, draws: Draws) -> int:
    probabilities = sampling.probabilities(logits)
    return int(probabilities.argmax()) if sampling.is_greedy else draws.categorical(probabilities)


def _now(target: TargetModel) -> float:
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
    return time.perf_counter()
