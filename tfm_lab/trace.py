"""Records of a decode: every step's tree, what was accepted, what was committed, and how long each stage took."""

import json
import math
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting.types import Candidate, GrowthRound, TreeConfig, TreeKind
from tfm_lab.tree import DraftTree
from tfm_lab.verification import Acceptance

FORMAT = "tfm_lab.trace/1"


class StopReason(Enum):
    """Why a decode ended."""

    LENGTH = "length"
    """``max_new_tokens`` were produced."""
    STOP_TOKEN = "stop token"
    """The text ends with a stop token."""
    CONTEXT_FULL = "context full"
    """Prompt and text fill the target's context."""
    INTERRUPTED = "interrupted"
    """The user broke off; the trace holds every step that was committed."""
    UNFINISHED = "unfinished"
    """The decode can go on."""


class StageSeconds(NamedTuple):
    """Wall-clock seconds of one step, by stage."""

    draft: float
    """one pass of the factorised drafter"""
    weave: float
    """growing the tree, Weaver calls included"""
    verify: float
    """the target's forward pass over the tree"""
    accept: float
    """the acceptance rule"""
    commit: float
    """state, drafter context and bookkeeping"""

    @property
    def total(self) -> float:
        return sum(self)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeStep:
    """One round: a tree is drafted, verified in one target call, and a path of it committed.

    Attributes:
        tree: the drafted tree; its root is the last token of the text so far.
        kind: whether siblings were drawn.
        rounds: how the tree grew.
        drafter_calls: sequential calls of the autoregressive drafter.
        acceptance: path and bonus token as the rule chose them.
        committed: tokens that this step added to the text: accepted tokens, then the bonus, clipped at a stop token or
            the length limit.
        seconds: wall-clock time by stage.
    """

    tree: DraftTree
    kind: TreeKind
    rounds: tuple[GrowthRound, ...]
    drafter_calls: int
    acceptance: Acceptance
    committed: tuple[int, ...]
    seconds: StageSeconds

    @property
    def accepted(self) -> int:
        """Drafted tokens that the rule accepted (the bonus is not one of them)."""
        return len(self.acceptance.path) - 1

    @property
    def kept_drafts(self) -> int:
        """Accepted drafts that entered the text; fewer than ``accepted`` where it was clipped."""
        return min(self.accepted, len(self.committed))

    @property
    def has_kept_bonus(self) -> bool:
        """True if the bonus token entered the text."""
        return len(self.committed) == len(self.acceptance.path)


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTrace:
    """A whole decode.

    Attributes:
        method: name of the tree builder, or ``ar``.
        rule: name of the acceptance rule.
        target: fingerprint of the target's weights.
        prompt: token ids of the prompt.
        first_token: sampled from the prompt's logits, before any tree; ``None`` if no token was asked for.
        steps: one record per target call after the prompt.
        stop: why the decode ended.
        prefill_seconds: time to process the prompt.
    """

    method: str
    rule: str
    target: str
    sampling: SamplingConfig
    tree: TreeConfig
    seed: int
    max_new_tokens: int
    stop_tokens: tuple[int, ...]
    prompt: tuple[int, ...]
    first_token: int | None
    steps: tuple[DecodeStep, ...]
    stop: StopReason
    prefill_seconds: float

    @property
    def tokens(self) -> tuple[int, ...]:
        """All new tokens, a final stop token included."""
        first = () if self.first_token is None else (self.first_token,)
        return first + tuple(token for step in self.steps for token in step.committed)

    def uninterrupted(self) -> "DecodeTrace":
        """This trace, for whoever has no use for part of a decode.

        Raises:
            KeyboardInterrupt: if Ctrl-C ended it.
        """
        if self.stop is StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        return self

    @property
    def target_calls(self) -> int:
        """Forward passes of the target after the prompt; prefill is one more in every method."""
        return len(self.steps)

    @property
    def mean_accepted_length(self) -> float:
        """MAL: tokens committed per target call, bonus included; the token that prefill gives is not counted.

        NaN for a decode without steps.
        """
        committed = sum(len(step.committed) for step in self.steps)
        return committed / len(self.steps) if self.steps else float("nan")

    def to_json(self) -> str:
        """The trace as JSON; :meth:`from_json` reads it back."""
        fields = {
            "format": FORMAT,
            "method": self.method,
            "rule": self.rule,
            "target": self.target,
            "sampling": asdict(self.sampling),
            "tree": asdict(self.tree),
            "seed": self.seed,
            "max_new_tokens": self.max_new_tokens,
            "stop_tokens": list(self.stop_tokens),
            "prompt": list(self.prompt),
            "first_token": self.first_token,
            "steps": [_step_to_dict(step) for step in self.steps],
            "stop": self.stop.value,
            "prefill_seconds": self.prefill_seconds,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "DecodeTrace":
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: if the text is no such trace, or its parts contradict each other.
        """
        try:
            fields = json.loads(text)
            if not isinstance(fields, dict) or fields.get("format") != FORMAT:
                raise ValueError(f"expected a JSON object with format {FORMAT!r}")
            trace = cls(
                method=_text(fields, "method"),
                rule=_text(fields, "rule"),
                target=_text(fields, "target"),
                sampling=_sampling(fields["sampling"]),
                tree=_tree_config(fields["tree"]),
                seed=_whole(fields["seed"], "seed", least=None),
                max_new_tokens=_whole(fields["max_new_tokens"], "max_new_tokens"),
                stop_tokens=_wholes(fields["stop_tokens"], "stop_tokens"),
                prompt=_wholes(fields["prompt"], "prompt"),
                first_token=None if fields["first_token"] is None else _whole(fields["first_token"], "first_token"),
                steps=tuple(_step_from_dict(step) for step in _items(fields["steps"], "steps", dict)),
                stop=StopReason(fields["stop"]),
                prefill_seconds=_seconds(fields["prefill_seconds"], "prefill_seconds"),
            )
            _check_story(trace)
        except KeyError as error:
            raise ValueError(f"not a decode trace, or a damaged one: it lacks {error}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a decode trace, or a damaged one: {error}") from None
        return trace


def _step_to_dict(step: DecodeStep) -> dict[str, Any]:
    tree = step.tree
    return {
        "tokens": tree.tokens.tolist(),
        "parents": tree.parents.tolist(),
        "log_probs": tree.log_probs.tolist(),
        "kind": step.kind.value,
        "rounds": [
            {
                "expanded": list(growth.expanded),
                "offered": [list(c) for c in growth.offered],
                "added": list(growth.added),
            }
            for growth in step.rounds
        ],
        "drafter_calls": step.drafter_calls,
        "path": list(step.acceptance.path),
        "bonus": step.acceptance.bonus,
        "committed": list(step.committed),
        "seconds": step.seconds._asdict(),
    }


def _step_from_dict(step: dict[str, Any]) -> DecodeStep:
    log_probs = [float(value) for value in _items(step["log_probs"], "log_probs", int | float)]
    tree = DraftTree.from_parents(
        _wholes(step["tokens"], "tokens"), _wholes(step["parents"], "parents", least=-1), log_probs
    )
    path = _wholes(step["path"], "path")
    if not path or path != tree.path(path[-1]):
        raise ValueError(f"{list(path)} is no path of its tree, from the root down")
    acceptance = Acceptance(path, _whole(step["bonus"], "bonus"))
    committed = _wholes(step["committed"], "committed")
    if not committed or committed != acceptance.emitted(tree)[: len(committed)]:
        raise ValueError(f"committed tokens {list(committed)} are not those of the accepted path and its bonus token")
    return DecodeStep(
        tree=tree,
        kind=TreeKind(step["kind"]),
        rounds=tuple(_round_from_dict(growth, len(tree)) for growth in _items(step["rounds"], "rounds", dict)),
        drafter_calls=_whole(step["drafter_calls"], "drafter_calls"),
        acceptance=acceptance,
        committed=committed,
        seconds=StageSeconds(*(_seconds(step["seconds"][name], name) for name in StageSeconds._fields)),
    )


def _round_from_dict(growth: dict[str, Any], nodes: int) -> GrowthRound:
    expanded, added = _wholes(growth["expanded"], "expanded"), _wholes(growth["added"], "added")
    offered = [Candidate(*candidate) for candidate in _items(growth["offered"], "offered", list)]
    parents = _wholes([candidate.parent for candidate in offered], "parent of an offered candidate")
    _wholes([candidate.token for candidate in offered], "token of an offered candidate")
    _items([candidate.score for candidate in offered], "score of an offered candidate", int | float)
    if any(node >= nodes for node in (*expanded, *added, *parents)):
        raise ValueError(f"a growth round names nodes that a tree of {nodes} nodes does not have")
    return GrowthRound(expanded, tuple(offered), added)


def _check_story(trace: DecodeTrace) -> None:
    """Raise a ValueError unless every step starts where the one before ended, within the length limit."""
    last = trace.first_token
    for index, step in enumerate(trace.steps):
        if last is None or int(step.tree.tokens[0]) != last:
            raise ValueError(f"the root of step {index} is not the last token of the text so far")
        last = step.committed[-1]
    if len(trace.tokens) > trace.max_new_tokens:
        raise ValueError(f"it holds {len(trace.tokens)} new tokens, but max_new_tokens is {trace.max_new_tokens}")


def _sampling(fields: dict[str, Any]) -> SamplingConfig:
    _items([fields["temperature"], fields["top_p"]], "temperature and top_p", int | float)
    _whole(fields["top_k"], "top_k")
    if not isinstance(fields.get("shared_noise", False), bool):
        raise ValueError(f"shared_noise must be true or false, got {fields['shared_noise']!r:.60}")
    return SamplingConfig(**fields)


def _tree_config(fields: Any) -> TreeConfig:
    if not isinstance(fields, dict):
        raise ValueError(f"tree must be an object, got {fields!r:.60}")
    for name, value in fields.items():
        if value is not None or name != "width":
            _whole(value, name)
    return TreeConfig(**fields)


def _text(fields: dict[str, Any], name: str) -> str:
    if not isinstance(fields[name], str):
        raise ValueError(f"{name} must be a text, got {fields[name]!r:.60}")
    return fields[name]


def _whole(value: object, name: str, least: int | None = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and not least <= value < 2**31):
        raise ValueError(f"{name} must be a whole number{'' if least is None else ' in range'}, got {value!r:.60}")
    return value


def _wholes(value: object, name: str, least: int = 0) -> tuple[int, ...]:
    return tuple(_whole(item, name, least) for item in _items(value, name, object))


def _seconds(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of seconds, got {value!r:.60}")
    return float(value)


def _items(value: object, name: str, kind: Any) -> list[Any]:
    """``value`` if it is a list of such items."""
    if not isinstance(value, list) or not all(isinstance(item, kind) and type(item) is not bool for item in value):
        raise ValueError(f"{name} must be a list of the right items, got {value!r:.60}")
    return value
