"""What the explorer decodes: the learner's choices, checked, with one clear sentence for each that cannot work."""

from dataclasses import dataclass
from typing import NamedTuple

from tfm_lab import lab
from tfm_lab.bundle import DEFAULT, Bundle
from tfm_lab.decoding import DecodeConfig
from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.fetching import fetched

METHODS = ("chain", "ddtree", "tfm")
FETCHED_TARGETS = ("smollm2",)
POOLS = (32, 64, 128, 256, 512, 1024)
MOST_PROMPT = 512
PROMPT = "Explain in simple words what a database is."


class Limits(NamedTuple):
    """Least and greatest value of a setting."""

    least: float
    most: float


LIMITS = {
    "budget": Limits(1, 128),
    "width": Limits(0, 32),
    "temperature": Limits(0.0, 2.0),
    "seed": Limits(0, 9999),
    "new_tokens": Limits(2, 96),
}
WHOLE = ("budget", "width", "pool", "seed", "new_tokens")


@dataclass(frozen=True, slots=True)
class Settings:
    """One decode; equal settings give equal results, so they are the key under which results are kept.

    Attributes:
        prompt: text of the question, or the beginning of a text.
        is_chat: put the prompt to the model as a chat question.
        target: name of a bundle, see :func:`targets`.
        method: whose decode is followed, one of ``METHODS``.
        budget: proposed nodes of a tree, root excluded.
        width: nodes per Weaver call; 0 means ceil(budget / 16).
        temperature: of the target; 0 is greedy.
        pool: candidates per depth that the Weaver chooses from.
        seed: of the target's draws.
        new_tokens: length of the text.

    Raises:
        ValueError: if a value is out of range, or no whole number where one is needed.
    """

    prompt: str = PROMPT
    is_chat: bool = True
    target: str = DEFAULT
    method: str = "tfm"
    budget: int = 32
    width: int = 0
    temperature: float = 1.0
    pool: int = 512
    seed: int = 0
    new_tokens: int = 24

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"the explorer follows the methods {', '.join(METHODS)}, not {self.method!r}")
        for name in WHOLE:
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        if type(self.temperature) not in (int, float):
            raise ValueError(f"temperature must be a number, got {self.temperature!r}")
        if self.pool < 1:
            raise ValueError(f"the pool must hold at least 1 candidate, got {self.pool}")
        for name, (least, most) in LIMITS.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must lie between {least} and {most}, got {getattr(self, name)}")

    def config(self, stop_tokens: tuple[int, ...] = ()) -> DecodeConfig:
        """The same for the decoding loop."""
        return DecodeConfig(
            max_new_tokens=self.new_tokens,
            sampling=SamplingConfig(temperature=self.temperature),
            tree=TreeConfig(budget=self.budget, width=self.width or None, pool_size=self.pool),
            stop_tokens=stop_tokens,
            seed=self.seed,
        )


def targets() -> tuple[str, ...]:
    """Bundles that can be explored here: the shipped one, and those whose target has been fetched."""
    found = [DEFAULT]
    for name in FETCHED_TARGETS:
        try:
            fetched(name)
        except ValueError:
            continue
        found.append(name)
    return tuple(found)


def load(target: str) -> Bundle:
    """The bundle of a target, loaded once; the small one in float64, where every machine decides alike.

    Raises:
        ValueError: if there is no such bundle, its target was not fetched, or it has no Weaver.
    """
    models = lab.bundle(target, "float64" if target == DEFAULT else "float32")
    if models.weaver is None:
        raise ValueError(f"the bundle {target} has no Weaver, which the explorer shows: use {DEFAULT}")
    return models


def prompt_tokens(settings: Settings, models: Bundle) -> tuple[int, ...]:
    """Token ids of the prompt.

    Raises:
        ValueError: if the prompt is empty or too long.
    """
    if not settings.prompt.strip():
        raise ValueError("The prompt is empty: type a question or the beginning of a text, then press Decode.")
    tokens = models.chat(settings.prompt) if settings.is_chat else models.encode(settings.prompt)
    room = min(MOST_PROMPT, models.target.config.max_positions - settings.new_tokens)
    if len(tokens) > room:
        raise ValueError(
            f"The prompt has {len(tokens)} tokens and the explorer takes {room}: shorten it, then press Decode."
        )
    return tuple(tokens)
