"""What an evaluation compares: methods, tree shapes and temperatures."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

from tfm_lab.distributions import SamplingConfig
from tfm_lab.drafting import TreeConfig
from tfm_lab.methods import AUTOREGRESSIVE

ALL_KNOBS = ("budget", "children", "width", "pool_size", "max_depth")
KNOBS: dict[str, tuple[str, ...]] = {
    AUTOREGRESSIVE: (),
    "chain": ("budget", "max_depth"),
    "ddtree": ("budget", "max_depth"),
    "tfm": ALL_KNOBS,
    "dyspec": ("budget", "pool_size", "max_depth"),
    "ranked": ("budget", "pool_size", "max_depth"),
    "ard-chain": ("budget", "max_depth"),
    "ard-tree": ALL_KNOBS,
    "ard-dyspec": ("budget", "pool_size", "max_depth"),
}
"""Which numbers of a tree's shape make a difference to a method."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One column of an evaluation; the numbers are those of :class:`tfm_lab.drafting.TreeConfig`.

    Attributes:
        shared_noise: whether drafters foresee the noise that the target samples with (temperature above 0 only).

    Raises:
        ValueError: if a number is out of range.
    """

    method: str
    budget: int
    temperature: float
    children: int = 32
    width: int | None = None
    pool_size: int = 512
    max_depth: int = 15
    shared_noise: bool = False

    def __post_init__(self) -> None:
        SamplingConfig(self.temperature, shared_noise=self.shared_noise)
        TreeConfig(self.budget, self.max_depth, self.children, self.width, self.pool_size)

    @property
    def sampling(self) -> SamplingConfig:
        """How the target samples."""
        return SamplingConfig(self.temperature, shared_noise=self.shared_noise)

    @property
    def tree(self) -> TreeConfig:
        """Size and shape of the trees."""
        return TreeConfig(self.budget, self.max_depth, self.children, self.width, self.pool_size)

    @property
    def essential(self) -> "Setting":
        """The same setting, with numbers that make no difference to its method at their defaults (no budget: 0)."""
        knobs = KNOBS.get(self.method, ALL_KNOBS)
        plain = {field.name: field.default for field in fields(Setting) if field.name in ALL_KNOBS} | {"budget": 0}
        return replace(self, **{name: value for name, value in plain.items() if name not in knobs})

    @property
    def trees(self) -> "Setting":
        """The same setting as far as its trees depend on it: a chain ends with its depth, whatever its budget."""
        if self.method in ("chain", "ard-chain"):
            return replace(self.essential, budget=min(self.budget, self.max_depth))
        return self.essential

    @property
    def label(self) -> str:
        """Method and what is unusual about its trees: C children, w width, K pool, D depth."""
        usual = Setting(self.method, self.budget, self.temperature)
        marks = (("C", "children"), ("w", "width"), ("K", "pool_size"), ("D", "max_depth"))
        unusual = [f"{mark}={getattr(self, n)}" for mark, n in marks if getattr(self, n) != getattr(usual, n)]
        return " ".join([self.method, *unusual, *(["shared noise"] if self.shared_noise else [])])


def cross_settings(
    methods: Sequence[str],
    budgets: Sequence[int],
    temperatures: Sequence[float],
    children: Sequence[int] = (32,),
    widths: Sequence[int | None] = (None,),
    pool_sizes: Sequence[int] = (512,),
    max_depths: Sequence[int] = (15,),
    shared_noise: Sequence[bool] = (False,),
) -> tuple[Setting, ...]:
    """Every combination, those that differ in nothing that matters to their method only once.

    At temperature 0 there is no noise to share.
    """
    every = [
        Setting(method, budget, temperature, most, width, pool_size, depth, is_shared and temperature > 0.0)
        for temperature, is_shared, method in product(temperatures, shared_noise, methods)
        for most, width, pool_size, depth, budget in product(children, widths, pool_sizes, max_depths, budgets)
    ]
    return tuple(dict.fromkeys(setting.essential for setting in every))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What to evaluate.

    Attributes:
        settings: what to compare; those with the same :attr:`Setting.essential` count once.
        max_new_tokens: per context.
        seed: of all draws.
        least_distinct: at temperature 0, contexts whose plain continuation has a smaller share of distinct tokens are
            left out for every method: a text that only repeats itself flatters every drafter.
    """

    settings: tuple[Setting, ...]
    max_new_tokens: int = 64
    seed: int = 0
    least_distinct: float = 0.3
