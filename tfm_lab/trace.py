"""Records of a decode: every step's tree, what was accepted, what was committed, and how long each stage took."""

import json
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
            ValueError: if the text is not such a trace.
        """
        try:
            fields = json.loads(text)
            if not isinstance(fields, dict) or fields.get("format") != FORMAT:
                raise ValueError(f"not a decode trace: expected a JSON object with format {FORMAT!r}")
            return cls(
                method=fields["method"],
                rule=fields["rule"],
                target=fields["target"],
                sampling=SamplingConfig(**fields["sampling"]),
                tree=TreeConfig(**fields["tree"]),
                seed=fields["seed"],
                max_new_tokens=fields["max_new_tokens"],
                stop_tokens=tuple(fields["stop_tokens"]),
                prompt=tuple(fields["prompt"]),
                first_token=fields["first_token"],
                steps=tuple(_step_from_dict(step) for step in fields["steps"]),
                stop=StopReason(fields["stop"]),
                prefill_seconds=fields["prefill_seconds"],
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a decode trace, or a damaged one: {error}") from None


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
    return DecodeStep(
        tree=DraftTree.from_parents(step["tokens"], step["parents"], step["log_probs"]),
        kind=TreeKind(step["kind"]),
        rounds=tuple(
            GrowthRound(
                tuple(growth["expanded"]), tuple(Candidate(*c) for c in growth["offered"]), tuple(growth["added"])
            )
            for growth in step["rounds"]
        ),
        drafter_calls=step["drafter_calls"],
        acceptance=Acceptance(tuple(step["path"]), step["bonus"]),
        committed=tuple(step["committed"]),
        seconds=StageSeconds(**step["seconds"]),
    )
